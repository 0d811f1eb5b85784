"""Clients for a server, for what Sentinels name as the master, or for a node of a Cluster: by the scheme of the URL.

    redis://user:password@host:6379/0         rediss:// with TLS, unix:///path for a socket
    redis+sentinel://host:26379,host:26379/mymaster/0
    redis+cluster://host:6379,host:6379       rediss+sentinel:// and rediss+cluster:// with TLS

User and password are part of the URL in all of them, and so are options of redis-py, as its query:
`?ssl_ca_certs=/path/ca.pem`, `?ssl_cert_reqs=none`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
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

from fairlead.dispatch.redis.identity import Admit, on_connect, on_connect_sync

SOCKET_TIMEOUT_S = 5.0
SENTINEL_TIMEOUT_S = 1.0
"""There are several: one that does not answer must not cost the time of the call."""

Address = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Target:
    """What a URL says. `kind`: a server if empty, else `sentinel` or `cluster`."""

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
        return Target(url)  # redis-py knows these
    path = [part for part in parts.path.split("/") if part]
    if scheme not in ("redis", "rediss") or kind not in ("sentinel", "cluster") or (kind == "sentinel" and not path):
        raise ValueError(
            "not a URL for Redis: redis://, rediss://, unix://, redis+sentinel://.../master or redis+cluster://"
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


def async_client(target: Target, admit: Admit | None = None, node: Address | None = None) -> Any:
    """Its calls have no time limit of their own: `Connection` has."""
    hook = None if admit is None else on_connect(admit)
    return _client(target, redis.asyncio, node, hook, socket_timeout=None)


def sync_client(
    target: Target, admit: Admit | None = None, node: Address | None = None, timeout: float | None = None
) -> Any:
    hook = None if admit is None else on_connect_sync(admit)
    return _client(target, redis, node, hook, socket_timeout=timeout or SOCKET_TIMEOUT_S)


def _client(target: Target, library: Any, node: Address | None, hook: Any, socket_timeout: float | None) -> Any:
    # One attempt: whoever calls knows better when to try again, and an exchange that is repeated takes twice. The
    # older protocol: only there does redis-py look for stray answers on a connection before each use.
    common = {"retry": library.retry.Retry(NoBackoff(), 0), "protocol": 2}
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


def sentinels_of(client: Any) -> list[Any]:
    """The clients to Sentinels that a client keeps, and does not close."""
    manager = getattr(client.connection_pool, "sentinel_manager", None)
    return [] if manager is None else list(manager.sentinels)
