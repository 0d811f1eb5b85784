"""Where Redis is, and which engines go together: what is wrong with the addresses that a configuration gives.

The schemes are those that `dispatch/redis/connection.py` understands. No address is ever shown whole: it may carry a
password.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import parse_qsl, urlsplit

REDIS_SCHEMES = (
    "redis",
    "rediss",
    "unix",
    "redis+sentinel",
    "rediss+sentinel",
    "redis+cluster",
    "rediss+cluster",
)
FROM_ENVIRONMENT = "env:"
REDIS_OPTIONS = frozenset(
    {"db", "client_name", "ssl_ca_certs", "ssl_ca_path", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs",
     "ssl_check_hostname"}
)  # fmt: skip


def resolved(said: str, environ: Mapping[str, str]) -> str | None:
    """`env:VARIABLE` stands for what that variable says; None if there is no such variable."""
    if said.startswith(FROM_ENVIRONMENT):
        return environ.get(said.removeprefix(FROM_ENVIRONMENT)) or None
    return said


def engine_problems(
    database_url: str,
    redis_url: str | None,
    shards: Mapping[str, Any],
    source: str | None,
    environ: Mapping[str, str],
) -> Iterator[str]:
    where = source or "the environment"
    if redis_url is not None:
        yield from _of_main(database_url, redis_url)
    elif shards:
        needed = "REDIS_URL and DATABASE_URL=postgresql://..." if _is_sqlite(database_url) else "REDIS_URL"
        yield f"{where}: shards: they need a main Redis beside them: set {needed}, or remove [shards]"
    known = {} if redis_url is None else {redis_url: "REDIS_URL"}
    for name, said in shards.items():
        if not isinstance(said, str):
            continue  # told already
        url = resolved(said, environ)
        if url is None:
            yield f"{where}: shards.{name}: the environment has no {said.removeprefix(FROM_ENVIRONMENT)}; set it"
        elif problem := redis_problem(url):
            yield f"{where}: shards.{name}: {problem}"
        elif (other := known.setdefault(url, f"shards.{name}")) != f"shards.{name}":
            yield f"{where}: shards.{name}: this is the Redis of {other}; a shard is a Redis of its own"


def _of_main(database_url: str, redis_url: str) -> Iterator[str]:
    if problem := redis_problem(redis_url):
        yield f"REDIS_URL: {problem}"
    if importlib.util.find_spec("redis") is None:
        yield "REDIS_URL: Redis needs its client: pip install 'fairlead[redis]'"
    if _is_sqlite(database_url):
        yield (
            "REDIS_URL: with Redis the database must be PostgreSQL, which all processes reach: "
            "set DATABASE_URL=postgresql://user@host/database, or unset REDIS_URL to run everything in one process"
        )


def _is_sqlite(database_url: str) -> bool:
    return database_url.startswith("sqlite:")


def redis_problem(url: str) -> str | None:
    """What is wrong with the address of a Redis, if anything."""
    scheme = url.partition("://")[0]
    if "://" not in url or scheme not in REDIS_SCHEMES:
        shown = f"{scheme}://..." if "://" in url else "this"
        return f"{shown} is no address of a Redis; it begins with one of {', '.join(REDIS_SCHEMES)} and ://"
    try:
        parts = urlsplit(url)
    except ValueError:
        return "this is no URL; for example redis://user:password@host:6379/0"
    if "@" in parts.path:
        return "a / in a user's name or password must be written %2F"
    path = [part for part in parts.path.split("/") if part]
    if scheme == "unix":
        return None if path else "a socket has a path: unix:///run/redis/redis.sock"
    if unknown := sorted({name for name, _ in parse_qsl(parts.query, keep_blank_values=True)} - REDIS_OPTIONS):
        return f"?{unknown[0]}= is not understood; known are: {', '.join(sorted(REDIS_OPTIONS))}"
    hosts = parts.netloc.rpartition("@")[2].split(",")
    return _hosts_problem(scheme, hosts) or _path_problem(scheme, path)


def _hosts_problem(scheme: str, hosts: list[str]) -> str | None:
    if len(hosts) > 1 and "+" not in scheme:
        return f"{scheme}:// has one host; several are for {scheme}+sentinel:// and {scheme}+cluster://"
    for host in hosts:
        name, colon, port = host.rpartition(":")
        if host.endswith("]"):  # an IPv6 address without a port
            name, colon, port = host, "", ""
        if not (name if colon else host):
            return f"a host is missing; for example {scheme}://host:6379"
        if colon and not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
            return "a port is a number from 1 to 65535"
    return None


def _path_problem(scheme: str, path: list[str]) -> str | None:
    kind = scheme.partition("+")[2]
    if kind == "cluster":
        return "a Cluster has no numbered databases; leave out what follows the hosts" if path else None
    if kind == "sentinel":
        if not path:
            return f"the master's name is missing: {scheme}://host:26379,host:26379/mymaster/0"
        path = path[1:]
    if len(path) > 1 or (path and not (path[0].isascii() and path[0].isdigit())):
        return "what follows the host is the number of a database, for example /0"
    return None
