"""Jobs that wait in the database but are missing in the queue are found in any situation, and put back once."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from fairlead.dispatch.memory import MemoryDispatcher
from fairlead.dispatch.port import Claim
from fairlead.domain.job import Job, JobStatus
from fairlead.domain.rules import Lanes, Rules, ServiceRules
from fairlead.engine.loops import reconcile
from fairlead.engine.loops.reconcile import ReconcileLoop
from fairlead.engine.outbox_relay import offer_of
from fairlead.engine.parts import RulesRef

RULES = Rules({"gpu": ServiceRules("gpu", limit=10), "cpu": ServiceRules("cpu", limit=10)}, version=1)


class Site:
    """A database with these jobs, and a real queue."""

    def __init__(self) -> None:
        self.jobs: dict[str, Job] = {}
        self.read = 0
        self.dispatcher = MemoryDispatcher(lambda: 1000.0)
        database: Any = self
        self.loop = ReconcileLoop(database, self.dispatcher, RulesRef(RULES))
        self.now = 0.0

    async def open(self) -> Site:
        await self.dispatcher.configure(RULES)
        for scope in RULES.scopes:
            await self.dispatcher.close_scope(scope, 1)
            await self.dispatcher.open_scope(scope, 1)
        return self

    async def submit(self, name: str, service: str = "gpu", *, lost: bool = False) -> None:
        job = Job(name, service, "ann", (service,), status=JobStatus.PENDING, run=1, seq=len(self.jobs))
        self.jobs[name] = job
        if not lost:
            await self.dispatcher.offer([offer_of(job, RULES.services)])

    async def start(self, name: str, service: str = "gpu") -> None:
        (lease,) = await self.dispatcher.exchange(Claim("w", 1, frozenset({service})))
        assert lease.job_id == name
        self.jobs[name] = replace(self.jobs[name], status=JobStatus.RUNNING, run=2, lease=lease.name)

    async def look(self, times: int = 1) -> None:
        for _ in range(times):
            self.now = await self.loop.tick(self.now)

    async def in_queue(self) -> set[str]:
        return {*await self.dispatcher.positions(list(self.jobs))}

    # -- the store

    def _pending(self, lanes: Lanes) -> list[Job]:
        pending = [job for job in self.jobs.values() if job.status is JobStatus.PENDING]
        return [job for job in pending if lanes.has(job.service, job.priority.band)]

    async def count_waiting_by_service(self, lanes: Lanes) -> dict[str, int]:
        return dict(Counter(job.service for job in self._pending(lanes)))

    async def running(self, lanes: Lanes) -> list[Job]:
        return [job for job in self.jobs.values() if job.status is JobStatus.RUNNING]

    async def waiting(self, batch: int, lanes: Lanes) -> AsyncIterator[list[Job]]:
        self.read += 1
        yield self._pending(lanes)

    async def get_jobs(self, ids: list[str]) -> dict[str, Job]:
        return {job_id: self.jobs[job_id] for job_id in ids}


@pytest.mark.parametrize("few", [1000, 0])
async def test_running_calls_hide_no_missing_job(few: int, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    monkeypatch.setattr(reconcile, "FEW", few)
    site = await Site().open()
    for name in ("r1", "r2", "r3"):
        await site.submit(name)
        await site.start(name)
    await site.submit("there")
    await site.submit("other", "cpu")
    await site.submit("lost", lost=True)
    with caplog.at_level(logging.WARNING):
        await site.look(3)
    assert await site.in_queue() == {"there", "lost", "other"}
    assert site.loop.queued == 1
    assert "1 jobs of gpu" in caplog.text
    assert "lost" in caplog.text
    assert site.loop.last_repair is not None
    assert site.loop.last_repair.jobs == {"gpu": ["lost"]}
    await site.look(3)
    assert site.loop.queued == 1


async def test_an_extra_entry_of_the_same_service_hides_no_missing_job() -> None:
    site = await Site().open()
    await site.submit("gone")
    del site.jobs["gone"]
    await site.submit("lost", lost=True)
    await site.look(2)
    assert await site.in_queue() == {"lost"}


async def test_a_job_that_moves_between_two_reads_is_not_missing() -> None:
    site = await Site().open()
    await site.submit("moving", lost=True)
    await site.look()
    site.jobs["moving"] = replace(site.jobs["moving"], run=3)
    await site.look()
    assert site.loop.queued == 0
    assert site.loop.last_repair is None
    await site.submit("claimed")
    await site.look()
    await site.dispatcher.exchange(Claim("w", 9, frozenset({"gpu"})))
    site.loop.queued = 0
    await site.look(3)
    assert site.loop.queued == 0


async def test_a_job_that_arrives_between_two_reads_is_not_missing() -> None:
    """Its relay was late; its run is the same."""
    site = await Site().open()
    await site.submit("late", lost=True)
    await site.look()
    await site.dispatcher.offer([offer_of(site.jobs["late"], RULES.services)])
    await site.look()
    assert site.loop.last_repair is None


async def test_a_long_queue_is_read_only_when_its_counts_differ_and_not_again_when_nothing_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reconcile, "FEW", 0)
    site = await Site().open()
    await site.submit("a")
    await site.look(5)
    assert site.read == 0
    counted = site.count_waiting_by_service

    async def one_more(lanes: Lanes) -> dict[str, int]:
        return {service: count + 1 for service, count in (await counted(lanes)).items()}

    site.count_waiting_by_service = one_more  # type: ignore[method-assign]
    await site.look(5)
    assert site.read == 1


async def test_a_queue_that_is_being_rebuilt_is_left_alone() -> None:
    site = await Site().open()
    await site.submit("lost", lost=True)
    await site.look()
    await site.dispatcher.close_scope("service:gpu", 2)
    await site.look(3)
    assert site.loop.queued == 0
