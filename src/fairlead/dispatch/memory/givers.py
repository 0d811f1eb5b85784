"""A worker's claim over many services: which of them gives it the next step."""

from __future__ import annotations

from collections.abc import Mapping

from fairlead.dispatch.memory.pool import WORKER_MEMORY_S, PoolGiver, Worker
from fairlead.dispatch.memory.service import RETRIES, Pick, Service
from fairlead.dispatch.port import Claim


class ServiceGiver:
    """A service that shares its limit with no other."""

    __slots__ = ("name", "service", "worker")

    def __init__(self, service: Service, worker: Worker) -> None:
        self.name = service.scope.name
        self.service = service
        self.worker = worker

    def next(self) -> tuple[Service, Pick] | None:
        pick = self.service.pick(self.worker.bands, self.worker.claim.regions)
        return None if pick is None else (self.service, pick)


def _bands_of(claim: Claim) -> tuple[int, ...]:
    """The bands open to a claim, in order: retries that go first are open to all."""
    return (RETRIES, *sorted(claim.bands))


class Workers:
    """The workers that have claimed of late."""

    def __init__(self) -> None:
        self._known: dict[str, Worker] = {}

    def seen(self, claim: Claim, now: float) -> Worker:
        worker = self._known.get(claim.worker)
        if worker is None or now - worker.seen_at > WORKER_MEMORY_S:
            self._known = {name: known for name, known in self._known.items() if now - known.seen_at <= WORKER_MEMORY_S}
            worker = self._known[claim.worker] = Worker(claim, _bands_of(claim), now)
        elif worker.claim.bands is not claim.bands:
            worker.bands = _bands_of(claim)
        worker.claim = claim
        worker.seen_at = now
        return worker

    def rivals(self, worker: Worker, now: float) -> list[Worker]:
        """Other live workers whose last claim left them with room, by name."""
        return [
            other
            for _, other in sorted(self._known.items())
            if other is not worker and other.spare > 0 and now - other.seen_at <= WORKER_MEMORY_S
        ]

    def givers(
        self, worker: Worker, services: Mapping[str, Service], names: set[str], now: float
    ) -> list[ServiceGiver | PoolGiver]:
        """The services and pools that may have something for this worker, beginning after the last that did."""
        givers: dict[str, ServiceGiver | PoolGiver] = {}
        for name in names:
            service = services[name]
            if service.pool is None:
                givers[service.scope.name] = ServiceGiver(service, worker)
            elif service.pool.name not in givers:
                givers[service.pool.name] = PoolGiver(service.pool, worker, self.rivals(worker, now))
        if len(givers) == 1:
            return list(givers.values())
        in_order = sorted(givers)
        later = [name for name in in_order if name > worker.last_giver]
        return [givers[name] for name in later + in_order[: len(in_order) - len(later)]]
