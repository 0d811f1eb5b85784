"""Stops handlers, and callers with a turn, whose job has been cancelled or taken back, should the message that says so
have been lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fairlead.runtime.turns.usher import Usher
from fairlead.runtime.worker import Worker
from fairlead.store.port import Store

EVERY = 2.0


class StopsLoop:
    name = "stops"

    def __init__(
        self, store: Store, workers: Callable[[], Sequence[Worker]], ushers: Callable[[], Sequence[Usher]]
    ) -> None:
        self._store = store
        self._workers = workers
        self._ushers = ushers

    async def tick(self, now: float) -> float:
        for worker in self._workers():
            await worker.stop_strays(self._store)
        for usher in self._ushers():
            await usher.stop_strays()
        return now + EVERY
