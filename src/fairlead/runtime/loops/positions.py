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


class PositionsLoop:
    name = "positions"

    def __init__(self, places: Callable[[Sequence[str]], Awaitable[dict[str, Place]]], hub: Hub) -> None:
        self._places = places
        self._hub = hub
        self._told: dict[str, int] = {}

    async def tick(self, now: float) -> float:
        timer = asyncio.get_running_loop().time
        begun = timer()
        watched = self._hub.watched_here()
        places = await self._places(watched) if watched else {}
        for job_id, place in places.items():
            if self._told.get(job_id) == place.position:
                continue
            low, high = place.estimated_wait()
            wait = {"low": round(low, 3), "high": round(high, 3)}
            details = {"position": place.position, "estimated_wait": wait}
            text = f"number {place.position} in line"
            self._hub.tell(Event(events.POSITION, job_id, now, text, details))
        self._told = {job_id: place.position for job_id, place in places.items()}
        return now + max(EVERY, (timer() - begun) / SHARE)
