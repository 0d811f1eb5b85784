"""The only ways a job may change.

A transition is plain data, and applying it is one conditional write: `Submit` inserts, `Start` and `Move` require
that the row still has the `run` that the builder saw, and raise it. So a transition that comes twice, late, or from a
worker that lost its lease changes nothing, and says so. The reason (`verb`) is separate from the state it leads to.

    submit ─▶ SCHEDULED ─due─▶ PENDING ─start─▶ RUNNING ─step_done─▶ PENDING … COMPLETED
                                  ▲               │ ├─retry─▶ RETRYING ─due─▶ PENDING
                                  │               │ ├─fail──▶ FAILED ─resume, requeue─▶ PENDING
                                  └───────────────┘ └─hand_back, recover─▶ PENDING
    rerun of one step: COMPLETED or FAILED ─▶ PENDING ─start─▶ RUNNING ─rerun_done─▶ as it was before
    promote, prioritise, spill, withdraw_claim: PENDING ─▶ PENDING
    time_out, expire, cancel: anything open ─▶ FAILED or CANCELLED
    give_up: a re-run that is cancelled, or ended by the deadline ─▶ as it was before
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from fairlead.domain import reruns, turns
from fairlead.domain import retry as retries
from fairlead.domain.job import Attempt, Hold, Job, JobStatus, Priority, StepResult
from fairlead.domain.records import record
from fairlead.domain.retry import Fail, Failure, RetryPolicy
from fairlead.errors import WrongState

WaitTimeouts = Mapping[str, float]
"""Seconds that a step may wait for capacity, for the services that say so."""


# ---------------------------------------------------------------- what the store applies


@record
class Submit:
    """A new job. With an idempotency key seen before (per user), no job is made and the earlier one is named."""

    job: Job
    input_json: str
    metadata_json: str | None = None
    idempotency_key: str | None = None
    body_hash: str | None = None
    max_waiting: int = 0


@record
class Start:
    """The claimed step begins: written before the handler runs, refused if the job moved on or the epoch changed."""

    job_id: str
    step: int
    run: int
    lease: str
    scope: str
    worker: str
    timeout: float
    region: str | None = None


@record
class Move:
    """Every other change of a job's state. `None` leaves queued_at, priority, promoted_at, last_progress_at and
    spilled_at as they are; all other fields are written as given, and lease, worker, call_started_at, call_deadline,
    call_region and progress are cleared.
    `tells_line`: the same transaction writes an outbox row, because the job enters, leaves or moves in the line."""

    job_id: str
    run: int
    verb: str
    status: JobStatus
    step: int
    attempt: int
    round: int
    tells_line: bool
    timer_at: float | None = None
    waiting_since: float | None = None
    finished_at: float | None = None
    retryable: bool | None = None
    error: Mapping[str, Any] | None = None
    queued_at: float | None = None
    priority: Priority | None = None
    promoted_at: float | None = None
    last_progress_at: float | None = None
    goes_back: Mapping[str, Any] | None = None
    result: StepResult | None = None
    failed: Attempt | None = None
    hold: Hold | None = None
    spilled_at: float | None = None


@record
class Progress:
    """What a running handler reported. Not a change of state: guarded by `run`, but does not raise it."""

    job_id: str
    run: int
    progress: Mapping[str, Any]


@record
class Prioritise:
    """Another priority for a job that is not in line now, which counts when it next is. Not a change of state either:
    a call under way goes on. None leaves queued_at and promoted_at as they are."""

    job_id: str
    run: int
    priority: Priority
    queued_at: float | None = None
    promoted_at: float | None = None


@record
class Adopt:
    """Another process has a turn's caller from now on. Refused: it moved on, or is no turn. Not a change of state
    either: it waits where it waited, and who has the slot keeps it."""

    job_id: str
    run: int
    process: str


@record
class Delete:
    """A finished job and everything kept beside it, removed for good."""

    job_id: str


# ---------------------------------------------------------------- building them


@record
class FirstState:
    """What a job's acceptance decides."""

    status: JobStatus
    queued_at: float | None
    timer_at: float | None


def first_state(
    service: str,
    *,
    now: float,
    due_at: float | None,
    deadline_at: float | None,
    waits: WaitTimeouts,
    spill_after: float | None = None,
) -> FirstState:
    """Scheduled until it is due, or in line at once for its first service. `spill_after`: if it asks for a region."""
    if due_at is not None and due_at > now:
        return FirstState(JobStatus.SCHEDULED, None, _earliest(due_at, deadline_at))
    return FirstState(JobStatus.PENDING, now, _waiting_timer(service, now, deadline_at, waits, spill_after))


def submit(
    job: Job, input_json: str, *, now: float, due_at: float | None = None, waits: WaitTimeouts, **extra: Any
) -> Submit:
    """`job` as the caller described it, put into its first state."""
    first = first_state(
        job.steps[0],
        now=now,
        due_at=due_at,
        deadline_at=job.deadline_at,
        waits=waits,
        spill_after=job.spill_after if job.asks_for_region(0, 0) else None,
    )
    placed = replace(
        job,
        status=first.status,
        created_at=now,
        scheduled_at=due_at,
        queued_at=first.queued_at,
        waiting_since=first.queued_at,
        timer_at=first.timer_at,
    )
    return Submit(placed, input_json, **extra)


def step_done(job: Job, result: StepResult, *, now: float, waits: WaitTimeouts) -> Move:
    """The step's result is in: on to the next step, or done; or back to where the job was before a re-run."""
    if not reruns.goes_on(job):
        assert job.goes_back is not None
        return _stands(job, "rerun_done", reruns.ended(job.goes_back), now, result=result, last_progress_at=now)
    following = job.step + 1
    if following < len(job.steps):
        return _enter(job, "step_done", now, waits, step=following, result=result, last_progress_at=now)
    if job.goes_back is None:  # nearly every job ends here
        return Move(
            job.id,
            job.run,
            "complete",
            JobStatus.COMPLETED,
            following,
            0,
            job.round,
            tells_line=False,
            finished_at=now,
            last_progress_at=now,
            result=result,
        )
    return _stands(job, "complete", reruns.completed(job), now, result=result, last_progress_at=now)


def failed(
    job: Job,
    failure: Failure,
    policy: RetryPolicy,
    *,
    now: float,
    randomness: float,
    spare: bool = False,
) -> Move:
    """The call did not succeed: backoff and another try, or the dead letters. The attempt's error is kept either
    way. `spare`: it was turned away because we sent one too many, which costs the job no attempt."""
    refusals = int((job.error or {}).get(retries.REFUSALS, 0))
    spared = policy.spared(failure, refusals, randomness) if spare else None
    then = spared or policy.after(failure, job.attempt, randomness)
    if isinstance(then, Fail):
        attempt = _attempt(job, then.error, now)
        return _end(job, JobStatus.FAILED, "fail", now, error=then.error, retryable=then.retryable, failed=attempt)
    due = now + then.delay if job.deadline_at is None else min(now + then.delay, job.deadline_at)
    return Move(
        job.id,
        job.run,
        "retry",
        JobStatus.RETRYING,
        step=job.step,
        attempt=job.attempt if then.counts else job.attempt - 1,
        round=job.round,
        tells_line=False,
        timer_at=due,
        error=then.error,
        goes_back=job.goes_back,
        failed=_attempt(job, {**then.error, retries.RETRY_IN: round(max(0.0, due - now), 3)}, now),
    )


def hand_back(job: Job, *, now: float, waits: WaitTimeouts, hold: Hold | None = None) -> Move:
    """A worker that stops gives its step back unharmed: the call burns no attempt, but its slot may be held."""
    return _enter(job, "hand_back", now, waits, step=job.step, attempt=max(0, job.attempt - 1), hold=hold)


def end_turn(job: Job, verb: str, error: Mapping[str, Any], *, now: float) -> Move:
    """A turn that came to nothing, waiting or held. Nobody but its caller could do the work: it is not tried again."""
    if job.status.finished:
        raise WrongState(f"the turn is {job.status} already", details={"status": job.status.value})
    held = job.status is JobStatus.RUNNING
    failed = _attempt(job, error, now) if held else None
    return _end(job, JobStatus.FAILED, verb, now, error=error, retryable=False, failed=failed)


def recover(job: Job, *, now: float, waits: WaitTimeouts, max_attempts: int, hold: Hold | None) -> Move:
    """The worker is gone. Before its start: offered anew. While running: the call counts, and its slot may be held."""
    if job.status is JobStatus.PENDING:
        return withdraw_claim(job, now=now, waits=waits)
    _require(job, "recover", JobStatus.RUNNING)
    if job.turn is not None:
        return end_turn(job, "recover", turns.holder_died(job), now=now)
    error: dict[str, Any] = {
        "code": retries.WORKER_DIED,
        "message": f"the worker {job.worker} died or lost its lease",
    }
    attempt = _attempt(job, error, now)
    if job.attempt >= max_attempts:
        error = {**error, "attempts": job.attempt, "reason": retries.ATTEMPTS_USED_UP}
        return _end(job, JobStatus.FAILED, "recover", now, error=error, retryable=False, failed=attempt, hold=hold)
    return _enter(
        job, "recover", now, waits, step=job.step, attempt=job.attempt, error=error, failed=attempt, hold=hold
    )


def withdraw_claim(job: Job, *, now: float, waits: WaitTimeouts) -> Move:
    """Claimed but never started, and the claimer is gone: the raised run makes its late start harmless."""
    _require(job, "recover", JobStatus.PENDING)
    return _enter(job, "recover", now, waits, step=job.step, attempt=job.attempt, error=job.error, keep_waiting=True)


def due(job: Job, *, now: float, waits: WaitTimeouts) -> Move:
    """The scheduled moment has come, or the backoff is over."""
    _require(job, "release", JobStatus.SCHEDULED, JobStatus.RETRYING)
    queued_at = now if job.status is JobStatus.SCHEDULED else None
    return _enter(job, "due", now, waits, step=job.step, attempt=job.attempt, error=job.error, queued_at=queued_at)


def promote(job: Job, *, now: float, waits: WaitTimeouts) -> Move:
    """One band up, in place: the waiting step moves, it is never copied."""
    _require(job, "promote", JobStatus.PENDING)
    return _enter(
        job,
        "promote",
        now,
        waits,
        step=job.step,
        attempt=job.attempt,
        error=job.error,
        priority=job.priority.raised,
        promoted_at=now,
        keep_waiting=True,
    )


def prioritise(job: Job, priority: Priority, *, now: float, waits: WaitTimeouts) -> Move | Prioritise:
    """An operator's choice: a waiting step moves to its new band; what runs, is scheduled or backs off waits there when
    its time comes. Who is put lower is promoted no sooner than one who arrives now, or the next promotion would undo
    it."""
    if job.status.finished:
        raise WrongState(f"the job is {job.status} already", details={"status": job.status.value})
    lowered = priority.band > job.priority.band
    queued_at = now if lowered and job.queued_at is not None else None
    promoted_at = now if priority.band < job.priority.band else None
    if job.status is not JobStatus.PENDING:
        return Prioritise(job.id, job.run, priority, queued_at, promoted_at)
    return _enter(
        job,
        "prioritise",
        now,
        waits,
        step=job.step,
        attempt=job.attempt,
        error=job.error,
        priority=priority,
        queued_at=queued_at,
        promoted_at=promoted_at,
        keep_waiting=True,
    )


def cancel(job: Job, *, now: float) -> Move:
    """A job that has not ended is CANCELLED; of one that had, only the re-run of a step is given up: the job is what it
    was before."""
    if job.status.finished:
        raise WrongState(f"the job is {job.status} already", details={"status": job.status.value})
    in_line = job.status in (JobStatus.PENDING, JobStatus.RUNNING)
    if not reruns.goes_on(job):
        return _give_up(job, now)
    return replace(_end(job, JobStatus.CANCELLED, "cancel", now, tells_line=in_line), goes_back=None)


def resume(job: Job, *, now: float, waits: WaitTimeouts) -> Move:
    """A user takes up a failed job that is marked retryable, at the step that failed, with fresh attempts."""
    _is_no_turn(job, "resume")
    if job.status is not JobStatus.FAILED or not job.retryable:
        raise WrongState(
            f"only a FAILED job marked retryable can be resumed; this one is {job.status}"
            + (" and not retryable" if job.status is JobStatus.FAILED else ""),
            details={"status": job.status.value, "retryable": job.retryable},
        )
    return _revive(job, "resume", now, waits, step=job.step)


def requeue(job: Job, *, now: float, waits: WaitTimeouts, from_start: bool = False) -> Move:
    """An operator takes a dead letter up again, whatever killed it."""
    _is_no_turn(job, "requeue")
    _require(job, "requeue", JobStatus.FAILED)
    if from_start:
        return _revive(job, "requeue", now, waits, step=0, goes_back=None)
    return _revive(job, "requeue", now, waits, step=job.step)


def rerun(job: Job, step: int, *, now: float, waits: WaitTimeouts) -> Move:
    """A user has one step of a finished job run again, in a round of its own. Later steps are not run again: the job is
    then what it was before, with the new result. Only of the step that a job failed at nothing is left to go back to:
    it goes on from there. If the re-run fails, the job is FAILED at that step until it succeeds, and a resume takes the
    re-run up."""
    _is_no_turn(job, "re-run")
    _require(job, "re-run a step of", JobStatus.COMPLETED, JobStatus.FAILED)
    return _revive(job, "rerun", now, waits, step=step, goes_back=reruns.begun(job, step))


def timer_rang(job: Job, *, now: float, waits: WaitTimeouts) -> Move | None:
    """What time alone does to a job, or None if the timer is stale."""
    if job.status.finished or job.timer_at is None or job.timer_at > now:
        return None
    if job.deadline_at is not None and job.deadline_at <= now:
        error = {"code": retries.DEADLINE_PASSED, "message": "the job's deadline passed before it was done"}
        if not reruns.goes_on(job):
            return _give_up(job, now, failed=_attempt(job, error, now) if job.status is JobStatus.RUNNING else None)
        in_line = job.status in (JobStatus.PENDING, JobStatus.RUNNING)
        return _end(job, JobStatus.FAILED, "expire", now, error=error, retryable=False, tells_line=in_line)
    if job.status in (JobStatus.SCHEDULED, JobStatus.RETRYING):
        return due(job, now=now, waits=waits)
    if job.status is JobStatus.PENDING:
        if _spills(job, waits):
            return spill(job, now=now, waits=waits)
        if job.turn is not None:
            return end_turn(job, "time_out", turns.waited_too_long(job), now=now)
        error = {
            "code": retries.RESOURCE_EXHAUSTED,
            "message": f"no capacity of {job.service} within its wait_timeout; the job can be resumed",
        }
        return _end(job, JobStatus.FAILED, "time_out", now, error=error, retryable=True)
    return None


def spill(job: Job, *, now: float, waits: WaitTimeouts) -> Move:
    """It has waited long enough for the region that it asked for: from now on any will do that is allowed."""
    _require(job, "spill", JobStatus.PENDING)
    return _enter(
        replace(job, spilled_at=now),
        "spill",
        now,
        waits,
        step=job.step,
        attempt=job.attempt,
        error=job.error,
        spilled_at=now,
        keep_waiting=True,
    )


def hold_of(job: Job, now: float) -> Hold | None:
    """The slot of a call that may go on computing without us, until the call's own deadline."""
    if job.call_deadline is None or job.call_deadline <= now:
        return None
    return Hold(job.id, job.service, job.call_region, job.call_deadline, f"{job.id}:{job.run}", job.priority.band)


# ---------------------------------------------------------------- shared parts


def _enter(
    job: Job,
    verb: str,
    now: float,
    waits: WaitTimeouts,
    *,
    step: int,
    keep_waiting: bool = False,
    **changes: Any,
) -> Move:
    """Into the line (or to another place in it)."""
    since = job.waiting_since if keep_waiting and job.waiting_since is not None else now
    changes.setdefault("attempt", 0)
    changes.setdefault("round", job.round)
    changes.setdefault("goes_back", job.goes_back)
    return Move(
        job.id,
        job.run,
        verb,
        JobStatus.PENDING,
        step=step,
        tells_line=True,
        waiting_since=since,
        timer_at=_waiting_timer(
            job.steps[step],
            since,
            job.deadline_at,
            waits,
            job.spill_after if job.asks_for_region(step, changes["attempt"]) else None,
        ),
        **changes,
    )


def _revive(job: Job, verb: str, now: float, waits: WaitTimeouts, *, step: int, **changes: Any) -> Move:
    if job.deadline_at is not None and job.deadline_at <= now:
        raise WrongState(f"cannot {verb} a job whose deadline has passed", details={"status": job.status.value})
    return _enter(job, verb, now, waits, step=step, round=job.round + 1, queued_at=now, **changes)


def _end(job: Job, status: JobStatus, verb: str, now: float, **changes: Any) -> Move:
    """Out of the line, for good or until someone resumes it. The line hears of it too when another process may have to
    stop the call."""
    changes.setdefault("tells_line", job.status is JobStatus.PENDING)
    return Move(
        job.id,
        job.run,
        verb,
        status,
        step=job.step,
        attempt=job.attempt,
        round=job.round,
        finished_at=now,
        goes_back=job.goes_back,
        **changes,
    )


def _stands(job: Job, verb: str, standing: reruns.Standing, now: float, **changes: Any) -> Move:
    """At the end of a job, or back to where it ended before."""
    changes.setdefault("tells_line", False)
    return Move(
        job.id,
        job.run,
        verb,
        standing.status,
        step=standing.step,
        attempt=0,
        round=job.round,
        finished_at=now,
        error=standing.error,
        retryable=standing.retryable,
        goes_back=standing.goes_back,
        **changes,
    )


def _give_up(job: Job, now: float, **changes: Any) -> Move:
    """The re-run of a step ends without a result: the job is what it was before."""
    assert job.goes_back is not None
    in_line = job.status in (JobStatus.PENDING, JobStatus.RUNNING)
    return _stands(job, "give_up", reruns.ended(job.goes_back), now, tells_line=in_line, **changes)


def _attempt(job: Job, error: Mapping[str, Any], now: float) -> Attempt:
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


def _waiting_timer(
    service: str, since: float, deadline_at: float | None, waits: WaitTimeouts, spill_after: float | None
) -> float | None:
    longest = waits.get(service)
    if spill_after is not None:
        longest = spill_after if longest is None else min(longest, spill_after)
    return deadline_at if longest is None else _earliest(since + longest, deadline_at)


def _spills(job: Job, waits: WaitTimeouts) -> bool:
    """Of a waiting job whose timer has rung: it is its region that it has waited for long enough."""
    if job.spill_after is None or not job.asks_for_region(job.step, job.attempt):
        return False
    return job.spill_after < waits.get(job.service, math.inf)


def _earliest(*moments: float | None) -> float | None:
    return min((moment for moment in moments if moment is not None), default=None)


def _is_no_turn(job: Job, verb: str) -> None:
    if job.turn is not None:
        raise WrongState(
            f"cannot {verb} a turn: the caller that would do the work is not there; it takes a new turn",
            details={"status": job.status.value, "turn": True},
        )


def _require(job: Job, verb: str, *allowed: JobStatus) -> None:
    if job.status not in allowed:
        names: Sequence[str] = [status.value for status in allowed]
        raise WrongState(
            f"cannot {verb} a job that is {job.status}; it must be {' or '.join(names)}",
            details={"status": job.status.value},
        )
