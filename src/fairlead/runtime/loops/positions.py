"""Tells watchers of waiting jobs where they stand: for watched jobs only, at most once a second, one pass per lane."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from fairlead.domain.order import Place
from fairlead.runtime import events
from fairlead.runtime.events import Event, Hub

EVERY = 1.0
# With a hundred thousand users in line one pass takes a while: it may have this share of the event loop's time.
SHARE = 0.05
# One grant moves everybody behind it. Who watches among thousands is told less often, so that telling is not all we do.
MOST_A_SECOND = 2000
AT_ONCE = 50
"""So many are told before others have their turn."""
NOTABLE = 0.2
NOTABLE_S = 1.0


class PositionsLoop:
    name = "positions"

    def __init__(self, places: Callable[[Sequence[str]], Awaitable[dict[str, Place]]], hub: Hub) -> None:
        self._places = places
        self._hub = hub
        self._told: dict[str, tuple[int, float | None]] = {}

    async def tick(self, now: float) -> float:
        timer = asyncio.get_running_loop().time
        begun = timer()
        watched = self._hub.placed_here()
        places = await self._places(watched) if watched else {}
        took = timer() - begun
        self._told = {job_id: told for job_id, told in self._told.items() if job_id in places}
        moved = [job_id for job_id, place in places.items() if self._is_news(job_id, place)]
        for number, job_id in enumerate(moved, 1):
            self._tell(job_id, places[job_id], now)
            if number % AT_ONCE == 0:
                await asyncio.sleep(0)
        return now + max(EVERY, took / SHARE, len(moved) / MOST_A_SECOND)

    def _is_news(self, job_id: str, place: Place) -> bool:
        """Its position, or an estimate that changed notably while the position did not: a slow call, another limit."""
        if job_id not in self._told:
            return True
        position, wait = self._told[job_id]
        now = place.estimated_wait()
        if now is None or wait is None:
            return position != place.position or (now is None) != (wait is None)
        return position != place.position or abs(now[1] - wait) > max(NOTABLE_S, NOTABLE * wait)

    def _tell(self, job_id: str, place: Place, now: float) -> None:
        wait = place.estimated_wait()
        self._told[job_id] = (place.position, None if wait is None else wait[1])
        said = None if wait is None else {"low": round(wait[0], 3), "high": round(wait[1], 3)}
        details = {"position": place.position, "estimated_wait": said}
        event = Event(events.POSITION, job_id, now, f"number {place.position} in line", details)
        self._hub.tell(event, self._hub.user_of(job_id))
