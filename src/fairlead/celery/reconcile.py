"""Compares the counts with the messages in the broker and the tasks that live workers run, and repairs the differences.

Tasks keep moving while they are compared. So a difference is repaired only if it is seen twice, a moment apart, and the
state of the task has not changed from then until the repair.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Literal

from fairlead.celery.broker import RedisBroker, opened
from fairlead.celery.consumption import advice, consumption_of, in_words
from fairlead.celery.task_counts import Entry, Miscount, Repair, State, TaskCounts

log = logging.getLogger("fairlead.celery")

LOOK_AGAIN_S = 0.5
DEEP = 10_000
"""Length up to which a queue is always read. A longer queue is read only if its length clearly differs from the number
of tasks that are counted in it."""
SLACK = 0.01

KINDS: dict[tuple[str, str], str] = {
    ("pending", ""): "lost_pending",
    ("running", ""): "lost_running",
    ("running", "pending"): "returned",
    ("pending", "running"): "started",
    ("", "pending"): "found_pending",
    ("", "running"): "found_running",
}
"""The kind of a repair, by the state before and after."""
REPAIRS = (*KINDS.values(), "miscounted")


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """What a reconcile pass has repaired: tasks that were counted in the wrong state, and counters that other code had
    written to."""

    repairs: tuple[Repair, ...] = ()
    miscounts: tuple[Miscount, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.repairs or self.miscounts)

    @property
    def kinds(self) -> dict[str, int]:
        counts = Counter(KINDS[repair.was, repair.now] for repair in self.repairs)
        if self.miscounts:
            counts["miscounted"] = len(self.miscounts)
        return dict(counts)

    def __str__(self) -> str:
        parts = [f"{count} {kind.replace('_', ' ')}" for kind, count in sorted(self.kinds.items())]
        return ", ".join(parts) or "nothing to repair"


class Reconciler:
    """Finds and repairs wrong counts. A task is not repaired until `grace_s` seconds after its last change, and a
    worker counts as alive for `grace_s` after its last heartbeat. Workers send a heartbeat every `beat_every_s`."""

    def __init__(self, app: Any, counts: TaskCounts, grace_s: float, beat_every_s: float) -> None:
        self._app = app
        self._counts = counts
        self._grace = int(grace_s * 1_000_000)
        self._pause_s = LOOK_AGAIN_S + beat_every_s
        self._left_over: dict[str, int] = {}
        self._unconsumed: frozenset[str] = frozenset()

    def run(self) -> Reconciliation:
        began = self._counts.now()
        suspected = self._differences()
        if suspected:
            time.sleep(self._pause_s)
            suspected &= self._differences(began)
        self._forget_lost_workers()
        order = {queue: index for index, queue in enumerate(self._counts.names)}
        repairs = tuple(self._counts.repair(sorted(suspected, key=lambda repair: (order[repair.queue], repair))))
        done = Reconciliation(repairs, tuple(self._counts.recount()))
        if done:
            self._counts.count_repairs(done.kinds)
            log.warning("load balancing: repaired %s", done)
        self._warn_of_former_queues()
        self._warn_of_unconsumed_queues()
        return done

    def _warn_of_former_queues(self) -> None:
        """Warn of tasks in queues that the balancer no longer has. No worker consumes these queues."""
        names = self._counts.former_names()
        with opened(self._app) if names else nullcontext() as broker:
            left = {} if broker is None else {name: length for name in names if (length := broker.length(name))}
        if left and left != self._left_over:
            log.warning(
                "load balancing: %d tasks are in queues that the balancer no longer has; run a worker with -Q %s",
                sum(left.values()),
                ",".join(left),
            )
        self._left_over = left

    def _warn_of_unconsumed_queues(self) -> None:
        """Warn of queues that no worker consumes, once whenever the set of these queues changes. Does nothing while
        there is no worker at all."""
        now = consumption_of(self._counts, self._grace / 1_000_000)
        names = list(now.unconsumed) if now.workers else []
        if names and self._unconsumed != set(names):
            log.warning(
                "load balancing: no worker consumes %s, where %d tasks wait; %s",
                in_words(now.prefix, names),
                sum(now.unconsumed.values()),
                advice(names),
            )
        self._unconsumed = frozenset(names)

    def _forget_lost_workers(self) -> None:
        now = self._counts.now()
        for worker in self._counts.workers():
            if now - worker.heard >= self._grace:
                self._counts.leave(worker.name)

    def _differences(self, since: int = 0) -> set[Repair]:
        """Return the repairs of tasks that are counted in the wrong state. A task is moved to `running` only if a
        heartbeat after `since` reports it, because the task may have ended since an older heartbeat."""
        # Read in the order in which a task moves (counted, in the broker, in a worker), so that each task is seen at
        # least once.
        now, names = self._counts.now(), self._counts.names
        entries = {queue: self._counts.entries(queue) for queue in names}
        with opened(self._app) as broker:
            waiting = dict.fromkeys(names) if broker is None else self._waiting(broker, entries)
        live = [worker for worker in self._counts.workers() if now - worker.heard < self._grace]
        runs = {place for worker in live for place in worker.running}
        news = {place for worker in live if worker.heard > since for place in worker.running}
        return {
            repair
            for queue in names
            for repair in _compared(queue, entries[queue], {t for q, t in runs if q == queue}, waiting[queue])
            if (not repair.was or now - repair.moved >= self._grace)
            and (repair.now != "running" or (queue, repair.ticket) in news)
        }

    def _waiting(self, broker: RedisBroker, entries: dict[str, dict[str, Entry]]) -> dict[str, set[str] | None]:
        """Return the tickets of the messages of each queue, waiting or unacknowledged. The value is None for a queue
        that is not read: it is long, and its length is close to the number of tasks that are counted in it."""
        lengths = {queue: broker.length(queue) for queue in entries}
        read = {
            queue: broker.waiting(queue) for queue in entries if self._is_worth_reading(lengths[queue], entries[queue])
        }
        unacknowledged = broker.unacknowledged(list(entries))
        return {queue: read[queue] | unacknowledged[queue] if queue in read else None for queue in entries}

    def _is_worth_reading(self, length: int, known: dict[str, Entry]) -> bool:
        return length <= DEEP or abs(len(known) - length) > SLACK * length


def _compared(queue: str, known: dict[str, Entry], runs: set[str], waits: set[str] | None) -> Iterable[Repair]:
    """Compare the counts of one queue with its messages (`waits`) and its running tasks (`runs`), and return the
    repairs. If `waits` is None, the messages are unknown: only running tasks are checked, and pending tasks are left as
    they are."""
    for ticket in known.keys() | runs | (waits or set()):
        entry = known.get(ticket)
        was: State | Literal[""] = "" if entry is None else entry.state
        now: State | Literal[""] = "running" if ticket in runs else ""
        if not now and (ticket in waits if waits is not None else was == "pending"):
            now = "pending"
        if was != now:
            yield Repair(queue, ticket, was, 0 if entry is None else entry.moved, now)
