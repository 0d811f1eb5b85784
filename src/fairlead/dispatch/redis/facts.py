"""What a Redis says of itself: for whoever looks after it."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import parse_qs, urlsplit

from fairlead.dispatch.redis.clients import parse
from fairlead.dispatch.redis.connection import Connection

Node = tuple[dict[str, str], float, float]
"""INFO, TIME, and the caller's clock in the middle of asking."""


async def ask(url: str, clock: Callable[[], float]) -> list[Node]:
    """One per server: all primaries, on a Cluster. Raises Unavailable."""
    connection = Connection(url)
    try:
        infos = await connection.on_each("INFO")
        began = clock()
        times = await connection.on_each("TIME")
        asked_at = (began + clock()) / 2
    finally:
        await connection.close()
    return [
        (_read(info), int(seconds) + int(micros) / 1e6, asked_at)
        for info, (seconds, micros) in zip(infos, times, strict=True)
    ]


def _read(info: bytes) -> dict[str, str]:
    lines = info.decode(errors="replace").splitlines()
    return dict(line.partition(":")[::2] for line in lines if ":" in line and not line.startswith("#"))


def hosts_of(url: str) -> list[str]:
    """Where it is; empty for a socket of this machine."""
    target = parse(url)
    if target.kind:
        return [host for host, _ in target.hosts]
    parts = urlsplit(url)
    return [] if parts.scheme == "unix" else [parts.hostname or "localhost"]


def has_login(url: str) -> bool:
    """A password, or a certificate of the client's own."""
    parts = urlsplit(url)
    return bool(parts.password or parse_qs(parts.query).get("ssl_certfile"))
