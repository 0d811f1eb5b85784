"""The dead letters: which of them an operator means, and what may be done to them."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, TypedDict

from fairlead.domain.job import Job, JobStatus
from fairlead.domain.likeness import likeness
from fairlead.domain.transitions import Delete, Move
from fairlead.errors import InvalidInput, WrongState
from fairlead.runtime import audit
from fairlead.runtime.audit import Act, AuditBook
from fairlead.runtime.clock import Clock
from fairlead.runtime.events import iso
from fairlead.runtime.moments import moment
from fairlead.runtime.operations import check_id
from fairlead.runtime.record import Recorder
from fairlead.store.journal import Journal
from fairlead.store.port import Done, JobFilter, Store

BATCH = 500
SAMPLE = 10
NAMED_IN_AUDIT = 100

Build = Callable[[Job, float], Move]


class DeadFilters(TypedDict, total=False):
    """All that are given must hold. `since` and `until` are about the moment of the failure; `until` does not count.
    `error_like` is what the messages have in common, as the groups of dead letters have it: `#` for numbers and ids."""

    user_id: str | None
    feature_name: str | None
    service: str | None
    error_code: str | None
    error_like: str | None
    retryable: bool | None
    since: datetime | str | None
    until: datetime | str | None


@dataclass(frozen=True, slots=True)
class Which:
    """Those named, or else all that match."""

    where: JobFilter
    job_ids: tuple[str, ...] | None = None
    like: str | None = None

    def shown(self) -> dict[str, Any]:
        """For the audit: what was asked for, at a bearable length."""
        if self.job_ids is not None:
            return {"job_ids": list(self.job_ids[:NAMED_IN_AUDIT]), "named": len(self.job_ids)}
        given = {name: value for name, value in asdict(self.where).items() if value is not None and name != "statuses"}
        if self.like is not None:
            given["error_like"] = self.like
        for name, called in (("finished_from", "since"), ("finished_before", "until")):
            if name in given:
                given[called] = iso(given.pop(name))
        return given or {"all": True}


@dataclass(frozen=True, slots=True)
class Preview:
    """How many it would be, and a few of them."""

    count: int
    sample: list[Job]


def where_of(filters: Mapping[str, Any]) -> JobFilter:
    if unknown := filters.keys() - DeadFilters.__annotations__.keys():
        raise TypeError(f"no filter of the dead letters: {', '.join(sorted(unknown))}")
    since, until = filters.get("since"), filters.get("until")
    return JobFilter(
        filters.get("user_id"),
        (JobStatus.FAILED,),
        filters.get("feature_name"),
        filters.get("service"),
        filters.get("error_code"),
        filters.get("retryable"),
        None if since is None else moment(since, "since"),
        None if until is None else moment(until, "until"),
    )


def which_of(job_ids: Sequence[str] | None, everything: bool, filters: Mapping[str, Any]) -> Which:
    """Nobody means all of them by saying nothing."""
    where = where_of(filters)
    filtered = any(value is not None for value in filters.values())
    if sum((job_ids is not None, filtered, everything)) != 1:
        names = ", ".join(DeadFilters.__annotations__)
        raise InvalidInput(f"say which: either job_ids, or some of {names}, or all=True", pointer="")
    named = None if job_ids is None else tuple(check_id(job_id) for job_id in job_ids)
    return Which(where, named, filters.get("error_like"))


class DeadLetters:
    def __init__(self, store: Store, journal: Journal, recorder: Recorder, clock: Clock, book: AuditBook) -> None:
        self._store = store
        self._journal = journal
        self._recorder = recorder
        self._clock = clock
        self._book = book

    async def preview(self, which: Which, build: Build | None = None) -> Preview:
        """Of those alone that `build` can take up again, if it is given."""
        if build is None and which.job_ids is None and which.like is None:
            few = await self._store.list_jobs(which.where, before_seq=None, limit=SAMPLE)
            return Preview(await self._store.count(which.where), few)
        count, sample = 0, list[Job]()
        async for jobs in self._found(which):
            able = jobs if build is None else [job for job, _ in self._built(jobs, build, self._clock.now())]
            count += len(able)
            sample += able[: SAMPLE - len(sample)]
        return Preview(count, sample)

    async def missing(self, job_ids: Sequence[str]) -> list[str]:
        """Those that are no dead letters: there is no such job, or it has not failed."""
        found: set[str] = set()
        async for jobs in self._found(Which(where_of({}), tuple(map(check_id, job_ids)))):
            found.update(job.id for job in jobs)
        return [job_id for job_id in dict.fromkeys(job_ids) if job_id not in found]

    async def requeue(self, which: Which, build: Build, *, who: str, from_start: bool) -> int:
        details = {**which.shown(), "from_start": from_start}
        async with self._book.many(Act(who, audit.REQUEUE, _target(which), details)) as outcome:
            outcome["requeued"] = 0
            async for jobs in self._found(which):
                now = self._clock.now()
                moved = await self._recorder.apply_each(self._built(jobs, build, now), now)
                outcome["requeued"] += len(moved)
        return int(outcome["requeued"])

    async def purge(self, which: Which, *, who: str) -> int:
        async with self._book.many(Act(who, audit.PURGE, _target(which), which.shown())) as outcome:
            outcome["purged"] = 0
            async for jobs in self._found(which):
                gone = await self._journal.write_each([Delete(job.id) for job in jobs])
                outcome["purged"] += sum(isinstance(each, Done) for each in gone)
        return int(outcome["purged"])

    async def _found(self, which: Which) -> AsyncIterator[list[Job]]:
        """In batches."""
        if which.job_ids is not None:
            for start in range(0, len(which.job_ids), BATCH):
                jobs = await self._store.get_jobs(which.job_ids[start : start + BATCH])
                yield [job for job in jobs.values() if job.status is JobStatus.FAILED]
            return
        before: int | None = None
        while jobs_page := await self._store.list_jobs(which.where, before_seq=before, limit=BATCH):
            yield [job for job in jobs_page if is_like(job, which.like)]
            before = jobs_page[-1].seq

    def _built(self, jobs: Sequence[Job], build: Build, now: float) -> list[tuple[Job, Move]]:
        moves = []
        for job in jobs:
            with contextlib.suppress(WrongState):  # what cannot be taken up again stays where it is
                moves.append((job, build(job, now)))
        return moves


def is_like(job: Job, like: str | None) -> bool:
    """Whether its error's message has this in common with others; None: any will do."""
    return like is None or likeness(str((job.error or {}).get("message", ""))) == likeness(like)


def _target(which: Which) -> str:
    return which.job_ids[0] if which.job_ids is not None and len(which.job_ids) == 1 else "queue-dead"
