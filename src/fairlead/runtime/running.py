"""A step under way in a worker, and what watchers hear of it meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fairlead.dispatch.port import Lease
from fairlead.domain.job import Job
from fairlead.domain.transitions import Progress
from fairlead.runtime import events
from fairlead.runtime.alarm import Alarm
from fairlead.runtime.clock import Clock
from fairlead.runtime.events import Event, Hub
from fairlead.store.journal import Journal

PROGRESS_EVERY = 0.5
LOST, DRAINED = "lost", "drained"


@dataclass(slots=True, eq=False)
class Running:
    """A step under way. `stop_reason` is why it was stopped, if it was; `over`: its slot was given back."""

    lease: Lease
    job: Job
    alarm: Alarm[Running]
    task: asyncio.Task[None] | None = None
    performing: bool = False
    stop_reason: str | None = None
    abandoned: bool = False
    progress: dict[str, Any] | None = None
    progress_due: asyncio.TimerHandle | None = None
    over: bool = False

    @property
    def stopped(self) -> bool:
        return self.stop_reason is not None

    def stop(self, reason: str) -> bool:
        """Only the handler is ever cancelled: what comes before and after it must run to its end. True if it was."""
        if self.stopped or self.task is None:
            return False
        self.stop_reason = reason
        return self.performing and self.task.cancel(reason)


class Reports:
    """What is told of a step between its start and its end."""

    def __init__(self, hub: Hub, journal: Journal, clock: Clock, loop: asyncio.AbstractEventLoop) -> None:
        self._hub = hub
        self._journal = journal
        self._clock = clock
        self._loop = loop

    def begun(self, job: Job) -> None:
        if self._hub.watched(job.id, job.user_id):
            step, total = job.step + 1, len(job.steps)
            text = f"running {job.service} ({step}/{total})"
            details = {"service": job.service, "step": step, "total": total, "attempt": job.attempt}
            self._hub.publish(Event(events.STEP_START, job.id, self._clock.now(), text, details), job.user_id)

    def reporter(self, running: Running) -> Callable[[dict[str, Any]], None]:
        """What a handler reports its progress to, from any thread."""

        def report(said: dict[str, Any]) -> None:
            self._loop.call_soon_threadsafe(self._progressed, running, said)

        return report

    def _progressed(self, running: Running, said: dict[str, Any]) -> None:
        """Watchers hear it at once; the truth keeps the newest, at most twice a second."""
        if running.over:
            return
        job = running.job
        running.progress = {**said, "service": job.service, "step": job.step}
        if self._hub.watched(job.id, job.user_id):
            text = str(said.get("message", f"{job.service} is at {said.get('fraction', 0):.0%}"))
            self._hub.publish(Event(events.PROGRESS, job.id, self._clock.now(), text, running.progress), job.user_id)
        if running.progress_due is None:
            running.progress_due = self._loop.call_later(PROGRESS_EVERY, self._keep_progress, running)

    def _keep_progress(self, running: Running) -> None:
        running.progress_due = None
        self._journal.write_later(Progress(running.job.id, running.job.run, running.progress or {}))
