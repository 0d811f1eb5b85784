"""Creates the stores and dispatchers that the settings name by URL. No other module imports concrete stores and
dispatchers."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence, Set
from functools import partial
from typing import Any

from fairlead.artifacts.directory import DirectoryObjects
from fairlead.artifacts.objects import ObjectStore
from fairlead.config import Settings, sqlite_options
from fairlead.dispatch.memory import MemoryDispatcher
from fairlead.dispatch.memory.claim_new import claim_new
from fairlead.dispatch.memory.output_log import MemoryOutputLog
from fairlead.dispatch.messages import PubSub
from fairlead.dispatch.output_log import OutputLog
from fairlead.dispatch.port import Leadership, Shard
from fairlead.domain.budgets import NO_BUDGETS, Budgets
from fairlead.domain.config import Config
from fairlead.domain.prices import NO_PRICES, Prices
from fairlead.domain.rules import MAIN_SHARD
from fairlead.domain.transitions import Submit
from fairlead.engine.clock import Clock
from fairlead.errors import ConfigError, InvalidInput
from fairlead.store.port import Accepted, Store
from fairlead.store.sqlite import SqliteStore, connect, gil

POSTGRES = ("postgresql://", "postgres://")
BUCKETS = ("s3://", "gs://", "az://")
PREFIX = "fairlead"


def store_of(
    database_url: str,
    clock: Callable[[], float],
    *,
    overwrites: bool = False,
    prices: Prices = NO_PRICES,
    budgets: Budgets = NO_BUDGETS,
) -> Store:
    """Create the store for a database URL. With `overwrites`, a database file keeps nothing of what is erased. Raises
    ConfigError if the URL is not supported, or if the driver for its database is not installed."""
    if database_url.startswith(POSTGRES):
        try:
            from fairlead.store.postgres import PostgresStore
        except ImportError:
            raise ConfigError(["DATABASE_URL: PostgreSQL needs its driver: pip install 'fairlead[postgres]'"]) from None
        # PostgreSQL uses its own clock for stored times.
        return PostgresStore(database_url, prices=prices, budgets=budgets)
    options = sqlite_options(database_url)
    if options.short_switch_interval:
        gil.shorten_switch_interval()
    return SqliteStore(
        options.path,
        clock=clock,
        synchronous=options.synchronous,
        overwrites=overwrites,
        prices=prices,
        budgets=budgets,
    )


def has_clock(database_url: str) -> bool:
    """Whether the database has its own clock. SQLite uses the clock of the machine."""
    return database_url.startswith(POSTGRES)


def writers_of(database_url: str) -> int:
    """How many commits may run at the same time. SQLite has one writer; PostgreSQL can execute one commit while it
    flushes another."""
    return 2 if database_url.startswith(POSTGRES) else 1


async def submit_on(database_url: str, connection: Any, submits: Sequence[Submit]) -> Sequence[Accepted]:
    """Submit jobs within the caller's own transaction, over the caller's connection to the same database."""
    if not database_url.startswith(POSTGRES):
        raise InvalidInput("connection= needs PostgreSQL as the database: set DATABASE_URL", pointer="/connection")
    from fairlead.store.postgres import caller_transaction

    return await caller_transaction.submit_on(connection, submits)


async def schema_versions(database_url: str) -> tuple[int | None, int]:
    """The schema version of the database, and the schema version of this release. The first is None if the database has
    no tables of Fairlead. Does not change the database. Raises Unavailable or StoreError."""
    if database_url.startswith(POSTGRES):
        from fairlead.store.postgres import schema

        return await schema.found_version(database_url), schema.known_version()
    path = sqlite_options(database_url).path
    return connect.found_version(path), connect.known_version()


def disk_usage(database_url: str) -> tuple[int, int] | None:
    """The free and the total bytes of the disk with the database's file; None if the database is a server."""
    if database_url.startswith(POSTGRES):
        return None
    path = sqlite_options(database_url).path
    try:
        usage = shutil.disk_usage(os.path.dirname(os.path.abspath(path)))
    except OSError:
        return None
    return usage.free, usage.total


def shards_of(settings: Settings, config: Config, process: str, servers: Set[str], clock: Clock) -> list[Shard]:
    """Create the dispatchers of each shard for one process. `process` is the name under which the process stands for
    election as leader. Jobs are claimed only from the Redis servers in `servers`, on which the queue was built
    according to the database."""
    if settings.redis_url is None:
        dispatcher = MemoryDispatcher(clock.steady, database=clock.now)
        return [Shard(MAIN_SHARD, dispatcher, dispatcher, lambda: dispatcher, None, partial(claim_new, dispatcher))]
    from fairlead.dispatch.redis import RedisDispatcher
    from fairlead.dispatch.redis.claim_new import ClaimNew
    from fairlead.dispatch.redis.leadership import RedisLeadership

    shards = []
    for name, url in redis_urls(settings).items():
        prefix = _prefix(name)
        claimer = partial(RedisDispatcher, url, prefix=prefix, database=clock.now, admit=servers.__contains__)
        main = claimer()
        new = ClaimNew(main)
        shards.append(
            Shard(
                name,
                main,
                RedisDispatcher(url, prefix=prefix, database=clock.now),
                claimer,
                RedisLeadership(url, prefix=prefix, holder=process, ttl=config.manager.leader_ttl),
                new,
                new,
            )
        )
    return shards


def observed_leaderships(settings: Settings) -> dict[str, Leadership]:
    """For each shard, an object that reads which process leads it. It does not stand for election."""
    from fairlead.dispatch.redis.leadership import RedisLeadership

    return {
        name: RedisLeadership(url, prefix=_prefix(name), holder="nobody") for name, url in redis_urls(settings).items()
    }


def bus_of(settings: Settings) -> PubSub | None:
    if settings.redis_url is None:
        return None
    from fairlead.dispatch.redis.pubsub import RedisPubSub

    return RedisPubSub(settings.redis_url)


def output_log_of(settings: Settings, clock: Clock) -> OutputLog:
    if settings.redis_url is None:
        return MemoryOutputLog(clock.steady)
    from fairlead.dispatch.redis.output_log import RedisOutputLog

    return RedisOutputLog(settings.redis_url, prefix=PREFIX)


def objects_of(settings: Settings) -> ObjectStore:
    """Create the object store of the settings: by default a directory beside the database."""
    url = settings.config.artifacts.url
    if url is None:
        if settings.database_url.startswith(POSTGRES):
            return DirectoryObjects("fairlead-files")
        return DirectoryObjects(f"{sqlite_options(settings.database_url).path}-files")
    if url.startswith("file://"):
        return DirectoryObjects(url.removeprefix("file://"))
    if "://" not in url:
        return DirectoryObjects(url)
    if not url.startswith(BUCKETS):
        shown = f"{url.partition('://')[0]}://..."
        raise ConfigError([f"ARTIFACTS_URL: {shown} is not supported; use a directory, or {', '.join(BUCKETS)}"])
    try:
        from fairlead.artifacts.remote import RemoteObjects
    except ImportError:
        raise ConfigError(["ARTIFACTS_URL: a bucket needs its client: pip install 'fairlead[artifacts]'"]) from None
    return RemoteObjects(url)


def redis_urls(settings: Settings) -> dict[str, str]:
    """The Redis URL of each shard; empty without Redis."""
    return {} if settings.redis_url is None else {MAIN_SHARD: settings.redis_url, **settings.shards}


def redis_hosts(url: str) -> list[str]:
    """The host names in the URL; empty for a Unix socket."""
    from fairlead.dispatch.redis import info

    return info.hosts_of(url)


def redis_has_login(url: str) -> bool:
    """Whether the URL has a password or a client certificate."""
    from fairlead.dispatch.redis import info

    return info.has_login(url)


async def redis_info(url: str, clock: Callable[[], float]) -> list[tuple[dict[str, str], float, float]]:
    """The INFO and the TIME of the Redis server, or of each primary of a Cluster, with the value of `clock` when they
    were read. Raises Unavailable."""
    from fairlead.dispatch.redis import info

    return await info.fetch(url, clock)


def _prefix(shard: str) -> str:
    return PREFIX if shard == MAIN_SHARD else f"{PREFIX}.{shard}"
