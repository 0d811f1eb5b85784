"""The dashboard's questions to the line and to the truth, kept as few as they can be."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from fairlead.domain.config import Config
from fairlead.domain.processes import ProcessRecord
from fairlead.runtime import status
from fairlead.runtime.dashboard import overview
from fairlead.runtime.dashboard.history import History
from fairlead.runtime.dashboard.overview import Surroundings
from fairlead.runtime.dashboard.slots import Bearers
from fairlead.runtime.dashboard.sparing import Sparing
from fairlead.runtime.doctor.finding import Finding
from fairlead.runtime.process import Process
from fairlead.store.port import Store
from fairlead.version import __version__


class Dashboard:
    """`process` is that of the line in this process, if there is one now."""

    def __init__(
        self,
        store: Store,
        config: Callable[[], Config],
        process: Callable[[], Process | None],
        doctor: Callable[[], Awaitable[list[Finding]]],
    ) -> None:
        self._store = store
        self._config = config
        self._process = process
        self._bearers = Bearers(store)
        self._past = Sparing(History(store).renew, every=3.0)
        self._waiting = Sparing(store.waiting_by_service, every=2.0)
        self._facts = Sparing(store.facts, every=2.0)
        self._processes = Sparing(self._ask_processes, every=2.0)
        self._findings = Sparing(doctor, every=10.0)

    async def close(self) -> None:
        for asked in (self._past, self._waiting, self._facts, self._processes, self._findings):
            await asked.close()

    async def overview(self) -> dict[str, Any]:
        sight, around, (processes, now), facts = await asyncio.gather(
            status.look(self._store, self._process()), self._around(), self._processes.now(), self._facts.now()
        )
        await self._bearers.learn(
            lease for found in sight.snapshots.values() for each in found for lease in each.leases
        )
        return {
            "version": __version__,
            "services": overview.services(sight, around, self._kinds()),
            "history": around.past.chart,
            "failures": dict(around.past.all.codes),
            "health": overview.health(sight, processes, now, facts, self._findings.lately()),
        }

    async def _around(self) -> Surroundings:
        past, waiting = await asyncio.gather(self._past.now(), self._waiting.now())
        return Surroundings(past, waiting, self._bearers)

    def _kinds(self) -> Mapping[str, str]:
        """How services run, as far as this process's own configuration says."""
        return {name: "http" if service.remote else "function" for name, service in self._config().services.items()}

    async def _ask_processes(self) -> tuple[Sequence[ProcessRecord], float]:
        return await self._store.processes(), await self._store.now()
