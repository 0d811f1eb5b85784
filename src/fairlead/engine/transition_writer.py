"""Writes the transitions of jobs, and then notifies watchers, the timers loop and the worker that runs the job."""

from __future__ import annotations

import asyncio
import logging
import textwrap
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from fairlead.domain import events
from fairlead.domain.events import Event
from fairlead.domain.job import Attempt, Job, JobStatus, Priority
from fairlead.domain.retry import RETRY_IN, TRACEBACK
from fairlead.domain.transitions import Move, Prioritise
from fairlead.domain.views import EndedJob
from fairlead.engine.counters import Counters
from fairlead.engine.events import Hub
from fairlead.engine.parts import Signals
from fairlead.errors import StoreError, Unavailable
from fairlead.log_fields import about
from fairlead.store.group_commit import GroupCommit
from fairlead.store.port import Done, FireTimers, Outcome, PromoteWaiting, SweepResult

if TYPE_CHECKING:
    from fairlead.engine.tracing import Tracing

log = logging.getLogger("fairlead.jobs")
turn_log = logging.getLogger("fairlead.turns")

Recorded = Callable[[bool | Exception], None]

OPERATOR = "moved by an operator"
_MOVED_BY = {"prioritise": OPERATOR, "demote": "a budget is spent: demoted"}
DONE = "the job is complete"
_TURN_MOVES = {
    "complete": "completed",
    "cancel": "cancelled",
    "set_aside": "set aside, its caller is absent",
    "take_up": "back in the queue",
}


class Applied(NamedTuple):
    """The moves that were applied. `error` is set if the database could not be reached for some of the other moves,
    which then may or may not be applied."""

    moves: list[Move]
    error: Unavailable | StoreError | None = None


def store_error_of(outcomes: Sequence[object]) -> Unavailable | StoreError | None:
    """The first error in `outcomes` that concerns the database as a whole, not a single row; None if there is none."""
    return next((each for each in outcomes if isinstance(each, Unavailable | StoreError)), None)


class TransitionWriter:
    """Writes every transition (`Move`) of this process. A transition that another part wrote together with other rows
    is only published here."""

    def __init__(
        self,
        group_commit: GroupCommit,
        hub: Hub,
        signals: Signals,
        private: Collection[str] = (),
        tracing: Tracing | None = None,
    ) -> None:
        """`private`: the services whose errors are logged without their messages, which may quote a request."""
        self._group_commit = group_commit
        self._hub = hub
        self._signals = signals
        self._private = private
        self._tracing = tracing
        self._soon: list[tuple[Job, Move, float, Recorded]] = []
        self.counters = Counters()

    async def record(self, job: Job, move: Move, now: float) -> bool:
        """Write a transition and publish it. Returns False if it was refused because the job had moved on."""
        if not isinstance(await self._group_commit.write(move), Done):
            return False
        self._publish(job, move, now)
        return True

    async def record_each(self, moves: Sequence[tuple[Job, Move]], now: float) -> list[bool | Exception]:
        """Write many transitions, each independent of the others. The result has one item for each: True if it was
        applied, False if the job had moved on, or the error."""
        outcomes = await self._group_commit.write_each([move for _, move in moves])
        return [self._published(*one, outcome, now) for one, outcome in zip(moves, outcomes, strict=True)]

    def record_soon(self, job: Job, move: Move, now: float, recorded: Recorded) -> None:
        """Write a transition together with others of the same moment, and call `recorded` with its item of
        `record_each`. A task and a future for each transition would cost more than all other work of a worker for a
        step."""
        self._soon.append((job, move, now, recorded))
        if len(self._soon) == 1:
            asyncio.get_running_loop().call_soon(self._record_now)

    def _record_now(self) -> None:
        moves, self._soon = self._soon, []

        def written(outcomes: Sequence[Outcome | Exception]) -> None:
            for (job, move, now, recorded), outcome in zip(moves, outcomes, strict=True):
                try:
                    recorded(self._published(job, move, outcome, now))
                except Exception:  # the others are written too
                    log.exception("job %s: its worker failed after the commit", job.id, extra=about(job))

        try:
            self._group_commit.write_each_then([move for _, move, _, _ in moves], written)
        except Unavailable as error:
            written([error] * len(moves))

    def _published(self, job: Job, move: Move, outcome: Outcome | Exception, now: float) -> bool | Exception:
        if isinstance(outcome, Done):
            self._publish(job, move, now)
            return True
        return outcome if isinstance(outcome, Exception) else False

    async def apply_each(self, moves: Sequence[tuple[Job, Move]], now: float) -> Applied:
        """Write many transitions. Returns those that were applied, and the error if the database could not be reached.
        Without an error, the remaining transitions were refused because their jobs had moved on, or the database could
        not write their rows."""
        outcomes = await self.record_each(moves, now)
        applied = [move for (_, move), outcome in zip(moves, outcomes, strict=True) if outcome is True]
        return Applied(applied, store_error_of(outcomes))

    async def sweep(self, sweep: FireTimers | PromoteWaiting, now: float) -> SweepResult:
        """Let the store select and move all jobs that are due, and publish these moves."""
        outcome = await self._group_commit.write(sweep)
        assert isinstance(outcome, Done)
        assert isinstance(outcome.value, SweepResult)
        self.publish_all(outcome.value.moves, now)
        return outcome.value

    def publish_all(self, moves: Sequence[tuple[Job, Move | Prioritise]], now: float) -> None:
        """Publish transitions that have been written already."""
        for job, move in moves:
            self._publish(job, move, now)

    def _publish(self, job: Job, move: Move | Prioritise, now: float) -> None:
        if isinstance(move, Prioritise):
            self._hub.publish(_priority_event(job, move.priority, OPERATOR, now), job.user_id)
            return
        self.counters.moved(job, move)
        _log(job, without_messages(move) if job.service in self._private else move, now)
        if self._tracing is not None:
            self._tracing.moved(job, move, now)
        if move.timer_at is not None:
            self._signals.timer_set(move.timer_at)
        if job.status is JobStatus.RUNNING and move.verb in ("cancel", "expire", "give_up", "recover"):
            self._signals.step_stopped(job.id, job.run)
        if move.status.finished:
            self._signals.job_ended(job.id)
            if self._hub.awaits_end(job.id):
                self._hub.end_written(job.id, EndedJob.of_move(job, move))
        if self._hub.watched(job.id, job.user_id):
            for event in events_of(job, move, now):
                self._hub.publish(event, job.user_id)


def without_messages(move: Move) -> Move:
    """The transition with nothing but the code in its errors."""
    if move.error is not None:
        move = replace(move, error={"code": move.error.get("code")})
    if move.failed is not None:
        kept = {name: move.failed.error[name] for name in ("code", RETRY_IN) if name in move.failed.error}
        move = replace(move, failed=replace(move.failed, error=kept))
    return move


def _log(job: Job, move: Move, now: float) -> None:
    if job.turn is not None:
        _log_turn(job, move)
        return
    if move.failed is not None:
        _log_attempt(job, move.failed)
    if move.status.finished and log.isEnabledFor(logging.INFO):
        _log_end(job, move, now)


def _log_turn(job: Job, move: Move) -> None:
    if move.status is JobStatus.FAILED:
        error = move.error or {}
        turn_log.info(
            "turn %s of %s: failed (%s: %r)",
            job.id,
            job.service,
            error.get("code"),
            error.get("message"),
            extra=about(job),
        )
    elif (done := _TURN_MOVES.get(move.verb)) is not None:
        turn_log.info("turn %s of %s: %s", job.id, job.service, done, extra=about(job))


def _log_attempt(job: Job, attempt: Attempt) -> None:
    """Log a call that failed, with the traceback of its handler."""
    if not log.isEnabledFor(logging.WARNING):
        return
    error, trace = attempt.error, attempt.error.get(TRACEBACK)
    then = f"; retry in {error[RETRY_IN]:g} s" if RETRY_IN in error else ""
    text = "job %s: call %d of %s failed: %s: %s" + then
    arguments = (job.id, attempt.attempt, attempt.service, error.get("code"), error.get("message"))
    # The traceback is passed as stack info, so that formatters which escape line breaks in messages keep it readable.
    shown = None if trace is None else textwrap.indent(trace, "    ")
    log.handle(
        log.makeRecord(log.name, logging.WARNING, __file__, 0, text, arguments, None, extra=about(job), sinfo=shown)
    )


def _log_end(job: Job, move: Move, now: float) -> None:
    """Log the end of a job."""
    error = move.error if move.status is JobStatus.FAILED else None
    why = "" if error is None else f": {error.get('code')}: {error.get('message')}"
    seconds = max(0.0, now - job.created_at)
    log.info(
        "job %s (%s): %s after %.1f s%s", job.id, job.feature_name, move.status.value, seconds, why, extra=about(job)
    )


def accepted(job: Job, now: float) -> Event:
    """The event that followers of a user receive for a new job."""
    total = len(job.steps)
    details = {**events.step_fields(job.service, 0, total), "feature_name": job.feature_name}
    if job.status is JobStatus.SCHEDULED:
        due = events.iso(job.scheduled_at)
        return Event(events.WAITING, job.id, now, f"accepted, due at {due}", {**details, "scheduled_at": due})
    return Event(events.WAITING, job.id, now, f"accepted, waiting for {job.service} (1/{total})", details)


def events_of(job: Job, move: Move, now: float) -> list[Event]:
    """The events that watchers receive for a transition."""
    published = []
    service, total = job.service, len(job.steps)
    if move.result is not None:
        text = f"completed {service} ({job.step + 1}/{total})"
        details = events.step_fields(service, job.step, total)
        published.append(Event(events.STEP_COMPLETE, job.id, now, text, details))
    match move.status:
        case JobStatus.COMPLETED:
            text = "the re-run was given up, the job is complete as before" if move.verb == "give_up" else DONE
            published.append(Event(events.JOB_COMPLETE, job.id, now, text))
        case JobStatus.CANCELLED:
            published.append(Event(events.JOB_CANCELLED, job.id, now, "the job was cancelled"))
        case JobStatus.FAILED:
            error = dict(move.error or {})
            text = str(error.get("message", "the job failed")) + (" (resume available)" if move.retryable else "")
            details = {"error": error, "retryable": bool(move.retryable)}
            published.append(Event(events.JOB_FAILED, job.id, now, text, details))
        case JobStatus.RETRYING if move.verb == "hold":
            error = dict(move.error or {})
            details = {"error": error, "attempt": job.attempt, "due_at": events.iso(move.timer_at)}
            published.append(Event(events.JOB_RETRYING, job.id, now, f"held: {error.get('message')}", details))
        case JobStatus.RETRYING:
            due = events.iso(move.timer_at)
            details = {"error": dict(move.error or {}), "attempt": job.attempt, "due_at": due}
            published.append(Event(events.JOB_RETRYING, job.id, now, f"{service} is tried again at {due}", details))
        case JobStatus.SCHEDULED:
            details = events.step_fields(service, job.step, total)
            published.append(Event(events.WAITING, job.id, now, "its caller is absent", details))
        case JobStatus.PENDING if move.priority is not None:
            published.append(_priority_event(job, move.priority, _MOVED_BY.get(move.verb, "promoted"), now))
        case JobStatus.PENDING:
            waits_for = job.steps[move.step]
            text = f"waiting for {waits_for} ({move.step + 1}/{total})"
            details = events.step_fields(waits_for, move.step, total)
            published.append(Event(events.WAITING, job.id, now, text, details))
        case _:
            pass
    return published


def _priority_event(job: Job, priority: Priority, how: str, now: float) -> Event:
    old, new = job.priority.value, priority.value
    return Event(events.JOB_PROMOTED, job.id, now, f"{how} from {old} to {new}", {"old": old, "new": new})
