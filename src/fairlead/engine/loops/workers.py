"""Loops that run in every process, for its own workers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from fairlead.dispatch.port import Unserved
from fairlead.domain.processes import ProcessRecord
from fairlead.domain.rules import ServiceRules
from fairlead.engine.parts import RulesRef
from fairlead.engine.turns.slot_broker import SlotBroker
from fairlead.engine.worker import Worker
from fairlead.store.port import Store

EVERY = 2.0


class StopCancelledLoop:
    """Stops the handlers in this process whose job was cancelled or taken back, and notifies the callers in this
    process whose turn was cancelled or taken back. Usually a message does this; the loop is for lost messages."""

    name = "stops"

    def __init__(self, store: Store, workers: Sequence[Worker], slot_brokers: Sequence[SlotBroker]) -> None:
        self._store = store
        self._workers = workers
        self._slot_brokers = slot_brokers

    async def tick(self, now: float) -> float:
        for worker in self._workers:
            await worker.stop_strays(self._store)
        for slot_broker in self._slot_brokers:
            await slot_broker.stop_strays()
        return now + EVERY


class UnservedLoop:
    """Finds the regions that no live worker claims for. Workers of other regions then take the jobs that prefer such a
    region but may run elsewhere. The loop runs only in processes with a worker that is bound to regions: other workers
    claim for all regions anyway."""

    name = "unserved"

    def __init__(self, store: Store, workers: Sequence[Worker], rules: RulesRef) -> None:
        self._store = store
        self._workers = workers
        self._rules = rules

    async def tick(self, now: float) -> float:
        present = await self._store.now()
        alive = [each for each in await self._store.processes() if each.alive(present)]
        missing = unserved(self._rules.current.services, alive)
        for worker in self._workers:
            worker.unserved = missing
        return now + EVERY


def unserved(services: Mapping[str, ServiceRules], alive: Iterable[ProcessRecord]) -> Unserved:
    """For each service, the regions that no worker of these processes claims for. Services whose slots are used only by
    turns are left out: they need no worker."""
    missing = {(name, region) for name, rules in services.items() if not rules.turns_only for region in rules.regions}
    for worker in (worker for each in alive if not each.draining for worker in each.workers):
        bound = worker.details.get("regions")
        missing -= {
            (name, region)
            for name in worker.services
            if name in services
            for region in (services[name].regions if bound is None else bound)
        }
    return frozenset(missing)
