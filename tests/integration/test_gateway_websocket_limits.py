"""Clients that do not read or flood their socket, and servers that stop."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import httpx2
import pytest
import uvicorn
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect as connect_sync

from fairlead.domain import events
from fairlead.domain.events import Event
from fairlead.gateway import responses, websocket_protocol, websockets
from tests.integration.cli_process import up
from tests.integration.gateway_site import Site, served, serving
from tests.integration.websocket_client import (
    PATIENCE,
    MakeSite,
    next_event,
    until_closed,
    watching,
)


@pytest.fixture
async def port(site: Site) -> AsyncIterator[int]:
    async with served(site.gateway) as port:
        yield port


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
    request_: tuple[str, ...], make_site: MakeSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = await make_site(send_timeout=0.5)
    async with serving(site.gateway) as (port, server):
        await _is_dropped(request_, site, port, server, monkeypatch)


async def _is_dropped(
    request_: tuple[str, ...], site: Site, port: int, server: uvicorn.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(websockets, "SEND_WITHIN_S", 0.2)
    monkeypatch.setattr(websockets, "CLOSE_WITHIN_S", 0.1)
    monkeypatch.setattr(websocket_protocol, "FLUSH_WITHIN_S", 0.1)
    monkeypatch.setattr(responses, "SEND_WITHIN_S", 0.2)
    slow, quick = await site.submit(delay=3600), await site.submit(delay=3600)
    small = socket.socket()
    small.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    small.setblocking(False)
    await asyncio.get_running_loop().sock_connect(small, ("127.0.0.1", port))
    lines = [line.format(job_id=slow) for line in request_]
    await asyncio.get_running_loop().sock_sendall(small, "\r\n".join([*lines, "", ""]).encode())
    hub = site.app.hub
    async with watching(port, f"/ws/{quick}") as client:
        await next_event(client)
        async with asyncio.timeout(PATIENCE):
            while not hub.is_watched_here(slow):
                await asyncio.sleep(0.01)
            # More than all buffers can hold together.
            while hub.is_watched_here(slow):
                hub.tell(Event(events.STEP_START, slow, 0.0, "x" * 50_000), "ada")
                await asyncio.sleep(0)
        hub.tell(Event(events.STEP_START, quick, 0.0, "still here"), "ada")
        assert (await next_event(client))["message"] == "still here"
    # The connection is closed, although its buffers were not read.
    async with asyncio.timeout(PATIENCE):
        while server.server_state.connections:
            await asyncio.sleep(0.01)
    small.close()


async def _ping_without_end(client: ClientConnection) -> None:
    while True:
        await client.ping()
        await asyncio.sleep(0)


async def _send_empty_fragments(client: ClientConnection) -> None:
    async def fragments() -> AsyncIterator[str]:
        while True:
            yield ""
            await asyncio.sleep(0)

    await client.send(fragments())


async def _pong_without_end(client: ClientConnection) -> None:
    while True:
        await client.pong()
        await asyncio.sleep(0)


@pytest.mark.parametrize("flood", [_ping_without_end, _pong_without_end, _send_empty_fragments])
async def test_a_client_that_floods_its_socket_is_disconnected(
    site: Site, port: int, flood: Callable[[ClientConnection], Awaitable[None]]
) -> None:
    async with watching(port, "/ws") as client:
        await next_event(client)
        with pytest.raises(ConnectionClosed):
            await flood(client)
    async with watching(port, "/ws") as other:
        for _ in range(100):
            await other.ping()
        assert (await next_event(other))["type"] == "SNAPSHOT"


async def test_a_stopping_gateway_closes_watchers_with_1012(site: Site, port: int) -> None:
    jobs = [await site.submit(delay=3600) for _ in range(3)]
    async with watching(port, f"/ws/{jobs[0]}") as one, watching(port, "/ws?user_id=ada") as many:
        await next_event(one)
        await next_event(many)
        site.app.hub.dismiss()
        assert [(await until_closed(client))[1] for client in (one, many)] == [1012, 1012]
        assert (await site.app.wait(jobs[1], 0.01)).status == "SCHEDULED"
    async with watching(port, f"/ws/{jobs[0]}") as again:
        assert (await next_event(again))["type"] == "SNAPSHOT"


async def test_a_server_that_stops_closes_its_sockets(site: Site) -> None:
    job_id = await site.submit(delay=3600)
    async with asyncio.timeout(PATIENCE):
        async with served(site.gateway) as port:
            client = await connect(f"ws://127.0.0.1:{port}/ws/{job_id}")
            await next_event(client)
        assert (await until_closed(client))[1] == 1012
    assert site.app.hub.topics_here() == []


def test_fairlead_up_stops_promptly_with_open_sockets(tmp_path: Path) -> None:
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
        assert not any("Traceback" in line or "ERROR" in line for line in server.output)
