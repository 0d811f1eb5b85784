"""Callers of turns over HTTP. Of a process of ours others can see that it is gone; of these, only whether they ask. Who
waits is there while a request of theirs is open, and a while after it; who has the slot must renew it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from fairlead.errors import FairleadError
from fairlead.runtime.turns.view import TurnView

if TYPE_CHECKING:
    from fairlead.app import Fairlead

log = logging.getLogger(__name__)

HEARTBEAT = 10.0
"""Seconds that a waiting caller may be silent before it is taken for gone."""
LOOK_EVERY = 0.5


class _Caller:
    __slots__ = ("asking", "heard_at", "held", "lease_ttl")

    def __init__(self, now: float, lease_ttl: float) -> None:
        self.heard_at = now
        self.lease_ttl = lease_ttl
        self.asking = 0
        """Requests that wait for the slot now."""
        self.held = False

    def is_gone(self, now: float) -> bool:
        if self.held:
            return now - self.heard_at > self.lease_ttl
        return not self.asking and now - self.heard_at > HEARTBEAT


class Callers:
    """Those whose turns this gateway has. One that asks at another gateway is that one's from then on."""

    def __init__(self, fairlead: Fairlead) -> None:
        self._fairlead = fairlead
        self._callers: dict[str, _Caller] = {}
        self._looking: asyncio.Task[None] | None = None

    def heard(self, turn: TurnView) -> None:
        """It has asked for something, and so it is there."""
        now = asyncio.get_running_loop().time()
        if turn.status.finished:
            self._callers.pop(turn.turn_id, None)
            return
        caller = self._callers.setdefault(turn.turn_id, _Caller(now, turn.lease_ttl))
        caller.heard_at = now
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look_on(), name="fairlead-turn-callers")

    @contextmanager
    def asking(self, turn: TurnView) -> Iterator[None]:
        """While it waits for its slot, over an open connection."""
        self.heard(turn)
        caller = self._callers.get(turn.turn_id)
        if caller is None:
            yield
            return
        caller.asking += 1
        try:
            yield
        finally:
            caller.asking -= 1
            caller.heard_at = asyncio.get_running_loop().time()

    async def _look_on(self) -> None:
        while self._callers:
            await asyncio.sleep(min(LOOK_EVERY, HEARTBEAT / 4))
            with contextlib.suppress(FairleadError):  # closed, or the store is away: then silence proves nothing
                await self._look(asyncio.get_running_loop().time())

    async def _look(self, now: float) -> None:
        turns = self._fairlead.turns
        for turn_id, caller in list(self._callers.items()):
            if not turns.owned_here(turn_id):
                del self._callers[turn_id]
                continue
            if turns.held_here(turn_id) and not caller.held:
                caller.held, caller.heard_at = True, now
            if caller.is_gone(now):
                silent = now - caller.heard_at
                await turns.abandon(turn_id, f"its caller was not heard of for {silent:.1f} s")
                self._callers.pop(turn_id, None)
                log.info("turn %s: its caller is gone", turn_id)
