"""Validates the URLs of the database and of Redis, and their combination.

The accepted schemes of Redis URLs are those in `dispatch/redis/servers.py`. No message contains a whole URL, because a
URL may include a password.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import SplitResult, parse_qsl, urlsplit

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


def resolved(url: str, environ: Mapping[str, str]) -> str | None:
    """Replace a value of the form `env:VARIABLE` by the value of that environment variable; None if the variable is not
    set."""
    if url.startswith(FROM_ENVIRONMENT):
        return environ.get(url.removeprefix(FROM_ENVIRONMENT)) or None
    return url


def engine_problems(
    database_url: str,
    redis_url: str | None,
    shards: Mapping[str, Any],
    source: str | None,
    environ: Mapping[str, str],
) -> Iterator[str]:
    where = source or "the environment"
    if redis_url is not None:
        yield from _main_redis_problems(database_url, redis_url)
    elif shards:
        needed = "REDIS_URL and DATABASE_URL=postgresql://..." if _is_sqlite(database_url) else "REDIS_URL"
        yield f"{where}: shards: need a main Redis as well; set {needed}, or remove [shards]"
    known = {} if redis_url is None else {redis_url: "REDIS_URL"}
    for name, value in shards.items():
        if not isinstance(value, str):
            continue  # reported by the model
        url = resolved(value, environ)
        if url is None:
            yield f"{where}: shards.{name}: the environment variable {value.removeprefix(FROM_ENVIRONMENT)} is not set"
        elif problem := redis_problem(url):
            yield f"{where}: shards.{name}: {problem}"
        elif (other := known.setdefault(url, f"shards.{name}")) != f"shards.{name}":
            yield f"{where}: shards.{name}: this is the Redis of {other}; every shard needs its own Redis"


def _main_redis_problems(database_url: str, redis_url: str) -> Iterator[str]:
    if problem := redis_problem(redis_url):
        yield f"REDIS_URL: {problem}"
    if importlib.util.find_spec("redis") is None:
        yield "REDIS_URL: needs the Redis client: pip install 'fairlead[redis]'"
    if _is_sqlite(database_url):
        yield (
            "REDIS_URL: Redis requires PostgreSQL, which all processes can reach: "
            "set DATABASE_URL=postgresql://user@host/database, or unset REDIS_URL to run everything in one process"
        )


def _is_sqlite(database_url: str) -> bool:
    return database_url.startswith("sqlite:")


def redis_problem(url: str) -> str | None:
    """What is wrong with a Redis URL; None if it is valid."""
    scheme = url.partition("://")[0]
    if "://" not in url or scheme not in REDIS_SCHEMES:
        shown = f"{scheme}://..." if "://" in url else "this"
        return f"{shown} is not a Redis URL; its scheme must be one of {', '.join(REDIS_SCHEMES)}"
    try:
        parts = urlsplit(url)
    except ValueError:
        return "is not a valid URL; for example redis://user:password@host:6379/0"
    if problem := _login_problem(parts):
        return problem
    path = [part for part in parts.path.split("/") if part]
    if scheme == "unix":
        return None if path else "a socket URL needs a path: unix:///run/redis/redis.sock"
    if unknown := sorted({name for name, _ in parse_qsl(parts.query, keep_blank_values=True)} - REDIS_OPTIONS):
        return f"?{unknown[0]}= is not a known option; known are: {', '.join(sorted(REDIS_OPTIONS))}"
    hosts = parts.netloc.rpartition("@")[2].split(",")
    return _hosts_problem(scheme, hosts) or _path_problem(scheme, path)


def postgres_problem(url: str) -> str | None:
    """What is wrong with a PostgreSQL URL; None if it is valid."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "is not a valid URL; for example postgresql://user:password@host:5432/database"
    if problem := _login_problem(parts):
        return problem
    for host in parts.netloc.rpartition("@")[2].split(","):
        try:
            _ = urlsplit(f"//{host}").port
        except ValueError:
            return "a port is a number from 1 to 65535; a : in a user name or password must be written %3A"
    return None


def _login_problem(parts: SplitResult) -> str | None:
    """What is wrong with the user and password in a URL; None if they are valid. An unescaped character may cut the
    password short: the rest would be parsed as path, query or fragment, and shown in messages."""
    for part, letter, written in ((parts.path, "/", "%2F"), (parts.query, "?", "%3F"), (parts.fragment, "#", "%23")):
        if "@" in part:
            return f"a {letter} in a user name or password must be written {written}"
    return None


def _hosts_problem(scheme: str, hosts: list[str]) -> str | None:
    if len(hosts) > 1 and "+" not in scheme:
        return f"{scheme}:// takes one host; several hosts need {scheme}+sentinel:// or {scheme}+cluster://"
    for host in hosts:
        name, colon, port = host.rpartition(":")
        if host.endswith("]"):  # an IPv6 address without a port
            name, colon, port = host, "", ""
        if not (name if colon else host):
            return f"the host is missing; for example {scheme}://host:6379"
        if colon and not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
            return "a port is a number from 1 to 65535"
    return None


def _path_problem(scheme: str, path: list[str]) -> str | None:
    kind = scheme.partition("+")[2]
    if kind == "cluster":
        return "a Cluster has no numbered databases; remove the path after the hosts" if path else None
    if kind == "sentinel":
        if not path:
            return f"the name of the master is missing: {scheme}://host:26379,host:26379/mymaster/0"
        path = path[1:]
    if len(path) > 1 or (path and not (path[0].isascii() and path[0].isdigit())):
        return "the path must be the number of a database, for example /0"
    return None
