"""What a process does of all there is to do."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Roles:
    """`services`, `bands` (1 high, 2 medium, 3 low) and `concurrency` bind the worker; None is no bound."""

    api: bool = True
    worker: bool = True
    manager: bool = True
    services: frozenset[str] | None = None
    bands: frozenset[int] | None = None
    concurrency: int | None = None


ALL = Roles()
