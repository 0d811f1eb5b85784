"""The turns whose callers are connected to this process."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fairlead.dispatch.port import Lease
from fairlead.domain.job import Job
from fairlead.engine.parts import Signals


class Waiter:
    """One turn whose caller is connected to this process, from its opening to its end. Slots are claimed for the turn
    only while a call waits for it. `offered` is a slot that was granted to the turn and is not accepted yet; `lease` is
    the slot that the turn holds."""

    def __init__(self, job: Job) -> None:
        self.id = job.id
        self.service = job.service
        self.user_id = job.user_id
        self.job = job
        self.offered: Lease | None = None
        self.lease: Lease | None = None
        self.lost = asyncio.Event()
        self.why_lost = ""
        self.cancel_block: Callable[[], None] | None = None
        """Cancels the block of code that holds the slot, when the slot is lost."""
        self.leaving = False
        """The caller is ending the turn. From now on it is not notified of the loss of the slot."""
        self.callers = 0
        """How many calls wait for the slot."""
        self.counted = False
        self.elsewhere = False
        """Another process has adopted the turn while a call in this process waits for it."""
        self.adopted_from: str | None = None
        """The process from which this process adopted the turn. A call may still wait there."""
        self._held_at = 0.0
        self.timer: asyncio.TimerHandle | None = None
        """Ends the turn if its wait, or its use of the slot, takes too long."""

    @property
    def held(self) -> bool:
        return self.lease is not None and not self.lost.is_set()

    @property
    def elapsed(self) -> float:
        """Seconds for which this process has held the slot."""
        return asyncio.get_running_loop().time() - self._held_at

    def hold(self, lease: Lease, job: Job) -> None:
        self.stop_timer()
        self._held_at = asyncio.get_running_loop().time()
        self.offered, self.lease, self.job, self.elsewhere = None, lease, job, False

    def lose(self, why: str) -> None:
        if not (self.lost.is_set() or self.leaving):
            self.why_lost = self.why_lost or why
            self.lost.set()
            if self.cancel_block is not None:
                self.cancel_block()

    def stop_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


class Waiters:
    def __init__(self, signals: Signals) -> None:
        self._signals = signals
        self._open: dict[str, Waiter] = {}
        self.wanted: Counter[str] = Counter()
        """For each service, the number of turns that have waiting callers and no slot yet."""
        self.blocks: set[str] = set()
        """The turns that belong to a block of code (`async with app.turn()`). Kept apart from the waiters, since a turn
        that is set aside and taken up gets a new one."""

    def get(self, turn_id: str) -> Waiter | None:
        return self._open.get(turn_id)

    def all(self) -> list[Waiter]:
        return list(self._open.values())

    def add(self, job: Job) -> Waiter:
        return self._open.setdefault(job.id, Waiter(job))

    def keep(self, waiter: Waiter) -> None:
        """Register this waiter for its turn, in place of an older one."""
        self._open[waiter.id] = waiter

    def forget(self, waiter: Waiter) -> None:
        """Remove the waiter. Callers that still wait for its turn then read the turn from the database."""
        waiter.stop_timer()
        if self._open.get(waiter.id) is waiter:
            del self._open[waiter.id]
        self.changed(waiter)

    @contextmanager
    def asking(self, waiter: Waiter) -> Iterator[None]:
        """Count a caller that waits for the slot of this turn, while the block runs."""
        waiter.callers += 1
        self.changed(waiter)
        try:
            yield
        finally:
            waiter.callers -= 1
            if waiter.elsewhere and not waiter.callers:
                self.forget(waiter)
            else:
                self.changed(waiter)

    def changed(self, waiter: Waiter) -> None:
        """Update `wanted` after this waiter has changed. Sends the signal `turn_wanted` if the turn now needs a slot,
        or no longer needs one."""
        has_none = waiter.offered is None and waiter.lease is None
        wanted = waiter.callers > 0 and has_none and self._open.get(waiter.id) is waiter
        if wanted == waiter.counted:
            return
        waiter.counted = wanted
        self.wanted[waiter.service] += 1 if wanted else -1
        if not self.wanted[waiter.service]:
            del self.wanted[waiter.service]
        self._signals.turn_wanted(waiter.service)
