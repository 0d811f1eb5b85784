"""The processes of a line: every gateway, worker and manager announces itself in the truth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

DEAD_AFTER = 10.0
"""Seconds of silence, by the database's clock, after which a process is taken for dead."""

GONE = "gone"
"""In the details of a process that another one of its machine has seen to be gone."""


@dataclass(frozen=True, slots=True)
class ProcessRecord:
    """What a process says of itself. Its `name` is the `worker` that its leases carry.

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

    def alive(self, now: float) -> bool:
        """`now` is the database's clock."""
        return not self.gone and now - self.seen_at <= DEAD_AFTER
