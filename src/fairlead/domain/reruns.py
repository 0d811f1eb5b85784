"""The state a job returns to after the re-run of one step, stored in the job's `goes_back`.

A successful re-run adds a result and leaves the job in the state it had before. The job therefore records its state
when the re-run begins: completed, or failed at some step. Two cases need more than that:

- After a failed re-run the job is FAILED at that step until the step succeeds, even if other steps are re-run
  meanwhile. These failures are kept in `failed`, newest first, at most one per step. The job returns to the newest
  failure in `failed`.
- A re-run of the step at which the job itself failed *continues* the job: the later steps run too, so there is no
  state to return to, and `goes_back` is None. If re-runs of other steps have failed, `goes_back` instead has the `step`
  None, and keeps these failures in `failed`. After its last step the job is then FAILED at the newest of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fairlead.domain.fast_dataclass import fast_dataclass
from fairlead.domain.job import Job, JobStatus
from fairlead.errors import WrongState

GoesBack = Mapping[str, Any]

MOST_ROUNDS = 100


@fast_dataclass
class RerunOrigin:
    """A final state of a job, before or after a re-run: completed, or failed at `step` with `error`."""

    step: int
    error: Mapping[str, Any] | None
    retryable: bool | None
    goes_back: GoesBack | None = None
    attempt: int = 0
    """The number of calls of the failed step so far. It is restored after the re-run of another step."""

    @property
    def status(self) -> JobStatus:
        return JobStatus.COMPLETED if self.error is None else JobStatus.FAILED


def goes_on(job: Job) -> bool:
    """Whether the job continues with its next step when the current step succeeds. False while a single step is
    re-run."""
    return job.goes_back is None or job.goes_back["step"] is None


def begun(job: Job, step: int) -> GoesBack | None:
    """The `goes_back` of a finished `job` whose `step` is re-run: the state to which the job returns afterwards. If the
    re-run continues the job, the result is None, or has the `step` None and only keeps the failures of other re-runs.
    Raises WrongState if the job has never reached `step`."""
    if goes_on(job):
        base: GoesBack = _state_of(job)
        failed = _failed(job.goes_back)
    else:
        assert job.goes_back is not None
        base = job.goes_back
        failed = [_state_of(job), *_failed(job.goes_back)]
    if step > base["step"]:
        raise WrongState(
            f"step {step} has not run: the job failed at step {base['step']}", details={"status": job.status.value}
        )
    failed = [each for each in failed if each["step"] != step]
    if base["error"] is not None and base["step"] == step:
        return {"step": None, "failed": failed} if failed else None
    return _with(base, failed)


def steps_of_rerun(job: Job, step: int) -> list[int]:
    """The steps that a re-run of `step` calls, if each one succeeds. Raises WrongState if the job cannot re-run
    `step`."""
    goes_back = begun(job, step)
    continues = goes_back is None or goes_back["step"] is None
    return list(range(step, len(job.steps))) if continues else [step]


def steps_of_retry(job: Job) -> list[int]:
    """The steps that a retry of a failed job calls, from the failed step on, if each one succeeds."""
    return list(range(job.step, len(job.steps))) if goes_on(job) else [job.step]


def ended(goes_back: GoesBack) -> RerunOrigin:
    """The state of the job after its re-run has succeeded or was abandoned: FAILED at the step of the newest failed
    re-run that is left, or else the state before all re-runs."""
    failed = _failed(goes_back)
    if failed:
        newest = failed[0]
        return _origin(newest, _with(goes_back, failed[1:]))
    return _origin(goes_back)


def _origin(state: Mapping[str, Any], goes_back: GoesBack | None = None) -> RerunOrigin:
    # Records of earlier releases have no `attempt`.
    return RerunOrigin(state["step"], state["error"], state["retryable"], goes_back, state.get("attempt", 0))


def completed(job: Job) -> RerunOrigin:
    """The state of a job after its last step: completed, unless a re-run of one of its steps has failed and that step
    has not succeeded since."""
    base = {"step": len(job.steps), "error": None, "retryable": None}
    return ended(_with(base, _failed(job.goes_back)))


def _state_of(job: Job) -> dict[str, Any]:
    if job.error is None:
        return {"step": job.step, "error": None, "retryable": job.retryable}
    return {"step": job.step, "error": dict(job.error), "retryable": job.retryable, "attempt": job.attempt}


def _failed(goes_back: GoesBack | None) -> list[dict[str, Any]]:
    return [] if goes_back is None else list(goes_back.get("failed", ()))


def _with(base: GoesBack, failed: list[dict[str, Any]]) -> GoesBack:
    plain = {key: base[key] for key in ("step", "error", "retryable", "attempt") if key in base}
    return {**plain, "failed": failed} if failed else plain


def require_rounds_left(job: Job) -> None:
    """Raise WrongState if a user may not begin another round of this job. The number of rounds is limited for users,
    because the results and attempts of every round are kept. Operators do not call this function."""
    if job.round >= MOST_ROUNDS:
        raise WrongState(
            f"this job was resumed or re-run {MOST_ROUNDS} times; submit a new one",
            details={"status": job.status.value, "round": job.round},
        )
