"""Live progress over WebSockets, with a real server and a real client."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import orjson
import pytest
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect as connect_sync

from fairlead.app import event_stream
from fairlead.app import jobs as app_jobs
from fairlead.domain import events
from fairlead.domain.events import Event
from fairlead.gateway import websocket_protocol, websockets
from tests.integration.cli_process import up
from tests.integration.gateway_site import Site, served
from tests.integration.websocket_client import (
    PATIENCE,
    UNKNOWN,
    MakeSite,
    next_event,
    next_of,
    refused,
    types,
    until_closed,
    watching,
    with_key,
)


@pytest.fixture
async def port(site: Site) -> AsyncIterator[int]:
    async with served(site.gateway) as port:
        yield port


# ---------------------------------------------------------------- one job


async def test_a_socket_has_a_snapshot_then_events_and_closes_at_the_end(site: Site, port: int) -> None:
    job_id = await site.submit(feature_name="gated_then_whisper")
    await site.gate.entered.wait()
    async with watching(port, f"/ws/{job_id}") as client:
        first = await next_event(client)
        assert (first["type"], first["job_id"], first["job"]["status"]) == ("SNAPSHOT", job_id, "RUNNING")
        site.gate.opened.set()
        seen, code = await until_closed(client)
    assert code == 1000
    kinds = ("STEP_COMPLETE", "STEP_START", "PROGRESS", "JOB_COMPLETE")
    assert [kind for kind in types(seen) if kind in kinds] == [kinds[0], kinds[1], kinds[2], kinds[0], kinds[3]]
    assert seen[-1]["type"] == "JOB_COMPLETE"
    for event in seen:
        assert event["job_id"] == job_id
        assert event["at"].endswith("Z")
        assert event["message"]


async def test_a_queued_job_gets_position_events(site: Site, port: int) -> None:
    await site.submit(feature_name="gated")
    await site.gate.entered.wait()
    ahead = await site.submit(feature_name="gated")
    job_id = await site.submit(feature_name="gated")
    async with watching(port, f"/ws/{job_id}") as client:
        assert (await next_event(client))["job"]["position"] == 2
        at_first = await next_of(client, "POSITION")
        assert at_first["position"] == 2
        assert 0 <= at_first["estimated_wait"]["low"] <= at_first["estimated_wait"]["high"]
        await site.app.cancel(ahead)
        while (await next_of(client, "POSITION"))["position"] != 1:
            pass


async def test_the_socket_of_an_ended_job_sends_the_end_and_closes(site: Site, port: int) -> None:
    job_id = await site.submit(feature_name="broken")
    await site.app.wait(job_id, PATIENCE)
    async with watching(port, f"/ws/{job_id}") as client:
        seen, code = await until_closed(client)
    assert (types(seen), code) == (["SNAPSHOT", "JOB_FAILED"], 1000)
    assert seen[1]["retryable"] is False
    assert seen[1]["error"]["message"] == "this input will never work"


async def test_a_reconnect_gets_the_current_state(site: Site, port: int) -> None:
    job_id = await site.submit(feature_name="gated")
    async with watching(port, f"/ws/{job_id}") as client:
        await next_event(client)
    site.gate.opened.set()
    await site.app.wait(job_id, PATIENCE)
    async with watching(port, f"/ws/{job_id}") as client:
        assert (await next_event(client))["job"]["result"] == {"through": True}
        assert (await next_event(client))["type"] == "JOB_COMPLETE"


async def test_an_unknown_job_is_refused_before_the_socket_opens(site: Site, port: int) -> None:
    assert await refused(port, f"/ws/{UNKNOWN}") == (404, "not_found")
    assert await refused(port, "/ws/not-a-job") == (422, "invalid_input")
    assert await refused(port, "/ws?user_id=") == (422, "invalid_input")
    assert await refused(port, f"/ws?user_id={'x' * 256}") == (422, "invalid_input")
    assert await refused(port, "/ws?user_id=a%0Ab") == (422, "invalid_input")


async def test_deleting_a_watched_job_closes_its_socket(site: Site, port: int) -> None:
    job_id = await site.submit(delay=3600)
    async with watching(port, f"/ws/{job_id}") as client:
        await next_event(client)
        # Drop its end event, as if another process had ended and deleted it.
        site.app.hub.tell_on = lambda topic, event: None  # type: ignore[method-assign]
        await site.app.cancel(job_id)
        await site.app.delete(job_id)
        del site.app.hub.tell_on
        site.app.hub.ended(job_id, 0.0)
        _, code = await until_closed(client)
    assert code == 4404


async def test_a_disconnected_client_is_unsubscribed(site: Site, port: int) -> None:
    job_id = await site.submit(delay=3600)
    async with watching(port, f"/ws/{job_id}") as client, watching(port, "/ws?user_id=ada") as other:
        await next_event(client)
        await next_event(other)
        assert site.app.hub.topics_here() == [job_id, "user:ada"]
    async with asyncio.timeout(PATIENCE):
        while site.app.hub.topics_here():
            await asyncio.sleep(0.01)
    assert site.app.hub.jobs_here() == []


async def test_an_idle_socket_gets_heartbeats(site: Site, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websockets, "HEARTBEAT_S", 0.05)
    job_id = await site.submit(delay=3600)
    async with watching(port, f"/ws/{job_id}") as client:
        assert types([await next_event(client), await next_event(client), await next_event(client)]) == [
            "SNAPSHOT",
            "HEARTBEAT",
            "HEARTBEAT",
        ]


# ---------------------------------------------------------------- all jobs of a user


async def test_a_user_s_socket_follows_new_jobs_too(site: Site, port: int) -> None:
    running = await site.submit(feature_name="gated")
    await site.gate.entered.wait()
    waiting = await site.submit(feature_name="gated")
    ended = await site.submit()
    await site.app.wait(ended, PATIENCE)
    await site.submit(user_id="grace", delay=3600)
    async with watching(port, "/ws?user_id=ada") as client:
        first = await next_event(client)
        assert (first["type"], first["user_id"], first["cut"]) == ("SNAPSHOT", "ada", False)
        assert [(job["job_id"], job["status"], job["position"]) for job in first["jobs"]] == [
            (waiting, "PENDING", 1),
            (running, "RUNNING", None),
        ]
        place = await next_of(client, "POSITION")
        assert (place["job_id"], place["position"]) == (waiting, 1)
        later = await site.submit(feature_name="echo_then_shout")
        await site.submit(user_id="grace")
        seen: list[dict[str, Any]] = []
        while not seen or seen[-1]["type"] != "JOB_COMPLETE":
            seen.append(await next_of(client, "WAITING", "STEP_START", "STEP_COMPLETE", "JOB_COMPLETE"))
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
        # The end of one job does not close the socket.
        site.gate.opened.set()
        assert {(await next_of(client, "JOB_COMPLETE"))["job_id"] for _ in range(2)} == {running, waiting}


async def test_a_scheduled_job_has_an_event_with_its_time(site: Site, port: int) -> None:
    async with watching(port, "/ws?user_id=ada") as client:
        assert (await next_event(client))["jobs"] == []
        job_id = await site.submit(delay=3600)
        event = await next_event(client)
        assert (event["type"], event["job_id"]) == ("WAITING", job_id)
        assert event["scheduled_at"].endswith("Z")


async def test_a_snapshot_of_a_user_is_bounded_and_newest_first(
    site: Site, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app_jobs, "MOST_IN_A_SNAPSHOT", 2)
    jobs = [await site.submit(delay=3600) for _ in range(3)]
    async with watching(port, "/ws?user_id=ada") as client:
        first = await next_event(client)
        assert ([job["job_id"] for job in first["jobs"]], first["cut"]) == ([jobs[2], jobs[1]], True)
        await site.app.cancel(jobs[0])
        cancelled = await next_event(client)
        assert (cancelled["type"], cancelled["job_id"]) == ("JOB_CANCELLED", jobs[0])


async def test_a_missed_end_is_read_from_the_database_and_sent_once(site: Site, port: int) -> None:
    job_id = await site.submit(delay=3600)
    last = await site.submit(delay=3600)
    async with watching(port, "/ws?user_id=ada") as client, watching(port, f"/ws/{job_id}") as single:
        await next_event(client)
        await next_event(single)
        site.app.hub.tell_on = lambda topic, event: None  # type: ignore[method-assign]
        await site.app.cancel(job_id)
        del site.app.hub.tell_on
        site.app.hub.ended(job_id, 0.0)
        site.app.hub.ended(job_id, 0.0)
        site.app.hub.tell(Event(events.JOB_CANCELLED, job_id, 0.0, "late"), "ada")
        await site.app.cancel(last)
        seen = [await next_event(client), await next_event(client)]
        assert [(event["type"], event["job_id"]) for event in seen] == [
            ("JOB_CANCELLED", job_id),
            ("JOB_CANCELLED", last),
        ]
        assert types((await until_closed(single))[0]) == ["JOB_CANCELLED"]


# ---------------------------------------------------------------- jobs by name


async def send_json(client: ClientConnection, **message: Any) -> None:
    await client.send(orjson.dumps(message).decode())


async def test_a_socket_watches_and_unwatches_jobs(site: Site, port: int) -> None:
    mine, other = await site.submit(delay=3600), await site.submit(user_id="grace", delay=3600)
    async with watching(port, "/ws") as client:
        assert (await next_event(client))["jobs"] == []
        for job_id in (mine, other):
            await send_json(client, watch=job_id)
            snapshot = await next_event(client)
            assert (snapshot["type"], snapshot["job"]["job_id"]) == ("SNAPSHOT", job_id)
        await send_json(client, unwatch=mine)
        await send_json(client, watch=UNKNOWN)
        missing = await next_event(client)
        assert (missing["type"], missing["code"], missing["job_id"]) == ("ERROR", "not_found", UNKNOWN)
        await site.app.cancel(mine)
        await site.app.cancel(other)
        assert (await next_event(client))["job_id"] == other
        await send_json(client, watch=mine)
        assert types([await next_event(client), await next_event(client)]) == ["SNAPSHOT", "JOB_CANCELLED"]
        assert site.app.hub.topics_here() == []


async def test_watching_a_job_of_a_followed_user_sends_no_duplicates(site: Site, port: int) -> None:
    job_id = await site.submit(delay=3600)
    async with watching(port, "/ws?user_id=ada") as client:
        await next_event(client)
        await send_json(client, watch=job_id)
        assert (await next_event(client))["job"]["job_id"] == job_id
        await site.app.cancel(job_id)
        last = await site.submit(delay=3600)
        seen = [await next_event(client), await next_event(client)]
        assert [(event["type"], event["job_id"]) for event in seen] == [("JOB_CANCELLED", job_id), ("WAITING", last)]


async def test_the_number_of_watched_jobs_is_limited(site: Site, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "MOST_WATCHED", 1)
    jobs = [await site.submit(delay=3600) for _ in range(2)]
    async with watching(port, "/ws") as client:
        await next_event(client)
        for job_id in jobs:
            await send_json(client, watch=job_id)
        assert types([await next_event(client), refusal := await next_event(client)]) == ["SNAPSHOT", "ERROR"]
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
        f'{{"watch": "{UNKNOWN}", "unwatch": "{UNKNOWN}"}}',
    ],
)
async def test_invalid_frames_get_errors_and_then_close_the_socket(frame: str | bytes, site: Site, port: int) -> None:
    async with watching(port, "/ws") as client:
        await next_event(client)
        for _ in range(websockets.MAX_BAD_FRAMES):
            await client.send(frame)
        seen, code = await until_closed(client)
    assert [event["code"] for event in seen] == ["bad_frame"] * websockets.MAX_BAD_FRAMES
    assert code == 1008


async def test_a_socket_of_one_job_accepts_no_messages(site: Site, port: int) -> None:
    job_id = await site.submit(delay=3600)
    async with watching(port, f"/ws/{job_id}") as client:
        await next_event(client)
        await send_json(client, watch=job_id)
        assert (await next_event(client))["code"] == "bad_frame"


async def test_a_frame_that_is_too_large_closes_the_socket(site: Site, port: int) -> None:
    async with watching(port, "/ws") as client:
        await next_event(client)
        await client.send("x" * (websocket_protocol.MAX_FRAME + 1))
        _, code = await until_closed(client)
    assert code == 1009


# ---------------------------------------------------------------- permissions


async def test_a_user_s_key_sees_its_own_jobs_only(still_site: Site) -> None:
    site = still_site
    own, foreign = await site.submit(delay=3600), await site.submit(user_id="grace", delay=3600)
    await site.app.create_key("admin")
    ada = with_key((await site.app.create_key("user", user_id="ada")).text)
    async with served(site.gateway) as port:
        assert await refused(port, f"/ws/{foreign}", **ada) == (404, "not_found")
        assert await refused(port, f"/ws/{UNKNOWN}", **ada) == (404, "not_found")
        assert await refused(port, "/ws?user_id=grace", **ada) == (403, "forbidden")
        async with watching(port, f"/ws/{own}", **ada) as one, watching(port, "/ws", **ada) as client:
            assert (await next_event(one))["job"]["job_id"] == own
            first = await next_event(client)
            assert (first["user_id"], [job["job_id"] for job in first["jobs"]]) == ("ada", [own])
            await send_json(client, watch=foreign)
            assert (await next_event(client))["code"] == "not_found"
            await site.app.cancel(foreign)
            await site.app.cancel(own)
            assert (await next_event(client))["job_id"] == own


async def test_a_service_s_key_follows_any_user(still_site: Site) -> None:
    site = still_site
    job_id = await site.submit(delay=3600)
    await site.app.create_key("admin")
    service = with_key((await site.app.create_key("service")).text)
    async with served(site.gateway) as port:
        async with watching(port, "/ws?user_id=ada", **service) as client:
            assert [job["job_id"] for job in (await next_event(client))["jobs"]] == [job_id]
        async with watching(port, "/ws", **service) as client:
            assert (await next_event(client))["user_id"] is None
            await send_json(client, watch=job_id)
            assert (await next_event(client))["job"]["user_id"] == "ada"


async def test_a_ticket_opens_one_socket_and_a_revoked_key_closes_it(still_site: Site) -> None:
    site = still_site
    await site.app.create_key("admin")
    ada = await site.app.create_key("user", user_id="ada")
    async with served(site.gateway) as port, httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:
        answer = await http.post("/api/v1/tickets", headers={"Authorization": f"Bearer {ada.text}"}, json={})
        path = f"/ws?ticket={answer.json()['ticket']}"
        async with watching(port, path) as client:
            assert (await next_event(client))["user_id"] == "ada"
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
            assert (await next_event(client))["type"] == "SNAPSHOT"


async def test_a_page_of_another_site_cannot_open_a_socket(still_site: Site) -> None:
    async with served(still_site.gateway) as port:
        with pytest.raises(InvalidStatus) as error:
            async with watching(port, "/ws", origin="https://evil.example"):
                pass
    assert error.value.response.status_code == 403


@pytest.mark.parametrize("path", ["/ws?user_id=ada", f"/ws/{UNKNOWN}"])
async def test_a_disconnect_during_the_handshake_is_not_an_error(
    path: str, still_site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "fairlead.gateway")
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
        raise OSError  # as uvicorn does after a disconnect

    await still_site.gateway(scope, receive, send)
    lines = [record for record in caplog.records if record.name == "fairlead.gateway"]
    assert [record.levelname for record in lines] == ["DEBUG"]
    assert lines[0].getMessage().startswith(f"WS {path} {404 if UNKNOWN in path else 1006} ")


def test_invalid_utf_8_closes_the_socket_and_logs_no_error(tmp_path: Path) -> None:
    with up(tmp_path, "project:app", "--log-level", "debug") as server:
        with connect_sync(server.url.replace("http", "ws") + "/ws") as client:
            client.recv()
            client.send(b"\xff\xfe", text=True)
            with pytest.raises(ConnectionClosed):
                client.recv(timeout=PATIENCE)
            assert client.close_code == 1007
        server.wait_for("WS /ws 1007")
        assert "ERROR" not in "".join(server.output)
        assert "Traceback" not in "".join(server.output)
