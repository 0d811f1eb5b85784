"""How a call ended: what a transition records about the call that it ends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fairlead.domain.fast_dataclass import fast_dataclass
from fairlead.domain.job import Attempt, Job, JobStatus
from fairlead.domain.retry import DEADLINE_PASSED, TIMEOUT, WORKER_DIED
from fairlead.domain.usage import Usage

SUCCESS = "success"
FAILED = "failed"
TIMED_OUT = "timeout"
CANCELLED = "cancelled"
EXPIRED = "expired"
LOST = "lost"
HANDED_BACK = "handed_back"

OUTCOMES = (SUCCESS, FAILED, TIMED_OUT, CANCELLED, EXPIRED, LOST, HANDED_BACK)
"""The outcomes of calls. The usage ledger stores the position in this list: append only."""

HOLDER_DIED = "HOLDER_DIED"
"""The code of the error of a turn whose caller died or lost its lease."""

_BY_ERROR = {TIMEOUT: TIMED_OUT, DEADLINE_PASSED: EXPIRED, WORKER_DIED: LOST, HOLDER_DIED: LOST}


@fast_dataclass
class CallEnd:
    """The end of one call: becomes a row of the usage ledger. `job` is the row of the job while the call ran. `details`
    are attributes of the call's span; they are not stored."""

    job: Job
    outcome: str
    ended_at: float
    usage: Usage | None = None
    details: Mapping[str, Any] | None = None

    @property
    def waited(self) -> float:
        """Seconds that the step waited in the queue before the call."""
        began = self.job.call_started_at
        return 0.0 if began is None else max(0.0, began - (self.job.waiting_since or began))

    @property
    def seconds(self) -> float:
        """Seconds that the call had its slot."""
        began = self.job.call_started_at
        return 0.0 if began is None else max(0.0, self.ended_at - began)


def ended(job: Job, outcome: str, now: float, usage: Usage | None = None) -> CallEnd | None:
    """The end of the job's call; None if the job has no call now."""
    return CallEnd(job, outcome, now, usage) if job.status is JobStatus.RUNNING else None


def outcome_of(error: Mapping[str, Any]) -> str:
    """The outcome of a call that failed with this error."""
    return _BY_ERROR.get(str(error.get("code")), FAILED)


def failed_attempt(job: Job, error: Mapping[str, Any], now: float) -> Attempt:
    return Attempt(
        job.id,
        job.step,
        job.service,
        job.round,
        job.attempt,
        error,
        job.call_started_at,
        now,
        worker=job.worker,
        region=job.call_region,
    )
