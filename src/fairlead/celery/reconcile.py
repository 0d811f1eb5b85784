"""Compares the ledger with the truth: what the broker has, and what living workers run.

Nothing here stops the world, so a difference counts only if it is seen twice, a moment apart, for a task that has not
moved in between; and it is repaired only if it has not moved even then.
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
from fairlead.celery.ledger import Entry, Ledger, Miscount, Repair, State

log = logging.getLogger("fairlead.celery")

LOOK_AGAIN_S = 0.5
DEEP = 10_000
"""A queue of more messages is read only if its length differs clearly from what is counted."""
SLACK = 0.01

KINDS: dict[tuple[str, str], str] = {
    ("pending", ""): "lost_pending",
    ("running", ""): "lost_running",
    ("running", "pending"): "returned",
    ("pending", "running"): "started",
    ("", "pending"): "found_pending",
    ("", "running"): "found_running",
}
"""What a repair was: from where, to where."""
REPAIRS = (*KINDS.values(), "miscounted")


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """What was repaired: tasks that were elsewhere than the ledger said, and counters that somebody had written to."""

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
        said = [f"{count} {kind.replace('_', ' ')}" for kind, count in sorted(self.kinds.items())]
        return ", ".join(said) or "nothing to repair"


class Reconciler:
    """`grace_s`: how long after its last move a task is left alone, and after its last word a worker lives. Workers
    say their word every `beat_every_s`."""

    def __init__(self, app: Any, ledger: Ledger, grace_s: float, beat_every_s: float) -> None:
        self._app = app
        self._ledger = ledger
        self._grace = int(grace_s * 1_000_000)
        self._pause_s = LOOK_AGAIN_S + beat_every_s
        self._left_behind: dict[str, int] = {}

    def run(self) -> Reconciliation:
        began = self._ledger.now()
        suspected = self._differences()
        if suspected:
            time.sleep(self._pause_s)
            suspected &= self._differences(began)
        self._forget_lost_workers()
        order = {queue: index for index, queue in enumerate(self._ledger.names)}
        repairs = tuple(self._ledger.repair(sorted(suspected, key=lambda repair: (order[repair.queue], repair))))
        done = Reconciliation(repairs, tuple(self._ledger.recount()))
        if done:
            self._ledger.count_repairs(done.kinds)
            log.warning("load balancing: repaired %s", done)
        self._tell_what_is_left_behind()
        return done

    def _tell_what_is_left_behind(self) -> None:
        """In queues that are no longer ours, since there are fewer now: no worker takes from them."""
        names = self._ledger.former_names()
        with opened(self._app) if names else nullcontext() as broker:
            left = {} if broker is None else {name: length for name in names if (length := broker.length(name))}
        if left and left != self._left_behind:
            log.warning(
                "load balancing: queues that the balancer no longer has hold %d tasks; a worker with -Q %s does them",
                sum(left.values()),
                ",".join(left),
            )
        self._left_behind = left

    def _forget_lost_workers(self) -> None:
        now = self._ledger.now()
        for worker in self._ledger.workers():
            if now - worker.heard >= self._grace:
                self._ledger.leave(worker.name)

    def _differences(self, since: int = 0) -> set[Repair]:
        """What a worker runs is believed if it was said after `since`: its word may be older than the task's end."""
        # In the order in which a task moves on, so that one under way is seen at least once.
        now, names = self._ledger.now(), self._ledger.names
        entries = {queue: self._ledger.entries(queue) for queue in names}
        with opened(self._app) as broker:
            waiting = dict.fromkeys(names) if broker is None else self._waiting(broker, entries)
        live = [worker for worker in self._ledger.workers() if now - worker.heard < self._grace]
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
        """The tickets of all messages, by queue; None for a queue that is too long to be read and looks right."""
        lengths = {queue: broker.length(queue) for queue in entries}
        read = {
            queue: broker.waiting(queue) for queue in entries if self._is_worth_reading(lengths[queue], entries[queue])
        }
        unacknowledged = broker.unacknowledged(list(entries))
        return {queue: read[queue] | unacknowledged[queue] if queue in read else None for queue in entries}

    def _is_worth_reading(self, length: int, known: dict[str, Entry]) -> bool:
        return length <= DEEP or abs(len(known) - length) > SLACK * length


def _compared(queue: str, known: dict[str, Entry], runs: set[str], waits: set[str] | None) -> Iterable[Repair]:
    """`waits` is None where nobody can tell: then what is pending may be, and only what runs is certain."""
    for ticket in known.keys() | runs | (waits or set()):
        entry = known.get(ticket)
        was: State | Literal[""] = "" if entry is None else entry.state
        now: State | Literal[""] = "running" if ticket in runs else ""
        if not now and (ticket in waits if waits is not None else was == "pending"):
            now = "pending"
        if was != now:
            yield Repair(queue, ticket, was, 0 if entry is None else entry.moved, now)
