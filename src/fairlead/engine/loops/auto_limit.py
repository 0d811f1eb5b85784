"""Adjusts the limits that Fairlead discovers by itself (`limit = "auto"`). Every worker reports in its registration how
the calls of its process have ended so far. At each tick the loop computes how many calls have ended since the last
tick, and `domain/auto_limit.py` decides whether to change the limit."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass, replace
from typing import Any

from fairlead.dispatch.port import Dispatcher
from fairlead.domain.auto_limit import Calls, Window, changed, decide
from fairlead.domain.rules import Adapted, Rules
from fairlead.engine.parts import RulesRef
from fairlead.store.group_commit import GroupCommit
from fairlead.store.port import Adapt, Done, Store

log = logging.getLogger("fairlead.auto_limit")

EVERY = 2.0
CALLS = "calls"
"""The key of the counts in the details of a process's registration."""


@dataclass(frozen=True, slots=True)
class Count:
    """The calls of one service that a process has made since it started, by how they ended; and the version of the
    rules that the process uses."""

    calls: Calls
    version: int


@dataclass(frozen=True, slots=True)
class Watched:
    """What this loop remembers about a service whose limit is discovered: what it observed since the last decision
    (`window`), the best latency so far, and the `version` of the rules since which the current limit has applied. Calls
    that a process made under older rules are ignored."""

    window: Window
    best: float | None
    version: int


class AutoLimitLoop:
    name = "adapt"

    def __init__(self, store: Store, group_commit: GroupCommit, dispatcher: Dispatcher, rules: RulesRef) -> None:
        """`rules` holds the rules of the services on this shard."""
        self._store = store
        self._group_commit = group_commit
        self._dispatcher = dispatcher
        self._rules = rules
        self._counts: dict[str, Mapping[str, Count]] = {}
        """For each process and service, the counts as of the last tick."""
        self._watched: dict[str, Watched] = {}
        self.scanned = self.queued = 0

    async def tick(self, now: float) -> float:
        ours = {name for name, service in self._rules.current.services.items() if service.auto is not None}
        if ours:
            await self._adjust(ours, now)
        return now + EVERY

    async def _adjust(self, ours: set[str], now: float) -> None:
        rules = await self._store.rules()
        in_use = {snapshot.service: snapshot.in_use for snapshot in await self._dispatcher.snapshot()}
        before, self._counts = self._counts, {each.name: decode(each.details) for each in await self._store.processes()}
        for name in sorted(ours & rules.services.keys() & in_use.keys()):
            override, limit = rules.overrides.get(name), rules.services[name].limit
            if override is not None and override.limit is not None:
                # An operator has set the limit. When the operator removes it, the durations of calls are learned again.
                self._watched[name] = Watched(Window(skip=limit), None, rules.version + 1)
                continue
            watched = self._watched.get(name) or _initial(rules, name)
            calls = self._ended(name, before, watched.version)
            self.scanned += calls.ended
            window = watched.window.seen(calls, used=in_use[name] >= limit)
            self._watched[name] = await self._decided(name, rules, replace(watched, window=window), now)

    def _ended(self, service: str, before: Mapping[str, Mapping[str, Count]], version: int) -> Calls:
        """The calls of the service that have ended since the last tick. The calls of a process that is seen for the
        first time are counted from the next tick on: it may have made them long ago."""
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
        """Store the new limit. Returns the version of the rules with this limit, or None if another leader has changed
        the limit first."""
        outcome = await self._group_commit.write(Adapt(name, None if was is None else was.limit, now))
        if not isinstance(outcome, Done):
            return None
        self.queued += 1
        log.info("the limit of %s is now %d, was %d: %s", name, now.limit, limit, now.history[-1].why)
        return int(outcome.value)


def _initial(rules: Rules, name: str) -> Watched:
    """What a leader that has just started knows about the service: only what the database has stored."""
    adapted = rules.adapted.get(name)
    return Watched(Window(), adapted.best if adapted is not None else None, 0)


def encode(calls_of: Callable[[str], Calls], rules: Rules, versions: Mapping[str, int]) -> dict[str, Any]:
    """The counted calls of the services whose limits are discovered, as an entry of a process's registration; empty if
    there is no such service. `versions` has the version of the rules that the process uses on each shard."""
    counts = {
        name: (*astuple(calls_of(name)), versions[service.shard])
        for name, service in rules.services.items()
        if service.auto is not None and service.shard in versions
    }
    return {CALLS: counts} if counts else {}


def decode(details: Mapping[str, Any]) -> dict[str, Count]:
    """Read the counted calls from the details of a process's registration. Counts in the format of another release are
    ignored."""
    encoded = details.get(CALLS)
    counts = {}
    for service, values in encoded.items() if isinstance(encoded, dict) else ():
        if isinstance(values, list) and len(values) == 5 and all(isinstance(each, int | float) for each in values):
            counts[service] = Count(Calls(*values[:4]), values[4])
    return counts
