"""Turns over HTTP: tracks whether their callers are alive, and yields the events of a turn. A turn is stored as a job,
and its events are translated from the events of this job.

A waiting caller counts as present while it has an open request, and for `HEARTBEAT` seconds afterwards. Then its turn
is set aside. A caller that has the slot must renew it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, Any

from fairlead.domain.events import POSITION, SNAPSHOT, STEP_START, TERMINAL
from fairlead.domain.job import WAITING
from fairlead.domain.retry import TIMEOUT
from fairlead.domain.turns import HOLDER_DIED, UNHEARD_AFTER, TurnView
from fairlead.engine import events
from fairlead.errors import FairleadError, Unavailable

if TYPE_CHECKING:
    from fairlead.app.fairlead import Fairlead

log = logging.getLogger("fairlead.gateway")

HEARTBEAT = UNHEARD_AFTER
"""Seconds without contact after which a waiting caller counts as absent."""
CHECK_EVERY = 0.5
TURNS = "/api/v1/turns"
TURN_GRANTED = "TURN_GRANTED"
TURN_LOST = "TURN_LOST"
TURN_ENDED = "TURN_ENDED"
LAST = frozenset({TURN_LOST, TURN_ENDED})
_LOSSES = frozenset({HOLDER_DIED, TIMEOUT})


class _Caller:
    __slots__ = ("held", "lease_ttl", "leaving", "requests", "seen_at")

    def __init__(self, now: float, lease_ttl: float) -> None:
        self.seen_at = now
        self.lease_ttl = lease_ttl
        self.requests = 0
        """Open requests that wait for the slot."""
        self.held = False
        self.leaving: asyncio.Task[None] | None = None

    def is_gone(self, now: float) -> bool:
        if self.held:
            return now - self.seen_at > self.lease_ttl
        return not self.requests and now - self.seen_at > HEARTBEAT


class TurnLiveness:
    """Tracks the callers of the turns that this gateway owns. When a caller contacts another gateway, that gateway
    becomes the owner of the turn."""

    def __init__(self, fairlead: Fairlead) -> None:
        self._fairlead = fairlead
        self._callers: dict[str, _Caller] = {}
        self._timer: asyncio.TimerHandle | None = None

    def seen(self, turn: TurnView) -> None:
        """Record that the caller of a turn has just sent a request."""
        now = asyncio.get_running_loop().time()
        if turn.status.finished:
            self._callers.pop(turn.turn_id, None)
            return
        caller = self._callers.setdefault(turn.turn_id, _Caller(now, turn.lease_ttl))
        caller.seen_at = now
        self._schedule_check()

    @contextmanager
    def waiting(self, turn: TurnView) -> Iterator[None]:
        """Context manager around a request that waits for the slot. Within the block, the caller of the turn counts as
        alive."""
        self.seen(turn)
        caller = self._callers.get(turn.turn_id)
        if caller is None:
            yield
            return
        caller.requests += 1
        try:
            yield
        finally:
            caller.requests -= 1
            caller.seen_at = asyncio.get_running_loop().time()

    def _schedule_check(self) -> None:
        """Set a timer for the next check of the callers. A timer, unlike a task, does not have to be cancelled when the
        application stops."""
        if self._callers and self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_at(loop.time() + min(CHECK_EVERY, HEARTBEAT / 4), self._check)

    def _check(self) -> None:
        now = asyncio.get_running_loop().time()
        assert self._timer is not None
        delay, self._timer = now - self._timer.when(), None
        try:
            turns = self._fairlead.turns
        except Unavailable:  # the application is closed, and its turns have ended
            self._callers.clear()
            return
        for turn_id, caller in list(self._callers.items()):
            if not turns.owned_here(turn_id):
                del self._callers[turn_id]
                continue
            caller.seen_at += delay  # requests that arrived while the event loop was blocked are not read yet
            if turns.held_here(turn_id) and not caller.held:
                caller.held, caller.seen_at = True, now
            if caller.is_gone(now) and not caller.leaving:
                caller.leaving = asyncio.create_task(self._end(turn_id, now - caller.seen_at))
        self._schedule_check()

    async def _end(self, turn_id: str, silent: float) -> None:
        try:
            await self._fairlead.turns.abandon(turn_id, f"its caller sent no request for {silent:.1f} s")
        except FairleadError as error:
            log.warning(
                "turn %s: its caller is absent, but the turn could not be ended or set aside: %s", turn_id, error
            )
        finally:
            if turn_id in self._callers:  # a caller that has returned meanwhile is watched again
                self._callers[turn_id].leaving = None


async def turn_events(
    app: Fairlead, liveness: TurnLiveness | None, turn: TurnView, heartbeat: float
) -> AsyncIterator[dict[str, Any] | None]:
    """Yield a snapshot of a turn, then its events until it ends. When a slot becomes free for the turn, take it.

    If `liveness` is None, the reader is not the caller of the turn, and no slot is taken.
    """
    async with (
        aclosing(app.watch(turn.turn_id, heartbeat=heartbeat)) as job_events,  # type: ignore[type-var]
        _taking_slot(app, liveness, turn) as waiting,
    ):
        async for event in job_events:
            if waiting is not None and waiting.done():
                waiting.result()  # raises if this gateway can no longer wait
            if event is None:
                yield None
            elif (translated := await _translated(app, liveness, event)) is not None:
                yield translated


@asynccontextmanager
async def _taking_slot(
    app: Fairlead, liveness: TurnLiveness | None, turn: TurnView
) -> AsyncIterator[asyncio.Task[TurnView] | None]:
    if liveness is None:
        yield None
        return
    with liveness.waiting(turn):
        waiting = asyncio.create_task(app.turns.wait(turn.turn_id))
        try:
            yield waiting
        finally:
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)


async def granted_or_ended(app: Fairlead, turn: TurnView, seconds: float) -> None:
    """Wait until the turn has its slot or has ended, for `seconds` at most. Does not take the slot itself."""
    with suppress(TimeoutError, events.SlowConsumer, events.ShuttingDown):
        async with asyncio.timeout(seconds), aclosing(app.watch(turn.turn_id)) as job_events:  # type: ignore[type-var]
            async for event in job_events:
                if event is None:
                    continue
                waits = event["type"] == SNAPSHOT and event["job"]["status"] in WAITING
                if event["type"] in (SNAPSHOT, STEP_START, *TERMINAL) and not waits:
                    return


async def _translated(app: Fairlead, liveness: TurnLiveness | None, event: dict[str, Any]) -> dict[str, Any] | None:
    turn_id, kind = event["job_id"], event["type"]
    fields = {"turn_id": turn_id, "at": event["at"]}
    if kind == POSITION:
        return {"type": kind, **fields, **{name: event[name] for name in ("message", "position", "estimated_wait")}}
    if kind not in (SNAPSHOT, STEP_START) and kind not in TERMINAL:
        return None
    turn = await app.turns.get(turn_id)
    message = f"the turn is {turn.status}"
    if kind in TERMINAL:
        error = turn.error or {}
        kind, message = TURN_LOST if error.get("code") in _LOSSES else TURN_ENDED, error.get("message", message)
    elif kind == STEP_START:
        if liveness is not None:
            liveness.seen(turn)
        kind, message = TURN_GRANTED, f"the turn has a slot of {turn.service}"
    return {"type": kind, **fields, "message": message, "turn": turn_json(turn)}


def turn_json(turn: TurnView) -> dict[str, Any]:
    """Return the JSON of a turn for a response: with links added, and without its input and the name of the caller's
    process."""
    fields = turn.as_dict()
    del fields["process"], fields["input"]
    url = f"{TURNS}/{turn.turn_id}"
    links = {f"{name}_url": f"{url}/{name}" for name in ("events", "renew", "finish", "cancel")}
    return {**fields, "heartbeat": HEARTBEAT, "links": {"status_url": url, **links}}
