"""A pool: several services under one limit, and how its free slots are dealt out among them.

A free slot goes to the best head among the services that have a live worker with room: by band (a FIFO service counts
as band 1), then to the services in turn, by a virtual time of their own per band. So a worker may find that a slot is
not for it, when the best head belongs to a service that only another worker can execute. That slot is left, and that
service woken.
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
    __slots__ = ("limit", "name", "passed_over", "services", "tags", "virtual_times")

    def __init__(self, scope: str) -> None:
        self.name = scope
        self.limit = 0
        self.services: list[Service] = []
        self.passed_over: set[str] = set()
        """Services whose worker was refused a slot that is another's; to be woken when anything changes."""
        self.virtual_times = [0 for _ in ALL_BANDS]
        self.tags: list[dict[str, int]] = [{} for _ in ALL_BANDS]

    @property
    def free(self) -> int:
        return self.limit - sum(service.in_use for service in self.services)

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
        self.virtual_times = [0 for _ in ALL_BANDS]
        self.tags = [{} for _ in ALL_BANDS]


@dataclass(slots=True)
class Worker:
    """What is remembered of a worker from its last claim."""

    claim: Claim
    bands: tuple[int, ...]
    seen_at: float
    spare: int = 0
    last_turn: str = ""


class Option(NamedTuple):
    """A step that a pool's slot could go to; the first three decide."""

    band: int
    start: int
    name: str
    service: Service
    pick: Pick
    worker: Worker


class PoolTurn:
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
        while self.pool.free > sum(self.left.values()):
            mine = min(self._options(self.worker), key=_rank, default=None)
            theirs = min(self._options_of_rivals(), key=_rank, default=None) if self.rivals else None
            if theirs is None or (mine is not None and _rank(mine) <= _rank(theirs)):
                return None if mine is None else (mine.service, mine.pick)
            self._leave(theirs)
        return None

    def _options(self, worker: Worker) -> Iterator[Option]:
        claim = worker.claim
        for service in self.pool.services:
            left = self.left.get(service, 0)
            if service.name not in claim.services or service.free <= left:
                continue
            pick = service.pick(worker.bands, claim.regions)
            if pick is not None:
                band = pick[0]
                yield Option(band, self.pool.start(band, service.name), service.name, service, pick, worker)

    def _options_of_rivals(self) -> Iterator[Option]:
        for rival in self.rivals:
            if self.left_to.get(rival.claim.worker, 0) >= rival.spare:
                continue
            for option in self._options(rival):
                left = self.left.get(option.service, 0)
                if left < option.service.bands[option.band].waiting:
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


def _rank(option: Option) -> tuple[int, int, str]:
    return option[:3]
