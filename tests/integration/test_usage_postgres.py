"""The totals of the usage ledger on PostgreSQL: rows of transactions that commit late, and a restored database."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from fairlead.domain.usage_report import UsageQuery
from fairlead.store.port import Done, RollUpUsage
from fairlead.store.postgres import PostgresStore
from tests import servers

INSERT = """INSERT INTO fairlead.usage
(ended_at, waited, slot, run, step, attempt, outcome, job_id, user_id, feature_name, service)
VALUES ($1, 0, 1000000, 1, 0, 1, 0, 'job', 'ann', 'image', 'draw')"""


@pytest.fixture
async def database() -> AsyncIterator[tuple[PostgresStore, Any, Any]]:
    """A store, and two connections to its database."""
    url = await servers.shared_database()
    await servers.empty(url)
    store = PostgresStore(url)
    await store.open()
    one, other = await asyncpg.connect(servers.direct(url)), await asyncpg.connect(servers.direct(url))
    try:
        yield store, one, other
    finally:
        await one.close()
        await other.close()
        await store.close()


async def write(connection: Any) -> None:
    await connection.execute(INSERT, round(time.time() * 1e6))


async def roll_up(store: PostgresStore) -> int:
    (outcome,) = (await store.commit([RollUpUsage(100)])).outcomes
    assert isinstance(outcome, Done)
    return int(outcome.value)


async def roll_up_all(store: PostgresStore, count: int) -> None:
    """Roll up until this many rows were added. The server's own transactions can delay them for a moment."""
    async with asyncio.timeout(30):
        while count > 0:
            count -= await roll_up(store)
            await asyncio.sleep(0.01)
    assert count == 0
    assert await roll_up(store) == 0


async def calls(store: PostgresStore) -> int:
    now = time.time()
    totals = await store.usage(UsageQuery(now - 86400, now + 86400, "total"))
    return sum(total.calls for total in totals)


async def test_a_row_that_commits_after_later_rows_were_added_is_added_too(
    database: tuple[PostgresStore, Any, Any],
) -> None:
    store, slow, quick = database
    late = slow.transaction()
    await late.start()
    await write(slow)
    await write(quick)
    # The quick row is newer than a transaction that still runs: it waits, but every answer counts it.
    assert await roll_up(store) == 0
    assert await calls(store) == 1
    await late.commit()
    await roll_up_all(store, 2)
    assert await calls(store) == 2


async def test_a_restored_database_counts_each_row_once(database: tuple[PostgresStore, Any, Any]) -> None:
    store, connection, _ = database
    await write(connection)
    await roll_up_all(store, 1)
    await write(connection)
    # As in a dump of a server that had counted more transactions: one row is in the totals, one is not.
    await connection.execute("UPDATE fairlead.usage SET tx = (tx::text::bigint + 1000000000000)::text::xid8")
    await connection.execute(
        "UPDATE fairlead.usage_state SET next_tx = (next_tx::text::bigint + 1000000000000)::text::xid8"
    )
    await write(connection)
    await roll_up_all(store, 2)
    assert await calls(store) == 3
    await write(connection)
    await roll_up_all(store, 1)
    assert await calls(store) == 4
