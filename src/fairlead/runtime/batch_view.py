"""A batch and its items as their user sees them."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Final, Literal

import orjson

from fairlead.domain.batch import BatchItem, BatchState
from fairlead.domain.job import JobRecord, JobStatus
from fairlead.runtime.events import iso

REMOVED: Final = "REMOVED"
"""Stands for the status of an item whose job was deleted or pruned."""

ItemStatus = JobStatus | Literal["REMOVED"]


@dataclass(frozen=True, slots=True)
class BatchView:
    """`counts` are by status, and REMOVED for jobs that were deleted. `progress` is the share of items that have ended;
    `estimated_end` takes it that the rest ends as fast as those did on average."""

    batch_id: str
    user_id: str
    name: str | None
    metadata: dict[str, Any] | None
    total: int
    counts: dict[str, int]
    progress: float
    created_at: float
    finished_at: float | None
    estimated_end: float | None

    @property
    def finished(self) -> bool:
        """Every item has ended, whether well or not."""
        return self.finished_at is not None

    def as_dict(self) -> dict[str, Any]:
        """As the gateway answers: times in ISO 8601."""
        shown = {name: getattr(self, name) for name in _NAMES}
        return {**shown, **{name: iso(shown[name]) for name in _TIMES}}


_NAMES = tuple(field.name for field in fields(BatchView))
_TIMES = ("created_at", "finished_at", "estimated_end")


@dataclass(frozen=True, slots=True)
class ItemView:
    """One item. `item` is its number in the batch, from 0. `result` is None in lists, where it is not read."""

    item: int
    custom_id: str | None
    job_id: str
    status: str
    retryable: bool | None
    error: dict[str, Any] | None
    finished_at: float | None
    result: Any = None

    def as_dict(self) -> dict[str, Any]:
        """As lists of items have it."""
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
        """A line of the results."""
        return {
            "item": self.item,
            "custom_id": self.custom_id,
            "job_id": self.job_id,
            "status": self.status,
            "result": self.result,
            "error": self.error,
        }


def of_state(state: BatchState, now: float) -> BatchView:
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
        created_at=batch.created_at,
        finished_at=state.finished_at,
        estimated_end=_estimated_end(state, now),
    )


def of_item(item: BatchItem, record: JobRecord | None = None) -> ItemView:
    """`record` brings the result."""
    job = record.job if record is not None else item.job
    return ItemView(
        item=item.number,
        custom_id=item.custom_id,
        job_id=item.job_id,
        status=REMOVED if job is None else job.status.value,
        retryable=None if job is None else job.retryable,
        error=dict(job.error) if job is not None and job.error else None,
        finished_at=None if job is None else job.finished_at,
        result=record.result if record is not None else None,
    )


def _estimated_end(state: BatchState, now: float) -> float | None:
    if not state.open or not state.ended:
        return None
    each = max(0.0, now - state.batch.created_at) / state.ended
    return now + each * state.open
