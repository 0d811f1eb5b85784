"""A pool: several services under one limit, and how its free slots are dealt out among them.

A free slot goes to the best head among the services that have a live worker with room: by band (a FIFO service counts
as band 1), then to the services in turn, by a virtual time of their own per band. So a worker may find that a slot is
not for it, when the best head belongs to a service that only another worker can execute. That slot is left, and that
service woken.

Of some services only certain regions count. What is granted elsewhere takes no slot of the pool and is not charged, so
that it costs the service no turn there. But it takes a worker's room: between two such grants of one service, each
other service of the pool that waits in the band has had one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from fairlead.dispatch.memory.service import ALL_BANDS, Pick, Service
from fairlead.dispatch.port import Claim
from fairlead.domain.order import charge

WORKER_MEMORY_S = 30.0
"""For how long after its last claim a worker with unused room is thought to be alive and waiting."""


class Pool:
    __slots__ = ("beside", "limit", "name", "passed_over", "services", "tags", "virtual_times")

    def __init__(self, scope: str) -> None:
        self.name = scope
        self.limit = 0
        self.services: list[Service] = []
        self.passed_over: set[str] = set()
        """Services whose worker was refused a slot that is another's; to be woken when anything changes."""
        self.virtual_times = [0 for _ in ALL_BANDS]
        self.tags: list[dict[str, int]] = [{} for _ in ALL_BANDS]
        self.beside: set[str] = set()
        """Services that were granted something beside the pool's slots since one of those was granted."""

    @property
    def free(self) -> int:
        return self.limit - sum(service.in_pool for service in self.services)

    def granted(self, band: int, service: Service, region: str | None, estimate: int) -> None:
        if service.rules.in_pool(region):
            self.beside.clear()
            self.charge(band, service.name, estimate)
            return
        if service.name in self.beside:
            self.beside.clear()
        self.beside.add(service.name)

    def start(self, band: int, service: str) -> int:
        """A service's start tag. Whatever kept it from taking its turns, it has saved up no credit."""
        return max(self.virtual_times[band], self.tags[band].get(service, 0))

    def charge(self, band: int, service: str, estimate: int) -> None:
        start = self.start(band, service)
        self.virtual_times[band] = start
        self.tags[band][service] = start + charge(estimate, 1.0)

    def settle(self, band: int, service: str, estimate: int, real: int | None) -> None:
        """To the slot time really used; None when nothing ran."""
        tags = self.tags[band]
        used = 0 if real is None else charge(real, 1.0)
        tags[service] = tags.get(service, 0) + used - charge(estimate, 1.0)

    def clear(self) -> None:
        """Forget whose turn it is."""
        self.beside.clear()
        self.virtual_times = [0 for _ in ALL_BANDS]
        self.tags = [{} for _ in ALL_BANDS]


@dataclass(slots=True)
class Worker:
    """What is remembered of a worker from its last claim."""

    claim: Claim
    bands: tuple[int, ...]
    seen_at: float
    spare: int = 0
    last_giver: str = ""


class Option(NamedTuple):
    """A step that could be granted; the first four decide."""

    band: int
    again: bool
    start: int
    name: str
    service: Service
    pick: Pick
    worker: Worker

    @property
    def takes_slot(self) -> bool:
        """One of the pool's."""
        return self.service.rules.in_pool(self.pick[3])


class PoolGiver:
    """One claim's dealings with one pool: which slots it gets, and which it leaves to others."""

    __slots__ = ("left", "left_to", "name", "pool", "rivals", "worker")

    def __init__(self, pool: Pool, worker: Worker, rivals: list[Worker]) -> None:
        self.name = pool.name
        self.pool = pool
        self.worker = worker
        self.rivals = rivals
        self.left: dict[Service, int] = {}
        self.left_to: dict[str, int] = {}

    def next(self) -> tuple[Service, Pick] | None:
        while True:
            dry = self.pool.free <= sum(self.left.values())
            mine = min(self._options(self.worker, dry=dry), key=_rank, default=None)
            if mine is None and dry:
                return None
            theirs = None
            if self.rivals and (mine is None or mine.takes_slot):
                theirs = min(self._options_of_rivals(), key=_rank, default=None)
            if theirs is None or (mine is not None and _rank(mine) <= _rank(theirs)):
                return None if mine is None else (mine.service, mine.pick)
            self._leave(theirs)

    def _options(self, worker: Worker, *, dry: bool = False) -> Iterator[Option]:
        claim = worker.claim
        for service in self.pool.services:
            left = self.left.get(service, 0)
            if service.name not in claim.services or service.free <= left:
                continue
            pick = service.pick(worker.bands, claim.regions, dry=dry)
            if pick is not None:
                band, start = pick[0], self.pool.start(pick[0], service.name)
                again = service.name in self.pool.beside and not service.rules.in_pool(pick[3])
                yield Option(band, again, start, service.name, service, pick, worker)

    def _options_of_rivals(self) -> Iterator[Option]:
        for rival in self.rivals:
            if self.left_to.get(rival.claim.worker, 0) >= rival.spare:
                continue
            for option in self._options(rival):
                left = self.left.get(option.service, 0)
                if option.takes_slot and left < option.service.bands[option.band].waiting:
                    # Slots already left to that service count as if it had had them: turns stay turns.
                    taken = left * charge(option.service.estimate_at(option.pick), 1.0)
                    yield option._replace(start=option.start + taken)

    def _leave(self, option: Option) -> None:
        name = option.worker.claim.worker
        self.left[option.service] = self.left.get(option.service, 0) + 1
        self.left_to[name] = self.left_to.get(name, 0) + 1

    def passed_over(self) -> set[str]:
        """The claimer's services that still have something waiting, if slots were left to others."""
        return {option.name for option in self._options(self.worker)} if self.left else set()


def _rank(option: Option) -> tuple[int, bool, int, str]:
    return option[:4]
