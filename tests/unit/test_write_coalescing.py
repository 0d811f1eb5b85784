"""The head of a response is written together with its body, and waits for nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest

from fairlead.gateway.connections import CoalescingTransport

HEAD, BODY = b"HTTP/1.1 202 Accepted\r\n\r\n", b"{}"


class Plain(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.sent: list[bytes] = []
        self.closed = False

    def write(self, data: Any) -> None:
        self.sent.append(bytes(data))

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def plain() -> Plain:
    return Plain()


@pytest.fixture
async def held(plain: Plain) -> CoalescingTransport:
    return CoalescingTransport(plain, asyncio.get_running_loop())


async def test_head_and_body_are_one_write(plain: Plain, held: CoalescingTransport) -> None:
    for _ in range(2):
        held.write(HEAD)
        held.write(BODY)
    await asyncio.sleep(0)
    assert plain.sent == [HEAD + BODY, HEAD + BODY]


async def test_chunks_after_the_first_are_written_at_once(plain: Plain, held: CoalescingTransport) -> None:
    for piece in (HEAD, b"event 1", b"event 2"):
        held.write(piece)
    assert plain.sent == [HEAD + b"event 1", b"event 2"]


async def test_a_head_whose_body_takes_longer_does_not_wait_for_it(plain: Plain, held: CoalescingTransport) -> None:
    held.write(HEAD)
    assert plain.sent == []
    await asyncio.sleep(0)
    assert plain.sent == [HEAD]
    held.write(BODY)
    assert plain.sent == [HEAD, BODY]


async def test_a_head_without_a_body_is_written_before_closing(plain: Plain, held: CoalescingTransport) -> None:
    held.write(HEAD)
    held.close()
    assert plain.sent == [HEAD]
    assert held.is_closing()


async def test_a_lost_connection_is_not_written_to(plain: Plain, held: CoalescingTransport) -> None:
    held.write(HEAD)
    plain.close()
    await asyncio.sleep(0)
    assert plain.sent == []


# ---------------------------------------------------------------- with a socket


@contextlib.asynccontextmanager
async def connected() -> AsyncIterator[tuple[CoalescingTransport, asyncio.StreamWriter, socket.socket]]:
    ours, theirs = socket.socketpair()
    _, writer = await asyncio.open_connection(sock=ours)
    with theirs:
        yield CoalescingTransport(writer.transport, asyncio.get_running_loop()), writer, theirs
        writer.transport.abort()


async def test_a_connection_closes_after_a_response_without_a_body() -> None:
    async with connected() as (transport, writer, client):
        transport.write(HEAD)
        transport.write(b"")
        assert transport.get_write_buffer_size() == 0
        transport.close()
        async with asyncio.timeout(20):
            await writer.wait_closed()
        assert client.recv(1000) == HEAD


async def test_a_large_response_pauses_its_protocol(monkeypatch: pytest.MonkeyPatch) -> None:
    async with connected() as (transport, writer, _):
        paused: list[bool] = []
        monkeypatch.setattr(writer.transport.get_protocol(), "pause_writing", lambda: paused.append(True))
        transport.write(HEAD)
        transport.write(bytes(10_000_000))
        assert paused == [True]


async def test_a_body_for_a_lost_connection_does_not_affect_the_next_one() -> None:
    async with connected() as (transport, writer, _):
        transport.write(HEAD)
        writer.transport.abort()
        transport.write(BODY)
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
    async with connected() as (transport, writer, client):  # its socket has the same number
        transport.write(HEAD)
        transport.close()
        await writer.wait_closed()
        assert client.recv(1000) == HEAD
