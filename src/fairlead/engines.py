"""Which engine stands behind an address: the only place that names concrete stores and dispatchers."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from functools import partial
from typing import Any

from fairlead.config import Settings, sqlite_options
from fairlead.dispatch.memory import MemoryDispatcher
from fairlead.dispatch.port import Bus, Shard
from fairlead.domain.config import Config
from fairlead.domain.limits import MAIN_SHARD
from fairlead.domain.transitions import Submit
from fairlead.errors import ConfigError, InvalidInput
from fairlead.store.port import Accepted, Store
from fairlead.store.sqlite import SqliteStore

POSTGRES = ("postgresql://", "postgres://")
PREFIX = "fairlead"


def store_of(database_url: str, clock: Callable[[], float]) -> Store:
    """Raises ConfigError for an address that is no database of ours, and for an engine that is not installed."""
    if database_url.startswith(POSTGRES):
        try:
            from fairlead.store.postgres import PostgresStore
        except ImportError:
            raise ConfigError(["DATABASE_URL: PostgreSQL needs its driver: pip install 'fairlead[postgres]'"]) from None
        # What is stored as "now" is the server's own clock.
        return PostgresStore(database_url)
    path, synchronous = sqlite_options(database_url)
    return SqliteStore(path, clock=clock, synchronous=synchronous)


def writers_of(database_url: str) -> int:
    """How many commits may be under way: SQLite has one writer, PostgreSQL computes one while another is flushed."""
    return 2 if database_url.startswith(POSTGRES) else 1


async def submit_on(database_url: str, connection: Any, submits: Sequence[Submit]) -> Sequence[Accepted]:
    """Within the caller's own transaction, on the caller's own connection to the same database."""
    if not database_url.startswith(POSTGRES):
        raise InvalidInput("connection= needs PostgreSQL as the database: set DATABASE_URL", pointer="/connection")
    from fairlead.store.postgres import enlist

    return await enlist.submit_on(connection, submits)


def shards_of(
    settings: Settings, config: Config, process: str, servers: Set[str], clock: Callable[[], float]
) -> list[Shard]:
    """The dispatchers of a process, which leads under its own name. `servers` are those on which the line was built, as
    the truth says at any moment: no other Redis is asked for work, however complete it looks."""
    if settings.redis_url is None:
        dispatcher = MemoryDispatcher(clock)
        return [Shard(MAIN_SHARD, dispatcher, dispatcher, lambda: dispatcher)]
    from fairlead.dispatch.redis import RedisDispatcher
    from fairlead.dispatch.redis.leadership import RedisLeadership

    shards = []
    for name, url in {MAIN_SHARD: settings.redis_url, **settings.shards}.items():
        prefix = PREFIX if name == MAIN_SHARD else f"{PREFIX}.{name}"
        claimer = partial(RedisDispatcher, url, prefix=prefix, admit=servers.__contains__)
        shards.append(
            Shard(
                name,
                claimer(),
                RedisDispatcher(url, prefix=prefix),
                claimer,
                RedisLeadership(url, prefix=prefix, holder=process, ttl=config.manager.leader_ttl),
            )
        )
    return shards


def bus_of(settings: Settings) -> Bus | None:
    if settings.redis_url is None:
        return None
    from fairlead.dispatch.redis.bus import RedisBus

    return RedisBus(settings.redis_url)
