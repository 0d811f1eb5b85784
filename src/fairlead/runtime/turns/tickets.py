"""The turns whose callers are in this process."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fairlead.dispatch.port import Lease
from fairlead.domain.job import Job


class Ticket:
    """One turn, from its opening to its end. It is *asked for* while somebody waits: only then a slot is claimed for
    it. `offered` is a slot that it may have, and has not taken yet; `lease` the one that it has."""

    def __init__(self, job: Job) -> None:
        self.id = job.id
        self.service = job.service
        self.user_id = job.user_id
        self.job = job
        self.offered: Lease | None = None
        self.lease: Lease | None = None
        self.lost = asyncio.Event()
        self.why_lost = ""
        self.on_lost: Callable[[], None] = lambda: None
        self.in_block = False
        """A block of code has the slot, and is to hear of its loss."""
        self.leaving = False
        """Its caller has the last word about it: what happens from now on is no loss."""
        self.waiters = 0
        self.counted = False
        self._held_at = 0.0
        self.timer: asyncio.TimerHandle | None = None
        """Ends its waiting, or its holding, when it takes too long."""

    @property
    def held(self) -> bool:
        return self.lease is not None and not self.lost.is_set()

    @property
    def elapsed(self) -> float:
        """Seconds for which it has had its slot, in this process."""
        return asyncio.get_running_loop().time() - self._held_at

    def hold(self, lease: Lease, job: Job) -> None:
        self.stop_timer()
        self._held_at = asyncio.get_running_loop().time()
        self.offered, self.lease, self.job = None, lease, job

    def lose(self, why: str) -> None:
        if not (self.lost.is_set() or self.leaving):
            self.why_lost = self.why_lost or why
            self.lost.set()
            self.on_lost()

    def stop_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


class Tickets:
    def __init__(self) -> None:
        self._open: dict[str, Ticket] = {}
        self.wanted: Counter[str] = Counter()
        """By service: how many are asked for and have no slot yet."""
        self.on_wanted: Callable[[str], None] = lambda service: None

    def get(self, turn_id: str) -> Ticket | None:
        return self._open.get(turn_id)

    def all(self) -> list[Ticket]:
        return list(self._open.values())

    def add(self, job: Job) -> Ticket:
        return self._open.setdefault(job.id, Ticket(job))

    def keep(self, ticket: Ticket) -> None:
        """It is the one of its turn, whatever was here or was forgotten before."""
        self._open[ticket.id] = ticket

    def forget(self, ticket: Ticket) -> None:
        """Whoever still waits for it looks at the truth."""
        ticket.stop_timer()
        if self._open.get(ticket.id) is ticket:
            del self._open[ticket.id]
        self.changed(ticket)

    @contextmanager
    def asking(self, ticket: Ticket) -> Iterator[None]:
        """Somebody waits for it."""
        ticket.waiters += 1
        self.changed(ticket)
        try:
            yield
        finally:
            ticket.waiters -= 1
            self.changed(ticket)

    def changed(self, ticket: Ticket) -> None:
        """Keeps `wanted`, and tells the usher of a service for which there is one more."""
        has_none = ticket.offered is None and ticket.lease is None
        wanted = ticket.waiters > 0 and has_none and self._open.get(ticket.id) is ticket
        if wanted == ticket.counted:
            return
        ticket.counted = wanted
        self.wanted[ticket.service] += 1 if wanted else -1
        if not self.wanted[ticket.service]:
            del self.wanted[ticket.service]
        self.on_wanted(ticket.service)
