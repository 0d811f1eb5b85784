"""The plans of PostgreSQL for the hot statements, at a realistic size."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest

from fairlead.domain.job import Job
from fairlead.domain.rules import EVERYTHING, Lanes
from fairlead.domain.transitions import Start, submit
from fairlead.store.postgres import PostgresStore, encode
from fairlead.store.postgres.queries import READS, WRITES
from fairlead.store.postgres.reads import _of_lanes
from tests import servers


@asynccontextmanager
async def raw(url: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(servers.direct(url))
    try:
        yield connection
    finally:
        await connection.close()


@pytest.fixture(scope="module")
def grown(postgres_url: str) -> Iterator[str]:
    """A database with 100,000 jobs: most are done, some wait, a few run or are dead."""
    url = asyncio.run(servers.new_database(postgres_url))
    asyncio.run(grow(url))
    yield url
    asyncio.run(servers.drop_database(url))


async def grow(url: str) -> None:
    store = PostgresStore(url)
    await store.open()
    await store.close()
    async with raw(url) as connection:
        await connection.execute(
            """
            INSERT INTO fairlead.job (id, user_id, feature_name, status, ended, priority, created_at, queued_at,
                                      timer_at, finished_at, spec, input)
            SELECT 'job-' || n, 'user-' || n % 300, 'f', s, CASE WHEN s > 3 THEN s END, 1 + n % 3, n, n,
                   CASE WHEN n % 500 = 0 THEN n END, CASE WHEN s > 3 THEN n END, '[["draw"],2,null,1.0,null,null]', '{}'
            FROM generate_series(1, 100000) AS n,
                 LATERAL (SELECT CASE WHEN n % 1000 = 0 THEN 5 WHEN n % 1000 = 1 THEN 3
                                      WHEN n % 10 = 2 THEN 1 ELSE 4 END AS s) AS status;
            INSERT INTO fairlead.step_result
            SELECT n, 0, 0, 'draw', '1', '{}', n, NULL FROM generate_series(1, 5000) AS n;
            INSERT INTO fairlead.attempt
            SELECT n, 1, 0, 'draw', 0, 1, '{}', n, n, NULL, NULL FROM generate_series(1, 5000) AS n;
            INSERT INTO fairlead.job_batch
            SELECT 'batch-' || n, 'user-' || n % 300, NULL, NULL, n, 20, NULL, NULL,
                   CASE WHEN n % 50 > 0 THEN n END, '[]'
            FROM generate_series(1, 2000) AS n;
            INSERT INTO fairlead.batch_item
            SELECT 'batch-' || b, i, 'job-' || b * 20 + i, 'item-' || i
            FROM generate_series(1, 2000) AS b, generate_series(0, 19) AS i;
            INSERT INTO fairlead.outbox
            SELECT n, n, 'job-' || n, 'x', 'service-' || n % 7, 1 + n % 3 FROM generate_series(1, 20000) AS n;
            ANALYZE
            """
        )


SOME = Lanes(frozenset({("draw", 1), ("draw", 2)}))


def of(name: str, lanes: Lanes, *given: Any) -> str:
    return _of_lanes(name, lanes, *given)[0]


LISTED = READS["list_jobs"].replace("{limit}", "20")
USED = {
    "due": (WRITES["due"], "job_timer"),
    "next_timer": (READS["next_timer"], "job_timer"),
    "promotable": (WRITES["promotable"], "job_open"),
    "outbox": (READS["outbox"], "outbox_pkey"),
    "outbox of lanes": (READS["outbox_of_lanes"], "outbox_lane"),
    "next_promotion": (READS["next_promotion"], "job_open"),
    "oldest_waiting": (READS["oldest_waiting"], "job_open"),
    "waiting": (of("waiting", EVERYTHING), r"job_open\w*"),
    "waiting of lanes": (of("waiting", SOME), r"job_open\w*"),
    "count_waiting": (of("count_waiting", EVERYTHING), r"job_open\w*"),
    "count_waiting of lanes": (of("count_waiting", SOME), r"job_open\w*"),
    "count_waiting_by_service": (of("count_waiting_by_service", EVERYTHING), r"job_open\w*"),
    "count_waiting_by_service of lanes": (of("count_waiting_by_service", SOME), r"job_open\w*"),
    "running": (of("running", EVERYTHING), r"job_open\w*"),
    "running of lanes": (of("running", SOME), r"job_open\w*"),
    "waiting_jobs": (of("waiting_jobs", EVERYTHING, []), "job_by_seq"),
    "waiting_jobs of lanes": (of("waiting_jobs", SOME, []), "job_by_seq"),
    "get": (READS["get"], "job_id_unique"),
    "get_jobs": (READS["get_jobs"], "job_id_unique"),
    "list of all": (LISTED.replace("{where}", "TRUE"), "job_by_seq"),
    "list of a user": (LISTED.replace("{where}", "j.user_id = 'user-7'"), "job_by_user"),
    "list of the dead": (LISTED.replace("{where}", "j.ended = 5"), "job_dead"),
    "a batch": (READS["get_batch"], "batch_item_pkey"),
    "batches of a user": (READS["list_batches"].replace("{whose}", "b.user_id = $3"), "job_batch_by_user"),
    "items": (READS["batch_items"], "batch_item_pkey"),
    "items of a status": (READS["batch_items_of_status"], "batch_item_pkey"),
    "ended batches": (READS["ended_batches"], "job_batch_open"),
    "settle_batch": (WRITES["settle_batch"], "batch_item_pkey"),
    "reopen_batches": (WRITES["reopen_batches"], "batch_item_job"),
    "prune_batches": (WRITES["prune_batches"], "job_batch_finished"),
    "prunable": (WRITES["prunable"], "job_finished"),
    "waiting_of_users": (WRITES["waiting_of_users"], "job_open_by_user"),
    "start": (WRITES["start"], "job_id_unique"),
    "complete": (WRITES["complete"], "job_id_unique"),
    "move": (WRITES["move"], "job_id_unique"),
    "move_with_outbox": (WRITES["move_with_outbox"], "job_id_unique"),
    "progress": (WRITES["progress"], "job_id_unique"),
    "delete": (WRITES["delete"], "job_id_unique"),
    "relayed": (WRITES["relayed"], "outbox_pkey"),
}


@pytest.mark.parametrize("name", USED)
async def test_every_hot_statement_uses_its_index_and_scans_no_table(grown: str, name: str) -> None:
    sql, index = USED[name]
    async with raw(grown) as connection, connection.transaction():
        if name in WRITES:
            await connection.fetch(WRITES["begin"], "1000")
        else:
            await connection.execute("SET LOCAL plan_cache_mode = force_generic_plan")
        await connection.execute(f"PREPARE asked AS {sql}")
        count = len(set(re.findall(r"\$\d+", sql)))
        given = f"({', '.join(['NULL'] * count)})" if count else ""
        plan = "\n".join(row[0] for row in await connection.fetch(f"EXPLAIN EXECUTE asked {given}"))
        await connection.execute("DEALLOCATE asked")
    assert re.search(rf"\b{index}\b", plan), plan
    assert not re.search(r"Seq Scan on (job|outbox|step_result|attempt|job_batch|batch_item)\b", plan), plan
    if name in ("due", "promotable"):
        assert "Sort" not in plan, "it would read all due jobs for each batch"


async def test_most_starts_touch_no_index(emptied_database: str) -> None:
    """They are HOT updates: the new version is on the same page, and no index changes. Here all jobs of a page start at
    once; in production there is even more room."""
    store = PostgresStore(emptied_database)
    await store.open()
    ids = sorted(f"hot-{n}" for n in range(200))
    await store.commit([submit(Job(id_, "f", "ann", ("draw",)), "{}", now=time.time(), waits={}) for id_ in ids])
    await store.close()
    sql = "SELECT pg_stat_get_xact_tuples_hot_updated('fairlead.job'::regclass)"
    async with raw(emptied_database) as connection, connection.transaction():
        await connection.fetch(WRITES["begin"], "1000")
        columns = encode.start_columns(Start(id_, 0, 0, "0:1", "service:draw", "w1", 30.0) for id_ in ids)
        assert len(await connection.fetch(WRITES["start"], *columns, 0)) == 200
        assert await connection.fetchval(sql) > 150
