"""A Redis connection returns the replies of its own call, or fails. It never returns the replies of another call."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from redis.exceptions import BusyLoadingError, ConnectionError, InvalidResponse, NoScriptError, ResponseError

from fairlead.dispatch.redis.connection import Connection

PATIENCE = 5.0


class Server:
    """Sends what the test tells it to send."""

    def __init__(self) -> None:
        self._connected: asyncio.Future[asyncio.StreamWriter] = asyncio.get_running_loop().create_future()

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connected.set_result(writer)

    async def send(self, data: bytes) -> None:
        (await self._connected).write(data)

    async def close_connection(self) -> None:
        (await self._connected).close()


@pytest.fixture
async def server() -> Server:
    return Server()


@pytest.fixture
async def connection(server: Server) -> AsyncIterator[Connection]:
    listening = await asyncio.start_server(server.accept, "127.0.0.1", 0)
    address = listening.sockets[0].getsockname()
    _, connection = await asyncio.get_running_loop().create_connection(Connection, *address)
    yield connection
    connection.close()
    await server.close_connection()
    listening.close()


async def until_closed(connection: Connection) -> None:
    async with asyncio.timeout(PATIENCE):
        while connection.usable:
            await asyncio.sleep(0.001)


async def test_replies_that_arrive_in_pieces_are_returned_in_order(connection: Connection, server: Server) -> None:
    call = asyncio.ensure_future(connection.call([b"one", b"two"], PATIENCE))
    for piece in (b"+fir", b"st\r\n$6\r\nsec", b"ond\r\n"):
        await server.send(piece)
        await asyncio.sleep(0.001)
    assert await call == [b"first", b"second"]
    assert connection.usable


async def test_the_error_of_one_command_is_returned_in_its_place(connection: Connection, server: Server) -> None:
    await server.send(b"")
    call = asyncio.ensure_future(connection.call([b"one", b"two"], PATIENCE))
    await asyncio.sleep(0)
    await server.send(b"-NOSCRIPT no matching script\r\n+second\r\n")
    error, second = await call
    assert isinstance(error, NoScriptError)
    assert (second, connection.usable) == (b"second", True)


@pytest.mark.parametrize(
    ("reply", "error"),
    [(b"-LOADING the data\r\n", BusyLoadingError), (b"HTTP/1.1 400\r\n", InvalidResponse)],
)
async def test_an_error_of_the_connection_closes_it(
    connection: Connection, server: Server, reply: bytes, error: type[Exception]
) -> None:
    call = asyncio.ensure_future(connection.call([b"one"], PATIENCE))
    await asyncio.sleep(0)
    await server.send(reply)
    with pytest.raises(error):
        await call
    assert not connection.usable


async def test_a_reply_without_a_call_closes_the_connection(connection: Connection, server: Server) -> None:
    await server.send(b"+stray\r\n")
    await until_closed(connection)


async def test_a_surplus_reply_closes_the_connection(connection: Connection, server: Server) -> None:
    call = asyncio.ensure_future(connection.call([b"one"], PATIENCE))
    await asyncio.sleep(0)
    await server.send(b"+first\r\n+stray\r\n")
    assert await call == [b"first"]
    await until_closed(connection)


async def test_a_call_that_times_out_closes_the_connection(connection: Connection) -> None:
    with pytest.raises(TimeoutError):
        await connection.call([b"one"], 0.01)
    assert not connection.usable


async def test_a_server_that_closes_the_connection_fails_the_call(connection: Connection, server: Server) -> None:
    call = asyncio.ensure_future(connection.call([b"one"], PATIENCE))
    await asyncio.sleep(0)
    await server.close_connection()
    with pytest.raises(ConnectionError):
        await call
    assert not connection.usable


async def test_a_server_that_closes_an_idle_connection_is_noticed(connection: Connection, server: Server) -> None:
    await server.close_connection()
    await until_closed(connection)


async def test_closing_fails_the_call(connection: Connection) -> None:
    call = asyncio.ensure_future(connection.call([b"one"], PATIENCE))
    await asyncio.sleep(0)
    connection.close()
    with pytest.raises(ConnectionError):
        await call


async def test_a_stream_receives_every_reply_and_fails_with_the_connection(
    connection: Connection, server: Server
) -> None:
    replies: list[object] = []
    lost = connection.stream(replies.append)
    await server.send(b"*2\r\n$7\r\nmessage\r\n$1\r\na\r\n+PONG\r\n")
    await server.send(b"-NOPERM no such channel\r\n")
    with pytest.raises(ResponseError):
        async with asyncio.timeout(PATIENCE):
            await lost
    assert replies == [[b"message", b"a"], b"PONG"]
    assert not connection.usable
