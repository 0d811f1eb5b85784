"""Server-Sent Events and large bodies, over real connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any

import httpx2
import orjson
import pytest

from fairlead.engine.events import SlowConsumer
from fairlead.errors import NotFound
from fairlead.gateway import jobs
from fairlead.gateway.responses import frames
from tests.integration.gateway_site import Site, served

MakeSite = Callable[..., Awaitable[Site]]
Event = dict[str, str]


@asynccontextmanager
async def watching(
    port: int, job_id: str, **headers: str
) -> AsyncIterator[tuple[httpx2.Response, AsyncIterator[Event]]]:
    url = f"http://127.0.0.1:{port}/api/v1/jobs/{job_id}/events"
    async with httpx2.AsyncClient(timeout=10) as client, client.stream("GET", url, headers=headers) as response:
        yield response, parsed(response)


async def parsed(response: httpx2.Response) -> AsyncIterator[Event]:
    """Events as a browser sees them; a comment is an event with the only field `""`."""
    event: Event = {}
    async for line in response.aiter_lines():
        if not line:
            yield event
            event = {}
            continue
        name, _, value = line.partition(":")
        event[name] = value.removeprefix(" ")


def data(event: Event) -> dict[str, Any]:
    return dict(orjson.loads(event["data"]))


async def test_a_stream_has_a_snapshot_then_events_then_the_end(site: Site) -> None:
    job_id = await site.submit(feature_name="gated")
    await site.gate.entered.wait()
    async with served(site.gateway) as port, watching(port, job_id) as (response, events):
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.headers["cache-control"] == "no-store"
        assert response.headers["x-accel-buffering"] == "no"
        snapshot = await anext(events)
        assert (snapshot["event"], snapshot["id"]) == ("SNAPSHOT", "1")
        assert int(snapshot["retry"]) > 0
        assert data(snapshot)["job"]["status"] == "RUNNING"
        site.gate.opened.set()
        rest = [event async for event in events]
    assert rest[-1]["event"] == "JOB_COMPLETE"
    assert rest[-1]["id"] == f"{len(rest) + 1}-end"
    for event in rest:
        assert data(event)["type"] == event["event"]
        assert data(event)["job_id"] == job_id
        assert data(event)["at"].endswith("Z")
        assert data(event)["message"]


async def test_a_stream_has_the_steps_and_the_progress_of_a_job(site: Site) -> None:
    job_id = await site.submit(feature_name="gated_then_whisper")
    await site.gate.entered.wait()
    async with served(site.gateway) as port, watching(port, job_id) as (_, events):
        await anext(events)
        site.gate.opened.set()
        seen = [data(event) async for event in events]
    steps = [
        (event["type"], event["service"], event["step"], event["step_index"], event["total"])
        for event in seen
        if event["type"] in ("STEP_START", "STEP_COMPLETE", "PROGRESS")
    ]
    assert steps == [
        ("STEP_COMPLETE", "gated", 1, 0, 2),
        ("STEP_START", "whisper", 2, 1, 2),
        ("PROGRESS", "whisper", 2, 1, 2),
        ("STEP_COMPLETE", "whisper", 2, 1, 2),
    ]
    assert seen[-1]["type"] == "JOB_COMPLETE"


async def test_a_cancelled_job_ends_its_stream(site: Site) -> None:
    job_id = await site.submit(feature_name="gated")
    await site.gate.entered.wait()
    async with served(site.gateway) as port, watching(port, job_id) as (_, events):
        await anext(events)
        await site.client.post(f"/api/v1/jobs/{job_id}/cancel")
        rest = [event["event"] async for event in events]
    assert rest[-1] == "JOB_CANCELLED"


async def test_the_stream_of_a_finished_job_ends_and_a_reconnect_is_204(site: Site) -> None:
    job_id = await site.submit()
    await site.app.wait(job_id, 10)
    async with served(site.gateway) as port:
        async with watching(port, job_id) as (_, events):
            seen = [event async for event in events]
        assert data(seen[0])["job"]["status"] == "COMPLETED"
        assert seen[-1]["id"].endswith("-end")
        async with watching(port, job_id, **{"Last-Event-ID": seen[-1]["id"]}) as (response, _):
            assert response.status_code == 204


async def test_an_idle_stream_is_kept_open_by_comments(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "HEARTBEAT_S", 0.05)
    job_id = await site.submit(delay=3600)
    async with served(site.gateway) as port, watching(port, job_id) as (_, events):
        assert (await anext(events))["event"] == "SNAPSHOT"
        comment = await anext(events)
        assert comment.keys() == {""}


async def test_a_disconnected_watcher_is_unsubscribed(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    left = asyncio.Event()
    watch = site.app.watch

    async def watch_and_disconnect(job_id: str, *, heartbeat: float) -> AsyncIterator[dict[str, Any] | None]:
        async with aclosing(watch(job_id, heartbeat=heartbeat)) as events:  # type: ignore[type-var]
            try:
                async for event in events:
                    yield event
            finally:
                left.set()

    monkeypatch.setattr(site.app, "watch", watch_and_disconnect)
    job_id = await site.submit(delay=3600)
    async with served(site.gateway) as port:
        async with watching(port, job_id) as (_, events):
            await anext(events)
            assert site.app.hub.watched(job_id, "ada")
        async with asyncio.timeout(5):
            await left.wait()
    assert not site.app.hub.watched(job_id, "ada")


async def test_an_unknown_job_is_404_not_a_stream(site: Site) -> None:
    async with (
        served(site.gateway) as port,
        watching(port, "0190d0c5-7b5a-7cc0-b1f0-3f8f4c9d2a10") as (response, _),
    ):
        assert response.status_code == 404
        assert orjson.loads(await response.aread())["code"] == "not_found"


async def test_an_endless_body_is_refused(make_site: MakeSite) -> None:
    site = await make_site(running=False, max_body=2048)
    async with served(site.gateway) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(
            b"POST /api/v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )
        writer.write(b"400\r\n" + b" " * 1024 + b"\r\n")
        writer.write(b"800\r\n" + b" " * 2048 + b"\r\n")
        answer = await reader.read()  # until the server closes: the last chunk is never sent
        writer.close()
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"connection: close" in answer.lower()
    assert orjson.loads(answer.partition(b"\r\n\r\n")[2])["code"] == "too_large"
    assert await site.job_ids() == []


async def test_an_announced_body_over_the_limit_is_refused_before_it_is_sent(make_site: MakeSite) -> None:
    site = await make_site(running=False, max_body=2048)
    async with served(site.gateway) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(
            b"POST /api/v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: 1000000000\r\n\r\n"
        )
        answer = await reader.read()
        writer.close()
    assert answer.startswith(b"HTTP/1.1 413 ")


async def test_a_disconnect_during_the_body_stores_nothing(make_site: MakeSite) -> None:
    site = await make_site(running=False)
    async with served(site.gateway) as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(
            b"POST /api/v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: 100\r\n\r\n{"
        )
        await writer.drain()
        writer.close()
        await writer.wait_closed()
    assert await site.job_ids() == []


@pytest.mark.parametrize(
    ("trouble", "comment"),
    [(SlowConsumer(), b": too slow"), (NotFound("it was deleted meanwhile"), b": ended, not_found")],
)
async def test_a_failing_stream_ends_and_closes_its_source(trouble: Exception, comment: bytes) -> None:
    closed = asyncio.Event()

    async def source() -> AsyncIterator[dict[str, Any] | None]:
        try:
            yield None
            raise trouble
        finally:
            closed.set()

    snapshot = {"type": "SNAPSHOT", "job": {"status": "PENDING"}}
    seen = [frame async for frame in frames(snapshot, source())]
    assert [b"SNAPSHOT" in seen[0], seen[1].startswith(b": keep-alive"), seen[2].startswith(comment)] == [True] * 3
    assert closed.is_set()
