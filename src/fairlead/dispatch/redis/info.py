"""Facts about a Redis server, for `fairlead doctor`."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import parse_qs, urlsplit

from fairlead.dispatch.redis.client import ScriptClient
from fairlead.dispatch.redis.servers import parse

Node = tuple[dict[str, str], float, float]
"""The fields of INFO, the server's TIME, and the caller's clock halfway through the request."""


async def fetch(url: str, clock: Callable[[], float]) -> list[Node]:
    """Read the facts of the server, or of all primaries of a Cluster. Raises `Unavailable`."""
    client = ScriptClient(url)
    try:
        infos = await client.on_each("INFO")
        began = clock()
        times = await client.on_each("TIME")
        asked_at = (began + clock()) / 2
    finally:
        await client.close()
    return [
        (_parse(info), int(seconds) + int(micros) / 1e6, asked_at)
        for info, (seconds, micros) in zip(infos, times, strict=True)
    ]


def _parse(info: bytes) -> dict[str, str]:
    lines = info.decode(errors="replace").splitlines()
    return dict(line.partition(":")[::2] for line in lines if ":" in line and not line.startswith("#"))


def hosts_of(url: str) -> list[str]:
    """The host names in the URL. Empty for a Unix socket."""
    target = parse(url)
    if target.kind:
        return [host for host, _ in target.hosts]
    parts = urlsplit(url)
    return [] if parts.scheme == "unix" else [parts.hostname or "localhost"]


def has_login(url: str) -> bool:
    """Whether the URL has a password or a client certificate."""
    parts = urlsplit(url)
    return bool(parts.password or parse_qs(parts.query).get("ssl_certfile"))
