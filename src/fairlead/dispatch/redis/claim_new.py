"""Claims steps that are not in the queue yet. Steps that arrive while a call of the script runs share the next one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from fairlead.dispatch.port import Granted, Lease, Offer
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

NOTHING = (0, b"", b"", 0)
"""The reply of a scope that grants no new steps."""

_Waiting = tuple[Offer, Granted]


class ClaimNew:
    """Same behaviour as `dispatch/memory/claim_new.py`, except that it also grants nothing for a moment after a step of
    the same service was not granted."""

    def __init__(self, dispatcher: RedisDispatcher, *, rest: float = REST_S) -> None:
        self._dispatcher = dispatcher
        self._rest = rest
        self._scopes = dispatcher._scopes
        self._waiting: dict[tuple[str, str], list[_Waiting]] = {}
        self._calls: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._rests_until: dict[str, float] = {}

    def __call__(self, offer: Offer, worker: str, granted: Granted) -> None:
        loop = asyncio.get_running_loop()
        if loop.time() < self._rests_until.get(offer.service, 0.0):
            granted(None)
            return
        source = (self._scopes.of(offer.service), worker)
        self._waiting.setdefault(source, []).append((offer, granted))
        if source not in self._calls:
            self._calls[source] = loop.create_task(self._claim_all(*source))

    async def _claim_all(self, scope: str, worker: str) -> None:
        source, batch = (scope, worker), list[_Waiting]()
        try:
            while waiting := self._waiting.pop(source, None):
                if len(waiting) > MOST:
                    self._waiting[source] = waiting[MOST:]
                batch = waiting[:MOST]
                leases = await self._claim(scope, worker, [offer for offer, _ in batch])
                batch = _answer(batch, leases)
        finally:
            del self._calls[source]
            rest = [*batch, *self._waiting.pop(source, ())]  # none, unless it failed or was cancelled
            _answer(rest, [None] * len(rest))

    async def _claim(self, scope: str, worker: str, offers: Sequence[Offer]) -> list[Lease | None]:
        """One call of the script. If it fails, no step is known to be granted: a lease without a holder expires."""
        dispatcher = self._dispatcher
        self._scopes.learn(scope, {offer.service for offer in offers})
        try:
            args: list[Arg] = [dispatcher._version_for(offers), worker, scope_mark(scope)]
            args += codec.offer_args(offers, dispatcher._groups)
            reply = (await self._scopes.run("claim_new", {scope: args}))[scope]
        except Unavailable:
            reply = NOTHING
        dispatcher._wake_for(frozenset(names(reply[1])))
        leases = codec.new_grants(reply, offers, worker, scope)
        for offer, lease in zip(offers, leases, strict=True):
            if lease is None:
                self._rests_until[offer.service] = asyncio.get_running_loop().time() + self._rest
        return leases


def _answer(waiting: Sequence[_Waiting], leases: Sequence[Lease | None]) -> list[_Waiting]:
    """Pass each lease to its caller. Returns an empty list: no step waits for an answer any more."""
    for (_, granted), lease in zip(waiting, leases, strict=True):
        try:
            granted(lease)
        except Exception:  # the other callers must get their answers
            log.exception("a caller failed with its lease")
    return []
