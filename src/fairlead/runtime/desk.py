"""Asks a dispatcher where jobs stand: many askers together, and one question at a time.

A question costs the dispatcher one pass over its active users, so a thousand askers at once must not be a thousand
passes. While one question is under way the next askers gather.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from fairlead.dispatch.port import Dispatcher
from fairlead.domain.order import Place
from fairlead.errors import Unavailable

ANSWERS_WITHIN = 1.0
# What nobody waits for (a receipt's position) may have this share of the dispatcher's time.
SHARE = 0.1


class Desk:
    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self._asked: set[str] = set()
        self._answer: asyncio.Task[dict[str, Place]] | None = None
        self._under_way: asyncio.Task[dict[str, Place]] | None = None
        self._busy_until = 0.0

    async def places(self, job_ids: Sequence[str]) -> dict[str, Place]:
        """Empty if the dispatcher does not answer soon: nobody's look at a job waits for it."""
        if not job_ids:
            return {}
        self._asked.update(job_ids)
        if self._answer is None:
            self._answer = asyncio.get_running_loop().create_task(self._ask(self._under_way))
        # One asker that goes away must not take the others' answer with it.
        found = await asyncio.shield(self._answer)
        return {job_id: found[job_id] for job_id in job_ids if job_id in found}

    @property
    def dear(self) -> bool:
        """The last answers took long: who can do without one does not ask now."""
        return asyncio.get_running_loop().time() < self._busy_until

    async def _ask(self, before: asyncio.Task[dict[str, Place]] | None) -> dict[str, Place]:
        if before is not None and not before.done():
            await asyncio.wait([before])
        asked, self._asked = self._asked, set()
        self._under_way, self._answer = self._answer, None
        clock = asyncio.get_running_loop().time
        begun = clock()
        try:
            async with asyncio.timeout(ANSWERS_WITHIN):
                return await self._dispatcher.places(list(asked))
        except (Unavailable, TimeoutError):
            return {}
        finally:
            self._busy_until = clock() + (clock() - begun) * (1 / SHARE - 1)
