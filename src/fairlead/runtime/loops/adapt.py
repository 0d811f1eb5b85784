"""Moves the limits that are found by themselves. Workers count how their calls ended and say so where they announce
themselves; what has come to that since the last look is what `domain/adapt.py` decides by."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass, replace
from typing import Any

from fairlead.dispatch.port import Dispatcher
from fairlead.domain.adapt import Calls, Window, changed, decide
from fairlead.domain.limits import Adapted, Rules
from fairlead.store.journal import Journal
from fairlead.store.port import Adapt, Done, Store

log = logging.getLogger(__name__)

EVERY = 2.0
CALLS = "calls"
"""Where a process's details have its counts."""


@dataclass(frozen=True, slots=True)
class Count:
    """What a process says of its calls of a service since it began, and which version of the rules it went by."""

    calls: Calls
    version: int


@dataclass(frozen=True, slots=True)
class Watched:
    """A service whose limit is found by itself. Processes are heard from when they go by this version on: it has the
    limit as it is now."""

    window: Window
    best: float | None
    version: int


class AdaptLoop:
    name = "adapt"

    def __init__(self, store: Store, journal: Journal, dispatcher: Dispatcher, rules: Callable[[], Rules]) -> None:
        """`rules` are those of this shard."""
        self._store = store
        self._journal = journal
        self._dispatcher = dispatcher
        self._rules = rules
        self._counts: dict[str, Mapping[str, Count]] = {}
        """By process and service, as they were when we looked last."""
        self._watched: dict[str, Watched] = {}
        self.scanned = self.queued = 0

    async def tick(self, now: float) -> float:
        ours = {name for name, service in self._rules().services.items() if service.auto is not None}
        if ours:
            await self._look(ours, now)
        return now + EVERY

    async def _look(self, ours: set[str], now: float) -> None:
        rules = await self._store.rules()
        in_use = {snapshot.service: snapshot.in_use for snapshot in await self._dispatcher.snapshot()}
        before, self._counts = self._counts, {each.name: read(each.details) for each in await self._store.processes()}
        for name in sorted(ours & rules.services.keys() & in_use.keys()):
            override, limit = rules.overrides.get(name), rules.services[name].limit
            if override is not None and override.limit is not None:
                # An operator has set it. When that is lifted, what calls take is learnt anew.
                self._watched[name] = Watched(Window(skip=limit), None, rules.version + 1)
                continue
            watched = self._watched.get(name) or _found(rules, name)
            calls = self._ended(name, before, watched.version)
            self.scanned += calls.ended
            window = watched.window.seen(calls, used=in_use[name] >= limit)
            self._watched[name] = await self._decided(name, rules, replace(watched, window=window), now)

    def _ended(self, service: str, before: Mapping[str, Mapping[str, Count]], version: int) -> Calls:
        """Since the last look. A process that is new to us is heard from the next look on: what it did before may be
        long ago."""
        ended = Calls()
        for process, counts in self._counts.items():
            count, earlier = counts.get(service), before.get(process, {}).get(service)
            if count is not None and earlier is not None and earlier.version >= version:
                ended += count.calls.since(earlier.calls)
        return ended

    async def _decided(self, name: str, rules: Rules, watched: Watched, now: float) -> Watched:
        service, adapted = rules.services[name], rules.adapted.get(name)
        if service.auto is None:
            return watched
        decision = decide(service.auto, service.limit, watched.best, watched.window)
        if decision is None:
            return watched
        version = watched.version
        if decision.why is not None:
            history = adapted.history if adapted is not None else ()
            version = await self._write(name, adapted, changed(history, decision, now), service.limit) or rules.version
        return Watched(decision.window, decision.best, version)

    async def _write(self, name: str, was: Adapted | None, now: Adapted, limit: int) -> int | None:
        """The version of the rules with it; None if another leader was first."""
        outcome = await self._journal.write(Adapt(name, None if was is None else was.limit, now))
        if not isinstance(outcome, Done):
            return None
        self.queued += 1
        log.info("the limit of %s is %d, was %d: %s", name, now.limit, limit, now.history[-1].why)
        return int(outcome.value)


def _found(rules: Rules, name: str) -> Watched:
    """As it is when a leader begins."""
    adapted = rules.adapted.get(name)
    return Watched(Window(), adapted.best if adapted is not None else None, 0)


def written(calls_of: Callable[[str], Calls], rules: Rules, versions: Mapping[str, int]) -> dict[str, Any]:
    """What a process says of the services whose limits are found by themselves; nothing if there are none. `versions`
    are of the rules that it goes by on each shard."""
    said = {
        name: (*astuple(calls_of(name)), versions[service.shard])
        for name, service in rules.services.items()
        if service.auto is not None and service.shard in versions
    }
    return {CALLS: said} if said else {}


def read(details: Mapping[str, Any]) -> dict[str, Count]:
    """Another release may say it in another way, or not at all: then it is not heard."""
    said = details.get(CALLS)
    found = {}
    for service, counts in said.items() if isinstance(said, dict) else ():
        if isinstance(counts, list) and len(counts) == 5 and all(isinstance(each, int | float) for each in counts):
            found[service] = Count(Calls(*counts[:4]), counts[4])
    return found
