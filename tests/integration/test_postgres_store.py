"""PostgreSQL in production: restarts, lost replies, other processes, newer schemas, and the indexes it uses."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import asyncpg
import pytest

from fairlead.domain import transitions
from fairlead.domain.access import Key, Role
from fairlead.domain.batch import Batch, BatchItem
from fairlead.domain.job import Job, JobStatus, StepResult
from fairlead.domain.transitions import Move, Start, Submit, submit
from fairlead.errors import AlreadyDispatching, ConfigError, StoreError, TooManyWaiting, Unavailable
from fairlead.store.group_commit import GroupCommit
from fairlead.store.port import (
    Accepted,
    Busy,
    CreateBatch,
    CreateKey,
    Done,
    FireTimers,
    IssueTicket,
    JobFilter,
    OutboxEntry,
    PromoteWaiting,
    RaiseEpoch,
    Refused,
    RevokeKey,
    SettleBatch,
    Started,
    SweepResult,
    UseTicket,
)
from fairlead.store.postgres import PostgresStore, schema
from fairlead.store.postgres import store as store_module
from fairlead.store.postgres.connect import Hosts, Server, translated
from fairlead.store.postgres.queries import WRITES
from tests import poolers, servers
from tests.integration.lost_replies import committed_once_noticed, lose_reply

ALL = JobFilter()


def job(job_id: str, **extra: Any) -> Submit:
    return submit(Job(job_id, "f", extra.pop("user_id", "ann"), ("draw",)), "{}", now=time.time(), waits={}, **extra)


def scheduled(job_id: str) -> Submit:
    """The job is due, and no manager has looked yet."""
    return submit(Job(job_id, "f", "ann", ("draw",)), "{}", now=time.time() - 10, due_at=time.time() - 5, waits={})


def start(job_id: str, lease: str = "0:1") -> Start:
    return Start(job_id, 0, 0, lease, "service:draw", "w1", 30.0)


def done(job: Job) -> Move:
    result = StepResult(job.id, 0, "draw", 0, "1", "{}", time.time(), job.lease)
    return transitions.step_done(job, result, now=time.time(), waits={})


@asynccontextmanager
async def opened(url: str, **options: Any) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(url, **options)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


@pytest.fixture
async def store(emptied_database: str) -> AsyncIterator[PostgresStore]:
    async with opened(emptied_database) as store:
        yield store


@asynccontextmanager
async def raw(url: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(servers.direct(url))
    try:
        yield connection
    finally:
        await connection.close()


async def blocked(url: str) -> None:
    """Wait until a session of this database waits for a lock."""
    async with raw(url) as connection:
        sql = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        while not await connection.fetchval(sql):
            await connection.execute("SELECT pg_sleep(0.005)")


# ---------------------------------------------------------------- opening


async def test_stores_that_open_a_new_database_at_once_create_one_schema(database: str) -> None:
    stores = [PostgresStore(database, pool_size=1) for _ in range(4)]
    await asyncio.gather(*(store.open() for store in stores))
    await asyncio.gather(*(store.commit([job(f"j{n}")]) for n, store in enumerate(stores)))
    assert await stores[0].count(ALL) == 4
    await asyncio.gather(*(store.close() for store in stores))
    async with raw(database) as connection:
        assert await schema.version_of(connection) == schema.known_version()


async def test_a_newer_schema_is_refused_and_unchanged(database: str) -> None:
    async with opened(database) as store:
        await store.commit([job("j1")])
    async with raw(database) as connection:
        await connection.execute("UPDATE fairlead.schema_version SET number = 99")
        with pytest.raises(StoreError, match=r"has schema 99.*upgrade Fairlead"):
            await PostgresStore(database).open()
        assert await connection.fetchval("SELECT number FROM fairlead.schema_version") == 99
        assert await connection.fetchval("SELECT count(*) FROM fairlead.job") == 1


async def test_a_missing_database_is_unusable_and_a_missing_server_unavailable(
    postgres_url: str,
) -> None:
    with pytest.raises(StoreError, match=r"does not exist.*createdb"):
        await PostgresStore(f"{servers.direct(postgres_url)}_not").open()
    with pytest.raises(Unavailable):
        await PostgresStore("postgresql://fairlead@127.0.0.1:9/x").open()


@pytest.mark.parametrize(
    ("error", "step"),
    [
        (asyncpg.InvalidAuthorizationSpecificationError('role "ada" does not exist'), "createuser"),
        (asyncpg.InvalidPasswordError('password authentication failed for user "ada"'), "check the password"),
    ],
)
def test_a_refused_login_comes_with_the_next_step(error: Exception, step: str) -> None:
    with pytest.raises(StoreError, match=step), translated("127.0.0.1/fairlead"):
        raise error


def test_our_url_options_are_removed_and_the_password_is_hidden() -> None:
    server = Server.of("postgresql+asyncpg://ann:pw@db:5432/x?statement_cache_size=0&pool_size=9&sslmode=require", 4)
    url = "postgresql://ann:pw@db:5432/x?sslmode=require"
    assert server == Server(url, "db:5432/x", 0, 9, Hosts([url]))
    with pytest.raises(ConfigError):
        Server.of("postgresql://db/x?pool_size=many", 4)


async def test_the_store_works_without_prepared_statements(emptied_database: str) -> None:
    async with opened(f"{servers.direct(emptied_database)}?statement_cache_size=0") as store:
        await store.commit([job("j1")])
        (started,) = (await store.commit([start("j1")])).outcomes
        assert isinstance(started, Started)
        assert (await store.commit([done(started.job)])).outcomes == [Done()]


async def test_times_are_the_servers(store: PostgresStore, emptied_database: str) -> None:
    await store.commit([job("j1")])
    async with raw(emptied_database) as connection:
        before = await connection.fetchval("SELECT extract(epoch FROM clock_timestamp())::float")
        (started,) = (await store.commit([start("j1")])).outcomes
        after = await connection.fetchval("SELECT extract(epoch FROM clock_timestamp())::float")
    assert isinstance(started, Started)
    assert before <= started.job.call_started_at <= after  # type: ignore[operator]


# ---------------------------------------------------------------- outages


@pytest.fixture
def server() -> servers.Postgres:
    """A server that may be stopped. The whole test run shares it, so it must be running again afterwards."""
    server = servers.postgres()
    if server is None:
        servers.missing("there is no PostgreSQL that may be stopped")
    return server


async def test_a_restart_is_unavailable_and_then_everything_continues(server: servers.Postgres) -> None:
    url = await servers.new_database(server.url)
    async with opened(url) as store:
        await store.lock_dispatch()
        await store.commit([job("before")])
        group_commit = GroupCommit(store, retry_delays=[0.05] * 200)
        group_commit.start()
        server.stop()
        with pytest.raises(Unavailable):
            await store.get("before")
        with pytest.raises(Busy):
            await store.commit([job("refused")])
        writing = asyncio.ensure_future(group_commit.write(job("meanwhile")))
        await asyncio.sleep(0)
        server.start()
        assert isinstance(await writing, Accepted)
        assert sorted(await store.get_jobs(["before", "refused", "meanwhile"])) == ["before", "meanwhile"]
        await group_commit.close()
        # The lock was lost with its connection, and was taken again.
        async with opened(url) as other:
            with pytest.raises(AlreadyDispatching):
                await other.lock_dispatch()


async def test_ping_does_not_wait_for_another_sessions_lock(
    store: PostgresStore, emptied_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "LOCK_TIMEOUT_MS", 20)
    await store.commit([job("j1")])
    async with raw(emptied_database) as other, other.transaction():
        # The row that a ping would write: it would wait here forever.
        await other.execute("SELECT 1 FROM fairlead.job, fairlead.schema_version FOR UPDATE")
        with pytest.raises(Busy):
            await store.commit([start("j1")])
        await store.ping()


@pytest.mark.parametrize("happened", [True, False])
async def test_a_commit_whose_reply_was_lost_is_recognised(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch, happened: bool
) -> None:
    await store.commit([job(f"j{n}") for n in range(4)])
    first, second, _ = (await store.commit([start("j0"), start("j1"), job("extra")])).outcomes
    assert isinstance(first, Started)
    assert isinstance(second, Started)
    batch = [done(first.job), done(second.job), start("j2"), start("j3", lease="9:9"), job("new")]
    lose_reply(monkeypatch, happened=happened)
    with pytest.raises(Busy):
        await store.commit(batch)
    monkeypatch.undo()
    assert (await store.get_jobs(["j0"]))["j0"].status is (JobStatus.COMPLETED if happened else JobStatus.RUNNING)
    committed = await store.commit(batch)
    assert [type(outcome) for outcome in committed.outcomes] == [Done, Done, Started, Refused, Accepted]
    assert [change.job_id for change in committed.changes] == ["new"]
    assert await store.count(ALL) == 6
    # Reported once; from then on they are late like any other.
    assert [type(one) for one in (await store.commit(batch[:3])).outcomes] == [Refused] * 3


@pytest.mark.parametrize("happened", [True, False])
async def test_a_lost_reply_of_a_single_kind_commit_is_recognised_too(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch, happened: bool
) -> None:
    await store.commit([job("j0"), job("j1"), start("j1")])  # from now on the scope exists
    running = (await store.get_jobs(["j1"]))["j1"]
    for batch, outcomes in (
        ([job("new"), job("newer")], [Accepted, Accepted]),
        ([job("key", idempotency_key="k", body_hash="h")], [Accepted]),
        ([start("j0"), start("new", lease="9:9")], [Started, Refused]),
        ([done(running), done(replace(running, id="gone"))], [Done, Refused]),
    ):
        lose_reply(monkeypatch, happened=happened)
        with pytest.raises(Busy):
            await store.commit(batch)
        monkeypatch.undo()
        committed = await committed_once_noticed(store, batch)
        assert [type(outcome) for outcome in committed.outcomes] == outcomes
        new = [one.job.id for one in batch if isinstance(one, Submit)]
        assert [change.job_id for change in committed.changes] == new
        # Reported once; from then on they are late like any other.
        if outcomes[0] is not Accepted:
            assert [type(one) for one in (await store.commit(batch)).outcomes] == [Refused] * 2
    assert await store.count(ALL) == 5
    jobs = await store.get_jobs(["j0", "j1"])
    assert [jobs["j0"].run, jobs["j1"].run] == [1, 2]


@pytest.mark.skipif(bool(os.environ.get(poolers.CHOICE)), reason="behind a pooler every commit has a number")
async def test_a_statement_in_doubt_is_resolved_only_when_its_session_is_gone(
    store: PostgresStore, emptied_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = [job("j0")]
    lose_reply(monkeypatch, happened=True, times=1)
    with monkeypatch.context() as patch:
        patch.setattr(asyncpg.Connection, "terminate", lambda connection: None)  # so that the server does not notice
        with pytest.raises(Busy):
            await store.commit(batch)
        for _ in range(3):
            with pytest.raises(Busy, match="not yet noticed"):
                await store.commit(batch)
    async with raw(emptied_database) as operator:
        await operator.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
    group_commit = GroupCommit(store)
    group_commit.start()
    assert isinstance(await group_commit.write(batch[0]), Accepted)
    await group_commit.close()
    assert await store.count(ALL) == 1


@pytest.mark.parametrize("happened", [True, False])
async def test_after_a_lost_reply_a_used_ticket_or_a_created_key_is_not_attributed_to_another_caller(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch, happened: bool
) -> None:
    now = time.time()
    old, new = (Key(id_, Role.SERVICE, None, "batch", "ab", now) for id_ in ("old", "new"))
    await store.commit([CreateKey(old), IssueTicket("t1", "third", now + 60)])
    batch = [UseTicket("t1", now), CreateKey(new), RevokeKey("old", now)]
    lose_reply(monkeypatch, happened=happened, times=1)
    with pytest.raises(Busy):
        await store.commit(batch)
    monkeypatch.undo()
    # Another caller uses the same ticket in between.
    assert isinstance((await store.commit([UseTicket("t1", now)])).outcomes[0], Refused if happened else Done)
    outcomes = (await store.commit(batch)).outcomes
    assert outcomes[1:] == [Done(), Done()]
    assert outcomes[0] == Done("third") if happened else isinstance(outcomes[0], Refused)
    assert [type(one) for one in (await store.commit(batch)).outcomes] == [Refused] * 3


@pytest.mark.parametrize("happened", [True, False])
async def test_a_batch_whose_reply_was_lost_is_created_once_and_its_key_is_not_reported_as_taken(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch, happened: bool
) -> None:
    group_commit = GroupCommit(store)
    group_commit.start()
    items = tuple(BatchItem(n, None, f"j{n}") for n in range(3))
    create = CreateBatch(Batch("b1", "ann", 3, time.time()), items, "key", "hash")
    lose_reply(monkeypatch, happened=happened, times=1)
    outcomes = await group_commit.write_all([*(job(item.job_id) for item in items), create])
    await group_commit.close()
    assert [type(outcome) for outcome in outcomes] == [Accepted, Accepted, Accepted, Done]
    assert await store.count(ALL) == 3
    assert [item.job_id for item in await store.batch_items("b1", limit=10)] == ["j0", "j1", "j2"]


async def test_a_settlement_that_waits_for_a_revival_sees_it(store: PostgresStore, emptied_database: str) -> None:
    create = CreateBatch(Batch("b1", "ann", 1, time.time()), (BatchItem(0, None, "j0"),))
    await store.commit([job("j0"), create])
    (started,) = (await store.commit([start("j0")])).outcomes
    assert isinstance(started, Started)
    await store.commit([done(started.job)])
    async with raw(emptied_database) as other:
        # The state of a commit that resumes the job just before it ends.
        revival = other.transaction()
        await revival.start()
        await other.execute("UPDATE fairlead.job SET status = 1, ended = NULL WHERE id = 'j0'")
        await other.execute(WRITES["reopen_batches"], ["j0"])
        settlement = asyncio.create_task(store.commit([SettleBatch("b1", time.time())]))
        await blocked(emptied_database)
        await revival.commit()
    assert isinstance((await settlement).outcomes[0], Refused)
    state = await store.get_batch("b1")
    assert state is not None
    assert (state.open, state.finished_at) == (1, None)


@pytest.mark.parametrize("happened", [True, False])
async def test_a_sweep_whose_reply_was_lost_returns_its_moves(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch, happened: bool
) -> None:
    await store.commit([scheduled("due"), job("waiting"), job("other")])
    now = time.time() + 9
    batch = [FireTimers(now, 9, {}), start("other"), PromoteWaiting(now, now, now, 9, {})]
    lose_reply(monkeypatch, happened=happened, times=1)
    with pytest.raises(Busy):
        await store.commit(batch)
    monkeypatch.undo()
    await store.commit([job("late")])  # too late for this sweep, if it was committed
    committed = await store.commit(batch)
    ring, started, promote = committed.outcomes
    assert isinstance(ring, Done)
    assert isinstance(promote, Done)
    assert isinstance(started, Started)
    assert [moved.id for moved, _ in ring.value.moves] == ["due"]
    promoted = ["waiting"] if happened else ["waiting", "late"]
    assert [moved.id for moved, _ in promote.value.moves] == promoted
    runs = {one.id: one.run for one in (await store.get_jobs(["due", "waiting"])).values()}
    assert runs == {"due": 1, "waiting": 1}
    # Reported once; the same sweep again is a new one.
    again, _, _ = (await store.commit(batch)).outcomes
    assert again == Done(SweepResult(0, []))


class RecordingRelay:
    def __init__(self) -> None:
        self.job_ids: list[str] = []

    def committed(self, entries: Sequence[OutboxEntry]) -> None:
        self.job_ids += [entry.job_id for entry in entries]


async def test_a_sweep_whose_reply_was_lost_is_relayed(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    relay = RecordingRelay()
    group_commit = GroupCommit(store, relay)
    group_commit.start()
    await store.commit([scheduled(f"due-{n}") for n in range(3)])
    lose_reply(monkeypatch, happened=True, times=1)
    outcome = await group_commit.write(FireTimers(time.time() + 9, 9, {}))
    assert isinstance(outcome, Done)
    assert sorted(moved.id for moved, _ in outcome.value.moves) == sorted(relay.job_ids) == ["due-0", "due-1", "due-2"]
    await group_commit.close()


async def test_the_group_commit_hides_a_lost_reply(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    group_commit = GroupCommit(store)
    group_commit.start()
    lose_reply(monkeypatch, happened=True, times=1)
    assert isinstance(await group_commit.write(job("j1")), Accepted)
    started = await group_commit.write(start("j1"))
    assert isinstance(started, Started)
    lose_reply(monkeypatch, happened=True, times=1)
    assert await group_commit.write(done(started.job)) == Done()
    await group_commit.close()


# ---------------------------------------------------------------- other processes


async def test_a_start_waits_for_a_rebuild_that_raises_its_epoch_and_is_refused(
    store: PostgresStore, emptied_database: str
) -> None:
    await store.commit([job("j1"), job("j2")])
    await store.commit([start("j1")])
    async with raw(emptied_database) as rebuilding:
        async with rebuilding.transaction():
            await rebuilding.fetch(WRITES["raise_epoch"], "service:draw", "")
            starting = asyncio.ensure_future(store.commit([start("j2")]))
            await blocked(emptied_database)
        (outcome,) = (await starting).outcomes
    assert isinstance(outcome, Refused)


async def test_a_rebuild_waits_for_starts_of_the_old_epoch(store: PostgresStore, emptied_database: str) -> None:
    await store.commit([job("j1")])
    async with raw(emptied_database) as starting:
        async with starting.transaction():
            await starting.execute(WRITES["create_epochs"], ["service:draw"])
            await starting.fetch(WRITES["share_epochs"], ["service:draw"])
            raising = asyncio.ensure_future(store.commit([RaiseEpoch("service:draw")]))
            await blocked(emptied_database)
            assert not raising.done()
        assert (await raising).outcomes == [Done(1)]


async def test_of_two_processes_with_the_same_key_one_creates_the_job(emptied_database: str) -> None:
    async with opened(emptied_database) as one, opened(emptied_database) as other:
        commits = [
            store.commit([job(f"{name}-{n}", idempotency_key=f"k{n}", body_hash="h") for n in range(20)])
            for name, store in (("one", one), ("other", other))
        ]
        first, second = await asyncio.gather(*commits)
        assert await one.count(ALL) == 20
        assert [o.job_id for o in first.outcomes] == [o.job_id for o in second.outcomes]  # type: ignore[union-attr]


async def test_two_processes_together_stay_below_a_users_cap(emptied_database: str) -> None:
    async with opened(emptied_database) as one, opened(emptied_database) as other:
        commits = [
            store.commit([job(f"{name}-{n}-{m}", max_waiting=7) for m in range(2)])
            for n in range(5)
            for name, store in (("one", one), ("other", other))
        ]
        outcomes = [outcome for committed in await asyncio.gather(*commits) for outcome in committed.outcomes]
    assert sum(isinstance(outcome, Accepted) for outcome in outcomes) == 7
    assert sum(isinstance(outcome, TooManyWaiting) for outcome in outcomes) == 13


async def test_a_lock_timeout_is_busy(
    store: PostgresStore, emptied_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "LOCK_TIMEOUT_MS", 20)
    await store.commit([job("j1")])
    async with raw(emptied_database) as other, other.transaction():
        await other.execute("SELECT 1 FROM fairlead.job FOR UPDATE")
        with pytest.raises(Busy):
            await store.commit([start("j1")])
    assert isinstance((await store.commit([start("j1")])).outcomes[0], Started)


async def test_a_deadlock_is_busy_and_the_group_commit_retries(store: PostgresStore, emptied_database: str) -> None:
    await store.commit([job("a"), job("b")])
    group_commit = GroupCommit(store)
    group_commit.start()
    async with raw(emptied_database) as other:
        async with other.transaction():
            await other.execute("SET LOCAL deadlock_timeout = '10s'")  # so that the victim is ours
            await other.execute("UPDATE fairlead.job SET error = NULL WHERE id = 'b'")
            writing = asyncio.ensure_future(group_commit.write_each([start("a"), start("b")]))
            await blocked(emptied_database)
            await other.execute("UPDATE fairlead.job SET error = NULL WHERE id = 'a'")
        assert [type(outcome) for outcome in await writing] == [Started, Started]
    await group_commit.close()


async def test_a_completed_job_that_starts_a_new_round_keeps_its_result(store: PostgresStore) -> None:
    """A rerun starts one; the result in the job's row must not be overwritten."""
    await store.commit([job("j1")])
    for round_ in range(3):
        stored = (await store.get_jobs(["j1"]))["j1"]
        (started,) = (await store.commit([Start("j1", 0, stored.run, "0:1", "s", "w", 30.0)])).outcomes
        assert isinstance(started, Started)
        result = StepResult("j1", 0, "draw", round_, f"{round_}", "{}", 5.0, "0:1")
        await store.commit([transitions.step_done(started.job, result, now=5.0, waits={})])
        run = started.job.run + 1
        again = Move("j1", run, "rerun", JobStatus.PENDING, 0, 0, round_ + 1, True, queued_at=6.0, waiting_since=6.0)
        assert (await store.commit([again])).outcomes == [Done()]
    record = await store.get("j1")
    assert record is not None
    assert [(result.round, result.data, result.lease) for result in record.results] == [
        (0, 0, "0:1"),
        (1, 1, "0:1"),
        (2, 2, "0:1"),
    ]


async def test_sessions_that_the_server_ends_are_unavailable_and_not_errors(
    store: PostgresStore, emptied_database: str
) -> None:
    """Including the session with the dispatch lock, whose loss two concurrent commits may notice."""
    await store.lock_dispatch()
    group_commit = GroupCommit(store, writers=2)
    group_commit.start()
    async with raw(emptied_database) as operator:
        for round_ in range(10):
            await operator.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            outcomes = await asyncio.gather(
                *(group_commit.write(job(f"j{round_}-{n}")) for n in range(20)),
                store.count(ALL),
                return_exceptions=True,
            )
            assert {type(outcome) for outcome in outcomes} <= {Accepted, Unavailable, Busy, int}, outcomes
            assert any(isinstance(outcome, Accepted) for outcome in outcomes), outcomes
    await group_commit.close()


async def test_behind_a_pooler_the_dispatch_lock_keeps_its_own_session(
    emptied_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pooler in transaction mode passes a session on when a transaction ends, with the session's locks. It is
    recognised by a process id that differs from the server's."""
    if not os.environ.get(poolers.CHOICE):
        monkeypatch.setattr(asyncpg.Connection, "get_server_pid", lambda connection: -1)
    states = (
        "SELECT state, application_name FROM pg_locks JOIN pg_stat_activity USING (pid) WHERE locktype = 'advisory'"
    )
    async with opened(emptied_database) as first, opened(emptied_database) as second:
        await first.lock_dispatch()
        with pytest.raises(AlreadyDispatching, match=f"process {os.getpid()} on"):
            await second.lock_dispatch()
        looker = await asyncpg.connect(servers.direct(emptied_database))
        ((state, name),) = await looker.fetch(states + " AND datname = current_database()")
        assert (state, name.startswith("fairlead process ")) == ("idle in transaction", True)
        assert "fairlead process" not in str(await second.facts()), "it is not a forgotten transaction"
        await looker.close()
        await first.close()
        await second.lock_dispatch()
