"""Builders of transitions, the only ways a job may change.

A transition is plain data, and applying it is one conditional write: `Submit` inserts, `Start` and `Move` apply only if
the row still has the `run` that the builder saw, and raise `run`. So a transition that arrives twice, late, or from a
worker that lost its lease changes nothing and is refused. The reason (`verb`) is separate from the new state.

    submit ─▶ SCHEDULED ─due─▶ PENDING ─start─▶ RUNNING ─step_done─▶ PENDING … COMPLETED
                                  ▲               │ ├─retry─▶ RETRYING ─due─▶ PENDING
                                  │               │ ├─fail──▶ FAILED ─resume, requeue─▶ PENDING
                                  └───────────────┘ └─hand_back, recover─▶ PENDING
    rerun of one step: COMPLETED or FAILED ─▶ PENDING ─start─▶ RUNNING ─rerun_done─▶ the state before
    promote, prioritise, spill, withdraw_claim: PENDING ─▶ PENDING
    a turn whose caller is absent (see `turns`): PENDING ─set_aside─▶ SCHEDULED ─take_up─▶ PENDING, or ─fail─▶ FAILED
    time_out, expire, cancel: anything open ─▶ FAILED or CANCELLED
    give_up: a re-run that is cancelled or passes the deadline ─▶ the state before
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fairlead.domain import calls, reruns, turns
from fairlead.domain import retry as retries
from fairlead.domain import waiting_timers as timers
from fairlead.domain.calls import ended, failed_attempt
from fairlead.domain.job import Hold, Job, JobStatus, Priority, StepResult
from fairlead.domain.retry import Fail, Failure, RetryPolicy
from fairlead.domain.transition_types import Adopt as Adopt
from fairlead.domain.transition_types import Delete as Delete
from fairlead.domain.transition_types import Move as Move
from fairlead.domain.transition_types import Prioritise as Prioritise
from fairlead.domain.transition_types import Progress as Progress
from fairlead.domain.transition_types import Start as Start
from fairlead.domain.transition_types import Submit as Submit
from fairlead.domain.usage import Usage
from fairlead.domain.waiting_timers import NO_RESUMES, due_after, first_state, resumed_queued_at, spills, waiting_timer
from fairlead.domain.waiting_timers import AutoResumes as AutoResumes
from fairlead.domain.waiting_timers import WaitTimeouts as WaitTimeouts
from fairlead.errors import WrongState


def submit(
    job: Job, input_json: str, *, now: float, due_at: float | None = None, waits: WaitTimeouts, **extra: Any
) -> Submit:
    """Build the transition that inserts `job` in its first state."""
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


def step_done(job: Job, result: StepResult, *, now: float, waits: WaitTimeouts, usage: Usage | None = None) -> Move:
    """Continue with the next step after a success, complete the job, or end the re-run of one step."""
    call = ended(job, calls.SUCCESS, now, usage)
    if not reruns.goes_on(job):
        assert job.goes_back is not None
        return _finish_as(
            job, "rerun_done", reruns.ended(job.goes_back), now, result=result, last_progress_at=now, call=call
        )
    following = job.step + 1
    if following < len(job.steps):
        return _enter(job, "step_done", now, waits, step=following, result=result, last_progress_at=now, call=call)
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
            call=call,
            webhook=job.webhook,
        )
    return _finish_as(job, "complete", reruns.completed(job), now, result=result, last_progress_at=now, call=call)


def failed(
    job: Job,
    failure: Failure,
    policy: RetryPolicy,
    *,
    now: float,
    randomness: float,
    spare: bool = False,
    usage: Usage | None = None,
) -> Move:
    """Retry a failed call after a backoff, or fail the job. The error of the attempt is kept in both cases. With
    `spare`, the service refused the call because the limit was too high: the call costs the job no attempt."""
    refusals = int((job.error or {}).get(retries.REFUSALS, 0))
    spared = policy.spared(failure, refusals, randomness) if spare else None
    then = spared or policy.after(failure, job.attempt, randomness)
    call = ended(job, calls.outcome_of({"code": failure.code}), now, usage)
    if isinstance(then, Fail):
        attempt = failed_attempt(job, failure.of_attempt(then.error), now)
        return _end(
            job, JobStatus.FAILED, "fail", now, error=then.error, retryable=then.retryable, failed=attempt, call=call
        )
    due = due_after(job, now, then.delay)
    error = failure.of_attempt({**then.error, retries.RETRY_IN: round(max(0.0, due - now), 3)})
    counted = job.attempt if then.counts else job.attempt - 1
    return _back_off(job, "retry", due, then.error, attempt=counted, failed=failed_attempt(job, error, now), call=call)


def hand_back(
    job: Job,
    *,
    now: float,
    waits: WaitTimeouts,
    hold: Hold | None = None,
    called: bool = True,
    usage: Usage | None = None,
) -> Move:
    """Requeue the step of a worker that is stopping. The call costs no attempt, but its slot may be held. `called`: the
    handler was called."""
    call = ended(job, calls.HANDED_BACK, now, usage) if called else None
    return _enter(job, "hand_back", now, waits, step=job.step, attempt=max(0, job.attempt - 1), hold=hold, call=call)


def end_turn(job: Job, verb: str, error: Mapping[str, Any], *, now: float, usage: Usage | None = None) -> Move:
    """Fail a turn that waits or has its slot. A turn is not retried, because only its caller can do the work."""
    if job.status.finished:
        raise WrongState(f"the turn is {job.status} already", details={"status": job.status.value})
    failed = failed_attempt(job, error, now) if job.status is JobStatus.RUNNING else None
    call = ended(job, calls.outcome_of(error), now, usage)
    return _end(job, JobStatus.FAILED, verb, now, error=error, retryable=False, failed=failed, call=call)


def recover(job: Job, *, now: float, waits: WaitTimeouts, max_attempts: int, hold: Hold | None) -> Move:
    """Requeue the step of a worker that is gone, or fail the job if its attempts are used up. A call that was running
    counts as an attempt, and its slot may be held. A claimed step that was not started costs no attempt."""
    if job.status is JobStatus.PENDING:
        return withdraw_claim(job, now=now, waits=waits)
    _require(job, "recover", JobStatus.RUNNING)
    if job.turn is not None:
        return end_turn(job, "recover", turns.holder_died(job), now=now)
    text = f"the worker {job.worker} died or lost its lease"
    error: dict[str, Any] = {"code": retries.WORKER_DIED, "message": text}
    changes: dict[str, Any] = {
        "failed": failed_attempt(job, error, now),
        "hold": hold,
        "call": ended(job, calls.LOST, now),
    }
    if job.attempt >= max_attempts:
        error = {**error, "attempts": job.attempt, "reason": retries.ATTEMPTS_USED_UP}
        return _end(job, JobStatus.FAILED, "recover", now, error=error, retryable=False, **changes)
    return _enter(job, "recover", now, waits, step=job.step, attempt=job.attempt, error=error, **changes)


def withdraw_claim(job: Job, *, now: float, waits: WaitTimeouts) -> Move:
    """Requeue a step that was claimed but never started, because its worker is gone. The move raises `run`, so the
    store refuses a start that arrives late."""
    _require(job, "recover", JobStatus.PENDING)
    return _enter(job, "recover", now, waits, step=job.step, attempt=job.attempt, error=job.error, keep_waiting=True)


def due(job: Job, *, now: float, waits: WaitTimeouts) -> Move:
    """Queue a job whose scheduled time has come, or whose backoff is over. The time for which a budget held the job
    does not count towards its promotion."""
    _require(job, "release", JobStatus.SCHEDULED, JobStatus.RETRYING)
    restarts = job.status is JobStatus.SCHEDULED or (job.is_held and job.queued_at is not None)
    queued_at = now if restarts else None
    error = None if job.is_held else job.error
    return _enter(job, "due", now, waits, step=job.step, attempt=job.attempt, error=error, queued_at=queued_at)


def promote(job: Job, *, now: float, waits: WaitTimeouts) -> Move:
    """Raise the priority of a waiting job by one band. Its step moves from the old band to the new one."""
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
    """Set the priority that an operator chose. A waiting step moves to the new band at once; a job that is running,
    scheduled or retrying gets there when it is next queued. If the priority is lowered, the waiting time that counts
    towards promotion restarts; otherwise the job could be promoted at once."""
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


def cancel(job: Job, *, now: float, usage: Usage | None = None) -> Move:
    """Cancel a job, whose call has used `usage` so far, if that is known. While one step is re-run, only the re-run is
    cancelled: the job returns to its earlier state."""
    if job.status.finished:
        raise WrongState(f"the job is {job.status} already", details={"status": job.status.value})
    call = ended(job, calls.CANCELLED, now, usage)
    if not reruns.goes_on(job):
        return _give_up(job, now, call=call)
    queued = job.status in (JobStatus.PENDING, JobStatus.RUNNING)
    return replace(_end(job, JobStatus.CANCELLED, "cancel", now, tells_line=queued, call=call), goes_back=None)


def resume(job: Job, *, now: float, waits: WaitTimeouts) -> Move:
    """Requeue a failed job that is marked retryable, at the failed step, for its user. The calls made so far count
    towards `max_attempts`."""
    turns.require_no_turn(job, "resume")
    if job.status is not JobStatus.FAILED or not job.retryable:
        raise WrongState(
            f"only a FAILED job marked retryable can be resumed; this one is {job.status}"
            + (" and not retryable" if job.status is JobStatus.FAILED else ""),
            details={"status": job.status.value, "retryable": job.retryable},
        )
    reruns.require_rounds_left(job)
    return _revive(job, "resume", now, waits, step=job.step, attempt=job.attempt, queued_at=resumed_queued_at(job, now))


def requeue(job: Job, *, now: float, waits: WaitTimeouts, from_start: bool = False) -> Move:
    """Requeue a failed job, retryable or not, for an operator."""
    turns.require_no_turn(job, "requeue")
    _require(job, "requeue", JobStatus.FAILED)
    if from_start:
        return _revive(job, "requeue", now, waits, step=0, goes_back=None)
    return _revive(job, "requeue", now, waits, step=job.step, queued_at=resumed_queued_at(job, now))


def retry(job: Job, *, now: float, waits: WaitTimeouts, from_start: bool = False, by_operator: bool = False) -> Move:
    """Requeue a failed job, retryable or not, for a user or an operator. The number of rounds that users can begin is
    limited."""
    turns.require_no_turn(job, "retry")
    _require(job, "retry", JobStatus.FAILED)
    if not by_operator:
        reruns.require_rounds_left(job)
    return requeue(job, now=now, waits=waits, from_start=from_start)


def rerun(job: Job, step: int, *, now: float, waits: WaitTimeouts) -> Move:
    """Run one step of a finished job again, in a new round, for its user. Later steps do not run: the job returns to
    its earlier state, with a new result. A job that had failed at this very step continues with its later steps
    instead. If the re-run fails, the job is FAILED at this step until the step succeeds; resuming the job repeats the
    re-run."""
    turns.require_no_turn(job, "re-run")
    _require(job, "re-run a step of", JobStatus.COMPLETED, JobStatus.FAILED)
    reruns.require_rounds_left(job)
    return _revive(job, "rerun", now, waits, step=step, goes_back=reruns.begun(job, step))


def timer_rang(job: Job, *, now: float, waits: WaitTimeouts, resumes: AutoResumes = NO_RESUMES) -> Move | None:
    """The move of a job whose timer has fired, or None if the job need not move now."""
    if job.status.finished or job.timer_at is None or job.timer_at > now:
        return None
    if job.deadline_at is not None and job.deadline_at <= now:
        error = {"code": retries.DEADLINE_PASSED, "message": "the job's deadline passed before it was done"}
        call = ended(job, calls.EXPIRED, now)
        if not reruns.goes_on(job):
            failed = None if call is None else failed_attempt(job, error, now)
            return _give_up(job, now, failed=failed, call=call)
        queued = job.status in (JobStatus.PENDING, JobStatus.RUNNING)
        return _end(job, JobStatus.FAILED, "expire", now, error=error, retryable=False, tells_line=queued, call=call)
    if job.is_set_aside:
        return end_turn(job, "fail", turns.grace_over(job, now), now=now)
    if job.status in (JobStatus.SCHEDULED, JobStatus.RETRYING):
        return due(job, now=now, waits=waits)
    if job.status is JobStatus.PENDING:
        if spills(job, waits):
            return spill(job, now=now, waits=waits)
        if job.turn is not None:
            return end_turn(job, "time_out", turns.waited_too_long(job), now=now)
        error = timers.too_late(job)
        if (delay := resumes.get(job.service)) is not None and not timers.start_is_overdue(job):
            return _back_off(job, "time_out", due_after(job, now, delay), error, attempt=job.attempt, tells_line=True)
        return _end(job, JobStatus.FAILED, "time_out", now, error=error, retryable=True)
    return None


def spill(job: Job, *, now: float, waits: WaitTimeouts) -> Move:
    """Let a job go to any allowed region, because it has waited long enough for its preferred one."""
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
    """Put the job into the queue, or move it within the queue."""
    since = job.waiting_since if keep_waiting and job.waiting_since is not None else now
    changes.setdefault("attempt", 0)
    changes.setdefault("round", job.round)
    changes.setdefault("goes_back", job.goes_back)
    spill_after = job.spill_after if job.asks_for_region(step, changes["attempt"]) else None
    ends_at = timers.earliest(job.deadline_at, None if changes["round"] else job.start_by)
    timer_at = waiting_timer(job.steps[step], since, ends_at, waits, spill_after)
    return Move(
        job.id,
        job.run,
        verb,
        JobStatus.PENDING,
        step=step,
        tells_line=True,
        waiting_since=since,
        timer_at=timer_at if job.turn is None else job.timer_at,  # a turn's timer includes its caller's wait_timeout
        **changes,
    )


def _revive(job: Job, verb: str, now: float, waits: WaitTimeouts, *, step: int, **changes: Any) -> Move:
    if job.deadline_at is not None and job.deadline_at <= now:
        raise WrongState(f"cannot {verb} a job whose deadline has passed", details={"status": job.status.value})
    changes.setdefault("queued_at", now)
    return _enter(job, verb, now, waits, step=step, round=job.round + 1, **changes)


def _back_off(
    job: Job,
    verb: str,
    due_at: float,
    error: Mapping[str, Any],
    *,
    attempt: int,
    tells_line: bool = False,
    **changes: Any,
) -> Move:
    """Keep the job out of the queue until `due_at`."""
    return Move(
        job.id,
        job.run,
        verb,
        JobStatus.RETRYING,
        step=job.step,
        attempt=attempt,
        round=job.round,
        tells_line=tells_line,
        timer_at=due_at,
        error=error,
        goes_back=job.goes_back,
        **changes,
    )


def _end(job: Job, status: JobStatus, verb: str, now: float, **changes: Any) -> Move:
    """End the job, for good or until it is resumed. By default an outbox row is written only if the job is waiting.
    Callers pass `tells_line=True` if another process may have to stop a running call."""
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
        webhook=job.webhook,
        **changes,
    )


def _finish_as(job: Job, verb: str, origin: reruns.RerunOrigin, now: float, **changes: Any) -> Move:
    """End the job in the state `origin`, after its last step or after a re-run."""
    changes.setdefault("tells_line", False)
    return Move(
        job.id,
        job.run,
        verb,
        origin.status,
        step=origin.step,
        attempt=origin.attempt,
        round=job.round,
        finished_at=now,
        error=origin.error,
        retryable=origin.retryable,
        goes_back=origin.goes_back,
        webhook=job.webhook,
        **changes,
    )


def _give_up(job: Job, now: float, **changes: Any) -> Move:
    """End the re-run of a step without a result. The job returns to the state that it had before."""
    assert job.goes_back is not None
    queued = job.status in (JobStatus.PENDING, JobStatus.RUNNING)
    return _finish_as(job, "give_up", reruns.ended(job.goes_back), now, tells_line=queued, **changes)


def _require(job: Job, verb: str, *allowed: JobStatus) -> None:
    if job.status not in allowed:
        names = " or ".join(status.value for status in allowed)
        text = f"cannot {verb} a job that is {job.status}; it must be {names}"
        raise WrongState(text, details={"status": job.status.value})
