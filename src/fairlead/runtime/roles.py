"""What a process does of all there is to do."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Roles:
    """`services`, `bands` (1 high, 2 medium, 3 low), `regions` and `concurrency` bind the worker; None is no bound.
    With any of them there is one worker, whatever `[worker_pools]` says; `pool` starts that one pool of the section."""

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
"""Of a process that only has callers of turns."""
