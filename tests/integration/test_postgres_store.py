"""PostgreSQL as it is in life: restarts, lost replies, other processes, newer schemas, and the indexes it uses."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import asyncpg
import pytest

from fairlead.domain import transitions
from fairlead.domain.batch import Batch, BatchItem
from fairlead.domain.job import Job, JobStatus, StepResult
from fairlead.domain.keys import Key, Role
from fairlead.domain.transitions import Move, Start, Submit, submit
from fairlead.errors import AlreadyDispatching, ConfigError, StoreError, TooManyWaiting, Unavailable
from fairlead.store.journal import Journal
from fairlead.store.port import (
    Accepted,
    Busy,
    CreateBatch,
    CreateKey,
    Done,
    IssueTicket,
    JobFilter,
    PromoteWaiting,
    RaiseEpoch,
    Refused,
    RevokeKey,
    RingTimers,
    Rung,
    SettleBatch,
    Started,
    UseTicket,
)
from fairlead.store.postgres import PostgresStore, schema
from fairlead.store.postgres import store as store_module
from fairlead.store.postgres.connect import Server
from fairlead.store.postgres.queries import WRITES
from tests import servers

ALL = JobFilter()


def job(job_id: str, **extra: Any) -> Submit:
    return submit(Job(job_id, "f", extra.pop("user_id", "ann"), ("draw",)), "{}", now=time.time(), waits={}, **extra)


def scheduled(job_id: str) -> Submit:
    return job(job_id, due_at=time.time() + 5)


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
    connection = await asyncpg.connect(url)
    try:
        yield connection
    finally:
        await connection.close()


async def blocked(url: str) -> None:
    """Returns when somebody in this database waits for a lock."""
    async with raw(url) as connection:
        sql = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        while not await connection.fetchval(sql):
            await connection.execute("SELECT pg_sleep(0.005)")


# ---------------------------------------------------------------- opening


async def test_stores_that_open_a_new_database_at_once_make_one_schema(database: str) -> None:
    stores = [PostgresStore(database, pool_size=1) for _ in range(4)]
    await asyncio.gather(*(store.open() for store in stores))
    await asyncio.gather(*(store.commit([job(f"j{n}")]) for n, store in enumerate(stores)))
    assert await stores[0].count(ALL) == 4
    await asyncio.gather(*(store.close() for store in stores))
    async with raw(database) as connection:
        assert await schema.version_of(connection) == schema.known_version()


async def test_a_newer_schema_is_refused_and_left_as_it_is(database: str) -> None:
    async with opened(database) as store:
        await store.commit([job("j1")])
    async with raw(database) as connection:
        await connection.execute("UPDATE fairlead.schema_version SET number = 99")
        with pytest.raises(StoreError, match=r"has schema 99.*upgrade Fairlead"):
            await PostgresStore(database).open()
        assert await connection.fetchval("SELECT number FROM fairlead.schema_version") == 99
        assert await connection.fetchval("SELECT count(*) FROM fairlead.job") == 1


async def test_a_database_that_is_not_there_is_unusable_and_a_server_that_is_not_there_unavailable(
    postgres_url: str,
) -> None:
    with pytest.raises(StoreError, match="does not exist"):
        await PostgresStore(f"{postgres_url}_not").open()
    with pytest.raises(Unavailable):
        await PostgresStore("postgresql://fairlead@127.0.0.1:9/x").open()


def test_the_urls_own_options_are_taken_out_of_it_and_its_password_is_not_shown() -> None:
    server = Server.of("postgresql+asyncpg://ann:pw@db:5432/x?statement_cache_size=0&pool_size=9&sslmode=require", 4)
    assert server == Server("postgresql://ann:pw@db:5432/x?sslmode=require", "db:5432/x", 0, 9)
    with pytest.raises(ConfigError):
        Server.of("postgresql://db/x?pool_size=many", 4)


async def test_it_works_without_prepared_statements(emptied_database: str) -> None:
    async with opened(f"{emptied_database}?statement_cache_size=0") as store:
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


# ---------------------------------------------------------------- a server that goes away


@pytest.fixture
def server() -> servers.Postgres:
    """One that may be stopped. It is that of the whole test run, so it must be running again afterwards."""
    server = servers.postgres()
    if server is None:
        servers.missing("there is no PostgreSQL that may be stopped")
    return server


async def test_a_restart_is_unavailable_and_then_all_goes_on(server: servers.Postgres) -> None:
    url = await servers.new_database(server.url)
    async with opened(url) as store:
        await store.lock_dispatch()
        await store.commit([job("before")])
        journal = Journal(store, on_commit=lambda changes: None, retry_delays=[0.05] * 200)
        journal.start()
        server.stop()
        with pytest.raises(Unavailable):
            await store.get("before")
        with pytest.raises(Busy):
            await store.commit([job("refused")])
        writing = asyncio.ensure_future(journal.write(job("meanwhile")))
        await asyncio.sleep(0)
        server.start()
        assert isinstance(await writing, Accepted)
        assert sorted(await store.get_jobs(["before", "refused", "meanwhile"])) == ["before", "meanwhile"]
        await journal.close()
        # The lock went with its connection, and was taken again.
        async with opened(url) as other:
            with pytest.raises(AlreadyDispatching):
                await other.lock_dispatch()


async def set_read_only(store: PostgresStore, setting: str) -> None:
    async with store._writers().connection() as connection:
        await connection.execute(f"SET default_transaction_read_only = {setting}")


async def test_ping_says_that_a_commit_failed_for_want_of_the_server_until_one_works(emptied_database: str) -> None:
    """As after a fail-over to a standby: it can be read, but not written."""
    async with opened(emptied_database, pool_size=1) as store:
        await store.ping()
        await set_read_only(store, "on")
        await store.ping()
        with pytest.raises(Busy, match="read-only"):
            await store.commit([job("j1")])
        with pytest.raises(Unavailable, match="read-only"):
            await store.ping()
        await set_read_only(store, "off")
        await store.ping()
        assert isinstance((await store.commit([job("j1")])).outcomes[0], Accepted)


async def test_ping_does_not_mind_a_lock_of_another(
    store: PostgresStore, emptied_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "LOCK_TIMEOUT_MS", 20)
    await store.commit([job("j1")])
    async with raw(emptied_database) as other, other.transaction():
        # What a ping would write, so that it would have to wait here for ever.
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
    # Told once, they are late like any other.
    assert [type(one) for one in (await store.commit(batch[:3])).outcomes] == [Refused] * 3


@pytest.mark.parametrize("happened", [True, False])
async def test_a_lost_reply_is_recognised_of_a_commit_of_one_kind_too(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch, happened: bool
) -> None:
    await store.commit([job("j0"), job("j1"), start("j1")])  # from now on the scope is known
    running = (await store.get_jobs(["j1"]))["j1"]
    for batch, told in (
        ([job("new"), job("newer")], [Accepted, Accepted]),
        ([start("j0"), start("new", lease="9:9")], [Started, Refused]),
        ([done(running), done(replace(running, id="gone"))], [Done, Refused]),
    ):
        lose_reply(monkeypatch, happened=happened)
        with pytest.raises(Busy):
            await store.commit(batch)
        monkeypatch.undo()
        committed = await store.commit(batch)
        assert [type(outcome) for outcome in committed.outcomes] == told
        assert [change.job_id for change in committed.changes] == (["new", "newer"] if told[1] is Accepted else [])
        # Told once, they are late like any other.
        if told[0] is not Accepted:
            assert [type(one) for one in (await store.commit(batch)).outcomes] == [Refused] * 2
    assert await store.count(ALL) == 4
    jobs = await store.get_jobs(["j0", "j1"])
    assert [jobs["j0"].run, jobs["j1"].run] == [1, 2]


async def test_a_statement_in_doubt_is_settled_only_when_its_session_is_gone(
    store: PostgresStore, emptied_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = [job("j0")]
    lose_reply(monkeypatch, happened=True, times=1)
    with monkeypatch.context() as patch:
        patch.setattr(asyncpg.Connection, "terminate", lambda connection: None)  # so the server does not notice
        with pytest.raises(Busy):
            await store.commit(batch)
        for _ in range(3):
            with pytest.raises(Busy, match="not noticed yet"):
                await store.commit(batch)
    async with raw(emptied_database) as operator:
        await operator.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
    journal = Journal(store, on_commit=lambda changes: None)
    journal.start()
    assert isinstance(await journal.write(batch[0]), Accepted)
    await journal.close()
    assert await store.count(ALL) == 1


@pytest.mark.parametrize("happened", [True, False])
async def test_whoever_used_a_ticket_or_made_a_key_is_not_told_of_somebody_else_when_a_reply_was_lost(
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
    # Whoever comes with the same ticket in between is another one.
    assert isinstance((await store.commit([UseTicket("t1", now)])).outcomes[0], Refused if happened else Done)
    outcomes = (await store.commit(batch)).outcomes
    assert outcomes[1:] == [Done(), Done()]
    assert outcomes[0] == Done("third") if happened else isinstance(outcomes[0], Refused)
    assert [type(one) for one in (await store.commit(batch)).outcomes] == [Refused] * 3


@pytest.mark.parametrize("happened", [True, False])
async def test_a_batch_whose_reply_was_lost_is_made_once_and_not_told_that_its_key_is_taken(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch, happened: bool
) -> None:
    journal = Journal(store, on_commit=lambda changes: None)
    journal.start()
    items = tuple(BatchItem(n, None, f"j{n}") for n in range(3))
    create = CreateBatch(Batch("b1", "ann", 3, time.time()), items, "key", "hash")
    lose_reply(monkeypatch, happened=happened, times=1)
    outcomes = await journal.write_all([*(job(item.job_id) for item in items), create])
    await journal.close()
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
        # As far as a commit that takes the job up again has come when it is about to end.
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
async def test_a_sweep_whose_reply_was_lost_is_answered_with_what_it_moved(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch, happened: bool
) -> None:
    await store.commit([scheduled("due"), job("waiting"), job("other")])
    now = time.time() + 9
    batch = [RingTimers(now, 9, {}), start("other"), PromoteWaiting(now, now, now, 9, {})]
    lose_reply(monkeypatch, happened=happened, times=1)
    with pytest.raises(Busy):
        await store.commit(batch)
    monkeypatch.undo()
    await store.commit([job("late")])  # too late for this sweep, if it was made
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
    # Told once; the same sweep again is a new one.
    again, _, _ = (await store.commit(batch)).outcomes
    assert again == Done(Rung(0, []))


async def test_the_line_hears_of_a_sweep_whose_reply_was_lost(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[str] = []
    journal = Journal(store, on_commit=lambda changes: heard.extend(change.job_id for change in changes))
    journal.start()
    await store.commit([scheduled(f"due-{n}") for n in range(3)])
    lose_reply(monkeypatch, happened=True, times=1)
    outcome = await journal.write(RingTimers(time.time() + 9, 9, {}))
    assert isinstance(outcome, Done)
    assert sorted(moved.id for moved, _ in outcome.value.moves) == sorted(heard) == ["due-0", "due-1", "due-2"]
    await journal.close()


async def test_through_the_journal_a_lost_reply_is_not_even_noticed(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal(store, on_commit=lambda changes: None)
    journal.start()
    lose_reply(monkeypatch, happened=True, times=1)
    assert isinstance(await journal.write(job("j1")), Accepted)
    started = await journal.write(start("j1"))
    assert isinstance(started, Started)
    lose_reply(monkeypatch, happened=True, times=1)
    assert await journal.write(done(started.job)) == Done()
    await journal.close()


def lose_reply(monkeypatch: pytest.MonkeyPatch, *, happened: bool, times: int = 99) -> None:
    """The next commits end with a broken connection, after or before the server did them."""
    execute, fetch = asyncpg.Connection.execute, asyncpg.Connection.fetch
    alone = {WRITES[name] for name in ("submit", "submit_together", "start_express", "complete")}
    left = [times]

    async def losing_statement(self: Any, query: str, *args: Any, **options: Any) -> Any:
        if query not in alone or not left[0] or self.is_in_transaction():
            return await fetch(self, query, *args, **options)
        left[0] -= 1
        if happened:
            await fetch(self, query, *args, **options)
        raise ConnectionResetError("the reply was lost")

    async def losing(self: Any, query: str, *args: Any, **options: Any) -> Any:
        if query != "COMMIT" or not left[0]:
            return await execute(self, query, *args, **options)
        left[0] -= 1
        if happened:
            await execute(self, query)
        else:
            await execute(self, "ROLLBACK")
        raise ConnectionResetError("the reply was lost")

    monkeypatch.setattr(asyncpg.Connection, "execute", losing)
    monkeypatch.setattr(asyncpg.Connection, "fetch", losing_statement)


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
            await starting.execute(WRITES["know_scopes"], ["service:draw"])
            await starting.fetch(WRITES["share_epochs"], ["service:draw"])
            raising = asyncio.ensure_future(store.commit([RaiseEpoch("service:draw")]))
            await blocked(emptied_database)
            assert not raising.done()
        assert (await raising).outcomes == [Done(1)]


async def test_of_two_processes_with_the_same_key_one_makes_the_job(emptied_database: str) -> None:
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


async def test_a_lock_that_is_not_given_in_time_is_busy(
    store: PostgresStore, emptied_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "LOCK_TIMEOUT_MS", 20)
    await store.commit([job("j1")])
    async with raw(emptied_database) as other, other.transaction():
        await other.execute("SELECT 1 FROM fairlead.job FOR UPDATE")
        with pytest.raises(Busy):
            await store.commit([start("j1")])
    assert isinstance((await store.commit([start("j1")])).outcomes[0], Started)


async def test_a_deadlock_is_busy_and_the_journal_gets_through(store: PostgresStore, emptied_database: str) -> None:
    await store.commit([job("a"), job("b")])
    journal = Journal(store, on_commit=lambda changes: None)
    journal.start()
    async with raw(emptied_database) as other:
        async with other.transaction():
            await other.execute("SET LOCAL deadlock_timeout = '10s'")  # so that the victim is the journal's commit
            await other.execute("UPDATE fairlead.job SET error = NULL WHERE id = 'b'")
            writing = asyncio.ensure_future(journal.write_each([start("a"), start("b")]))
            await blocked(emptied_database)
            await other.execute("UPDATE fairlead.job SET error = NULL WHERE id = 'a'")
        assert [type(outcome) for outcome in await writing] == [Started, Started]
    await journal.close()


async def test_a_completed_job_that_begins_a_new_round_keeps_the_result_of_the_old_one(store: PostgresStore) -> None:
    """A re-run does so; the result in the job's row must not stand in its way."""
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


async def test_sessions_that_the_server_ends_are_only_away(store: PostgresStore, emptied_database: str) -> None:
    """Also the one that holds the dispatch lock, which two commits at once may find lost."""
    await store.lock_dispatch()
    journal = Journal(store, on_commit=lambda changes: None, writers=2)
    journal.start()
    async with raw(emptied_database) as operator:
        for round_ in range(10):
            await operator.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            outcomes = await asyncio.gather(
                *(journal.write(job(f"j{round_}-{n}")) for n in range(20)), store.count(ALL), return_exceptions=True
            )
            assert {type(outcome) for outcome in outcomes} <= {Accepted, Unavailable, Busy, int}, outcomes
            assert any(isinstance(outcome, Accepted) for outcome in outcomes), outcomes
    await journal.close()
