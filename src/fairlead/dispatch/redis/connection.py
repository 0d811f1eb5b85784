"""Connections to a server, to what Sentinels name as the master, or to a Cluster: by the scheme of the URL.

    redis://user:password@host:6379/0         rediss:// with TLS, unix:///path for a socket
    redis+sentinel://host:26379,host:26379/mymaster/0
    redis+cluster://host:6379,host:6379       rediss+sentinel:// and rediss+cluster:// with TLS

User and password are part of the URL in all of them. Nothing else in this package knows which kind it has.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

import redis
import redis.asyncio
import redis.asyncio.cluster
import redis.asyncio.sentinel
import redis.cluster
import redis.sentinel
from redis.exceptions import NoScriptError

from fairlead.dispatch.redis.scripts import script

SOCKET_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a script."""

    script: str
    keys: Sequence[str]
    args: Sequence[str | bytes | int]

    @property
    def command(self) -> tuple[Any, ...]:
        return ("EVALSHA", script(self.script).sha, len(self.keys), *self.keys, *self.args)

    @property
    def with_source(self) -> tuple[Any, ...]:
        return ("EVAL", script(self.script).source, len(self.keys), *self.keys, *self.args)


@dataclass(frozen=True, slots=True)
class _Target:
    kind: str
    tls: bool
    hosts: list[tuple[str, int]]
    path: list[str]
    login: dict[str, str]


def _parse(url: str) -> _Target:
    parts = urlsplit(url)
    scheme, _, kind = parts.scheme.partition("+")
    hosts = []
    for host in parts.netloc.rpartition("@")[2].split(","):
        name, _, port = host.rpartition(":")
        hosts.append((name or host, int(port) if name else (26379 if kind == "sentinel" else 6379)))
    login = {
        key: unquote(value) for key, value in (("username", parts.username), ("password", parts.password)) if value
    }
    return _Target(kind, scheme == "rediss", hosts, [part for part in parts.path.split("/") if part], login)


_TIMEOUTS = {"socket_timeout": SOCKET_TIMEOUT_S, "socket_connect_timeout": SOCKET_TIMEOUT_S}


def _client(url: str, library: Any) -> tuple[Any, bool]:
    """A client, of the synchronous or the asynchronous library, and whether it is one of a Cluster."""
    if "+" not in url.partition("://")[0]:
        return library.Redis.from_url(url, **_TIMEOUTS), False
    target = _parse(url)
    options = _TIMEOUTS | target.login | ({"ssl": True} if target.tls else {})
    if target.kind == "cluster":
        nodes = [library.cluster.ClusterNode(host, port) for host, port in target.hosts]
        return library.cluster.RedisCluster(startup_nodes=nodes, **options), True
    if target.kind == "sentinel" and target.path:
        database = int(target.path[1]) if len(target.path) > 1 else 0
        return library.sentinel.Sentinel(target.hosts, **options).master_for(target.path[0], db=database), False
    raise ValueError(
        "not a URL for Redis: redis://, rediss://, unix://, redis+sentinel://.../master or redis+cluster://"
    )


def _sentinels(client: Any) -> list[Any]:
    """The clients to Sentinels that a client keeps, and does not close."""
    manager = getattr(getattr(client, "connection_pool", None), "sentinel_manager", None)
    return [] if manager is None else list(manager.sentinels)


class Connection:
    """The asynchronous client: many calls in one round trip, scripts loaded when the server does not have them."""

    def __init__(self, url: str) -> None:
        self.client, self.cluster = _client(url, redis.asyncio)

    async def run(self, calls: Sequence[Call]) -> list[Any]:
        """The answers, in order. On a Cluster the calls go to different servers, so each is a request of its own."""
        if len(calls) == 1 or self.cluster:
            return list(await asyncio.gather(*map(self._run_one, calls)))
        async with self.client.pipeline(transaction=False) as pipeline:
            for call in calls:
                pipeline.execute_command(*call.command)
            answers = await pipeline.execute(raise_on_error=False)
        for i, answer in enumerate(answers):
            if isinstance(answer, NoScriptError):
                answers[i] = await self.client.execute_command(*calls[i].with_source)
            elif isinstance(answer, Exception):
                raise answer
        return list(answers)

    async def _run_one(self, call: Call) -> Any:
        try:
            return await self.client.execute_command(*call.command)
        except NoScriptError:
            return await self.client.execute_command(*call.with_source)

    async def close(self) -> None:
        for client in (*_sentinels(self.client), self.client):
            await client.aclose()


class SyncConnection:
    """The synchronous client, for the one operation that is called from a thread."""

    def __init__(self, url: str) -> None:
        self.client, self._cluster = _client(url, redis)

    def run(self, calls: Sequence[Call]) -> list[Any]:
        if len(calls) == 1 or self._cluster:
            return [self._run_one(call) for call in calls]
        with self.client.pipeline(transaction=False) as pipeline:
            for call in calls:
                pipeline.execute_command(*call.command)
            answers = pipeline.execute(raise_on_error=False)
        for i, answer in enumerate(answers):
            if isinstance(answer, NoScriptError):
                answers[i] = self.client.execute_command(*calls[i].with_source)
            elif isinstance(answer, Exception):
                raise answer
        return list(answers)

    def _run_one(self, call: Call) -> Any:
        try:
            return self.client.execute_command(*call.command)
        except NoScriptError:
            return self.client.execute_command(*call.with_source)

    def close(self) -> None:
        for client in (*_sentinels(self.client), self.client):
            client.close()
