"""The store engines under contract, and the helpers of its tests."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fairlead.domain import transitions
from fairlead.domain.job import Job, JobStatus, StepResult
from fairlead.domain.transitions import Move, Start, Submit
from fairlead.store.port import Accepted, OutboxEntry, Outcome, Started, Store, Transition
from fairlead.store.postgres import PostgresStore
from fairlead.store.sqlite import SqliteStore
from tests import servers

START_OF_TIME = 1_700_000_000.0


class Clock:
    """A clock that tests move by hand."""

    def __init__(self) -> None:
        self.now = START_OF_TIME

    def __call__(self) -> float:
        return self.now

    def forward(self, seconds: float) -> float:
        self.now += seconds
        return self.now


@asynccontextmanager
async def sqlite_store(folder: Path, clock: Clock) -> AsyncIterator[Store]:
    store = SqliteStore(str(folder / "fairlead.db"), clock=clock, synchronous="OFF")
    await store.open()
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def postgres_store(folder: Path, clock: Clock) -> AsyncIterator[Store]:
    # Creating a database takes longer than most tests, so all share one, which is emptied once per folder.
    url = await servers.shared_database()
    if not (marker := folder / "postgres").exists():
        marker.touch()
        await servers.empty(url)
    store = PostgresStore(url, clock=clock, pool_size=2)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


ENGINES: dict[str, Callable[[Path, Clock], Any]] = {"postgres": postgres_store, "sqlite": sqlite_store}
"""Each opens a store of the same database when called again with the same folder."""


_numbers = itertools.count(1)


class StoreHarness:
    """A store, its clock, and shortcuts for common transitions."""

    def __init__(self, store: Store, clock: Clock, another: Callable[[], Any]) -> None:
        self.store = store
        self.clock = clock
        self.another = another
        self.changes: list[OutboxEntry] = []

    async def commit(self, *batch: Transition) -> list[Outcome | Exception]:
        committed = await self.store.commit(batch)
        self.changes = list(committed.changes)
        return list(committed.outcomes)

    async def one(self, transition: Transition) -> Any:
        (outcome,) = await self.commit(transition)
        return outcome

    def submit(self, job_id: str | None = None, **fields: Any) -> Submit:
        """A Submit of a new job. Fields that Job lacks go to Submit."""
        extra = {
            name: fields.pop(name)
            for name in ("metadata_json", "idempotency_key", "body_hash", "max_waiting", "due_at", "ordered", "files")
            if name in fields
        }
        fields = {"feature_name": "image", "user_id": "ann", "steps": ("draw",), **fields}
        input_json = fields.pop("input_json", '{"prompt":"a cat"}')
        waits = fields.pop("waits", {})
        job = Job(id=job_id or f"job-{next(_numbers)}", **fields)
        return transitions.submit(job, input_json, now=self.clock.now, waits=waits, **extra)

    async def submitted(self, job_id: str | None = None, **fields: Any) -> Job:
        accepted = await self.one(self.submit(job_id, **fields))
        assert isinstance(accepted, Accepted)
        return await self.job(accepted.job_id)

    async def job(self, job_id: str) -> Job:
        return (await self.store.get_jobs([job_id]))[job_id]

    def start(self, job: Job, **changed: Any) -> Start:
        fields = {"lease": "0:1", "scope": "service:draw", "worker": "w1", "timeout": 30.0, **changed}
        return Start(job.id, fields.pop("step", job.step), fields.pop("run", job.run), **fields)

    async def started(self, job: Job, **changed: Any) -> Job:
        outcome = await self.one(self.start(job, **changed))
        assert isinstance(outcome, Started), outcome
        return outcome.job

    async def running(self, **fields: Any) -> Job:
        return await self.started(await self.submitted(**fields))

    def done(self, job: Job, data_json: str = '{"url":"x"}', metrics_json: str = "{}") -> Move:
        result = StepResult(
            job.id, job.step, job.service, job.round, data_json, metrics_json, self.clock.now, job.lease
        )
        return transitions.step_done(job, result, now=self.clock.now, waits={})

    async def completed(self, **fields: Any) -> Job:
        job = await self.running(**fields)
        await self.one(self.done(job))
        return await self.job(job.id)

    async def failed(self, *, retryable: bool = False, **fields: Any) -> Job:
        job = await self.running(**fields)
        move = Move(
            *(job.id, job.run, "fail", JobStatus.FAILED, job.step, job.attempt, job.round),
            tells_line=False,
            finished_at=self.clock.now,
            retryable=retryable,
            error={"code": "X", "message": "no"},
        )
        await self.one(move)
        return await self.job(job.id)

    async def cancelled(self, **fields: Any) -> Job:
        job = await self.submitted(**fields)
        await self.one(transitions.cancel(job, now=self.clock.now))
        return await self.job(job.id)
