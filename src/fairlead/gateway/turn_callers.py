"""Callers of turns over HTTP. Of a process of ours others can see that it is gone; of these, only whether they ask. Who
waits is there while a request of theirs is open, and a while after it; who has the slot must renew it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from fairlead.domain.turns import UNHEARD_AFTER
from fairlead.errors import FairleadError, Unavailable
from fairlead.runtime.turns.view import TurnView

if TYPE_CHECKING:
    from fairlead.app import Fairlead

log = logging.getLogger(__name__)

HEARTBEAT = UNHEARD_AFTER
"""Seconds that a waiting caller may be silent before it is taken for gone."""
LOOK_EVERY = 0.5


class _Caller:
    __slots__ = ("asking", "heard_at", "held", "lease_ttl", "leaving")

    def __init__(self, now: float, lease_ttl: float) -> None:
        self.heard_at = now
        self.lease_ttl = lease_ttl
        self.asking = 0
        """Requests that wait for the slot now."""
        self.held = False
        self.leaving: asyncio.Task[None] | None = None

    def is_gone(self, now: float) -> bool:
        if self.held:
            return now - self.heard_at > self.lease_ttl
        return not self.asking and now - self.heard_at > HEARTBEAT


class Callers:
    """Those whose turns this gateway has. One that asks at another gateway is that one's from then on."""

    def __init__(self, fairlead: Fairlead) -> None:
        self._fairlead = fairlead
        self._callers: dict[str, _Caller] = {}
        self._timer: asyncio.TimerHandle | None = None

    def heard(self, turn: TurnView) -> None:
        """It has asked for something, and so it is there."""
        now = asyncio.get_running_loop().time()
        if turn.status.finished:
            self._callers.pop(turn.turn_id, None)
            return
        caller = self._callers.setdefault(turn.turn_id, _Caller(now, turn.lease_ttl))
        caller.heard_at = now
        self._look_soon()

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

    def _look_soon(self) -> None:
        """A timer, not a task that sleeps: nobody has to end it with the application."""
        if self._callers and self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_at(loop.time() + min(LOOK_EVERY, HEARTBEAT / 4), self._look)

    def _look(self) -> None:
        now = asyncio.get_running_loop().time()
        assert self._timer is not None
        deaf, self._timer = now - self._timer.when(), None
        try:
            turns = self._fairlead.turns
        except Unavailable:  # closed, and the turns of this process have ended with it
            self._callers.clear()
            return
        for turn_id, caller in list(self._callers.items()):
            if not turns.owned_here(turn_id):
                del self._callers[turn_id]
                continue
            caller.heard_at += deaf  # what came while this process stood still is not read yet
            if turns.held_here(turn_id) and not caller.held:
                caller.held, caller.heard_at = True, now
            if caller.is_gone(now) and not caller.leaving:
                caller.leaving = asyncio.create_task(self._end(turn_id, now - caller.heard_at))
        self._look_soon()

    async def _end(self, turn_id: str, silent: float) -> None:
        try:
            await self._fairlead.turns.abandon(turn_id, f"its caller was not heard of for {silent:.1f} s")
            log.info("turn %s: its caller is gone", turn_id)
        except FairleadError as error:
            log.warning("turn %s: its caller is gone, and it could not be ended: %s", turn_id, error)
            if turn_id in self._callers:
                self._callers[turn_id].leaving = None
