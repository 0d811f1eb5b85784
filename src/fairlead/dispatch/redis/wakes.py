"""Wakes from other processes, and saying that this one still waits: two tasks in the background."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import redis.asyncio
from redis.exceptions import RedisError

from fairlead.dispatch.redis.claims import REGISTERED_S, Claims
from fairlead.dispatch.redis.keys import wake_channel
from fairlead.dispatch.redis.scopes import Scopes

_log = logging.getLogger(__name__)
_RETRY_S = 1.0


class Wakes:
    """`heard` is called with the services that this process was told of; `missed`, at every new subscription, with all
    of which it may have been told while nobody listened."""

    def __init__(
        self,
        scopes: Scopes,
        claims: Claims,
        *,
        heard: Callable[[frozenset[str]], Awaitable[None]],
        missed: Callable[[frozenset[str]], None],
    ) -> None:
        self._scopes = scopes
        self._claims = claims
        self._heard = heard
        self._missed = missed
        self._tasks: list[asyncio.Task[None]] = []
        self.listening = asyncio.Event()

    async def start(self) -> None:
        self._tasks = [asyncio.create_task(self._listen()), asyncio.create_task(self._keep_waiting())]
        await self.listening.wait()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []

    async def _listen(self) -> None:
        channel = wake_channel(self._scopes.prefix, self._scopes.process)
        while True:
            try:
                async with self._subscriber() as client, client.pubsub(ignore_subscribe_messages=True) as pubsub:
                    await pubsub.subscribe(channel)
                    self.listening.set()
                    self._missed(frozenset().union(*self._scopes.services.values()))
                    while True:
                        message = await pubsub.get_message(timeout=60.0)
                        if message is not None:
                            await self._heard(frozenset({message["data"].decode()}))
            except (RedisError, OSError) as error:
                _log.warning("no wakes from Redis for now: %s", error)
                await asyncio.sleep(_RETRY_S)

    @contextlib.asynccontextmanager
    async def _subscriber(self) -> Any:
        """A client for one subscription, without a time limit on reads. Any node of a Cluster hears every message."""
        client = self._scopes.connection.client
        if self._scopes.connection.cluster:
            await client.initialize()
            node = client.get_default_node()
            options = {key: client.connection_kwargs.get(key) for key in ("username", "password")}
            own = redis.asyncio.Redis(host=node.host, port=node.port, **options)
        else:
            pool = client.connection_pool
            own = redis.asyncio.Redis(connection_pool=pool)
        try:
            yield own
        finally:
            await own.aclose()

    async def _keep_waiting(self) -> None:
        while True:
            await asyncio.sleep(REGISTERED_S)
            try:
                await self._claims.keep_waiting()
            except (RedisError, OSError) as error:
                _log.warning("Redis does not hear that this process waits: %s", error)
