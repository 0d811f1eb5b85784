"""The servers behind a URL: redis-py clients, the slot map of a Cluster, and the identity of a server.

The scheme names a server, the master behind Sentinels, or a Cluster:

    redis://user:password@host:6379/0         rediss:// with TLS, unix:///path for a socket
    redis+sentinel://host:26379,host:26379/mymaster/0
    redis+cluster://host:6379,host:6379       rediss+sentinel:// and rediss+cluster:// with TLS

All forms accept a user and password, and options of redis-py in the query: `?ssl_ca_certs=/path/ca.pem`,
`?ssl_cert_reqs=none`.

The identity is checked on every new connection before any other command. A restarted server has a new run id; one that
was promoted or became a replica has a new replication id. Such a server may have lost data or hold stale data, so it is
used again only after a rebuild.
"""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any
from urllib.parse import unquote, urlsplit

import redis
import redis.asyncio
import redis.asyncio.retry
import redis.asyncio.sentinel
import redis.retry
import redis.sentinel
from redis.asyncio.connection import parse_url
from redis.backoff import NoBackoff
from redis.crc import key_slot
from redis.exceptions import MovedError

from fairlead.dispatch.redis.errors import NOT_OURS, WrongServer

Admit = Callable[[str], bool]
"""Tells whether the database names a server with this identity. Also called from the thread of the heartbeat."""

IDENTITY_COMMANDS = (("INFO", "server"), ("INFO", "replication"))
_RUN_ID = re.compile(rb"run_id:(\w+)")
_REPLICATION_ID = re.compile(rb"master_replid:(\w+)")


def identity_of(run_id: bytes, replication_id: bytes) -> str:
    return f"{run_id.decode()}/{replication_id.decode()}"


def check_identity(admit: Admit, server: bytes, replication: bytes) -> None:
    """Raise `WrongServer` if the identity of the server is refused. `server` and `replication` are its replies to
    `IDENTITY_COMMANDS`."""
    run_id, replication_id = _RUN_ID.search(server), _REPLICATION_ID.search(replication)
    if run_id is None or replication_id is None or not admit(identity_of(run_id[1], replication_id[1])):
        raise WrongServer(NOT_OURS)


def on_connect_sync(admit: Admit) -> Callable[[Any], None]:
    """The `redis_connect_func` of a synchronous redis-py client, which checks the server's identity."""

    def log_in_and_check(connection: Any) -> None:
        connection.on_connect()
        connection.send_packed_command(connection.pack_commands(IDENTITY_COMMANDS), check_health=False)
        check_identity(admit, connection.read_response(), connection.read_response())

    return log_in_and_check


SOCKET_TIMEOUT_S = 5.0
SENTINEL_TIMEOUT_S = 1.0
"""The timeout for one Sentinel. It is short, because several Sentinels are tried within the timeout of a call."""

Address = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Target:
    """A parsed URL. `kind` is empty for a single server, `sentinel` for the master behind Sentinels, or `cluster`."""

    url: str
    kind: str = ""
    hosts: list[Address] = field(default_factory=list)
    path: list[str] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def cluster(self) -> bool:
        return self.kind == "cluster"


def parse(url: str) -> Target:
    parts = urlsplit(url)
    scheme, _, kind = parts.scheme.partition("+")
    if not kind:
        return Target(url)  # redis-py parses these itself
    path = [part for part in parts.path.split("/") if part]
    if scheme not in ("redis", "rediss") or kind not in ("sentinel", "cluster") or (kind == "sentinel" and not path):
        raise ValueError(
            "invalid Redis URL: use redis://, rediss://, unix://, redis+sentinel://.../master or redis+cluster://"
        )
    hosts = []
    for host in parts.netloc.rpartition("@")[2].split(","):
        name, _, port = host.rpartition(":")
        hosts.append((name or host, int(port) if name else (26379 if kind == "sentinel" else 6379)))
    login = {"username": parts.username, "password": parts.password}
    options: dict[str, Any] = {key: unquote(value) for key, value in login.items() if value}
    if scheme == "rediss":
        options["ssl"] = True
    return Target(url, kind, hosts, path, options | dict(parse_url(f"redis://?{parts.query}")))


def async_client(target: Target, node: Address | None = None) -> Any:
    """A redis-py client that gives `connection.open_connection` its settings and finds the master behind Sentinels."""
    return _client(target, redis.asyncio, node, None, socket_timeout=None)


def sync_client(
    target: Target, admit: Admit | None = None, node: Address | None = None, timeout: float | None = None
) -> Any:
    hook = None if admit is None else on_connect_sync(admit)
    return _client(target, redis, node, hook, socket_timeout=timeout or SOCKET_TIMEOUT_S)


@cache
def _driver() -> dict[str, Any]:
    """Return the driver that newer versions of redis-py announce. By default they read their own version from the
    installed package again for each connection."""
    module = getattr(redis, "driver_info", None)
    return {} if module is None else {"driver_info": module.DriverInfo()}


def _client(target: Target, library: Any, node: Address | None, hook: Any, socket_timeout: float | None) -> Any:
    # No retries: callers decide when to retry, and repeating an exchange would claim twice. RESP2, because only then
    # does redis-py check a connection for stray replies before each use.
    common = {"retry": library.retry.Retry(NoBackoff(), 0), "protocol": 2, **_driver()}
    options = common | {
        "socket_timeout": socket_timeout,
        "socket_connect_timeout": socket_timeout or SOCKET_TIMEOUT_S,
        "redis_connect_func": hook,
    }
    if not target.kind:
        return library.Redis.from_url(target.url, **options)
    options |= target.options
    if node is not None:
        return library.Redis(host=node[0], port=node[1], **options)
    timeouts = {"socket_timeout": SENTINEL_TIMEOUT_S, "socket_connect_timeout": SENTINEL_TIMEOUT_S}
    tls = {key: value for key, value in target.options.items() if key.startswith("ssl")}
    sentinels = library.sentinel.Sentinel(target.hosts, sentinel_kwargs=common | timeouts | tls, **options)
    return sentinels.master_for(target.path[0], db=int(target.path[1]) if len(target.path) > 1 else 0)


async def close_client(client: Any, timeout: float) -> None:
    async with asyncio.timeout(timeout):
        for each in (*sentinels_of(client), client):
            await each.aclose()


def sentinels_of(client: Any) -> list[Any]:
    """The clients of the Sentinels. They stay open when `client` is closed, so the caller must close them."""
    manager = getattr(client.connection_pool, "sentinel_manager", None)
    return [] if manager is None else list(manager.sentinels)


REFRESH_S = 0.5
"""Minimum interval between refreshes of a stale map."""


class ClusterSlots:
    """The last known hash slot map of a Redis Cluster: which node serves which keys. MOVED errors update it. Any node
    can supply the map, even one on which no scope was built."""

    def __init__(self, seeds: Sequence[Address]) -> None:
        self._seeds = seeds
        self._ranges: list[tuple[int, int, Address]] = []
        self._moved: dict[int, Address] = {}
        self._all: set[Address] = set()
        self._stale = True
        self._refreshed_at = float("-inf")

    def is_due(self) -> bool:
        """Whether the map has to be fetched again."""
        return self._stale and (not self._ranges or time.monotonic() - self._refreshed_at > REFRESH_S)

    def mark_stale(self) -> None:
        """Make the next calls fetch the map again, because a node failed or changed its role."""
        self._stale = True

    def candidates(self) -> list[Address]:
        """The nodes from which the map can be fetched, in random order, because any of them may be down."""
        nodes = list(self._all.union(self._seeds))
        random.shuffle(nodes)
        return nodes

    def learn(self, slots: Iterable[Sequence[Any]], source: Address) -> None:
        """Take over the map in a reply to CLUSTER SLOTS. A node without a name in the reply is `source`, the node that
        sent the reply."""
        self._ranges, self._moved, self._all = [], {}, set()
        for first, last, *nodes in slots:
            addresses = [(node[0].decode() if node[0] else source[0], int(node[1])) for node in nodes]
            self._ranges.append((first, last, addresses[0]))
            self._all.update(addresses)
        self._stale, self._refreshed_at = False, time.monotonic()

    def learn_move(self, moved: MovedError, source: Address) -> None:
        self._moved[moved.slot_id] = (moved.host or source[0], moved.port)
        self._stale = True

    def node_of(self, key: str) -> Address | None:
        """The node that serves the key, or None if it is unknown."""
        slot = key_slot(key.encode())
        if slot in self._moved:
            return self._moved[slot]
        return next((node for first, last, node in self._ranges if first <= slot <= last), None)

    @property
    def primaries(self) -> list[Address]:
        return sorted({node for _, _, node in self._ranges} | set(self._moved.values()))
