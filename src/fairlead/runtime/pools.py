"""The workers that one process starts: one, or one for each of `[worker_pools]`, each with room of its own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from fairlead.domain.config import Config, WorkerPoolConfig, known
from fairlead.domain.job import Priority
from fairlead.domain.limits import BANDS
from fairlead.domain.processes import worker_name
from fairlead.errors import ConfigError
from fairlead.runtime.roles import Roles


@dataclass(frozen=True, slots=True)
class WorkerPool:
    """What one worker claims: None as `services` or `regions` is no bound. The only one of a process has no name."""

    name: str
    concurrency: int
    bands: frozenset[int] = frozenset(BANDS)
    services: frozenset[str] | None = None
    regions: frozenset[str] | None = None

    @property
    def partial(self) -> bool:
        """It may leave what a service has waiting, with slots free: other workers are there for that."""
        return len(self.bands) < len(BANDS) or self.regions is not None

    def worker(self, process: str) -> str:
        """The name that its leases carry."""
        return worker_name(process, self.name)

    def serves(self, services: frozenset[str]) -> frozenset[str]:
        return services if self.services is None else services & self.services

    def told(self, services: Iterable[str]) -> dict[str, Any]:
        """What the process says of it; `services` are those that it can execute at all."""
        return {
            "name": self.name,
            "services": sorted(self.serves(frozenset(services))),
            "bands": [Priority.of_band(band).value for band in sorted(self.bands)],
            "regions": None if self.regions is None else sorted(self.regions),
            "concurrency": self.concurrency,
        }


def pools_of(roles: Roles, config: Config) -> tuple[WorkerPool, ...]:
    """What the command line says of the worker wins over the section."""
    if not roles.worker:
        return ()
    usual = config.worker.concurrency
    if roles.pool is not None and roles.pool not in config.worker_pools:
        raise ConfigError([f"worker_pools: no pool of workers is called {roles.pool!r}; {known(config.worker_pools)}"])
    if roles.pool is not None:
        return (_as_written(roles.pool, config.worker_pools[roles.pool], usual),)
    if roles.bound or not config.worker_pools:
        bands = frozenset(BANDS) if roles.bands is None else roles.bands
        return (WorkerPool("", roles.concurrency or usual, bands, roles.services, roles.regions),)
    return tuple(_as_written(name, pool, usual) for name, pool in config.worker_pools.items())


def services_of(pools: Sequence[WorkerPool]) -> frozenset[str] | None:
    """Those that any of them serves; None: all."""
    found: frozenset[str] = frozenset()
    for pool in pools:
        if pool.services is None:
            return None
        found |= pool.services
    return found


def _as_written(name: str, pool: WorkerPoolConfig, usual: int) -> WorkerPool:
    return WorkerPool(
        name,
        pool.concurrency or usual,
        frozenset(BANDS) if pool.bands is None else frozenset(Priority(band).band for band in pool.bands),
        None if pool.services is None else frozenset(pool.services),
        None if pool.regions is None else frozenset(pool.regions),
    )
