"""A process that starts while its database restarts or ends its sessions."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit, urlunsplit

import pytest

from fairlead import Fairlead
from fairlead.config import Settings
from fairlead.domain.config import Config
from fairlead.engine import lifecycle
from fairlead.engine.roles import ALL, Roles
from fairlead.errors import Unavailable
from tests.integration.doctor_site import API

NOTHING_LISTENS = "postgresql://fairlead@127.0.0.1:9/x"


@asynccontextmanager
async def cutting(url: str, *, after: int, times: int) -> AsyncIterator[str]:
    """The database behind a proxy that closes the first connections, each after this many packets of the server."""
    parts = urlsplit(url)
    left = times

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal left
        cut, left = left > 0, left - 1
        there_reader, there_writer = await asyncio.open_connection(parts.hostname, parts.port)

        async def pump(source: asyncio.StreamReader, target: asyncio.StreamWriter, packets: int | None) -> None:
            while packets != 0 and (data := await source.read(65536)):
                target.write(data)
                await target.drain()
                packets = None if packets is None else packets - 1

        ways = pump(reader, there_writer, None), pump(there_reader, writer, after if cut else None)
        tasks = [asyncio.ensure_future(way) for way in ways]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for end in (writer, there_writer):
            end.transport.abort()

    server = await asyncio.start_server(carry, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    try:
        yield urlunsplit(parts._replace(netloc=f"{parts.username}@{host}:{port}"))
    finally:
        server.close()


@pytest.mark.parametrize("roles", [ALL, API], ids=["up", "api"])
@pytest.mark.parametrize("after", [0, 2, 4])
async def test_a_process_survives_the_loss_of_its_first_sessions(
    emptied_database: str, roles: Roles, after: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with cutting(emptied_database, after=after, times=3) as url:
        app = Fairlead(Settings(Config(), url))
        app.service("gpu", limit=1)(lambda call: 1)
        async with app.running(roles):
            assert await app.submit("gpu")
    assert any("trying again" in record.message for record in caplog.records)


async def test_a_starting_process_gives_up_after_a_while(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(lifecycle, "START_PATIENCE", 0.3)
    app = Fairlead(Settings(Config(), NOTHING_LISTENS))
    with pytest.raises(Unavailable):
        async with app.running(API):
            pass
    assert len([record for record in caplog.records if "trying again" in record.message]) == 1


async def test_opening_the_app_alone_fails_at_once(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(Unavailable):
        await Fairlead(Settings(Config(), NOTHING_LISTENS)).open()
    assert not caplog.records
