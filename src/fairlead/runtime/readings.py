"""What `/metrics` tells: what this process counted, and, of a process that answers for the line, how the line is.

Taking them asks each dispatcher once and the database twice, whatever the traffic, and never waits long: what cannot
be asked now is left out, and said to be out of reach.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from fairlead.dispatch.port import ServiceSnapshot
from fairlead.domain.limits import Rules
from fairlead.errors import FairleadError
from fairlead.runtime.clock import Clock
from fairlead.runtime.events import Hub
from fairlead.runtime.observations import Observations
from fairlead.runtime.priority import Priorities
from fairlead.runtime.process import Process
from fairlead.store.journal import Journal
from fairlead.store.port import Facts, Store

PATIENCE = 2.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LineReadings:
    """How the line is, as the truth and the dispatchers say: the same from every process that asks at this moment."""

    reachable: Mapping[str, bool]
    rules: Rules
    snapshots: Sequence[ServiceSnapshot]
    facts: Facts
    oldest_waiting: Mapping[int, float] = field(default_factory=dict)
    """By band, in seconds."""


@dataclass(frozen=True, slots=True)
class Readings:
    observations: Observations
    journal: Journal
    priorities: Priorities
    watchers: int
    process: Process | None
    line: LineReadings | None


async def take(
    store: Store,
    journal: Journal,
    observations: Observations,
    priorities: Priorities,
    hub: Hub,
    process: Process | None,
    clock: Clock,
) -> Readings:
    # A worker alone tells only of itself: there may be hundreds, and none of them has more to say of the line.
    asks = process is None or process.roles.api or process.roles.manager
    line = await _of_line(store, process, clock) if asks else None
    return Readings(observations, journal, priorities, hub.readers, process, line)


async def _of_line(store: Store, process: Process | None, clock: Clock) -> LineReadings:
    facts, oldest, rules, found = await asyncio.gather(
        _answer(store.facts()), _answer(store.oldest_waiting()), _answer(_rules(store, process)),
        _answer(_snapshots(process)),
    )  # fmt: skip
    by_shard = found or {}
    now = float(facts["clock"]) if facts else clock.now()
    reachable = {"store": facts is not None}
    if process is not None:
        reachable |= {f"dispatcher {shard}": shard in by_shard for shard in process.lines}
    return LineReadings(
        reachable,
        rules or Rules({}),
        [snapshot for snapshots in by_shard.values() for snapshot in snapshots],
        facts or {},
        {band: max(0.0, now - moment) for band, moment in (oldest or {}).items()},
    )


async def _rules(store: Store, process: Process | None) -> Rules:
    return process.rules if process is not None else await store.rules()


async def _snapshots(process: Process | None) -> dict[str, list[ServiceSnapshot]]:
    return await process.snapshots() if process is not None else {}


async def _answer(question: Awaitable[T]) -> T | None:
    try:
        async with asyncio.timeout(PATIENCE):
            return await question
    except (FairleadError, TimeoutError):
        return None
