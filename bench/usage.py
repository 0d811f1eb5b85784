"""How long the usage of a month takes to read, with many calls: python -m bench.usage [--calls 10000000] [--engine ...]

Fills the totals of the month by set-based statements, as the leader's loop leaves them after so many calls: 1,000
users in 20 groups, each with two of 5 services, 30 days. Rows of the ledger that are in the totals are not read. Then
rolls up 100,000 new rows, and asks for the month by user and day, and for other sums. CPU time is this process (SQLite)
or the server.
"""

from __future__ import annotations

import argparse
import asyncio
import sqlite3
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from bench import cpu
from fairlead.domain.usage_report import UsageQuery
from fairlead.store.port import Done, RollUpUsage
from fairlead.store.sqlite import SqliteStore

START = 1_767_225_600  # 2026-01-01
DAYS, USERS, SERVICES = 30, 1000, 5
NEW_ROWS, BATCH, ROUNDS = 100_000, 2000, 5

TOTALS = (
    "INSERT INTO {table} ({columns}) "
    "SELECT {span}, {first} + b.n, 'user-' || u.n, 'service-' || ((u.n + s.n) % {services}), 'app', "
    "'model-' || (u.n % 3), '', '', {group}, o.n, {calls}, 1500000, 800000, 900, 70, 0, 1.0, 0, {calls}, 9000 "
    "FROM {buckets} b, {users} u, {two} s, {outcomes} o"
)
ROWS = (
    "INSERT INTO {table} (ended_at, job_id, run, step, attempt, user_id, feature_name, service, outcome, waited, slot, "
    "group_path, model, tokens_in, tokens_out, price) "
    "SELECT {first} + n * 1000, 'job-' || n, 1, 0, 1, 'user-' || (n % {users}), 'app', "
    "'service-' || (n % {services}), 0, 1500000, 800000, 'team-' || (n % 20), "
    "'model-' || (n % 3), n % 4000, n % 700, n % 9000 "
    "FROM {numbers} r"
)
COLUMNS = (
    "span, bucket, user_id, service, feature_name, model, region, plan, group_path, outcome, calls, waited, slot, "
    "tokens_in, tokens_out, tokens_cached, units, ignored, reported, price"
)
Numbers = Callable[[int], str]
"""A table with the column `n`, from 0 to before this number."""


def statements(schema: str, calls: int, numbers: Numbers) -> list[str]:
    made = []
    for span, outcomes in ((3600, 1), (86400, 2)):
        buckets = DAYS * 86400 // span
        made.append(
            TOTALS.format(
                table=f"{schema}usage_total",
                columns=COLUMNS,
                group="'team-' || (u.n % 20)",
                span=span,
                first=START // span,
                services=SERVICES,
                calls=max(1, calls // (buckets * USERS * 2 * outcomes)),
                buckets=numbers(buckets),
                users=numbers(USERS),
                two=numbers(2),
                outcomes=numbers(outcomes),
            )
        )
    rows = {"users": USERS, "services": SERVICES, "numbers": numbers(NEW_ROWS)}
    return [*made, ROWS.format(table=f"{schema}usage", first=(START + DAYS * 86400 - 3600) * 1_000_000, **rows)]


@asynccontextmanager
async def sqlite(calls: int) -> AsyncIterator[tuple[Any, Callable[[], float]]]:
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "usage.db")
        store = SqliteStore(path, synchronous="OFF")
        await store.open()

        def numbers(count: int) -> str:
            counted = f"SELECT 0 UNION ALL SELECT n + 1 FROM c WHERE n < {count - 1}"
            return f"(WITH RECURSIVE c (n) AS ({counted}) SELECT n FROM c)"

        raw = sqlite3.connect(path)
        for sql in statements("", calls, numbers):
            raw.execute(sql)
        raw.commit()
        raw.close()
        yield store, time.process_time
        await store.close()


@asynccontextmanager
async def postgres(calls: int) -> AsyncIterator[tuple[Any, Callable[[], float]]]:
    import asyncpg
    from tests import servers

    from fairlead.store.postgres import PostgresStore

    server = servers.own_postgres("-c", "fsync=off", "-c", "shared_buffers=256MB")
    try:
        url = await servers.new_database(server.url)
        store = PostgresStore(url)
        await store.open()
        raw = await asyncpg.connect(url)
        for sql in statements(
            "fairlead.", calls, lambda count: f"(SELECT generate_series(0, {count - 1})::bigint AS n)"
        ):
            await raw.execute(sql, timeout=3600)
        await raw.execute("ANALYZE fairlead.usage_total")
        await raw.close()
        yield store, lambda: cpu.seconds_of({server.pid})
        await store.close()
    finally:
        server.remove()


async def measure(engine: str, calls: int) -> None:
    async with {"sqlite": sqlite, "postgres": postgres}[engine](calls) as (store, spent):
        before, rows = spent(), 0
        while rows < NEW_ROWS:
            (outcome,) = (await store.commit([RollUpUsage(BATCH)])).outcomes
            assert isinstance(outcome, Done)
            rows += outcome.value
        print(f"{engine}: rolled up at {(spent() - before) / rows * 1e6:.1f} µs of CPU per row", flush=True)
        month = {"start": START, "end": START + DAYS * 86400, "limit": 100_000}
        for name, query in {
            "by user and day": UsageQuery(**month, group_by=("user",)),
            "by user, service and day": UsageQuery(**month, group_by=("user", "service")),
            "by group and day": UsageQuery(**month, group_by=("group",)),
            "by service and hour": UsageQuery(**month, group_by=("service",), interval="hour"),
            "of one user by day": UsageQuery(**month, filters={"user": "user-7"}),
            "in total by user": UsageQuery(**month, group_by=("user",), interval="total"),
        }.items():
            times, before = [], spent()
            for _ in range(ROUNDS):
                asked = time.perf_counter()
                found = await store.usage(query)
                times.append(time.perf_counter() - asked)
            each = (spent() - before) / ROUNDS
            print(
                f"  a month {name}: {len(found)} rows, {min(times) * 1000:.0f} ms at best, {each * 1000:.0f} ms of CPU",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=10_000_000)
    parser.add_argument("--engine", choices=("sqlite", "postgres"), action="append")
    arguments = parser.parse_args()
    for engine in arguments.engine or ("sqlite", "postgres"):
        asyncio.run(measure(engine, arguments.calls))


if __name__ == "__main__":
    main()
