"""A batch: many jobs submitted together, and the views of it that users see.

A batch has no state that could contradict its jobs. Its counts are computed from the jobs, it has ended when none of
its jobs is open, and `finished_at` is the time at which its last job ended. Counts and `finished_at` are stored once
all jobs have ended (the batch is then *settled*), and cleared when a job of the batch is resumed or re-run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, Final, Literal

import orjson

from fairlead.domain.events import iso, utc
from fairlead.domain.job import FINISHED, Job, JobRecord, JobStatus
from fairlead.domain.webhooks import JobWebhook


@dataclass(frozen=True, slots=True)
class Batch:
    """The fields of a batch that never change. `webhook` is None when the batch is read."""

    id: str
    user_id: str
    total: int
    created_at: float
    name: str | None = None
    metadata_json: str | None = None
    webhook: JobWebhook | None = None


@dataclass(frozen=True, slots=True)
class BatchState:
    """A batch with its progress. `counts` holds the number of existing jobs by status. Jobs of the batch that are
    missing from the counts were deleted or pruned."""

    batch: Batch
    counts: Mapping[JobStatus, int]
    finished_at: float | None = None

    @property
    def removed(self) -> int:
        return self.batch.total - sum(self.counts.values())

    @property
    def open(self) -> int:
        return sum(count for status, count in self.counts.items() if status not in FINISHED)

    @property
    def ended(self) -> int:
        return self.batch.total - self.open


@dataclass(frozen=True, slots=True)
class BatchItem:
    """One item of a batch and its job. `number` is the index of the item, from 0. `job` is None if the job was deleted
    or pruned."""

    number: int
    custom_id: str | None
    job_id: str
    job: Job | None = None


REMOVED: Final = "REMOVED"
"""The status of an item whose job was deleted or pruned."""

ItemStatus = JobStatus | Literal["REMOVED"]


@dataclass(frozen=True, slots=True)
class BatchView:
    """A batch as users see it. `counts` holds the number of items by status; items whose job was deleted count as
    REMOVED. `progress` is the fraction of items that have ended. `estimated_end` assumes that the remaining items end
    at the average rate so far."""

    batch_id: str
    user_id: str
    name: str | None
    metadata: dict[str, Any] | None
    total: int
    counts: dict[str, int]
    progress: float
    created_at: datetime
    finished_at: datetime | None
    estimated_end: datetime | None

    @property
    def finished(self) -> bool:
        """Whether every item has ended, successfully or not."""
        return self.finished_at is not None

    def as_dict(self) -> dict[str, Any]:
        """This batch as the JSON object that the gateway returns, with times in ISO 8601."""
        shown = {name: getattr(self, name) for name in _NAMES}
        return {**shown, **{name: iso(shown[name]) for name in _TIMES}}


_NAMES = tuple(field.name for field in fields(BatchView))
_TIMES = ("created_at", "finished_at", "estimated_end")


@dataclass(frozen=True, slots=True)
class ItemView:
    """One item of a batch as users see it. `item` is the index of the item, from 0. Lists do not read the results, so
    `result` is None there."""

    item: int
    custom_id: str | None
    job_id: str
    status: str
    retryable: bool | None
    error: dict[str, Any] | None
    finished_at: datetime | None
    result: Any = None

    def as_dict(self) -> dict[str, Any]:
        """This item as the JSON object that the gateway returns in a list of items."""
        return {
            "item": self.item,
            "custom_id": self.custom_id,
            "job_id": self.job_id,
            "status": self.status,
            "retryable": self.retryable,
            "error": self.error,
            "finished_at": iso(self.finished_at),
        }

    def as_result(self) -> dict[str, Any]:
        """This item as the JSON object on one line of the results file."""
        return {
            "item": self.item,
            "custom_id": self.custom_id,
            "job_id": self.job_id,
            "status": self.status,
            "result": self.result,
            "error": self.error,
        }


def batch_view_of(state: BatchState, now: float) -> BatchView:
    batch = state.batch
    counts = {status.value: state.counts.get(status, 0) for status in JobStatus}
    return BatchView(
        batch_id=batch.id,
        user_id=batch.user_id,
        name=batch.name,
        metadata=None if batch.metadata_json is None else orjson.loads(batch.metadata_json),
        total=batch.total,
        counts={**counts, REMOVED: state.removed},
        progress=round(state.ended / batch.total, 4) if state.open else 1.0,
        created_at=utc(batch.created_at),
        finished_at=utc(state.finished_at),
        estimated_end=utc(_estimated_end(state, now)),
    )


def item_view_of(item: BatchItem, record: JobRecord | None = None) -> ItemView:
    """Build the view of an item. The view contains the result only if the `record` of the job is given."""
    job = record.job if record is not None else item.job
    return ItemView(
        item=item.number,
        custom_id=item.custom_id,
        job_id=item.job_id,
        status=REMOVED if job is None else job.status.value,
        retryable=None if job is None else job.retryable,
        error=dict(job.error) if job is not None and job.error else None,
        finished_at=None if job is None else utc(job.finished_at),
        result=record.result if record is not None else None,
    )


def _estimated_end(state: BatchState, now: float) -> float | None:
    if not state.open or not state.ended:
        return None
    each = max(0.0, now - state.batch.created_at) / state.ended
    return now + each * state.open
