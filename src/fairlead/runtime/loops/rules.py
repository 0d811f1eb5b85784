"""Takes over limits and pauses that another process changed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from fairlead.domain.limits import Rules
from fairlead.store.port import Store

EVERY = 0.5


class RulesLoop:
    name = "rules"

    def __init__(self, store: Store, version: Callable[[], int], apply: Callable[[Rules], Awaitable[None]]) -> None:
        self._store = store
        self._version = version
        self._apply = apply

    async def tick(self, now: float) -> float:
        rules = await self._store.rules()
        if rules.version > self._version():
            await self._apply(rules)
        return now + EVERY
