"""A connection to Redis: the answers of one call, or the end of the connection; never the answers of another call."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from redis.exceptions import BusyLoadingError, ConnectionError, InvalidResponse, NoScriptError

from fairlead.dispatch.redis.wire import Wire

PATIENCE = 5.0


class Server:
    """Says what it is told to say."""

    def __init__(self) -> None:
        self._connected: asyncio.Future[asyncio.StreamWriter] = asyncio.get_running_loop().create_future()

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connected.set_result(writer)

    async def say(self, data: bytes) -> None:
        (await self._connected).write(data)

    async def hang_up(self) -> None:
        (await self._connected).close()


class Link:
    """As much of redis-py's connection as is used."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self.disconnected = False

    async def disconnect(self, nowait: bool) -> None:
        self.disconnected = True


@pytest.fixture
async def server() -> Server:
    return Server()


@pytest.fixture
async def wire(server: Server) -> AsyncIterator[Wire]:
    listening = await asyncio.start_server(server.accept, "127.0.0.1", 0)
    _, writer = await asyncio.open_connection(*listening.sockets[0].getsockname())
    wire = Wire(Link(writer))
    yield wire
    await wire.close()
    await server.hang_up()
    listening.close()


async def ended(wire: Wire) -> None:
    async with asyncio.timeout(PATIENCE):
        while wire.usable:
            await asyncio.sleep(0.001)


async def test_the_answers_come_in_order_though_in_pieces(wire: Wire, server: Server) -> None:
    asked = asyncio.ensure_future(wire.ask([b"one", b"two"], PATIENCE))
    for piece in (b"+fir", b"st\r\n$6\r\nsec", b"ond\r\n"):
        await server.say(piece)
        await asyncio.sleep(0.001)
    assert await asked == [b"first", b"second"]
    assert wire.usable


async def test_an_error_of_one_command_is_among_the_answers(wire: Wire, server: Server) -> None:
    await server.say(b"")
    asked = asyncio.ensure_future(wire.ask([b"one", b"two"], PATIENCE))
    await asyncio.sleep(0)
    await server.say(b"-NOSCRIPT no matching script\r\n+second\r\n")
    error, second = await asked
    assert isinstance(error, NoScriptError)
    assert (second, wire.usable) == (b"second", True)


@pytest.mark.parametrize(
    ("said", "error"),
    [(b"-LOADING the data\r\n", BusyLoadingError), (b"HTTP/1.1 400\r\n", InvalidResponse)],
)
async def test_what_is_no_answer_to_the_command_ends_the_connection(
    wire: Wire, server: Server, said: bytes, error: type[Exception]
) -> None:
    asked = asyncio.ensure_future(wire.ask([b"one"], PATIENCE))
    await asyncio.sleep(0)
    await server.say(said)
    with pytest.raises(error):
        await asked
    assert not wire.usable


async def test_an_answer_that_nobody_asked_for_ends_the_connection(wire: Wire, server: Server) -> None:
    await server.say(b"+stray\r\n")
    await ended(wire)


async def test_one_answer_too_many_ends_the_connection(wire: Wire, server: Server) -> None:
    asked = asyncio.ensure_future(wire.ask([b"one"], PATIENCE))
    await asyncio.sleep(0)
    await server.say(b"+first\r\n+stray\r\n")
    assert await asked == [b"first"]
    await ended(wire)


async def test_a_call_without_an_answer_ends_with_its_time_and_the_connection_with_it(wire: Wire) -> None:
    with pytest.raises(TimeoutError):
        await wire.ask([b"one"], 0.01)
    assert not wire.usable


async def test_a_server_that_hangs_up_fails_the_call(wire: Wire, server: Server) -> None:
    asked = asyncio.ensure_future(wire.ask([b"one"], PATIENCE))
    await asyncio.sleep(0)
    await server.hang_up()
    with pytest.raises(ConnectionError):
        await asked
    assert not wire.usable


async def test_a_server_that_hangs_up_while_nobody_asks_is_noticed(wire: Wire, server: Server) -> None:
    await server.hang_up()
    await ended(wire)


async def test_closing_fails_the_call_and_tells_redis_py(wire: Wire) -> None:
    asked = asyncio.ensure_future(wire.ask([b"one"], PATIENCE))
    await asyncio.sleep(0)
    await wire.close()
    with pytest.raises(ConnectionError):
        await asked
    assert wire._link.disconnected
