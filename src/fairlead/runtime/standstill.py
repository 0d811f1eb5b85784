"""Places in a line that does not move: where what holds it is known and nobody knows until when, no wait is told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from fairlead.domain.job import Priority
from fairlead.domain.limits import Order, Rules
from fairlead.domain.order import Place
from fairlead.domain.processes import ProcessRecord
from fairlead.runtime.reasons import Workers
from fairlead.store.port import Store

LOOK_EVERY = 2.0
"""Seconds: as often as processes announce themselves."""
_BANDS = frozenset(priority.band for priority in Priority)


class Standstill:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._alive: Sequence[ProcessRecord] | None = None
        """None: nobody has looked yet."""
        self._due = 0.0

    async def look(self, now: float) -> None:
        """`now` is monotonic: looked at now and then, however often it is asked for."""
        if now >= self._due:
            self._due = now + LOOK_EVERY
            moment = await self._store.now()
            self._alive = [each for each in await self._store.processes() if each.alive(moment)]

    def seen(self, places: Mapping[str, Place], rules: Rules) -> dict[str, Place]:
        return {
            job_id: replace(place, undated=True) if self._stands(place, rules) else place
            for job_id, place in places.items()
        }

    def _stands(self, place: Place, rules: Rules) -> bool:
        service = rules.services.get(place.service)
        if service is None or service.paused:
            return True
        if self._alive is None or service.turns_only:
            return False
        any_band = service.order is Order.FIFO or place.band not in _BANDS
        serving = [each for each in self._alive if place.service in each.services]
        workers = Workers(serving, None if any_band else Priority.of_band(place.band))
        return workers.reason(place.service, slots_are_free=place.free > 0, private=True) is not None
