"""Dead letters: FAILED jobs, which operators list, requeue and purge."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import partial
from typing import Any, TypedDict

from fairlead.app import audit
from fairlead.app.audit import Act, AuditLog
from fairlead.app.job_commands import Build, JobCommands, require_kept
from fairlead.app.runtime import Runtime
from fairlead.domain import transitions, views
from fairlead.domain.events import iso
from fairlead.domain.job import Job, JobStatus
from fairlead.domain.pagination import Page
from fairlead.domain.redaction import likeness
from fairlead.domain.transitions import Delete, Move
from fairlead.domain.validation import check_id, moment
from fairlead.domain.views import JobView
from fairlead.engine.transition_writer import store_error_of
from fairlead.errors import InvalidInput, WrongState
from fairlead.store.port import Done, JobFilter

PAGE = 500
SAMPLE = 10
NAMED_IN_AUDIT = 100


class DeadFilters(TypedDict, total=False):
    """Filters for dead letters. A job is selected if it matches every filter that is set. `since` (inclusive) and
    `until` (exclusive) apply to the time of the failure. `error_like` is an error message with `#` in place of numbers
    and ids, as the groups of dead letters show it."""

    user_id: str | None
    feature_name: str | None
    service: str | None
    error_code: str | None
    error_like: str | None
    retryable: bool | None
    since: datetime | str | None
    until: datetime | str | None


@dataclass(frozen=True, slots=True)
class Selection:
    """The selected dead letters: the jobs in `job_ids`, or all that match the filters if `job_ids` is None."""

    where: JobFilter
    job_ids: tuple[str, ...] | None = None
    like: str | None = None

    @property
    def names_jobs(self) -> bool:
        """Whether the jobs are named by their ids, their service or their feature."""
        return self.job_ids is not None or self.where.service is not None or self.where.feature_name is not None

    def shown(self) -> dict[str, Any]:
        """The selection as it appears in the audit log, with at most a hundred ids."""
        if self.job_ids is not None:
            return {"job_ids": list(self.job_ids[:NAMED_IN_AUDIT]), "named": len(self.job_ids)}
        fields = {name: value for name, value in asdict(self.where).items() if value is not None and name != "statuses"}
        if self.like is not None:
            fields["error_like"] = self.like
        for name, shown_as in (("finished_from", "since"), ("finished_before", "until")):
            if name in fields:
                fields[shown_as] = iso(fields.pop(name))
        return fields or {"all": True}


@dataclass(frozen=True, slots=True)
class Preview:
    """The number of selected jobs, and a few of these jobs as examples. `skipped` is the number of requests of the
    OpenAI front that a requeue leaves alone, because their clients are gone."""

    count: int
    sample: list[Job]
    skipped: int = 0


def where_of(filters: Mapping[str, Any]) -> JobFilter:
    if unknown := filters.keys() - DeadFilters.__annotations__.keys():
        raise TypeError(f"unknown filter of dead letters: {', '.join(sorted(unknown))}")
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


def select(job_ids: Sequence[str] | None, everything: bool, filters: Mapping[str, Any]) -> Selection:
    """Make a selection from exactly one of job ids, filters and `all=True`. Raises InvalidInput otherwise, so that a
    forgotten filter never selects every job."""
    where = where_of(filters)
    filtered = any(value is not None for value in filters.values())
    if sum((job_ids is not None, filtered, everything)) != 1:
        names = ", ".join(DeadFilters.__annotations__)
        raise InvalidInput(f"pass one of: job_ids, filters ({names}), all=True", pointer="")
    named = None if job_ids is None else tuple(check_id(job_id) for job_id in job_ids)
    return Selection(where, named, filters.get("error_like"))


class DeadLetters:
    def __init__(self, runtime: Runtime, commands: JobCommands, audit: AuditLog) -> None:
        self._runtime = runtime
        self._commands = commands
        self._audit = audit

    async def page(self, filters: DeadFilters, limit: int = 50, cursor: str | None = None) -> Page[JobView]:
        """A page of the dead letters, newest first, each with the error of every attempt."""
        like = filters.get("error_like")
        keep = None if like is None else partial(is_like, like=like)
        page = await self._commands.page(where_of(filters), limit, cursor, keep)
        records = [await self._runtime.store.get(job.id) for job in page.data]
        return Page([views.of_record(record, None) for record in records if record is not None], page.next_cursor)

    async def preview_requeue(self, selection: Selection, *, from_start: bool = False) -> Preview:
        """The number of jobs that `requeue` would put back in the queue, and a few of these jobs."""
        return await self._preview(selection, self._requeued(selection, from_start))

    async def preview_purge(self, selection: Selection) -> Preview:
        """The number of jobs that `purge` would delete, and a few of these jobs."""
        if selection.job_ids is None and selection.like is None:
            sample = await self._runtime.store.list_jobs(selection.where, before_seq=None, limit=SAMPLE)
            return Preview(await self._runtime.store.count(selection.where), sample)
        return await self._preview(selection, None)

    async def _preview(self, selection: Selection, build: Build | None) -> Preview:
        count, sample, skipped = 0, list[Job](), 0
        async for jobs in self._selected(selection):
            matching = jobs if build is None else [job for job, _ in _moves(jobs, build, self._runtime.clock.now())]
            count += len(matching)
            sample += matching[: SAMPLE - len(sample)]
            if build is not None and not selection.names_jobs:
                skipped += sum(self._is_request(job) for job in jobs)
        return Preview(count, sample, skipped)

    async def missing(self, job_ids: Sequence[str]) -> list[str]:
        """The ids in `job_ids` that are not dead letters: there is no such job, or it has not failed."""
        failed: set[str] = set()
        async for jobs in self._selected(Selection(where_of({}), tuple(map(check_id, job_ids)))):
            failed.update(job.id for job in jobs)
        return [job_id for job_id in dict.fromkeys(job_ids) if job_id not in failed]

    async def requeue(self, selection: Selection, *, from_start: bool = False, who: str) -> int:
        """Put the selected jobs back in the queue, at the failed step or from the start. Returns how many jobs were put
        back. Requests of the OpenAI front are put back only if the selection names them: their clients are gone."""
        build = self._requeued(selection, from_start)
        details = {**selection.shown(), "from_start": from_start}
        async with self._audit.many(Act(who, audit.REQUEUE, _target(selection), details)) as outcome:
            outcome["requeued"] = 0
            async for jobs in self._selected(selection):
                now = self._runtime.clock.now()
                moved, error = await self._runtime.writer.apply_each(_moves(jobs, build, now), now)
                outcome["requeued"] += len(moved)
                if error is not None:
                    raise error
        return int(outcome["requeued"])

    async def purge(self, selection: Selection, *, who: str) -> int:
        """Delete the selected jobs. Returns how many jobs were deleted."""
        async with self._audit.many(Act(who, audit.PURGE, _target(selection), selection.shown())) as outcome:
            outcome["purged"] = 0
            async for jobs in self._selected(selection):
                deleted = await self._runtime.group_commit.write_each([Delete(job.id) for job in jobs])
                outcome["purged"] += sum(isinstance(each, Done) for each in deleted)
                if (error := store_error_of(deleted)) is not None:
                    raise error
        return int(outcome["purged"])

    def _requeued(self, selection: Selection, from_start: bool) -> Build:
        config = self._runtime.config

        def build(job: Job, now: float) -> Move:
            require_kept(job, config)
            if not selection.names_jobs and self._is_request(job):
                raise WrongState("the client of this request is gone; name the job to run it again")
            return transitions.requeue(job, now=now, waits=config.wait_timeouts, from_start=from_start)

        return build

    def _is_request(self, job: Job) -> bool:
        """Whether the job is a request of the OpenAI front."""
        service = self._runtime.config.services.get(job.service)
        return service is not None and service.behind_front

    async def _selected(self, selection: Selection) -> AsyncIterator[list[Job]]:
        """Iterate over the selected jobs, one page at a time."""
        store, job_ids = self._runtime.store, selection.job_ids
        if job_ids is not None:
            for start in range(0, len(job_ids), PAGE):
                jobs = await store.get_jobs(job_ids[start : start + PAGE])
                yield [job for job in jobs.values() if job.status is JobStatus.FAILED]
            return
        before: int | None = None
        while page := await store.list_jobs(selection.where, before_seq=before, limit=PAGE):
            yield [job for job in page if is_like(job, selection.like)]
            before = page[-1].seq


def _moves(jobs: Sequence[Job], build: Build, now: float) -> list[tuple[Job, Move]]:
    """Make a transition for each job whose state allows one; other jobs are left out."""
    moves = []
    for job in jobs:
        with contextlib.suppress(WrongState):
            moves.append((job, build(job, now)))
    return moves


def is_like(job: Job, like: str | None) -> bool:
    """Whether the job's error message is equal to `like` once the numbers and ids in both are replaced by `#`. Always
    True if `like` is None."""
    return like is None or likeness(str((job.error or {}).get("message", ""))) == likeness(like)


def _target(selection: Selection) -> str:
    """The target of the action for the audit log: the id of the job if a single one is selected, otherwise a name for
    all dead letters."""
    job_ids = selection.job_ids
    return job_ids[0] if job_ids is not None and len(job_ids) == 1 else "queue-dead"
