"""Conversion between rows and domain objects: the conversions that both engines share, and those of SQLite.

Times are stored as integer microseconds. SQLite returns many rows as one JSON value, because fetching them one by one
would release the GIL once per row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, cast

import orjson

from fairlead.domain.batch import BatchItem
from fairlead.domain.fast_dataclass import changed
from fairlead.domain.job import Attempt, Hold, Job, JobRecord, JobStatus, Priority, StepResult
from fairlead.domain.redaction import redacted_error
from fairlead.domain.transitions import Move, Start
from fairlead.domain.webhooks import JobWebhook
from fairlead.store.port import Epoch, OutboxEntry

STATUSES = (
    JobStatus.SCHEDULED,
    JobStatus.PENDING,
    JobStatus.RETRYING,
    JobStatus.RUNNING,
    JobStatus.COMPLETED,
    JobStatus.FAILED,
    JobStatus.CANCELLED,
)
STATUS_CODES = {status: code for code, status in enumerate(STATUSES)}
_BANDS = (Priority.HIGH, *(Priority.of_band(band) for band in (1, 2, 3)))  # no job has band 0
PENDING, RUNNING = STATUS_CODES[JobStatus.PENDING], STATUS_CODES[JobStatus.RUNNING]


def micros(moment: float | None) -> int | None:
    return None if moment is None else round(moment * 1e6)


def micros_by(moment: float) -> int:
    """Convert a time to microseconds, rounded down. If it were rounded up, a query could select timers that have not
    fired yet by the exact time."""
    nearest = round(moment * 1e6)
    return nearest if nearest / 1e6 <= moment else nearest - 1


def seconds(moment: int | None) -> float | None:
    return None if moment is None else moment / 1e6


def json_text(value: Mapping[str, Any] | None) -> str | None:
    return None if value is None else orjson.dumps(value).decode()


SPEC_FIELDS = (
    "steps",
    "original_priority",
    "cost",
    "weight",
    "region",
    "allowed_regions",
    "priority_source",
    "region_step",
    "spill_after",
    "group",
    "webhook",
    "costs",
    "trace",
    "plan",
    "start_within",
)
"""The fields of a job that never change and that no query filters by."""


def spec_of(job: Job) -> str:
    """Encode the fields of a job that never change. The previous release reads at most six elements, so further
    elements are written only if they are set."""
    spec = (job.steps, job.original_priority.band, job.cost, job.weight, job.region, job.allowed_regions)
    if (
        job.webhook is not None
        or job.group is not None
        or job.costs is not None
        or job.plan is not None
        or job.trace is not None
        or job.start_within is not None
    ):
        hook = None if job.webhook is None else webhook_json(job.webhook)
        more = [job.priority_source, job.region_step, job.spill_after, job.group, hook, job.costs, job.trace, job.plan]
        more.append(job.start_within)
        while more[-1] is None:
            more.pop()
        return orjson.dumps((*spec, *more)).decode()
    if job.region_step or job.spill_after is not None:
        return orjson.dumps((*spec, job.priority_source, job.region_step, job.spill_after)).decode()
    return orjson.dumps(spec if job.priority_source is None else (*spec, job.priority_source)).decode()


def begins_round(move: Move) -> bool:
    """Whether the move begins a new round, as a resume or re-run does. No other move applies to a finished job."""
    return move.round > 0 and move.queued_at is not None


@lru_cache(4096)
def _spec(text: str) -> tuple[Any, ...]:
    """Decode the text of `spec_of`, ignoring elements that later releases add. Cached, because the jobs of one pipeline
    mostly have the same text."""
    steps, original_priority, cost, weight, region, allowed_regions, *later = orjson.loads(text)
    source = later[0] if later else None
    region_step, spill_after = later[1:3] if len(later) > 2 else (0, None)
    group = later[3] if len(later) > 3 else None
    webhook = webhook_of(later[4]) if len(later) > 4 else None
    costs = None if len(later) < 6 or later[5] is None else tuple(later[5])
    trace = later[6] if len(later) > 6 else None
    plan = later[7] if len(later) > 7 else None
    start_within = later[8] if len(later) > 8 else None
    allowed = None if allowed_regions is None else tuple(allowed_regions)
    region_fields = (region, allowed, source, region_step, spill_after)
    more = (group, webhook, costs, trace, plan, start_within)
    return tuple(steps), _BANDS[original_priority], cost, weight, *region_fields, *more


def webhook_json(webhook: JobWebhook) -> tuple[Any, ...]:
    """Encode the webhook of a job or batch for JSON."""
    return webhook.url, webhook.events, webhook.shape, webhook.subject, webhook.endpoints


def webhook_of(values: Sequence[Any] | None) -> JobWebhook | None:
    if values is None:
        return None
    url, events, shape, subject, endpoints = values[:5]
    return JobWebhook(url, tuple(events), shape, subject, endpoints)


def job_of(row: Sequence[Any]) -> Job:
    """Decode a job from the columns of the SQL fragments `job_row` (SQLite) and `job_columns` (PostgreSQL)."""
    # Setting the fields takes a third of the time of the constructor with keyword arguments.
    job: Any = object.__new__(Job)
    # fmt: off
    (
        job.seq, job.id, job.user_id, job.feature_name, status, priority, job.step, job.run, job.attempt, job.round,
        created_at, queued_at, waiting_since, scheduled_at, promoted_at, started_at, finished_at, last_progress_at,
        timer_at, deadline_at, job.lease, job.worker, call_started_at, call_deadline, job.call_region, spilled_at,
        job.turn, retryable, error, progress, goes_back, spec,
    ) = row
    (
        job.steps, job.original_priority, job.cost, job.weight, job.region, job.allowed_regions, job.priority_source,
        job.region_step, job.spill_after, job.group, job.webhook, job.costs, job.trace, job.plan,
        job.start_within,
    ) = _spec(spec)
    # fmt: on
    job.status = STATUSES[status]
    job.priority = _BANDS[priority]
    job.created_at = created_at / 1e6
    job.queued_at = None if queued_at is None else queued_at / 1e6
    job.waiting_since = None if waiting_since is None else waiting_since / 1e6
    job.scheduled_at = None if scheduled_at is None else scheduled_at / 1e6
    job.promoted_at = None if promoted_at is None else promoted_at / 1e6
    job.started_at = None if started_at is None else started_at / 1e6
    job.finished_at = None if finished_at is None else finished_at / 1e6
    job.last_progress_at = None if last_progress_at is None else last_progress_at / 1e6
    job.timer_at = None if timer_at is None else timer_at / 1e6
    job.deadline_at = None if deadline_at is None else deadline_at / 1e6
    job.call_started_at = None if call_started_at is None else call_started_at / 1e6
    job.spilled_at = None if spilled_at is None else spilled_at / 1e6
    job.call_deadline = None if call_deadline is None else call_deadline / 1e6
    job.retryable = None if retryable is None else bool(retryable)
    job.error = None if error is None else redacted_error(orjson.loads(error))
    job.progress = None if progress is None else orjson.loads(progress)
    job.goes_back = None if goes_back is None else orjson.loads(goes_back)
    return cast(Job, job)


def numbered(job: Job, seq: int) -> Job:
    """Set the seq of a submitted job and return the job. The job is changed in place: no other code uses it yet."""
    submitted: Any = job
    submitted.seq = seq
    return job


def running(job: Job, start: Start, seq: int, now: int) -> Job:
    """A job that was started by the commit that accepted it, at the time `now`."""
    started: Any = changed(job)
    started.seq = seq
    started.status = JobStatus.RUNNING
    started.run = job.run + 1
    started.attempt = job.attempt + 1
    started.lease = start.lease
    started.worker = start.worker
    started.call_started_at = started.started_at = now / 1e6
    started.call_deadline = (now + round(start.timeout * 1e6)) / 1e6
    started.timer_at = job.deadline_at
    return cast(Job, started)


def jobs_of(answer: str) -> list[Job]:
    return [job_of(row) for row in orjson.loads(answer)]


def changes_of(answer: str) -> list[OutboxEntry]:
    """Decode outbox rows: [outbox_id, job_id, job or null]."""
    return [
        OutboxEntry(outbox_id, job_id, None if row is None else job_of(row))
        for outbox_id, job_id, row in orjson.loads(answer)
    ]


def holds_of(answer: str) -> list[Hold]:
    return [
        Hold(job_id, service, region, until / 1e6, id_, band)
        for id_, job_id, service, region, until, band in orjson.loads(answer)
    ]


def epochs_of(answer: str) -> dict[str, Epoch]:
    return {scope: Epoch(number, server, bool(asked)) for scope, number, server, asked in orjson.loads(answer)}


def items_of(answer: str) -> list[BatchItem]:
    """Decode the items of a batch: [number, custom_id, job_id, job or null]."""
    return [
        BatchItem(number, custom_id, job_id, None if row is None else job_of(row))
        for number, custom_id, job_id, row in orjson.loads(answer)
    ]


def record_of(values: Sequence[Any]) -> JobRecord:
    """Decode a row of the SQL fragment `record_row`: a job with its input, results and attempts."""
    row, input_json, metadata_json, results, attempts = values
    job = job_of(row)
    return JobRecord(
        job,
        input_json,
        metadata_json,
        tuple(
            StepResult(job.id, step, service, round_, data, metrics, finished_at / 1e6, lease)
            for step, service, round_, data, metrics, finished_at, lease in results
        ),
        tuple(
            Attempt(
                job.id,
                step,
                service,
                round_,
                attempt,
                redacted_error(error),
                seconds(started_at),
                ended_at / 1e6,
                worker,
                region,
            )
            for step, service, round_, attempt, error, started_at, ended_at, worker, region in attempts
        ),
    )


def after_prefix(prefix: str) -> str:
    """The first text, in the order of code points, after all texts that begin with this ASCII prefix."""
    return prefix[:-1] + chr(ord(prefix[-1]) + 1)
