"""What the caller of a turn hears: the events of its row, in words of turns."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from fairlead.domain.retry import TIMEOUT
from fairlead.domain.turns import HOLDER_DIED
from fairlead.gateway.turn_callers import Callers
from fairlead.gateway.turn_shown import shown
from fairlead.runtime import events
from fairlead.runtime.turns.view import TurnView

if TYPE_CHECKING:
    from fairlead.app import Fairlead

TURN_GRANTED = "TURN_GRANTED"
TURN_LOST = "TURN_LOST"
TURN_ENDED = "TURN_ENDED"
LAST = frozenset({TURN_LOST, TURN_ENDED})
_LOSSES = frozenset({HOLDER_DIED, TIMEOUT})


async def turn_events(
    app: Fairlead, callers: Callers, turn: TurnView, heartbeat: float
) -> AsyncIterator[dict[str, Any] | None]:
    """A snapshot, then what happens, until it ends. As long as somebody listens, a slot that comes is taken."""
    with callers.asking(turn):
        waiting = asyncio.create_task(app.turns.wait(turn.turn_id))
        try:
            async with aclosing(app.watch(turn.turn_id, heartbeat=heartbeat)) as told:  # type: ignore[type-var]
                async for event in told:
                    if waiting.done():
                        waiting.result()  # who can wait no more here asks elsewhere
                    if event is None:
                        yield None
                    elif (said := await _said(app, callers, event)) is not None:
                        yield said
        finally:
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)


async def _said(app: Fairlead, callers: Callers, event: dict[str, Any]) -> dict[str, Any] | None:
    turn_id, kind = event["job_id"], event["type"]
    about = {"turn_id": turn_id, "at": event["at"]}
    if kind == events.POSITION:
        return {"type": kind, **about, **{name: event[name] for name in ("message", "position", "estimated_wait")}}
    if kind not in (events.SNAPSHOT, events.STEP_START) and kind not in events.TERMINAL:
        return None
    turn = await app.turns.get(turn_id)
    message = f"the turn is {turn.status}"
    if kind in events.TERMINAL:
        error = turn.error or {}
        kind, message = TURN_LOST if error.get("code") in _LOSSES else TURN_ENDED, error.get("message", message)
    elif kind == events.STEP_START:
        callers.heard(turn)
        kind, message = TURN_GRANTED, f"the slot of {turn.service} is yours"
    return {"type": kind, **about, "message": message, "turn": shown(turn)}
