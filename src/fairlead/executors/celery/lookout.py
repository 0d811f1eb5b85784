"""Whether the Celery workers that have our tasks are still there: they are asked, and silence is counted.

A task that a worker had, and that no worker has any more though it has not ended, went down with its worker. Where no
worker answers at all, nobody will take up what waits in the broker either. What was never seen may be in the broker's
queue: of that only the call's timeout decides.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from fairlead.domain.retry import WORKER_DIED, Failure

ANSWER_WITHIN = 1.0
ACTIVE = "active"


@dataclass(frozen=True, slots=True)
class Sighting:
    """What the workers said in one round: which of them answered, and who has which task in which state."""

    workers: frozenset[str] = frozenset()
    having: dict[str, tuple[str, str]] = field(default_factory=dict)


def look(app: Any, task_ids: Iterable[str]) -> Sighting:
    """Ask all workers at once. Blocks, for about a second."""
    replies = app.control.broadcast("query_task", arguments={"ids": list(task_ids)}, reply=True, timeout=ANSWER_WITHIN)
    workers, having = set(), {}
    for reply in replies or ():
        for worker, tasks in reply.items():
            workers.add(worker)
            for task_id, (state, _) in tasks.items() if isinstance(tasks, dict) and "error" not in tasks else ():
                having[task_id] = (worker, state)
    return Sighting(frozenset(workers), having)


def known_tasks(app: Any) -> dict[str, frozenset[str]]:
    """By worker that answers: the names of its tasks. Blocks, for about a second."""
    replies = app.control.broadcast("registered", reply=True, timeout=ANSWER_WITHIN)
    return {
        worker: frozenset(str(task).partition(" ")[0] for task in tasks)
        for reply in replies or ()
        for worker, tasks in reply.items()
        if isinstance(tasks, list)
    }


class Silence:
    """Counts it, for one process. `lost_after`: seconds."""

    def __init__(self, lost_after: float) -> None:
        self._lost_after = lost_after
        self._holders: dict[str, tuple[str, float]] = {}
        self._answered_at = time.monotonic()

    def begin(self) -> None:
        """After a time in which nobody was asked, and nobody's silence counts."""
        self._holders.clear()
        self._answered_at = time.monotonic()

    def seen(self, task_id: str, worker: str) -> None:
        self._holders[task_id] = (worker, time.monotonic())

    def forget(self, task_id: str) -> None:
        self._holders.pop(task_id, None)

    def lost(self, sighting: Sighting, task_ids: Iterable[str]) -> Iterator[tuple[str, Failure]]:
        """The tasks that are given up after this round."""
        now = time.monotonic()
        if sighting.workers:
            self._answered_at = now
        for task_id, (worker, _) in sighting.having.items():
            self.seen(task_id, worker)
        nobody = now - self._answered_at >= self._lost_after
        for task_id in task_ids:
            worker, at = self._holders.get(task_id, ("", now))
            if worker and now - at >= self._lost_after:
                yield task_id, Failure(WORKER_DIED, f"the Celery worker {worker} is gone, and its task with it", True)
            elif nobody:
                yield task_id, Failure(WORKER_DIED, f"no Celery worker answers since {self._lost_after:g} s", True)
