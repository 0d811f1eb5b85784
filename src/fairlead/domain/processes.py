"""The registry of processes: every gateway, worker and manager registers itself in the database.

A process has one worker, or several named ones, the worker pools.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

DEAD_AFTER = 10.0
"""A process that has not renewed its registration for this many seconds, by the database clock, counts as dead."""

GONE = "gone"
"""Key in the details of a process that another process on the same machine has found to be gone."""


LOOPS = "loops"
"""Key in the details of a manager that is the leader: the counters of its loops, by shard and loop."""

POOLS = "pools"
"""Key in the details of a process with several workers: what each one claims and how many calls it runs."""


def worker_name(process: str, pool: str) -> str:
    """The name of a worker, as stored in the `worker` of a lease: the name of the process, followed by the worker pool
    if there are pools."""
    return f"{process}/{pool}" if pool else process


def process_of(worker: str) -> str:
    """The name of the process that a worker belongs to: the part of the worker's name before the slash, if it has
    one."""
    return worker.partition("/")[0]


@dataclass(frozen=True, slots=True)
class ProcessRecord:
    """The registration of a process. Leases refer to the process by their `worker`, which `worker_name` builds from
    `name`.

    `seen_at` is the database time of the last registration, and `clock` the process's own time just before it.
    `services` are the services that its worker executes. `details` holds further values, stored as JSON.
    """

    name: str
    roles: tuple[str, ...]
    services: tuple[str, ...]
    bands: tuple[str, ...]
    concurrency: int
    host: str
    pid: int
    version: str
    started_at: float
    seen_at: float = 0.0
    clock: float = 0.0
    draining: bool = False
    drain_asked: bool = False
    running: int = 0
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def skew(self) -> float:
        """How many seconds the clock of the process is ahead of the database clock. The result is too low by the time
        that the registration took, usually some milliseconds."""
        return self.clock - self.seen_at

    @property
    def gone(self) -> bool:
        """Whether the process is known to have ended."""
        return bool(self.details.get(GONE))

    @property
    def workers(self) -> tuple[ProcessRecord, ...]:
        """One record per worker of the process, with the name, services, bands, concurrency and number of running calls
        of that worker."""
        return tuple(
            replace(
                self,
                name=worker_name(self.name, pool["name"]),
                services=tuple(pool["services"]),
                bands=tuple(pool["bands"]),
                concurrency=pool["concurrency"],
                running=pool.get("running", 0),
                details={**self.details, "regions": pool["regions"]},
            )
            for pool in self.details.get(POOLS, ())
        ) or (self,)

    def alive(self, now: float) -> bool:
        """Whether the process has renewed its registration recently enough. `now` is the database time."""
        return not self.gone and now - self.seen_at <= DEAD_AFTER
