"""Claims steps that are not in the queue yet. Steps that arrive while a call of the script runs share the next one, and
slots are released with it: a busy gateway claims a step about as often as one ends."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from fairlead.dispatch.port import Granted, Lease, Offer, Release, ReleaseAtOnce
from fairlead.dispatch.redis import codec
from fairlead.dispatch.redis.codec import Arg, names
from fairlead.dispatch.redis.dispatcher import RedisDispatcher
from fairlead.dispatch.redis.keys import scope_mark
from fairlead.errors import Unavailable

log = logging.getLogger("fairlead.claim_new")

MOST = 50
"""Steps per call of the script."""
REST_S = 0.1
"""How long new steps of a service go to the queue at once after one of them was not granted: while its slots are taken,
asking for each step would cost as much as queueing it."""
IDLE_S = 0.02
"""How long it counts as known that no step of a service waits and slots are free. Meanwhile no step needs a slot that
is released late, unless others have just taken the free ones."""
DEFER_S = 0.005
"""How long a release waits for new steps at most."""
FLUSH_S = 2.0
"""How long `flush` waits for calls that are under way."""

NOTHING = (0, b"", b"", 0, b"")
"""The reply of a scope that grants no new steps."""

_Waiting = tuple[Offer, Granted]
_Deferred = tuple[Release, ReleaseAtOnce]
_Source = tuple[str, str]
"""A scope and a worker."""


class ClaimNew:
    """Same behaviour as `dispatch/memory/claim_new.py`, except that it also grants nothing for a moment after a step of
    the same service was not granted."""

    def __init__(self, dispatcher: RedisDispatcher, *, rest: float = REST_S) -> None:
        self._dispatcher = dispatcher
        self._rest = rest
        self._scopes = dispatcher._scopes
        self._waiting: dict[_Source, list[_Waiting]] = {}
        self._calls: dict[_Source, asyncio.Task[None]] = {}
        self._deferred: dict[_Source, list[_Deferred]] = {}
        self._timers: dict[_Source, asyncio.TimerHandle] = {}
        self._rests_until: dict[str, float] = {}
        self._idle_until: dict[str, float] = {}

    def __call__(self, offer: Offer, worker: str, granted: Granted) -> None:
        loop = asyncio.get_running_loop()
        if loop.time() < self._rests_until.get(offer.service, 0.0):
            granted(None)
            return
        source = (self._scopes.of(offer.service), worker)
        self._waiting.setdefault(source, []).append((offer, granted))
        if source not in self._calls:
            self._calls[source] = loop.create_task(self._claim_all(*source))

    def release(self, release: Release, worker: str, at_once: ReleaseAtOnce) -> None:
        """Release a slot with the next new steps. Passes it to `at_once` if a step may wait for the slot; and later, if
        no new steps arrive or their claim fails."""
        loop = asyncio.get_running_loop()
        source = (self._scopes.of(release.service), worker)
        if release.scope != source[0] or loop.time() >= self._idle_until.get(release.service, 0.0):
            at_once(release)
            return
        deferred = self._deferred.setdefault(source, [])
        deferred.append((release, at_once))
        if len(deferred) == 1:
            self._timers[source] = loop.call_later(DEFER_S, self._give_back, source)

    async def flush(self) -> None:
        """Wait for the calls under way, and pass on all releases that wait for new steps."""
        if self._calls:
            await asyncio.wait(self._calls.values(), timeout=FLUSH_S)
        for source in list(self._deferred):
            self._give_back(source)

    def _give_back(self, source: _Source) -> None:
        _release_at_once(self._take_deferred(source))

    def _take_deferred(self, source: _Source) -> list[_Deferred]:
        deferred = self._deferred.pop(source, [])
        if deferred:
            self._timers.pop(source).cancel()
        return deferred

    async def _claim_all(self, scope: str, worker: str) -> None:
        source, batch, deferred = (scope, worker), list[_Waiting](), list[_Deferred]()
        try:
            while waiting := self._waiting.pop(source, None):
                if len(waiting) > MOST:
                    self._waiting[source] = waiting[MOST:]
                batch, deferred = waiting[:MOST], self._take_deferred(source)
                releases = [release for release, _ in deferred]
                leases, done = await self._claim(scope, worker, [offer for offer, _ in batch], releases)
                deferred = [] if done else _release_at_once(deferred)
                batch = _answer(batch, leases)
        finally:
            del self._calls[source]
            rest = [*batch, *self._waiting.pop(source, ())]  # none, unless it failed or was cancelled
            _release_at_once(deferred)
            _answer(rest, [None] * len(rest))

    async def _claim(
        self, scope: str, worker: str, offers: Sequence[Offer], releases: Sequence[Release]
    ) -> tuple[list[Lease | None], bool]:
        """One call of the script. Returns the leases, and whether the script has run. If the call fails, no step is
        known to be granted: a lease without a holder expires."""
        dispatcher, now, done = self._dispatcher, asyncio.get_running_loop().time, True
        services = {offer.service for offer in offers}
        self._scopes.learn(scope, services)
        try:
            args: list[Arg] = [dispatcher._version_for(offers), worker, scope_mark(scope), len(offers)]
            args += codec.offer_args(offers, dispatcher._groups) + codec.release_args(releases)
            reply = (await self._scopes.run("claim_new", {scope: args}))[scope]
        except Unavailable:
            reply, done = NOTHING, False
        dispatcher._wake_for(frozenset(names(reply[1])))
        idle = names(reply[4])
        for service in services:
            self._idle_until[service] = now() + IDLE_S if service in idle else 0.0
        leases = codec.new_grants(reply, offers, worker, scope)
        for offer, lease in zip(offers, leases, strict=True):
            if lease is None:
                self._rests_until[offer.service] = now() + self._rest
                self._idle_until[offer.service] = 0.0  # it queues, and may need the very slot that is released next
        return leases, done


def _release_at_once(deferred: Sequence[_Deferred]) -> list[_Deferred]:
    """Returns an empty list: no release waits any more."""
    for release, at_once in deferred:
        at_once(release)
    return []


def _answer(waiting: Sequence[_Waiting], leases: Sequence[Lease | None]) -> list[_Waiting]:
    """Pass each lease to its caller. Returns an empty list: no step waits for an answer any more."""
    for (_, granted), lease in zip(waiting, leases, strict=True):
        try:
            granted(lease)
        except Exception:  # the other callers must get their answers
            log.exception("a caller failed with its lease")
    return []
