"""Tests of the harness itself: it detects the violations it is meant to detect."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.chaos.database import Database
from tests.chaos.process import until_listening
from tests.chaos.proxy import ProxyProcess
from tests.chaos.redis_server import RedisServer
from tests.chaos.services_process import ServicesProcess
from tests.chaos.verify import _ended_once
from tests.chaos.waiting import until
from tests.integration.cli_process import environment


@pytest.fixture
async def services(tmp_path: Path) -> AsyncIterator[ServicesProcess]:
    process = ServicesProcess(tmp_path, ["gpu"], env=environment())
    yield process
    process.process.close()


def call_of(params: dict[str, Any], key: str) -> dict[str, Any]:
    return {"json": {"meta": {}, "payload": {"params": params, "context": {}}}, "headers": {"Idempotency-Key": key}}


async def test_a_call_counts_until_its_end_even_if_its_client_disconnects(services: ServicesProcess) -> None:
    async def in_flight(count: int) -> bool:
        return bool((await services.seen()).services["gpu"]["in_flight"] == count)

    async with aiohttp.ClientSession() as http:
        gone = asyncio.create_task(http.post(services.url("gpu"), **call_of({"gate": "g"}, "job:0:0")).__aenter__())
        await until("the call is there", lambda: in_flight(1))
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)

        async def left() -> bool:
            return (await services.seen()).gone.get("job:0:0") == 1

        await until("the client is gone", left)
        assert await in_flight(1)
        second = asyncio.create_task(http.post(services.url("gpu"), **call_of({"gate": "g"}, "job:0:0")).__aenter__())
        await until("the second call is there", lambda: in_flight(2))
        await services.open_gate("g")
        assert (await (await second).json())["data"] == {"key": "job:0:0", "call": 2}
    await until("both have ended", lambda: in_flight(0))
    assert (await services.seen()).maximum("gpu") == 2


async def test_the_proxy_cuts_and_silences_connections_and_changes_its_target(tmp_path: Path) -> None:
    first, second = RedisServer(tmp_path, "first"), RedisServer(tmp_path, "second")
    first.ask("SET", "who", "first")
    second.ask("SET", "who", "second")
    proxy = ProxyProcess(tmp_path, first.port, environment())
    until_listening(proxy.process, proxy.port)
    try:
        with socket.create_connection(("127.0.0.1", proxy.port), timeout=10) as connection:
            assert get_name(connection) == b"$5\r\nfirst\r\n"
            proxy.tell("hole")
            connection.settimeout(0.2)
            with pytest.raises(TimeoutError):
                get_name(connection)
            proxy.tell("heal")
            connection.settimeout(10)
            assert connection.recv(100) == b"$5\r\nfirst\r\n"
            proxy.tell("target", second.port)
            assert connection.recv(100) == b"", "an open connection does not move to another server"
        with socket.create_connection(("127.0.0.1", proxy.port), timeout=10) as connection:
            assert get_name(connection) == b"$6\r\nsecond\r\n"
            proxy.tell("cut")
            assert connection.recv(100) == b""
        with socket.create_connection(("127.0.0.1", proxy.port), timeout=10) as connection:
            assert refused(connection)
    finally:
        proxy.process.close()
        first.close()
        second.close()


def refused(connection: socket.socket) -> bool:
    try:
        return get_name(connection) == b""
    except ConnectionError:
        return True


def get_name(connection: socket.socket) -> bytes:
    connection.sendall(b"GET who\r\n")
    return connection.recv(100)


async def test_the_witness_records_a_job_that_ends_twice(database: str) -> None:
    connection = Database(database)
    try:
        await connection.rows("CREATE SCHEMA fairlead")
        await connection.rows("CREATE TABLE fairlead.job (id text, status int, ended int, run int)")
        await connection.set_witness()
        await connection.rows("INSERT INTO fairlead.job VALUES ('once', 3, NULL, 1), ('twice', 3, NULL, 1)")
        await connection.rows("UPDATE fairlead.job SET status = 4, ended = 4, run = run + 1")
        await connection.rows("UPDATE fairlead.job SET status = 5, ended = 5, run = run + 2 WHERE id = 'twice'")
        row = {"ended": 4, "status": 4, "lease": None}
        records = await connection.rows("SELECT * FROM witness.records ORDER BY id")
        assert _ended_once(row, [each for each in records if each["job_id"] == "once"]) == []
        wrong = _ended_once(row, [each for each in records if each["job_id"] == "twice"])
        assert [each.partition(":")[0] for each in wrong] == ["run jumped", "changed after its end"]
    finally:
        await connection.close()
