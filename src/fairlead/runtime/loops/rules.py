"""Takes over from the truth what other processes changed: limits, pauses, and on which servers the line was built."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

EVERY = 0.5


class RulesLoop:
    name = "rules"

    def __init__(self, follow_the_truth: Callable[[], Awaitable[None]]) -> None:
        self._follow_the_truth = follow_the_truth

    async def tick(self, now: float) -> float:
        await self._follow_the_truth()
        return now + EVERY
