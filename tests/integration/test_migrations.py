"""A database of the first release, with rows for everything that a later migration touches, is migrated; and processes
of that release, which may still run, continue."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from fairlead.domain import transitions
from fairlead.domain.job import Hold, Job, JobStatus, Priority
from fairlead.domain.rules import Lanes, Rules, ServiceRules
from fairlead.domain.transitions import Start
from fairlead.domain.usage_report import UsageQuery
from fairlead.store.port import Busy, DeclareServices, Done, Epoch, FireTimers, RaiseEpoch, Started, Store
from fairlead.store.postgres import PostgresStore, schema
from fairlead.store.sql_files import migrations
from fairlead.store.sqlite import SqliteStore, connect
from tests import servers

HERE = Lanes(frozenset({("elsewhere", 1)}))
THERE = Lanes(frozenset({("elsewhere", 1), ("draw", 2)}), others=True)
DECLARED = (
    '{"pools":{},"services":[{"cost":null,"lease_ttl":15.0,"limit":4,"order":"fair","paused":false,"pool":null,'
    '"regions":{},"retries_first":false,"service":"draw","user_limit":null}]}'
)
# Rows of the first release: a waiting job, a running one, a due one, one that was recovered from a dead worker (with
# its hold), an epoch, an outbox row of each, and the declared rules. `@` is replaced by PostgreSQL's schema.
ROWS = """
INSERT INTO @job (id, user_id, feature_name, status, priority, run, created_at, queued_at, timer_at, spec{input})
VALUES ('waiting', 'ann', 'image', 1, 2, 0, 5, 5, NULL, '[["draw"],2,null,1.0,null,null]'{value}),
       ('running', 'ann', 'image', 3, 3, 1, 5, 5, NULL, '[["draw","scale"],3,null,1.0,null,null]'{value}),
       ('due', 'ann', 'image', 0, 1, 0, 5, NULL, 6, '[["draw"],1,null,1.0,null,null]'{value}),
       ('recovered', 'ann', 'image', 1, 3, 2, 5, 5, NULL, '[["draw"],3,null,1.0,null,null]'{value});
INSERT INTO @hold (id, job_id, service, region, until) VALUES ('recovered:1', 'recovered', 'draw', NULL, 99000000);
INSERT INTO @hold (id, job_id, service, region, until) VALUES ('gone:1', 'gone', 'draw', 'eu', 99000000);
UPDATE @rules SET version = 7, declared = '{declared}';
"""
OUTBOX = "INSERT INTO @outbox ({id}job_id, origin, written_at) VALUES ({number}'{job}', 'the release before', 5)"


# ---------------------------------------------------------------- databases of the first release


def old_sqlite(path: Path) -> None:
    rows = ROWS.replace("{input}", "").replace("{value}", "").replace("{declared}", DECLARED).replace("@", "")
    with closing(sqlite3.connect(path, isolation_level=None)) as raw:
        raw.executescript(migrations("fairlead.store.sqlite")[0].sql)
        raw.executescript(rows)
        raw.execute("INSERT INTO job_input SELECT seq, '{}' FROM job")
        raw.execute("INSERT INTO epoch VALUES ('service:draw', 3)")
        for job in ("waiting", "recovered"):
            raw.execute(OUTBOX.replace("@", "").format(id="", number="", job=job))
        raw.execute(f"PRAGMA application_id = {connect.APPLICATION_ID}")
        raw.execute("PRAGMA user_version = 1")


async def old_postgres(url: str) -> None:
    rows = ROWS.replace("{input}", ", input").replace("{value}", ", '{}'").replace("{declared}", DECLARED)
    async with raw_postgres(url) as raw:
        await raw.execute(schema._FIRST)
        await raw.execute(migrations("fairlead.store.postgres")[0].sql)
        await raw.execute("UPDATE fairlead.schema_version SET number = 1")
        await raw.execute(rows.replace("@", "fairlead."))
        await raw.execute("INSERT INTO fairlead.epoch VALUES ('service:draw', 3)")
        for job in ("waiting", "recovered"):
            await raw.execute(old_row(job))


def old_row(job: str) -> str:
    return OUTBOX.replace("@", "fairlead.").format(id="id, ", number="nextval('fairlead.outbox_id'), ", job=job)


@asynccontextmanager
async def raw_postgres(url: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(servers.direct(url))
    try:
        yield connection
    finally:
        await connection.close()


@pytest.fixture(params=["postgres", "sqlite"])
async def upgraded(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    if request.param == "sqlite":
        old_sqlite(tmp_path / "old.db")
        sqlite = SqliteStore(str(tmp_path / "old.db"))
        await sqlite.open()
        yield sqlite
        await sqlite.close()
    else:
        url = await servers.new_database()
        await old_postgres(url)
        postgres = PostgresStore(url)
        await postgres.open()
        yield postgres
        await postgres.close()
        await servers.drop_database(url)


TOTAL = (
    "INSERT INTO {table} (span, bucket, user_id, service, feature_name, model, region, plan, outcome, calls, waited, "
    "slot, tokens_in, tokens_out, tokens_cached, units, ignored, reported, price) "
    "VALUES (86400, 20000, 'ann', 'draw', 'image', '', '', '', 0, 7, 0, 0, 0, 0, 0, 0.0, 0, 0, 0)"
)
WITHOUT_GROUPS = {"sqlite": 18, "postgres": 20}
"""The last migration before totals of usage had groups."""


@pytest.mark.parametrize("engine", ["postgres", "sqlite"])
async def test_totals_of_usage_from_before_groups_are_kept(engine: str, tmp_path: Path) -> None:
    before = migrations(f"fairlead.store.{engine}")[: WITHOUT_GROUPS[engine]]
    url = str(tmp_path / "old.db") if engine == "sqlite" else await servers.new_database()
    store: Store
    if engine == "sqlite":
        with closing(sqlite3.connect(url, isolation_level=None)) as file:
            for migration in before:
                file.executescript(migration.sql)
            file.execute(TOTAL.format(table="usage_total"))
            file.execute(f"PRAGMA application_id = {connect.APPLICATION_ID}")
            file.execute(f"PRAGMA user_version = {len(before)}")
        store = SqliteStore(url)
    else:
        async with raw_postgres(url) as raw:
            await raw.execute(schema._FIRST)
            for migration in before:
                await raw.execute(migration.sql)
            await raw.execute("UPDATE fairlead.schema_version SET number = $1", len(before))
            await raw.execute(TOTAL.format(table="fairlead.usage_total"))
        store = PostgresStore(url)
    await store.open()
    query = UsageQuery(20000 * 86400.0, 20001 * 86400.0, group_by=("user", "group"))
    (total,) = await store.usage(query)
    assert (total.groups, total.calls) == ({"user": "ann", "group": ""}, 7)
    await store.close()
    if engine == "postgres":
        await servers.drop_database(url)


# ---------------------------------------------------------------- after the upgrade


async def test_jobs_rules_and_epochs_are_unchanged(upgraded: Store) -> None:
    jobs = await upgraded.get_jobs(["waiting", "running", "due", "recovered"])
    assert [job.status for job in jobs.values()] == [
        JobStatus.PENDING,
        JobStatus.RUNNING,
        JobStatus.SCHEDULED,
        JobStatus.PENDING,
    ]
    assert await upgraded.rules() == Rules({"draw": ServiceRules("draw", 4)}, {}, 7)
    assert await upgraded.epochs() == {"service:draw": Epoch(3, "")}
    outcome = (await upgraded.commit([RaiseEpoch("service:draw", "redis-1")])).outcomes
    assert outcome == [Done(4)]
    assert await upgraded.epochs() == {"service:draw": Epoch(4, "redis-1")}


async def test_the_same_declaration_is_recognised(upgraded: Store) -> None:
    """Otherwise the first process of this release would raise the version, and those of the previous release could not
    read what it declared."""
    (outcome,) = (await upgraded.commit([DeclareServices((ServiceRules("draw", 4),), {})])).outcomes
    assert isinstance(outcome, Done)
    assert outcome.value.version == 7


async def test_a_hold_has_the_band_of_its_job(upgraded: Store) -> None:
    assert sorted(await upgraded.holds(), key=lambda hold: hold.id) == [
        Hold("gone", "draw", "eu", 99.0, "gone:1", 2),
        Hold("recovered", "draw", None, 99.0, "recovered:1", 3),
    ]


async def test_old_outbox_rows_are_found_by_the_shard_of_their_job(upgraded: Store) -> None:
    for lanes in (THERE, Lanes(frozenset({("draw", 3)}))):
        rows = await upgraded.outbox(older_than=0, limit=9, lanes=lanes)
        assert "recovered" in [row.job_id for row in rows]
    assert [row.job_id for row in await upgraded.outbox(older_than=0, limit=9)] == ["waiting", "recovered"]


async def test_old_jobs_continue(upgraded: Store) -> None:
    now = time.time()
    batch = [Start("waiting", 0, 0, "3:1", "service:draw", "w1", 30.0), FireTimers(now, 9, {})]
    started, rung = (await upgraded.commit(batch)).outcomes
    assert isinstance(started, Started)
    assert isinstance(rung, Done)
    assert [job.id for job, _ in rung.value.moves] == ["due"]
    recovered = (await upgraded.get_jobs(["running"]))["running"]
    hold = Hold("running", "draw", None, now + 30, "running:1", 3)
    move = transitions.recover(recovered, now=now, waits={}, max_attempts=3, hold=hold)
    assert (await upgraded.commit([move])).outcomes == [Done()]
    assert hold.id in {one.id for one in await upgraded.holds()}


# ---------------------------------------------------------------- a process of the previous release


async def test_rows_written_by_an_old_process_are_found_by_every_shard_of_postgres(database: str) -> None:
    await old_postgres(database)
    store = PostgresStore(database)
    await store.open()
    try:
        async with raw_postgres(database) as old:
            await old.execute(old_row("due"))
            await old.execute(
                "INSERT INTO fairlead.hold (id, job_id, service, region, until) VALUES ('x', 'due', 'draw', NULL, 5)"
            )
            await old.execute("INSERT INTO fairlead.epoch SELECT scope, 0 FROM unnest(ARRAY['new']) AS scope")
            raised = await old.fetchval(
                "INSERT INTO fairlead.epoch AS e VALUES ('service:draw', 1)"
                " ON CONFLICT (scope) DO UPDATE SET number = e.number + 1 RETURNING number"
            )
            assert raised == 4
        for lanes in (HERE, THERE):
            rows = await store.outbox(older_than=0, limit=9, lanes=lanes)
            assert [row.job_id for row in rows] == ["waiting", "recovered", "due"]
            assert [row.job_id for row in await store.outbox(older_than=0, limit=1, lanes=lanes)] == ["waiting"]
        await store.commit([_submit("ours", Priority.HIGH)])
        later = time.time() + 60
        assert len(await store.outbox(older_than=later, limit=9, lanes=HERE)) == 3
        assert len(await store.outbox(older_than=later, limit=9, lanes=THERE)) == 4
    finally:
        await store.close()


async def test_an_old_process_continues_with_the_migrated_sqlite_file(tmp_path: Path) -> None:
    old_sqlite(tmp_path / "old.db")
    with closing(sqlite3.connect(tmp_path / "old.db", isolation_level=None)) as old:
        assert old.execute("SELECT count(*) FROM job").fetchone() == (4,)
        store = SqliteStore(str(tmp_path / "old.db"))
        await store.open()
        try:
            # As its triggers spell them.
            old.execute(
                "INSERT INTO epoch VALUES ('service:draw', 1) ON CONFLICT (scope) DO UPDATE SET number = number + 1"
            )
            old.execute("INSERT INTO outbox (job_id, origin, written_at) SELECT 'due', 'old', 5")
            old.execute("INSERT INTO hold (id, job_id, service, region, until) SELECT 'x', 'due', 'draw', NULL, 5")
            assert await store.epochs() == {"service:draw": Epoch(4, "")}
            rows = await store.outbox(older_than=0, limit=9, lanes=Lanes(frozenset({("draw", 1)})))
            assert [row.job_id for row in rows] == ["due"]
            assert {hold.id: hold.band for hold in await store.holds()}["x"] == 2
        finally:
            await store.close()


async def test_a_migration_lets_the_commits_of_running_processes_through(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It leaves the lock queue of a table from time to time; otherwise all commits would wait behind it."""
    monkeypatch.setattr(schema, "LOCK_TIMEOUT_MS", 20)
    monkeypatch.setattr(schema, "TRIES", 10_000)
    await old_postgres(database)
    store = PostgresStore(database)
    async with raw_postgres(database) as slow, raw_postgres(database) as old:
        async with slow.transaction():
            await slow.execute("LOCK TABLE fairlead.hold IN ROW EXCLUSIVE MODE")
            opening = asyncio.ensure_future(store.open())
            await _blocked(database)
            await old.execute(old_row("due"))  # it waits for one try at most
            assert not opening.done()
        await opening
    assert len(await store.outbox(older_than=0, limit=9)) == 3
    await store.close()


async def test_a_migration_that_gets_no_lock_fails_and_changes_nothing(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema, "LOCK_TIMEOUT_MS", 20)
    monkeypatch.setattr(schema, "TRIES", 2)
    await old_postgres(database)
    async with raw_postgres(database) as slow, slow.transaction():
        await slow.execute("LOCK TABLE fairlead.hold IN ROW EXCLUSIVE MODE")
        with pytest.raises(Busy):
            await PostgresStore(database).open()
        assert await schema.version_of(slow) == 1
        await slow.execute(old_row("due"))


async def _blocked(url: str) -> None:
    """Wait until a session of this database waits for a lock."""
    async with raw_postgres(url) as connection:
        sql = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        while not await connection.fetchval(sql):
            await connection.execute("SELECT pg_sleep(0.005)")


def _submit(job_id: str, priority: Priority) -> Any:
    job = Job(job_id, "image", "ann", ("draw",), priority)
    return transitions.submit(job, "{}", now=time.time(), waits={})
