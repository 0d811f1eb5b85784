"""Leader election: a lease in Redis."""

from __future__ import annotations

from typing import Any

from fairlead.dispatch.redis.client import ScriptCall, ScriptClient
from fairlead.dispatch.redis.keys import leader_key


class RedisLeadership:
    """Implements `Leadership` by a lease in Redis. It works on any server, even one whose identity is refused, because
    rebuilding the scopes on a new server needs a leader."""

    def __init__(self, url: str, *, prefix: str = "fairlead", holder: str, ttl: float = 10.0) -> None:
        self.ttl = ttl
        self._connection = ScriptClient(url)
        self._key = leader_key(prefix)
        self._holder = holder

    async def acquire(self, term: int) -> bool:
        return bool(await self._run("leader_acquire", self._holder, term, self._ttl_ms))

    async def renew(self) -> bool:
        return bool(await self._run("leader_renew", self._holder, self._ttl_ms))

    async def resign(self) -> None:
        await self._run("leader_resign", self._holder)

    async def leader(self) -> tuple[str, int] | None:
        value = await self._connection.command("GET", self._key)
        if value is None:
            return None
        term, _, holder = value.decode().partition(" ")
        return holder, int(term)

    async def wait_to_retry(self, seconds: float) -> None:
        await self._connection.wait_to_retry(seconds)

    async def close(self) -> None:
        await self._connection.close()

    @property
    def _ttl_ms(self) -> int:
        return max(1, round(self.ttl * 1000))

    async def _run(self, script: str, *args: str | int) -> Any:
        (reply,) = await self._connection.run([ScriptCall(script, (self._key,), args)])
        return reply
