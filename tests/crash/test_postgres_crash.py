"""PostgreSQL is stopped abruptly and repeatedly in the middle of commits. This costs time, and no data."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import asyncpg
import pytest

from fairlead.domain.job import Job
from fairlead.domain.transitions import Submit, submit
from fairlead.errors import Unavailable
from fairlead.store.port import Accepted, Committed
from fairlead.store.postgres import PostgresStore
from fairlead.store.postgres.in_doubt_commits import InDoubtCommits
from tests import servers

ROUNDS = 5
CALLERS = 4
PER_ROUND = 30
PER_COMMIT = 40


@pytest.fixture
async def server() -> AsyncIterator[servers.Postgres]:
    own = servers.own_postgres()
    yield own
    own.remove()


def job(name: str) -> Submit:
    return submit(Job(name, "f", "ann", ("draw",)), "{}", now=time.time(), waits={})


class Caller:
    """Commit until stopped. Retry unacknowledged commits, as the group commit does."""

    def __init__(self, store: PostgresStore, name: str) -> None:
        self._store = store
        self._name = name
        self.acknowledged: list[str] = []
        self.stopping = False

    async def run(self) -> None:
        number = 0
        while not self.stopping:
            number += 1
            batch = [job(f"{self._name}-{number}-{item}") for item in range(PER_COMMIT)]
            while True:
                try:
                    committed = await self._store.commit(batch)
                    break
                except Unavailable:
                    await asyncio.sleep(0.005)
            assert [type(outcome) for outcome in committed.outcomes] == [Accepted] * PER_COMMIT
            self.acknowledged += [one.job.id for one in batch]


@pytest.mark.slow
async def test_a_commit_interrupted_by_a_crash_is_retried_and_counts_once(
    server: servers.Postgres,
) -> None:
    store = PostgresStore(server.url)
    await store.open()
    callers = [Caller(store, f"c{number}") for number in range(CALLERS)]
    tasks = [asyncio.create_task(caller.run()) for caller in callers]

    def acknowledged() -> int:
        return sum(len(caller.acknowledged) for caller in callers) // PER_COMMIT

    for _ in range(ROUNDS):
        enough = acknowledged() + PER_ROUND
        while acknowledged() < enough and not any(task.done() for task in tasks):
            await asyncio.sleep(0.005)
        server.restart()
    for caller in callers:
        caller.stopping = True
    errors = [error for error in await asyncio.gather(*tasks, return_exceptions=True) if error is not None]
    await store.close()
    assert errors == []
    connection = await asyncpg.connect(server.url)
    try:
        stored = {row[0] for row in await connection.fetch("SELECT id FROM fairlead.job")}
    finally:
        await connection.close()
    assert {job_id for caller in callers for job_id in caller.acknowledged} <= stored


async def test_a_transaction_unknown_to_a_crashed_server_did_not_happen(database: str) -> None:
    """Its id was assigned but not written to disk: after the crash it is "in the future"."""
    doubts, batch = InDoubtCommits(), [job("lost")]
    connection = await asyncpg.connect(servers.direct(database))
    try:
        newest = int(await connection.fetchval("SELECT pg_current_xact_id()::text"))
        doubts.remember(str(newest + 1000), batch, Committed([Accepted("lost", 1)], []))
        await doubts.settle(connection)
        assert doubts.answers(batch) == {}
    finally:
        await connection.close()


class Slow:
    """A connection that is slow to report the outcome of a transaction."""

    def __init__(self) -> None:
        self.asked, self.answer = asyncio.Event(), asyncio.Event()

    async def fetchval(self, *asked: object) -> str:
        self.asked.set()
        await self.answer.wait()
        return "committed"

    async def fetch(self, *asked: object) -> list[tuple[str, int]]:
        return [("doubtful", 0)]


async def test_a_commit_waits_while_another_one_in_doubt_is_resolved() -> None:
    """It may be the same commit, retried by its caller while another one asks for its outcome."""
    doubts, batch, connection = InDoubtCommits(), [job("doubtful")], Slow()
    doubts.remember("1000", batch, Committed([Accepted("doubtful", 1)], []))
    first = asyncio.create_task(doubts.settle(connection))
    await connection.asked.wait()
    second = asyncio.create_task(doubts.settle(connection))
    for _ in range(10):
        await asyncio.sleep(0)  # every chance to continue
    assert not second.done()
    connection.answer.set()
    await asyncio.gather(first, second)
    assert doubts.answers(batch) == {0: Accepted("doubtful", 1)}
