"""Commands on jobs by callers that do not know the job's `run`, and pages of jobs.

Each command reads the job, builds the transition, and writes it on condition that the job has not changed. If the job
has changed, the command starts over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import NamedTuple

from fairlead.app.audit import Act, AuditLog
from fairlead.app.runtime import Runtime
from fairlead.domain import transitions
from fairlead.domain.config import Config
from fairlead.domain.job import WAITING, Job, JobStatus
from fairlead.domain.pagination import MAX_PAGE, Page, check_limit, read_cursor, write_cursor
from fairlead.domain.transitions import Delete, Move
from fairlead.domain.usage import merged
from fairlead.domain.validation import check_id
from fairlead.engine.spent_calls import StreamedUsage, streamed_usage
from fairlead.errors import NotFound, TooManyWaiting, Unavailable, WrongState
from fairlead.store.port import Done, JobFilter

TRIES = 20
READ_AT_ONCE = 16
"""The number of outputs that are read at once. Each may be large."""
WINDOW = 100_000
"""The number of jobs that are examined for one page, if the filter has no index."""

Build = Callable[[Job, float], Move]


class Revival(NamedTuple):
    """How ended jobs are put back in the queue: the transition, and the limit of waiting jobs that the user must keep;
    0 means no limit."""

    build: Build
    most_waiting: int


class JobCommands:
    """Applies the transitions of single jobs that users and operators ask for, and lists jobs."""

    def __init__(self, runtime: Runtime, audit: AuditLog) -> None:
        self._runtime = runtime
        self._audit = audit

    async def move(self, job_id: str, build: Build, act: Act | None = None, known: Job | None = None) -> None:
        """Apply the transition that `build` makes from the current state of the job, which is `known` if it was read
        just now. `build` raises WrongState if this state does not allow the transition."""
        for _ in range(TRIES):
            job, known = known or await self.job(job_id), None
            now = self._runtime.clock.now()
            move = build(job, now)
            if await self._write(job, move, act):
                self._runtime.writer.publish_all([(job, move)], now)
                return
        raise _keeps_changing(job_id)

    async def cancelling(self, jobs: Collection[Job]) -> Build:
        """The transition that cancels one of these jobs. Its usage is what the call has reported, if it runs in this
        process, else what it has streamed."""
        streamed = await self._streamed(jobs)

        def build(job: Job, now: float) -> Move:
            node = self._runtime.node
            known = None if node is None else node.usage_of(job)
            counted = streamed[job.id].of(job) if job.id in streamed else None
            return transitions.cancel(job, now=now, usage=merged(counted, known))

        return build

    async def _streamed(self, jobs: Collection[Job]) -> dict[str, StreamedUsage]:
        """What the running calls of models have used, if their output shows that."""
        runtime = self._runtime
        models = runtime.config.front_services
        running = [job.id for job in jobs if job.status is JobStatus.RUNNING and job.service in models]
        found: dict[str, StreamedUsage] = {}
        for begin in range(0, len(running), READ_AT_ONCE):
            ids = running[begin : begin + READ_AT_ONCE]
            reads = (streamed_usage(job_id, runtime.output_log, runtime.store, runtime.files) for job_id in ids)
            usages = zip(ids, await asyncio.gather(*reads), strict=True)
            found |= {job_id: usage for job_id, usage in usages if usage is not None}
        return found

    async def revive(self, job_id: str, build: Build, most_waiting: int, act: Act | None = None) -> None:
        """Put an ended job back in the queue, by the transition that `build` makes. Raises TooManyWaiting, as a submit
        does, if the user would then have more than `most_waiting` jobs waiting; 0 means no limit."""
        async with self._runtime.reviving:
            if most_waiting:
                job = await self.job(job_id)
                build(job, self._runtime.clock.now())  # raises WrongState before TooManyWaiting
                await self.check_waiting(job.user_id, 1, most_waiting)
            await self.move(job_id, build, act)

    def retrying(self, *, from_start: bool = False, who: str | None = None) -> Revival:
        """How `retry` puts a job back, alone or as an item of a batch. An operator (`who`) may begin any number of
        rounds, and is not bound by the user's limit of waiting jobs."""
        config, by_operator = self._runtime.config, who is not None

        def build(job: Job, now: float) -> Move:
            require_kept(job, config)
            return transitions.retry(
                job, now=now, waits=config.wait_timeouts, from_start=from_start, by_operator=by_operator
            )

        return Revival(build, 0 if by_operator else config.server.max_waiting_per_user)

    async def check_waiting(self, user_id: str, more: int, most_waiting: int) -> None:
        if most_waiting and await self._runtime.store.count(JobFilter(user_id, WAITING)) + more > most_waiting:
            raise TooManyWaiting(f"this user may have at most {most_waiting} jobs waiting")

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
        """Write the transition. Returns False if the job has changed since it was read."""
        (outcome,) = await self._audit.write(None if act is None else act.on(job), transition)
        return isinstance(outcome, Done)

    async def page(
        self, where: JobFilter, limit: int, cursor: str | None, keep: Callable[[Job], bool] | None = None
    ) -> Page[Job]:
        """A page of the jobs that match `where`, newest first. `keep` is a further condition, which the store cannot
        query."""
        check_limit(limit)
        before = None if cursor is None else read_cursor(cursor, where)
        if keep is None and not _is_indexed(where):
            return await self._window(where, limit, before)
        jobs = await self._runtime.store.list_jobs(where, before_seq=before, limit=limit + 1)
        if keep is not None:
            rows = jobs
            jobs = list(filter(keep, rows))
            while len(jobs) <= limit and rows:
                rows = await self._runtime.store.list_jobs(where, before_seq=rows[-1].seq, limit=MAX_PAGE)
                jobs += filter(keep, rows)
        more = len(jobs) > limit
        return Page(jobs[:limit], write_cursor(jobs[limit - 1].seq, where) if more else None)

    async def _window(self, where: JobFilter, limit: int, before: int | None) -> Page[Job]:
        """A page of the jobs that match a filter without an index. Only `WINDOW` jobs are examined, so the page may
        have fewer than `limit` jobs, or none, although more jobs follow."""
        store = self._runtime.store
        examined = JobFilter(statuses=where.statuses if _is_dead(where.statuses) else ())
        last = await store.seq_after(examined, before_seq=before, skip=WINDOW - 1)
        jobs = await store.list_jobs(where, before_seq=before, limit=limit + 1, from_seq=last)
        if len(jobs) > limit:
            return Page(jobs[:limit], write_cursor(jobs[limit - 1].seq, where))
        more = last is not None and await store.list_jobs(examined, before_seq=last, limit=1)
        return Page(jobs, write_cursor(last, where) if last is not None and more else None)

    async def job(self, job_id: str) -> Job:
        jobs = await self._runtime.store.get_jobs([check_id(job_id)])
        if job_id not in jobs:
            raise NotFound(f"there is no job {job_id}")
        return jobs[job_id]


def require_kept(job: Job, config: Config) -> None:
    """Raise WrongState if the input of the job is erased, or is about to be."""
    if job.service in config.private_services:
        raise WrongState(
            "the request of this job is not kept (openai.keep), so it cannot run again; its client can send it again",
            details={"status": job.status.value},
        )


def _keeps_changing(job_id: str) -> Unavailable:
    return Unavailable(f"job {job_id} keeps changing; try again")


def _is_indexed(where: JobFilter) -> bool:
    """Whether the database finds the jobs of this filter without reading many others. The jobs of a user and open jobs
    have their own indexes. So have failed and cancelled jobs, but there may be millions of them."""
    if where.feature_name is None and where.service is None and where.error_code is None:
        return True
    if where.user_id is not None:
        return True
    return bool(where.statuses) and not any(status.finished for status in where.statuses)


def _is_dead(statuses: Collection[JobStatus]) -> bool:
    """Whether the database has an index of the jobs with these statuses by age."""
    return len(statuses) == 1 and not {JobStatus.FAILED, JobStatus.CANCELLED}.isdisjoint(statuses)
