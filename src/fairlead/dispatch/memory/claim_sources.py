"""The sources from which a worker's claim takes steps: services, and pools.

In a pool, every service that has a live worker with unused budget proposes its next step, and the best of these steps
gets the free slot. Steps are compared by band (a FIFO service counts as band 1), then by the virtual time that each
service has per band. If only another worker can execute the best step, the claim reserves the slot for that step and
leaves it free, and the workers of that service are woken.

For some services only the calls in certain regions take a slot of the pool. Grants in their other regions take no slot
of the pool and are not charged to the service. But they use a worker's budget. To keep that fair, a service gets a
second such grant only after every other service of the pool with steps in the band has had a grant.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from fairlead.dispatch.memory.service import ALL_BANDS, RETRIES, Pick, Service
from fairlead.dispatch.port import Claim
from fairlead.domain.fair_share import charge
from fairlead.domain.rates import Window

WORKER_MEMORY_S = 30.0
"""How long after its last claim a worker with unused budget is considered alive and waiting."""


class Pool:
    __slots__ = ("limit", "name", "outside", "passed_over", "services", "tags", "virtual_times", "window")

    def __init__(self, scope: str) -> None:
        self.name = scope
        self.limit = 0
        self.services: list[Service] = []
        self.window: Window | None = None
        """What the pool's rate counts; None if it has no rate."""
        self.passed_over: set[str] = set()
        """Services whose worker got no slot because the slot was reserved for another worker. Their workers are woken
        at the next change."""
        self.virtual_times = [0 for _ in ALL_BANDS]
        self.tags: list[dict[str, int]] = [{} for _ in ALL_BANDS]
        self.outside: set[str] = set()
        """Services that were granted a step outside the pool's slots since the last grant that took one of its
        slots."""

    @property
    def free(self) -> int:
        """How many more steps may be granted by the pool's limit and rate."""
        free = self.limit - sum(service.in_pool for service in self.services)
        return free if self.window is None else min(free, self.window.room())

    def granted(self, band: int, service: Service, region: str | None, estimate: int) -> None:
        if service.rules.in_pool(region):
            self.outside.clear()
            self.charge(band, service.name, estimate)
            return
        if service.name in self.outside:
            self.outside.clear()
        self.outside.add(service.name)

    def start(self, band: int, service: str) -> int:
        """The start tag of a service: the virtual time of its next grant. A service earns no credit while it has no
        waiting steps."""
        return max(self.virtual_times[band], self.tags[band].get(service, 0))

    def charge(self, band: int, service: str, estimate: int) -> None:
        start = self.start(band, service)
        self.virtual_times[band] = start
        self.tags[band][service] = start + charge(estimate, 1.0)

    def settle(self, band: int, service: str, estimate: int, real: int | None) -> None:
        """Correct the charge of a service to the slot time that the call actually used. `real` is None if nothing
        ran."""
        tags = self.tags[band]
        used = 0 if real is None else charge(real, 1.0)
        tags[service] = tags.get(service, 0) + used - charge(estimate, 1.0)

    def clear(self) -> None:
        """Reset the virtual times by which services share the pool fairly."""
        self.outside.clear()
        self.virtual_times = [0 for _ in ALL_BANDS]
        self.tags = [{} for _ in ALL_BANDS]


@dataclass(slots=True)
class PoolWorker:
    """A worker and its last claim. `spare` is the budget that the claim left unused."""

    claim: Claim
    bands: tuple[int, ...]
    seen_at: float
    spare: int = 0
    last_source: str = ""


class Option(NamedTuple):
    """A step that could be granted. Options are ordered by their first four fields. `again` is true if the step takes
    no slot of the pool and its service is in `Pool.outside`; such options come after all others of their band."""

    band: int
    again: bool
    start: int
    name: str
    service: Service
    pick: Pick
    worker: PoolWorker

    @property
    def takes_slot(self) -> bool:
        """Whether granting this step takes one of the pool's slots."""
        return self.service.rules.in_pool(self.pick[3])


class PoolSource:
    """A pool as a source of one claim. It counts the slots that the claim reserves for other workers."""

    __slots__ = ("name", "pool", "reserved", "reserved_for", "rivals", "worker")

    def __init__(self, pool: Pool, worker: PoolWorker, rivals: list[PoolWorker]) -> None:
        self.name = pool.name
        self.pool = pool
        self.worker = worker
        self.rivals = rivals
        self.reserved: dict[Service, int] = {}
        self.reserved_for: dict[str, int] = {}

    def next(self) -> tuple[Service, Pick] | None:
        while True:
            pool_full = self.pool.free <= sum(self.reserved.values())
            mine = min(self._options(self.worker, pool_full=pool_full), key=_rank, default=None)
            if mine is None and pool_full:
                return None
            theirs = None
            if self.rivals and (mine is None or mine.takes_slot):
                theirs = min(self._options_of_rivals(), key=_rank, default=None)
            if theirs is None or (mine is not None and _rank(mine) <= _rank(theirs)):
                return None if mine is None else (mine.service, mine.pick)
            self._reserve(theirs)

    def _options(self, worker: PoolWorker, *, pool_full: bool = False) -> Iterator[Option]:
        claim = worker.claim
        for service in self.pool.services:
            reserved = self.reserved.get(service, 0)
            if service.name not in claim.services or service.free <= reserved:
                continue
            unserved = claim.unserved if worker is self.worker else frozenset()
            pick = service.pick(worker.bands, claim.regions, pool_full=pool_full, unserved=unserved)
            if pick is not None:
                band, start = pick[0], self.pool.start(pick[0], service.name)
                again = service.name in self.pool.outside and not service.rules.in_pool(pick[3])
                yield Option(band, again, start, service.name, service, pick, worker)

    def _options_of_rivals(self) -> Iterator[Option]:
        for rival in self.rivals:
            if self.reserved_for.get(rival.claim.worker, 0) >= rival.spare:
                continue
            for option in self._options(rival):
                reserved = self.reserved.get(option.service, 0)
                if option.takes_slot and reserved < option.service.bands[option.band].waiting:
                    # Count the slots already reserved for a service as if granted, so that services keep alternating.
                    taken = reserved * charge(option.service.estimate_at(option.pick), 1.0)
                    yield option._replace(start=option.start + taken)

    def _reserve(self, option: Option) -> None:
        name = option.worker.claim.worker
        self.reserved[option.service] = self.reserved.get(option.service, 0) + 1
        self.reserved_for[name] = self.reserved_for.get(name, 0) + 1

    def passed_over(self) -> set[str]:
        """The services of the claiming worker that still have a step to grant, if the claim reserved slots for other
        workers. Empty if it reserved none."""
        return {option.name for option in self._options(self.worker)} if self.reserved else set()


def _rank(option: Option) -> tuple[int, bool, int, str]:
    return option[:4]


class ServiceSource:
    """A service outside any pool, as a source of one claim."""

    __slots__ = ("name", "service", "worker")

    def __init__(self, service: Service, worker: PoolWorker) -> None:
        self.name = service.scope.name
        self.service = service
        self.worker = worker

    def next(self) -> tuple[Service, Pick] | None:
        service, worker = self.service, self.worker
        pick = service.next
        if pick is None or pick[0] not in worker.bands:
            pick = service.pick(worker.bands, worker.claim.regions, unserved=worker.claim.unserved)
        return None if pick is None else (service, pick)


def _bands_of(claim: Claim) -> tuple[int, ...]:
    """The bands from which a claim takes steps, in order. Every claim also takes steps from band 0, which holds the
    retries that go first."""
    return (RETRIES, *sorted(claim.bands))


class WaitingWorkers:
    """The workers that have claimed recently, with their last claims."""

    def __init__(self) -> None:
        self._known: dict[str, PoolWorker] = {}

    def seen(self, claim: Claim, now: float) -> PoolWorker:
        worker = self._known.get(claim.worker)
        if worker is None or now - worker.seen_at > WORKER_MEMORY_S:
            self._known = {name: known for name, known in self._known.items() if now - known.seen_at <= WORKER_MEMORY_S}
            worker = self._known[claim.worker] = PoolWorker(claim, _bands_of(claim), now)
        elif worker.claim.bands is not claim.bands:
            worker.bands = _bands_of(claim)
        worker.claim = claim
        worker.seen_at = now
        return worker

    def used_budget(self, name: str) -> None:
        """Record that a worker uses one unit of its budget for a step that it did not claim."""
        if (worker := self._known.get(name)) is not None:
            worker.spare = max(0, worker.spare - 1)

    def rivals(self, worker: PoolWorker, now: float) -> list[PoolWorker]:
        """The other live workers whose last claim left unused budget, sorted by name."""
        return [
            other
            for _, other in sorted(self._known.items())
            if other is not worker and other.spare > 0 and now - other.seen_at <= WORKER_MEMORY_S
        ]

    def sources(
        self, worker: PoolWorker, services: Mapping[str, Service], names: set[str], now: float
    ) -> list[ServiceSource | PoolSource]:
        """The sources among the services `names` and their pools, in the order in which the worker's claim asks them:
        by name, beginning after the source that last granted a step to the worker, so that sources take turns."""
        sources: dict[str, ServiceSource | PoolSource] = {}
        for name in names:
            service = services[name]
            if service.pool is None:
                sources[service.scope.name] = ServiceSource(service, worker)
            elif service.pool.name not in sources:
                sources[service.pool.name] = PoolSource(service.pool, worker, self.rivals(worker, now))
        if len(sources) == 1:
            return list(sources.values())
        in_order = sorted(sources)
        later = [name for name in in_order if name > worker.last_source]
        return [sources[name] for name in later + in_order[: len(in_order) - len(later)]]
