"""The processes of a line: every gateway, worker and manager announces itself in the truth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

DEAD_AFTER = 10.0
"""Seconds of silence, by the database's clock, after which a process is taken for dead."""

GONE = "gone"
"""In the details of a process that another one of its machine has seen to be gone."""


POOLS = "pools"
"""In the details of a process with several workers: what each of them claims, and how much it runs."""


def worker_name(process: str, pool: str) -> str:
    """The `worker` that leases carry: the process's own name, or with the name of a pool of workers behind it."""
    return f"{process}/{pool}" if pool else process


def process_of(worker: str) -> str:
    """The process that a lease's `worker` is of. A host's name has no slash in it."""
    return worker.partition("/")[0]


@dataclass(frozen=True, slots=True)
class ProcessRecord:
    """What a process says of itself. Its `name` is the `worker` that its leases carry, or begins it (`process_of`).

    `seen_at` is the database's clock when it was announced last, `clock` the process's own at that moment.
    `services` are those that its worker serves. `details` are small facts, as JSON.
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
        """How far its clock is ahead of the database's; what the announcement took on its way is in it, as behind."""
        return self.clock - self.seen_at

    @property
    def gone(self) -> bool:
        """For certain: nothing of it runs any more."""
        return bool(self.details.get(GONE))

    @property
    def workers(self) -> tuple[ProcessRecord, ...]:
        """Each of its workers as a record of its own, which has that worker's name, bounds and load."""
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
        """`now` is the database's clock."""
        return not self.gone and now - self.seen_at <= DEAD_AFTER
