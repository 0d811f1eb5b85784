"""Writes a job's transition, then tells everyone whom it concerns: watchers, timers, and the worker that runs it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fairlead.domain.job import Job, JobStatus, Priority
from fairlead.domain.transitions import Move, Prioritise
from fairlead.runtime import events
from fairlead.runtime.events import Event, Hub
from fairlead.runtime.observations import Observations
from fairlead.store.journal import Journal
from fairlead.store.port import Done, PromoteWaiting, RingTimers, Rung

OPERATOR = "moved by an operator"
DONE = "the job is complete"


class Recorder:
    """Every `Move` of this process goes through here, or is told here when it was written with more than itself."""

    def __init__(self, journal: Journal, hub: Hub) -> None:
        self._journal = journal
        self._hub = hub
        self.observations = Observations()
        self.on_timer: Callable[[float], None] = lambda moment: None
        self.on_stopped: Callable[[str, int], None] = lambda job_id, run: None
        self.on_ended: Callable[[str], None] = lambda job_id: None

    async def record(self, job: Job, move: Move, now: float) -> bool:
        """True if it was applied; False if the job had moved on."""
        if not isinstance(await self._journal.write(move), Done):
            return False
        self._tell(job, move, now)
        return True

    async def record_each(self, moves: Sequence[tuple[Job, Move]], now: float) -> list[bool | Exception]:
        """Many at once, each for itself: whether it was applied, or why nobody can say."""
        told: list[bool | Exception] = []
        outcomes = await self._journal.write_each([move for _, move in moves])
        for (job, move), outcome in zip(moves, outcomes, strict=True):
            if isinstance(outcome, Done):
                self._tell(job, move, now)
                told.append(True)
            else:
                told.append(outcome if isinstance(outcome, Exception) else False)
        return told

    async def apply_each(self, moves: Sequence[tuple[Job, Move]], now: float) -> list[Move]:
        """The same; returns those that were applied."""
        told = await self.record_each(moves, now)
        return [move for (_, move), applied in zip(moves, told, strict=True) if applied is True]

    async def sweep(self, sweep: RingTimers | PromoteWaiting, now: float) -> Rung:
        """What the store found to be due, and moved."""
        outcome = await self._journal.write(sweep)
        assert isinstance(outcome, Done)
        assert isinstance(outcome.value, Rung)
        self.tell_all(outcome.value.moves, now)
        return outcome.value

    def tell_all(self, moves: Sequence[tuple[Job, Move | Prioritise]], now: float) -> None:
        """Of moves that were applied already."""
        for job, move in moves:
            self._tell(job, move, now)

    def _tell(self, job: Job, move: Move | Prioritise, now: float) -> None:
        if isinstance(move, Prioritise):
            self._hub.publish(_told_priority(job, move.priority, OPERATOR, now), job.user_id)
            return
        self.observations.moved(job, move)
        if move.timer_at is not None:
            self.on_timer(move.timer_at)
        if job.status is JobStatus.RUNNING and move.verb in ("cancel", "expire", "give_up", "recover"):
            self.on_stopped(job.id, job.run)
        if move.status.finished:
            self.on_ended(job.id)
        if self._hub.watched(job.id, job.user_id):
            for event in told(job, move, now):
                self._hub.publish(event, job.user_id)


def accepted(job: Job, now: float) -> Event:
    """What a follower of its user hears of a new job."""
    total = len(job.steps)
    details: dict[str, Any] = {"service": job.service, "step": 1, "total": total, "feature_name": job.feature_name}
    if job.status is JobStatus.SCHEDULED:
        due = events.iso(job.scheduled_at)
        return Event(events.WAITING, job.id, now, f"accepted, due at {due}", {**details, "scheduled_at": due})
    return Event(events.WAITING, job.id, now, f"accepted, waiting for {job.service} (1/{total})", details)


def told(job: Job, move: Move, now: float) -> list[Event]:
    """What a watcher hears of a move."""
    said = []
    service, total = job.service, len(job.steps)
    if move.result is not None:
        text = f"completed {service} ({job.step + 1}/{total})"
        details = {"service": service, "step": job.step + 1, "total": total}
        said.append(Event(events.STEP_COMPLETE, job.id, now, text, details))
    match move.status:
        case JobStatus.COMPLETED:
            text = "the re-run was given up, the job is complete as before" if move.verb == "give_up" else DONE
            said.append(Event(events.JOB_COMPLETE, job.id, now, text))
        case JobStatus.CANCELLED:
            said.append(Event(events.JOB_CANCELLED, job.id, now, "the job was cancelled"))
        case JobStatus.FAILED:
            error = dict(move.error or {})
            text = str(error.get("message", "the job failed")) + (" (resume available)" if move.retryable else "")
            details = {"error": error, "retryable": bool(move.retryable)}
            said.append(Event(events.JOB_FAILED, job.id, now, text, details))
        case JobStatus.RETRYING:
            due = events.iso(move.timer_at)
            details = {"error": dict(move.error or {}), "attempt": job.attempt, "due_at": due}
            said.append(Event(events.JOB_RETRYING, job.id, now, f"{service} is tried again at {due}", details))
        case JobStatus.PENDING if move.priority is not None:
            said.append(_told_priority(job, move.priority, OPERATOR if move.verb == "prioritise" else "promoted", now))
        case JobStatus.PENDING:
            waits_for = job.steps[move.step]
            text = f"waiting for {waits_for} ({move.step + 1}/{total})"
            details = {"service": waits_for, "step": move.step + 1, "total": total}
            said.append(Event(events.WAITING, job.id, now, text, details))
        case _:
            pass
    return said


def _told_priority(job: Job, priority: Priority, how: str, now: float) -> Event:
    old, new = job.priority.value, priority.value
    return Event(events.JOB_PROMOTED, job.id, now, f"{how} from {old} to {new}", {"old": old, "new": new})
