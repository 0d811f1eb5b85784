"""The roles of a process, and the worker pools that result from them. A worker pool describes one worker: what it
claims, and how many steps it runs at once. A process has one worker, or one for each section of `[worker_pools]`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from fairlead.domain.config import Config, WorkerPoolConfig
from fairlead.domain.config_checks import known
from fairlead.domain.job import Priority
from fairlead.domain.processes import worker_name
from fairlead.domain.rules import BANDS
from fairlead.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Roles:
    """Which roles a process has, and what its worker is restricted to. `services`, `bands` (1 high, 2 medium, 3 low),
    `regions` and `concurrency` restrict the worker; None means no restriction. With any restriction the process has a
    single worker, and the sections of `[worker_pools]` are ignored. `pool` names the one section to use."""

    api: bool = True
    worker: bool = True
    manager: bool = True
    services: frozenset[str] | None = None
    bands: frozenset[int] | None = None
    regions: frozenset[str] | None = None
    concurrency: int | None = None
    pool: str | None = None

    @property
    def bound(self) -> bool:
        return any(bound is not None for bound in (self.services, self.bands, self.regions, self.concurrency))


ALL = Roles()
NOTHING = Roles(api=False, worker=False, manager=False)
"""No roles, for a process that only has callers of turns."""


@dataclass(frozen=True, slots=True)
class WorkerPool:
    """What one worker claims, and how many steps it runs at once. None as `services` or `regions` means that it claims
    for all of them. `name` is the section of `[worker_pools]`, or empty if the pool does not come from a section."""

    name: str
    concurrency: int
    bands: frozenset[int] = frozenset(BANDS)
    services: frozenset[str] | None = None
    regions: frozenset[str] | None = None

    @property
    def partial(self) -> bool:
        """Whether the worker skips some jobs of its services, because of their band or region, even if slots are
        free."""
        return len(self.bands) < len(BANDS) or self.regions is not None

    def worker(self, process: str) -> str:
        """The name of this pool's worker, which is stored in its leases."""
        return worker_name(process, self.name)

    def serves(self, services: frozenset[str]) -> frozenset[str]:
        return services if self.services is None else services & self.services

    def describe(self, services: Iterable[str]) -> dict[str, Any]:
        """The entry of this pool in the registration of the process. `services` are the services that the process can
        execute."""
        return {
            "name": self.name,
            "services": sorted(self.serves(frozenset(services))),
            "bands": [Priority.of_band(band).value for band in sorted(self.bands)],
            "regions": None if self.regions is None else sorted(self.regions),
            "concurrency": self.concurrency,
        }


def pools_of(roles: Roles, config: Config) -> tuple[WorkerPool, ...]:
    """The worker pools of a process with these roles. Restrictions in `roles`, which come from the command line, take
    precedence over the configuration."""
    if not roles.worker:
        return ()
    default = config.worker.concurrency
    if roles.pool is not None and roles.pool not in config.worker_pools:
        raise ConfigError([f"worker_pools: no pool of workers is called {roles.pool!r}; {known(config.worker_pools)}"])
    if roles.pool is not None:
        return (_from_config(roles.pool, config.worker_pools[roles.pool], default),)
    if roles.bound or not config.worker_pools:
        bands = frozenset(BANDS) if roles.bands is None else roles.bands
        return (WorkerPool("", roles.concurrency or default, bands, roles.services, roles.regions),)
    return tuple(_from_config(name, pool, default) for name, pool in config.worker_pools.items())


def services_of(pools: Sequence[WorkerPool]) -> frozenset[str] | None:
    """The services that at least one of these pools claims for; None if a pool claims for all services."""
    services: frozenset[str] = frozenset()
    for pool in pools:
        if pool.services is None:
            return None
        services |= pool.services
    return services


def _from_config(name: str, pool: WorkerPoolConfig, default: int) -> WorkerPool:
    return WorkerPool(
        name,
        pool.concurrency or default,
        frozenset(BANDS) if pool.bands is None else frozenset(Priority(band).band for band in pool.bands),
        None if pool.services is None else frozenset(pool.services),
        None if pool.regions is None else frozenset(pool.regions),
    )
