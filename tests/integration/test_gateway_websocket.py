"""Live progress over WebSockets, with a real server and a real client."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import orjson
import pytest
import uvicorn
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect as connect_sync

from fairlead import app as app_module
from fairlead.gateway import sockets, stream, transport
from fairlead.runtime import events, feed
from fairlead.runtime.events import Event
from tests.integration.cli_process import up
from tests.integration.gateway_site import Site, served, serving

MakeSite = Callable[..., Awaitable[Site]]
NOBODY = "0190d0c5-7b5a-7cc0-b1f0-3f8f4c9d2a10"
PATIENCE = 20


@pytest.fixture
async def port(site: Site) -> AsyncIterator[int]:
    async with served(site.gateway) as port:
        yield port


@asynccontextmanager
async def watching(port: int, path: str, **options: Any) -> AsyncIterator[ClientConnection]:
    async with asyncio.timeout(PATIENCE), connect(f"ws://127.0.0.1:{port}{path}", **options) as client:
        yield client


async def heard(client: ClientConnection) -> dict[str, Any]:
    return dict(orjson.loads(await client.recv()))


async def hears(client: ClientConnection, *kinds: str) -> dict[str, Any]:
    """The next event of these types; others may come before it."""
    while (event := await heard(client))["type"] not in kinds:
        pass
    return event


async def until_closed(client: ClientConnection) -> tuple[list[dict[str, Any]], int]:
    seen: list[dict[str, Any]] = []
    with contextlib.suppress(ConnectionClosed):
        while True:
            seen.append(await heard(client))
    assert client.close_code is not None
    return seen, client.close_code


async def refused(port: int, path: str, **options: Any) -> tuple[int, str]:
    with pytest.raises(InvalidStatus) as error:
        async with watching(port, path, **options):
            pass
    response = error.value.response
    assert response.headers["content-type"] == "application/problem+json"
    assert response.headers["cache-control"] == "no-store"
    return response.status_code, orjson.loads(bytes(response.body or b""))["code"]


def with_key(text: str) -> dict[str, Any]:
    return {"additional_headers": {"Authorization": f"Bearer {text}"}}


def types(seen: list[dict[str, Any]]) -> list[str]:
    return [event["type"] for event in seen]


# ---------------------------------------------------------------- one job


async def test_a_watcher_gets_a_snapshot_then_what_happens_and_is_closed_after_the_end(site: Site, port: int) -> None:
    job_id = await site.submit(feature_name="gated_then_whisper")
    await site.gate.entered.wait()
    async with watching(port, f"/ws/{job_id}") as client:
        first = await heard(client)
        assert (first["type"], first["job_id"], first["job"]["status"]) == ("SNAPSHOT", job_id, "RUNNING")
        site.gate.opened.set()
        seen, code = await until_closed(client)
    assert code == 1000
    told = ("STEP_COMPLETE", "STEP_START", "PROGRESS", "JOB_COMPLETE")
    assert [kind for kind in types(seen) if kind in told] == [told[0], told[1], told[2], told[0], told[3]]
    assert seen[-1]["type"] == "JOB_COMPLETE"
    for event in seen:
        assert event["job_id"] == job_id
        assert event["at"].endswith("Z")
        assert event["message"]


async def test_a_job_in_line_is_told_its_place_and_wait_as_they_change(site: Site, port: int) -> None:
    await site.submit(feature_name="gated")
    await site.gate.entered.wait()
    ahead = await site.submit(feature_name="gated")
    job_id = await site.submit(feature_name="gated")
    async with watching(port, f"/ws/{job_id}") as client:
        assert (await heard(client))["job"]["position"] == 2
        at_first = await hears(client, "POSITION")
        assert at_first["position"] == 2
        assert 0 <= at_first["estimated_wait"]["low"] <= at_first["estimated_wait"]["high"]
        await site.app.cancel(ahead)
        while (await hears(client, "POSITION"))["position"] != 1:
            pass


async def test_a_job_that_has_ended_is_shown_its_end_is_told_and_the_socket_closed(site: Site, port: int) -> None:
    job_id = await site.submit(feature_name="broken")
    await site.app.wait(job_id, PATIENCE)
    async with watching(port, f"/ws/{job_id}") as client:
        seen, code = await until_closed(client)
    assert (types(seen), code) == (["SNAPSHOT", "JOB_FAILED"], 1000)
    assert seen[1]["retryable"] is False
    assert seen[1]["error"]["message"] == "this input will never work"


async def test_a_reader_that_comes_back_gets_the_state(site: Site, port: int) -> None:
    job_id = await site.submit(feature_name="gated")
    async with watching(port, f"/ws/{job_id}") as client:
        await heard(client)
    site.gate.opened.set()
    await site.app.wait(job_id, PATIENCE)
    async with watching(port, f"/ws/{job_id}") as client:
        assert (await heard(client))["job"]["result"] == {"through": True}
        assert (await heard(client))["type"] == "JOB_COMPLETE"


async def test_what_is_not_there_is_refused_before_the_socket_opens(site: Site, port: int) -> None:
    assert await refused(port, f"/ws/{NOBODY}") == (404, "not_found")
    assert await refused(port, "/ws/not-a-job") == (422, "invalid_input")
    assert await refused(port, "/ws?user_id=") == (422, "invalid_input")
    assert await refused(port, f"/ws?user_id={'x' * 256}") == (422, "invalid_input")
    assert await refused(port, "/ws?user_id=a%0Ab") == (422, "invalid_input")


async def test_a_job_that_is_deleted_while_watched_closes_its_socket(site: Site, port: int) -> None:
    job_id = await site.submit(delay=3600)
    async with watching(port, f"/ws/{job_id}") as client:
        await heard(client)
        # Its end is not told here, as if another process had ended and deleted it.
        site.app.hub.tell_on = lambda topic, event: None  # type: ignore[method-assign]
        await site.app.cancel(job_id)
        await site.app.delete(job_id)
        del site.app.hub.tell_on
        site.app.hub.ended(job_id, 0.0)
        _, code = await until_closed(client)
    assert code == 4404


async def test_a_client_that_leaves_is_forgotten(site: Site, port: int) -> None:
    job_id = await site.submit(delay=3600)
    async with watching(port, f"/ws/{job_id}") as client, watching(port, "/ws?user_id=ada") as other:
        await heard(client)
        await heard(other)
        assert site.app.hub.topics_here() == [job_id, "user:ada"]
    async with asyncio.timeout(PATIENCE):
        while site.app.hub.topics_here():
            await asyncio.sleep(0.01)
    assert site.app.hub.jobs_here() == []


async def test_a_quiet_socket_is_told_now_and_then_that_it_lives(
    site: Site, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sockets, "HEARTBEAT_S", 0.05)
    job_id = await site.submit(delay=3600)
    async with watching(port, f"/ws/{job_id}") as client:
        assert types([await heard(client), await heard(client), await heard(client)]) == [
            "SNAPSHOT",
            "HEARTBEAT",
            "HEARTBEAT",
        ]


# ---------------------------------------------------------------- all jobs of a user


async def test_a_user_s_jobs_are_followed_also_those_that_come_later(site: Site, port: int) -> None:
    running = await site.submit(feature_name="gated")
    await site.gate.entered.wait()
    waiting = await site.submit(feature_name="gated")
    ended = await site.submit()
    await site.app.wait(ended, PATIENCE)
    await site.submit(user_id="grace", delay=3600)
    async with watching(port, "/ws?user_id=ada") as client:
        first = await heard(client)
        assert (first["type"], first["user_id"], first["cut"]) == ("SNAPSHOT", "ada", False)
        assert [(job["job_id"], job["status"], job["position"]) for job in first["jobs"]] == [
            (waiting, "PENDING", 1),
            (running, "RUNNING", None),
        ]
        place = await hears(client, "POSITION")
        assert (place["job_id"], place["position"]) == (waiting, 1)
        later = await site.submit(feature_name="echo_then_shout")
        await site.submit(user_id="grace")
        seen: list[dict[str, Any]] = []
        while not seen or seen[-1]["type"] != "JOB_COMPLETE":
            seen.append(await hears(client, "WAITING", "STEP_START", "STEP_COMPLETE", "JOB_COMPLETE"))
        assert types(seen) == [
            "WAITING",
            "STEP_START",
            "STEP_COMPLETE",
            "WAITING",
            "STEP_START",
            "STEP_COMPLETE",
            "JOB_COMPLETE",
        ]
        assert {event["job_id"] for event in seen} == {later}
        assert seen[0]["feature_name"] == "echo_then_shout"
        # One job's end is not the end of the socket.
        site.gate.opened.set()
        assert {(await hears(client, "JOB_COMPLETE"))["job_id"] for _ in range(2)} == {running, waiting}


async def test_a_scheduled_job_is_told_with_its_time(site: Site, port: int) -> None:
    async with watching(port, "/ws?user_id=ada") as client:
        assert (await heard(client))["jobs"] == []
        job_id = await site.submit(delay=3600)
        event = await heard(client)
        assert (event["type"], event["job_id"]) == ("WAITING", job_id)
        assert event["scheduled_at"].endswith("Z")


async def test_a_snapshot_of_a_user_is_bounded_newest_first_and_says_so(
    site: Site, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app_module, "MOST_IN_A_SNAPSHOT", 2)
    jobs = [await site.submit(delay=3600) for _ in range(3)]
    async with watching(port, "/ws?user_id=ada") as client:
        first = await heard(client)
        assert ([job["job_id"] for job in first["jobs"]], first["cut"]) == ([jobs[2], jobs[1]], True)
        await site.app.cancel(jobs[0])
        cancelled = await heard(client)
        assert (cancelled["type"], cancelled["job_id"]) == ("JOB_CANCELLED", jobs[0])


async def test_an_end_that_was_not_told_is_found_in_the_truth_and_told_once(site: Site, port: int) -> None:
    job_id = await site.submit(delay=3600)
    last = await site.submit(delay=3600)
    async with watching(port, "/ws?user_id=ada") as client, watching(port, f"/ws/{job_id}") as single:
        await heard(client)
        await heard(single)
        site.app.hub.tell_on = lambda topic, event: None  # type: ignore[method-assign]
        await site.app.cancel(job_id)
        del site.app.hub.tell_on
        site.app.hub.ended(job_id, 0.0)
        site.app.hub.ended(job_id, 0.0)
        site.app.hub.tell(Event(events.JOB_CANCELLED, job_id, 0.0, "late"), "ada")
        await site.app.cancel(last)
        seen = [await heard(client), await heard(client)]
        assert [(event["type"], event["job_id"]) for event in seen] == [
            ("JOB_CANCELLED", job_id),
            ("JOB_CANCELLED", last),
        ]
        assert types((await until_closed(single))[0]) == ["JOB_CANCELLED"]


# ---------------------------------------------------------------- jobs by name


async def say(client: ClientConnection, **said: Any) -> None:
    await client.send(orjson.dumps(said).decode())


async def test_a_socket_watches_several_jobs_as_it_is_told(site: Site, port: int) -> None:
    mine, other = await site.submit(delay=3600), await site.submit(user_id="grace", delay=3600)
    async with watching(port, "/ws") as client:
        assert (await heard(client))["jobs"] == []
        for job_id in (mine, other):
            await say(client, watch=job_id)
            snapshot = await heard(client)
            assert (snapshot["type"], snapshot["job"]["job_id"]) == ("SNAPSHOT", job_id)
        await say(client, unwatch=mine)
        await say(client, watch=NOBODY)
        missing = await heard(client)
        assert (missing["type"], missing["code"], missing["job_id"]) == ("ERROR", "not_found", NOBODY)
        await site.app.cancel(mine)
        await site.app.cancel(other)
        assert (await heard(client))["job_id"] == other
        await say(client, watch=mine)
        assert types([await heard(client), await heard(client)]) == ["SNAPSHOT", "JOB_CANCELLED"]
        assert site.app.hub.topics_here() == []


async def test_a_job_of_the_user_who_is_followed_anyway_is_not_told_twice(site: Site, port: int) -> None:
    job_id = await site.submit(delay=3600)
    async with watching(port, "/ws?user_id=ada") as client:
        await heard(client)
        await say(client, watch=job_id)
        assert (await heard(client))["job"]["job_id"] == job_id
        await site.app.cancel(job_id)
        last = await site.submit(delay=3600)
        seen = [await heard(client), await heard(client)]
        assert [(event["type"], event["job_id"]) for event in seen] == [("JOB_CANCELLED", job_id), ("WAITING", last)]


async def test_one_socket_watches_no_more_than_so_many(site: Site, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "MOST_WATCHED", 1)
    jobs = [await site.submit(delay=3600) for _ in range(2)]
    async with watching(port, "/ws") as client:
        await heard(client)
        for job_id in jobs:
            await say(client, watch=job_id)
        assert types([await heard(client), refusal := await heard(client)]) == ["SNAPSHOT", "ERROR"]
        assert (refusal["code"], refusal["job_id"]) == ("too_many_watched", jobs[1])


@pytest.mark.parametrize(
    "frame",
    [
        "not json",
        b"\xff\x00",
        "[]",
        "{}",
        '{"watch": 7}',
        '{"watch": "nonsense"}',
        '{"watch": null}',
        '{"look": "x"}',
        f'{{"watch": "{NOBODY}", "unwatch": "{NOBODY}"}}',
    ],
)
async def test_frames_that_are_not_understood_are_answered_and_then_refused(
    frame: str | bytes, site: Site, port: int
) -> None:
    async with watching(port, "/ws") as client:
        await heard(client)
        for _ in range(sockets.MOST_BAD_FRAMES):
            await client.send(frame)
        seen, code = await until_closed(client)
    assert [event["code"] for event in seen] == ["bad_frame"] * sockets.MOST_BAD_FRAMES
    assert code == 1008


async def test_a_socket_of_one_job_takes_no_requests(site: Site, port: int) -> None:
    job_id = await site.submit(delay=3600)
    async with watching(port, f"/ws/{job_id}") as client:
        await heard(client)
        await say(client, watch=job_id)
        assert (await heard(client))["code"] == "bad_frame"


async def test_a_frame_that_is_too_large_closes_the_socket(site: Site, port: int) -> None:
    async with watching(port, "/ws") as client:
        await heard(client)
        await client.send("x" * (transport.MAX_FRAME + 1))
        _, code = await until_closed(client)
    assert code == 1009


# ---------------------------------------------------------------- readers that do not read, servers that stop


SOCKET = (
    "GET /ws/{job_id} HTTP/1.1",
    "Host: 127.0.0.1",
    "Upgrade: websocket",
    "Connection: Upgrade",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
    "Sec-WebSocket-Version: 13",
)
STREAM = ("GET /api/v1/jobs/{job_id}/events HTTP/1.1", "Host: 127.0.0.1")


@pytest.mark.parametrize("request_", [SOCKET, STREAM], ids=["WebSocket", "SSE"])
async def test_a_client_that_reads_nothing_is_dropped_and_others_are_not(
    request_: tuple[str, ...], site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(site.gateway) as (port, server):
        await _is_dropped(request_, site, port, server, monkeypatch)


async def _is_dropped(
    request_: tuple[str, ...], site: Site, port: int, server: uvicorn.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sockets, "SEND_WITHIN_S", 0.2)
    monkeypatch.setattr(sockets, "CLOSE_WITHIN_S", 0.1)
    monkeypatch.setattr(transport, "FLUSH_WITHIN_S", 0.1)
    monkeypatch.setattr(stream, "SEND_WITHIN_S", 0.2)
    slow, quick = await site.submit(delay=3600), await site.submit(delay=3600)
    small = socket.socket()
    small.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    small.setblocking(False)
    await asyncio.get_running_loop().sock_connect(small, ("127.0.0.1", port))
    lines = [line.format(job_id=slow) for line in request_]
    await asyncio.get_running_loop().sock_sendall(small, "\r\n".join([*lines, "", ""]).encode())
    hub = site.app.hub
    async with watching(port, f"/ws/{quick}") as client:
        await heard(client)
        async with asyncio.timeout(PATIENCE):
            while not hub.is_watched_here(slow):
                await asyncio.sleep(0.01)
            # More than all buffers on the way together: it is dropped, whatever they hold.
            while hub.is_watched_here(slow):
                hub.tell(Event(events.STEP_START, slow, 0.0, "x" * 50_000), "ada")
                await asyncio.sleep(0)
        hub.tell(Event(events.STEP_START, quick, 0.0, "still here"), "ada")
        assert (await heard(client))["message"] == "still here"
    if request_ is SOCKET:
        # The connection itself is cut, with all that was to be sent, though nobody reads it.
        async with asyncio.timeout(PATIENCE):
            while server.server_state.connections:
                await asyncio.sleep(0.01)
    small.close()


async def test_watchers_are_told_to_go_elsewhere_when_the_gateway_stops(site: Site, port: int) -> None:
    jobs = [await site.submit(delay=3600) for _ in range(3)]
    async with watching(port, f"/ws/{jobs[0]}") as one, watching(port, "/ws?user_id=ada") as many:
        await heard(one)
        await heard(many)
        site.app.hub.dismiss()
        assert [(await until_closed(client))[1] for client in (one, many)] == [1012, 1012]
        assert (await site.app.wait(jobs[1], 0.01)).status == "SCHEDULED"
    async with watching(port, f"/ws/{jobs[0]}") as again:
        assert (await heard(again))["type"] == "SNAPSHOT"


async def test_a_server_that_stops_closes_its_sockets(site: Site) -> None:
    job_id = await site.submit(delay=3600)
    async with asyncio.timeout(PATIENCE):
        async with served(site.gateway) as port:
            client = await connect(f"ws://127.0.0.1:{port}/ws/{job_id}")
            await heard(client)
        assert (await until_closed(client))[1] == 1012
    assert site.app.hub.topics_here() == []


def test_fairlead_up_stops_soon_whoever_watches(tmp_path: Path) -> None:
    with up(tmp_path) as server, contextlib.ExitStack() as open_:
        for _ in range(3):
            body = {"user_id": "ada", "feature_name": "echo", "delay": 3600}
            job_id = httpx2.post(f"{server.url}/api/v1/jobs", json=body, timeout=PATIENCE).json()["job_id"]
            client = open_.enter_context(connect_sync(f"{server.url.replace('http', 'ws')}/ws/{job_id}"))
            client.recv()
        stream_ = open_.enter_context(
            httpx2.stream("GET", f"{server.url}/api/v1/jobs/{job_id}/events", timeout=PATIENCE)
        )
        assert stream_.status_code == 200
        server.signal(signal.SIGTERM)
        assert server.ended() == 0
        with pytest.raises(ConnectionClosed) as closed:
            client.recv()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1012
        assert ": closing" in stream_.read().decode()
        assert not any("Traceback" in line or "ERROR" in line for line in server.heard)


# ---------------------------------------------------------------- whose jobs


async def test_a_user_s_key_sees_its_own_jobs_only(still_site: Site) -> None:
    site = still_site
    own, foreign = await site.submit(delay=3600), await site.submit(user_id="grace", delay=3600)
    await site.app.create_key("admin")
    ada = with_key((await site.app.create_key("user", user_id="ada")).text)
    async with served(site.gateway) as port:
        assert await refused(port, f"/ws/{foreign}", **ada) == (404, "not_found")
        assert await refused(port, f"/ws/{NOBODY}", **ada) == (404, "not_found")
        assert await refused(port, "/ws?user_id=grace", **ada) == (403, "forbidden")
        async with watching(port, f"/ws/{own}", **ada) as one, watching(port, "/ws", **ada) as client:
            assert (await heard(one))["job"]["job_id"] == own
            first = await heard(client)
            assert (first["user_id"], [job["job_id"] for job in first["jobs"]]) == ("ada", [own])
            await say(client, watch=foreign)
            assert (await heard(client))["code"] == "not_found"
            await site.app.cancel(foreign)
            await site.app.cancel(own)
            assert (await heard(client))["job_id"] == own


async def test_a_service_s_key_follows_anybody(still_site: Site) -> None:
    site = still_site
    job_id = await site.submit(delay=3600)
    await site.app.create_key("admin")
    service = with_key((await site.app.create_key("service")).text)
    async with served(site.gateway) as port:
        async with watching(port, "/ws?user_id=ada", **service) as client:
            assert [job["job_id"] for job in (await heard(client))["jobs"]] == [job_id]
        async with watching(port, "/ws", **service) as client:
            assert (await heard(client))["user_id"] is None
            await say(client, watch=job_id)
            assert (await heard(client))["job"]["user_id"] == "ada"


async def test_a_ticket_opens_one_socket_and_a_revoked_key_closes_it(still_site: Site) -> None:
    site = still_site
    await site.app.create_key("admin")
    ada = await site.app.create_key("user", user_id="ada")
    async with served(site.gateway) as port, httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:
        answer = await http.post("/api/v1/tickets", headers={"Authorization": f"Bearer {ada.text}"}, json={})
        path = f"/ws?ticket={answer.json()['ticket']}"
        async with watching(port, path) as client:
            assert (await heard(client))["user_id"] == "ada"
            assert await refused(port, path) == (401, "unauthorized")
            await site.app.revoke_key(ada.key.id)
            _, code = await until_closed(client)
        assert code == 4401
    async with asyncio.timeout(PATIENCE):
        while site.app.hub.topics_here():
            await asyncio.sleep(0.01)


async def test_with_a_key_a_socket_needs_it_too(make_site: MakeSite) -> None:
    site = await make_site(running=False, admin_key="s3cret")
    async with served(site.gateway) as port:
        assert await refused(port, "/ws") == (401, "unauthorized")
        async with watching(port, "/ws", **with_key("s3cret")) as client:
            assert (await heard(client))["type"] == "SNAPSHOT"


async def test_a_page_of_another_site_opens_no_socket(still_site: Site) -> None:
    async with served(still_site.gateway) as port:
        with pytest.raises(InvalidStatus) as error:
            async with watching(port, "/ws", origin="https://evil.example"):
                pass
    assert error.value.response.status_code == 403


@pytest.mark.parametrize("path", ["/ws?user_id=ada", f"/ws/{NOBODY}"])
async def test_a_client_that_leaves_during_the_handshake_is_no_error(
    path: str, still_site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "fairlead.gateway")
    path, _, query = path.partition("?")
    scope = {
        "type": "websocket",
        "path": path,
        "query_string": query.encode(),
        "headers": [(b"host", b"localhost")],
        "server": ("127.0.0.1", 80),
        "extensions": {"websocket.http.response": {}},
    }

    async def receive() -> dict[str, Any]:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        raise OSError  # as uvicorn says that nobody is there

    await still_site.gateway(scope, receive, send)
    lines = [record for record in caplog.records if record.name == "fairlead.gateway"]
    assert [record.levelname for record in lines] == ["INFO"]
    assert lines[0].getMessage().startswith(f"WS {path} {404 if NOBODY in path else 1006} ")


def test_a_frame_that_is_not_text_ends_its_socket_and_is_no_error_of_ours(tmp_path: Path) -> None:
    with up(tmp_path) as server:
        with connect_sync(server.url.replace("http", "ws") + "/ws") as client:
            client.recv()
            client.send(b"\xff\xfe", text=True)
            with pytest.raises(ConnectionClosed):
                client.recv(timeout=PATIENCE)
            assert client.close_code == 1007
        server.wait_for("WS /ws 1007")
        assert "ERROR" not in "".join(server.heard)
        assert "Traceback" not in "".join(server.heard)
