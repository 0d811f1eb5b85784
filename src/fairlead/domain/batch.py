"""A batch: many jobs that were submitted as one, and how far they are.

What becomes of an item is its job's business alone; a batch has no state that could contradict its jobs. Its counts are
counted from them, and it has ended when none of them is open: `finished_at` is the moment the last of them ended. Both
are written down once they are final (`settled`), and struck out again when a job of the batch is taken up again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fairlead.domain.job import FINISHED, Job, JobStatus


@dataclass(frozen=True, slots=True)
class Batch:
    """What never changes about it."""

    id: str
    user_id: str
    total: int
    created_at: float
    name: str | None = None
    metadata_json: str | None = None


@dataclass(frozen=True, slots=True)
class BatchState:
    """`counts` has the jobs that are there, by status; jobs that were deleted or pruned are the rest of the total."""

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
    """`number` is its place in the batch, from 0. `job` is None when it was deleted or pruned."""

    number: int
    custom_id: str | None
    job_id: str
    job: Job | None = None
