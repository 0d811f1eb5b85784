"""What a job goes back to after one step of it was run again: the job's `goes_back`.

A re-run leaves the job as it was before, with one result more. So a step that is run again keeps in mind where the job
stood: completed, or failed at some step. Two things make it more than one record:

- A re-run that failed is FAILED until that step succeeds, whichever other steps are run again meanwhile: the others are
  kept in `failed`, the newest first, at most one of each step. The job goes back to the newest of them.
- The step that the job itself failed at *goes on* when it is run again: there is nothing to go back to. Only where
  re-runs of other steps have failed is that written down, with None as `step`, for the end of the job.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fairlead.domain.job import Job, JobStatus
from fairlead.domain.records import record
from fairlead.errors import WrongState

GoesBack = Mapping[str, Any]


@record
class Standing:
    """How a job stands that has ended."""

    step: int
    error: Mapping[str, Any] | None
    retryable: bool | None
    goes_back: GoesBack | None = None

    @property
    def status(self) -> JobStatus:
        return JobStatus.COMPLETED if self.error is None else JobStatus.FAILED


def goes_on(job: Job) -> bool:
    """Whether the job's next result takes it to its next step; if not, one step alone is run again."""
    return job.goes_back is None or job.goes_back["step"] is None


def begun(job: Job, step: int) -> GoesBack | None:
    """What `job`, which has ended, goes back to when this step of it is run again."""
    if goes_on(job):
        base: GoesBack = _standing(job)
        failed = _failed(job.goes_back)
    else:
        assert job.goes_back is not None
        base = job.goes_back
        failed = [_standing(job), *_failed(job.goes_back)]
    if step > base["step"]:
        raise WrongState(
            f"step {step} has not run: the job failed at step {base['step']}", details={"status": job.status.value}
        )
    failed = [each for each in failed if each["step"] != step]
    if base["error"] is not None and base["step"] == step:
        return {"step": None, "failed": failed} if failed else None
    return _with(base, failed)


def ended(goes_back: GoesBack) -> Standing:
    """Where the job stands when the re-run is over: done, or given up."""
    failed = _failed(goes_back)
    if failed:
        newest = failed[0]
        return Standing(newest["step"], newest["error"], newest["retryable"], _with(goes_back, failed[1:]))
    return Standing(goes_back["step"], goes_back["error"], goes_back["retryable"])


def completed(job: Job) -> Standing:
    """Where a job stands that has gone on to its end: completed, unless a re-run of one of its steps has failed."""
    base = {"step": len(job.steps), "error": None, "retryable": None}
    return ended(_with(base, _failed(job.goes_back)))


def _standing(job: Job) -> dict[str, Any]:
    return {"step": job.step, "error": None if job.error is None else dict(job.error), "retryable": job.retryable}


def _failed(goes_back: GoesBack | None) -> list[dict[str, Any]]:
    return [] if goes_back is None else list(goes_back.get("failed", ()))


def _with(base: GoesBack, failed: list[dict[str, Any]]) -> GoesBack:
    plain = {key: base[key] for key in ("step", "error", "retryable")}
    return {**plain, "failed": failed} if failed else plain
