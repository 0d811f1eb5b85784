"""How long the usage of a month takes to read, with many calls: python -m bench.usage [--calls 10000000] [--engine ...]

Fills the ledger and its totals by set-based statements, as the commits and the leader's loop would leave them: 1,000
users, each with two of 5 services, 30 days. Then asks for the month by user and day, and for other sums.
"""

from __future__ import annotations

import argparse
import asyncio
import sqlite3
import statistics
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fairlead.domain.usage_report import UsageQuery
from fairlead.store.port import Done, RollUpUsage
from fairlead.store.sqlite import SqliteStore

START = 1_767_225_600  # 2026-01-01
DAYS, USERS, SERVICES = 30, 1000, 5
ROUNDS = 5
COLUMNS = (
    "ended_at, job_id, run, step, attempt, user_id, feature_name, service, outcome, waited, slot, model, tokens_in, "
    "tokens_out, price"
)
VALUES = (
    "({start} + n * {seconds} / {calls}) * 1000000, 'job-' || n, 1, 0, 1, 'user-' || (n * 7919 % {users}), 'app', "
    "'service-' || ((n * 7919 % {users} + n / {users} % 10 / 8) % {services}), "
    "CASE n / {users} % 50 WHEN 0 THEN 1 ELSE 0 END, "
    "1500000, 800000, 'model-' || (n * 7919 % {users} % 3), n % 4000, n % 700, n % 9000"
)


def statement(table: str, numbers: str, calls: int) -> str:
    values = VALUES.format(start=START, seconds=DAYS * 86400, calls=calls, users=USERS, services=SERVICES)
    return f"INSERT INTO {table} ({COLUMNS}) SELECT {values} FROM {numbers}"


@asynccontextmanager
async def sqlite(calls: int) -> AsyncIterator[Any]:
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "usage.db")
        store = SqliteStore(path, synchronous="OFF")
        await store.open()
        with sqlite3.connect(path) as raw:
            counted = f"SELECT 0 UNION ALL SELECT n + 1 FROM c WHERE n < {calls - 1}"
            raw.execute(statement("usage", f"(WITH RECURSIVE c (n) AS ({counted}) SELECT n FROM c)", calls))
        raw.close()
        yield store
        await store.close()


@asynccontextmanager
async def postgres(calls: int) -> AsyncIterator[Any]:
    import asyncpg
    from tests import servers

    from fairlead.store.postgres import PostgresStore

    server = servers.own_postgres("-c", "fsync=off", "-c", "shared_buffers=256MB", "-c", "max_wal_size=4GB")
    try:
        url = await servers.new_database(server.url)
        store = PostgresStore(url)
        await store.open()
        raw = await asyncpg.connect(url)
        piece = 1_000_000
        for first in range(0, calls, piece):
            numbers = f"generate_series({first}::bigint, {min(calls, first + piece) - 1}) AS s (n)"
            await raw.execute(statement("fairlead.usage", numbers, calls))
        await raw.execute("ANALYZE fairlead.usage")
        await raw.close()
        yield store
        await store.close()
    finally:
        server.remove()


async def measure(engine: str, calls: int) -> None:
    began = time.perf_counter()
    async with {"sqlite": sqlite, "postgres": postgres}[engine](calls) as store:
        filled = time.perf_counter()
        rows = 0
        while True:
            (outcome,) = (await store.commit([RollUpUsage(100_000)])).outcomes
            assert isinstance(outcome, Done)
            if not outcome.value:
                break
            rows += outcome.value
        rolled = time.perf_counter()
        each = (rolled - filled) / max(1, rows) * 1e6
        print(f"{engine}: {calls} rows in {filled - began:.0f} s, rolled up at {each:.1f} µs per row", flush=True)
        month = {"start": START, "end": START + DAYS * 86400, "limit": 100_000}
        for name, query in {
            "by user and day": UsageQuery(**month, group_by=("user",)),
            "by user, service and day": UsageQuery(**month, group_by=("user", "service"), interval="day"),
            "by service and hour": UsageQuery(**month, group_by=("service",), interval="hour"),
            "one user by day": UsageQuery(**month, filters={"user": "user-7"}),
            "total by user": UsageQuery(**month, group_by=("user",), interval="total"),
        }.items():
            times = []
            for _ in range(ROUNDS):
                asked = time.perf_counter()
                found = await store.usage(query)
                times.append(time.perf_counter() - asked)
            print(f"  a month {name}: {len(found)} rows, {statistics.median(times) * 1000:.0f} ms", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=10_000_000)
    parser.add_argument("--engine", choices=("sqlite", "postgres"), action="append")
    arguments = parser.parse_args()
    for engine in arguments.engine or ("sqlite", "postgres"):
        asyncio.run(measure(engine, arguments.calls))


if __name__ == "__main__":
    main()
