"""Wakes from other processes, and saying that this one still waits: both in the background."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Set
from typing import Any

from fairlead.dispatch.redis.claims import REGISTERED_S, Claims
from fairlead.dispatch.redis.keys import wake_channel
from fairlead.dispatch.redis.replies import joined
from fairlead.dispatch.redis.scopes import Scopes
from fairlead.dispatch.redis.subscriber import Subscriber
from fairlead.errors import Unavailable

_log = logging.getLogger(__name__)


class Wakes:
    """`wake` is called with the services that this process was told of; and at every new subscription with all, as it
    may have been told of any while nobody listened."""

    def __init__(self, scopes: Scopes, claims: Claims, *, wake: Callable[[Set[str]], None]) -> None:
        self._scopes = scopes
        self._claims = claims
        self._wake = wake
        self._subscriber = Subscriber(scopes.ungated, self._heard, self._wake_for_all)
        self._tasks: set[asyncio.Task[None]] = set()
        self.listening = self._subscriber.listening

    def start(self) -> None:
        self._subscriber.listen(wake_channel(self._scopes.prefix, self._scopes.process))
        self._subscriber.start()
        self._in_background(self._keep_waiting())

    async def close(self) -> None:
        await self._subscriber.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _wake_for_all(self) -> None:
        self._wake(frozenset().union(*self._scopes.services.values()))

    def _heard(self, channel: str, message: bytes) -> None:
        """Another process chose this one to be told. If its worker has become full meanwhile, the next one is."""
        service = message.decode()
        if not self._claims.waits_for(service):
            self._in_background(self._pass_on(service))
        self._wake({service})

    async def _pass_on(self, service: str) -> None:
        with contextlib.suppress(Unavailable):
            await self._scopes.run("wake", {self._scopes.of(service): [joined([service])]})

    async def _keep_waiting(self) -> None:
        while True:
            await asyncio.sleep(REGISTERED_S)
            try:
                await self._claims.keep_waiting()
            except Unavailable as error:
                _log.debug("Redis does not hear that this process waits: %s", error)
