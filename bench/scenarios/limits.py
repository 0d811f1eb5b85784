"""The throughput of the stores alone: set-based writes of the same rows, in the same tables with the same indexes, by
the shortest statements that could do it, on as many connections as ours has writers."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import asyncpg

from bench.servers import Servers
from bench.sizes import Sizes
from fairlead.store.postgres import PostgresStore
from fairlead.store.sqlite import SqliteStore

INSERTS, UPDATES, WRITERS = 1000, 200, 2
SPEC, INPUT, RESULT = '[["work"],2,null,1,null,null]', '{"kind":"noop","number":1}', '{"number":1}'
NOW = 1_700_000_000_000_000

_COLUMNS = "id, user_id, feature_name, status, priority, created_at, queued_at, waiting_since, spec"
_VALUES = f"'user', 'work', 1, 2, {NOW}, {NOW}, {NOW}, '{SPEC}'"
_START = (
    "UPDATE {job} SET status = 3, run = run + 1, attempt = attempt + 1, lease = '0:1', worker = 'worker', "
    f"call_started_at = {NOW}, call_deadline = {NOW}, started_at = {NOW} WHERE id "
)
_END = "UPDATE {job} SET status = 4, run = run + 1, lease = NULL, worker = NULL, "
PG_INSERT = (
    f"INSERT INTO fairlead.job ({_COLUMNS}, input) SELECT id, {_VALUES}, '{INPUT}' FROM unnest($1::text[]) AS id"
)
PG_START = _START.format(job="fairlead.job") + "= ANY ($1::text[])"
PG_END = (
    _END.format(job="fairlead.job")
    + f"ended = 4, finished_at = {NOW}, result_data = '{RESULT}' WHERE id = ANY ($1::text[])"
)
LITE_IDS = "IN (SELECT value FROM json_each(?))"
LITE_INSERT = f"INSERT INTO job ({_COLUMNS}) SELECT value, {_VALUES} FROM json_each(?)"
LITE_START = _START.format(job="job") + LITE_IDS
LITE_END = _END.format(job="job") + f"finished_at = {NOW} WHERE id {LITE_IDS}"
LITE_INPUT = f"INSERT INTO job_input SELECT seq, '{INPUT}' FROM job WHERE id {LITE_IDS}"
LITE_RESULT = (
    "INSERT INTO step_result (seq, step, round, service, data, metrics, finished_at) "
    f"SELECT seq, 0, 0, 'work', '{RESULT}', '{{}}', {NOW} FROM job WHERE id {LITE_IDS}"
)


def limits(servers: Servers, sizes: Sizes, keep: Callable[[str, str, str, float], None]) -> None:
    for commit in ("on", "off"):
        url = servers.fresh(commit)
        inserted, ended = asyncio.run(_postgres(url, sizes.limit_rows))
        keep("limits", f"PostgreSQL, synchronous_commit={commit}", "inserts/s", inserted)
        keep("limits", f"PostgreSQL, synchronous_commit={commit}", "started and ended/s", ended)
    inserted, ended = _sqlite(sizes.limit_rows)
    keep("limits", "SQLite, synchronous=FULL", "inserts/s", inserted)
    keep("limits", "SQLite, synchronous=FULL", "started and ended/s", ended)


async def _postgres(url: str, rows: int) -> tuple[float, float]:
    store = PostgresStore(url)
    await store.open()  # for its tables
    await store.close()
    connections = [await asyncpg.connect(url) for _ in range(WRITERS)]
    for connection in connections:
        await connection.execute("SET enable_seqscan = off; SET plan_cache_mode = force_generic_plan")

    async def write(connection: Any, batches: Iterator[list[str]], *statements: str) -> None:
        for batch in batches:
            for statement in statements:
                await connection.execute(statement, batch)

    async def rate(size: int, *statements: str) -> float:
        batches, begun = _batches(rows, size), time.perf_counter()
        await asyncio.gather(*(write(connection, batches, *statements) for connection in connections))
        return rows / (time.perf_counter() - begun)

    found = await rate(INSERTS, PG_INSERT), await rate(UPDATES, PG_START, PG_END)
    for connection in connections:
        await connection.close()
    return found


def _sqlite(rows: int) -> tuple[float, float]:
    with tempfile.TemporaryDirectory(prefix="fairlead-bench-") as folder:
        path = str(Path(folder) / "limit.db")
        asyncio.run(_make_tables(path))
        database = sqlite3.connect(path, isolation_level=None)
        database.execute("PRAGMA synchronous = FULL")

        def rate(size: int, *commits: tuple[str, ...]) -> float:
            begun = time.perf_counter()
            for batch in _batches(rows, size):
                for statements in commits:
                    database.execute("BEGIN IMMEDIATE")
                    for statement in statements:
                        database.execute(statement, (json.dumps(batch),))
                    database.execute("COMMIT")
            return rows / (time.perf_counter() - begun)

        found = rate(INSERTS, (LITE_INSERT, LITE_INPUT)), rate(UPDATES, (LITE_START,), (LITE_END, LITE_RESULT))
        database.close()
    return found


async def _make_tables(path: str) -> None:
    store = SqliteStore(path, synchronous="FULL")
    await store.open()
    await store.close()


def _batches(rows: int, size: int) -> Iterator[list[str]]:
    return ([f"{number:032x}" for number in range(first, min(first + size, rows))] for first in range(0, rows, size))
