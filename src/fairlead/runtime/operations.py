"""What users do to jobs that are there, and operators to those of others: cancel, resume, delete, list.

None of them knows the job's `run`, so each reads, builds the transition and writes it on condition; when the job
moved in between, it looks again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from uuid import UUID

from fairlead.domain.job import WAITING, Job
from fairlead.domain.transitions import Delete, Move
from fairlead.errors import InvalidInput, NotFound, TooManyWaiting, Unavailable, WrongState
from fairlead.runtime.audit import Act, AuditBook
from fairlead.runtime.clock import Clock
from fairlead.runtime.paging import MAX_PAGE, Page, check_limit, read_cursor, write_cursor
from fairlead.runtime.record import Recorder
from fairlead.store.port import Done, JobFilter, Store

TRIES = 20

Build = Callable[[Job, float], Move]


class Operations:
    def __init__(self, store: Store, recorder: Recorder, clock: Clock, book: AuditBook) -> None:
        self._store = store
        self._recorder = recorder
        self._clock = clock
        self._book = book
        self.reviving = asyncio.Lock()

    async def move(self, job_id: str, build: Build, act: Act | None = None) -> None:
        """Apply what `build` makes of the job's present state; it raises WrongState if that allows none."""
        for _ in range(TRIES):
            job = await self.job(job_id)
            now = self._clock.now()
            move = build(job, now)
            if await self._write(job, move, act):
                self._recorder.tell_all([(job, move)], now)
                return
        raise _keeps_changing(job_id)

    async def revive(self, job_id: str, build: Build, most_waiting: int, act: Act | None = None) -> None:
        """A move that puts an ended job in line again: as a submit, it may not make a user's waiting jobs more than
        `most_waiting` (0: any number)."""
        async with self.reviving:
            if most_waiting:
                job = await self.job(job_id)
                build(job, self._clock.now())  # what cannot be taken up says that first
                await self.check_room(job.user_id, 1, most_waiting)
            await self.move(job_id, build, act)

    async def check_room(self, user_id: str, more: int, most_waiting: int) -> None:
        if most_waiting and await self._store.count(JobFilter(user_id, WAITING)) + more > most_waiting:
            raise TooManyWaiting(f"this user may have {most_waiting} jobs waiting, and would have more")

    async def delete(self, job_id: str, act: Act | None = None) -> None:
        for _ in range(TRIES):
            job = await self.job(job_id)
            if not job.status.finished:
                raise WrongState(
                    f"only a finished job can be deleted; this one is {job.status}",
                    details={"status": job.status.value},
                )
            if await self._write(job, Delete(job.id), act):
                return
        raise _keeps_changing(job_id)

    async def _write(self, job: Job, transition: Move | Delete, act: Act | None) -> bool:
        """True if it was applied; False if the job had moved on."""
        (outcome,) = await self._book.write(None if act is None else act.on(job), transition)
        return isinstance(outcome, Done)

    async def page(
        self, where: JobFilter, limit: int, cursor: str | None, keep: Callable[[Job], bool] | None = None
    ) -> Page[Job]:
        """`keep` says of those that match which are meant, where the store cannot tell."""
        check_limit(limit)
        before = None if cursor is None else read_cursor(cursor, where)
        jobs = await self._store.list_jobs(where, before_seq=before, limit=limit + 1)
        if keep is not None:
            found = jobs
            jobs = list(filter(keep, found))
            while len(jobs) <= limit and found:
                found = await self._store.list_jobs(where, before_seq=found[-1].seq, limit=MAX_PAGE)
                jobs += filter(keep, found)
        more = len(jobs) > limit
        return Page(jobs[:limit], write_cursor(jobs[limit - 1].seq, where) if more else None)

    async def job(self, job_id: str) -> Job:
        jobs = await self._store.get_jobs([check_id(job_id)])
        if job_id not in jobs:
            raise NotFound(f"there is no job {job_id}")
        return jobs[job_id]


def check_id(given: str, what: str = "job", pointer: str | None = None) -> str:
    """The id of a job or a batch is a UUID in its usual form; anything else cannot be one of ours."""
    try:
        if isinstance(given, str) and str(UUID(given)) == given:
            return given
    except ValueError:
        pass
    text = f"a {what} id is a UUID, such as 0190d0c5-7b5a-7cc0-b1f0-3f8f4c9d2a10"
    raise InvalidInput(text, pointer=pointer or f"/{what}_id")


def _keeps_changing(job_id: str) -> Unavailable:
    return Unavailable(f"job {job_id} keeps changing; try again")
