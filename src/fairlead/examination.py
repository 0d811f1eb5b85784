"""What the doctor asks of concrete engines: it knows the ports, and `engines.py` which engine is behind an address."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fairlead.config import Settings, sqlite_options
from fairlead.domain.config import Config
from fairlead.domain.limits import MAIN_SHARD
from fairlead.engines import POSTGRES, PREFIX
from fairlead.errors import ConfigError, Unavailable
from fairlead.executors.celery.application import applications_of
from fairlead.executors.celery.lookout import known_tasks
from fairlead.executors.function import Handler
from fairlead.runtime.clock import Clock
from fairlead.runtime.doctor.access import is_loopback
from fairlead.runtime.doctor.facts import CeleryFacts, LineFacts, RedisFacts, RedisNode, Schema
from fairlead.runtime.doctor.gather import ANSWERS_WITHIN, Sources, led
from fairlead.runtime.priority import Priorities
from fairlead.runtime.process import Process
from fairlead.store.port import Store


def sources_of(
    settings: Settings,
    config: Config,
    clock: Clock,
    *,
    problems: Sequence[str],
    store: Store | None,
    process: Process | None,
    listens_on: Sequence[str],
    priorities: Priorities | None,
    outside: bool,
    handlers: Mapping[str, Handler],
) -> Sources:
    without_line = settings.redis_url is not None and process is None
    return Sources(
        settings,
        config,
        clock,
        schema=lambda: schema_of(settings.database_url),
        redis=lambda: _redis_of(settings, clock.now),
        disk=lambda: _disk_of(settings.database_url),
        problems=problems,
        store=store,
        process=process,
        leaders=(lambda: _leaders_of(settings)) if without_line else None,
        listens_on=listens_on,
        priority_problems=lambda: {} if priorities is None else priorities.problems,
        outside=outside,
        celery=(lambda: _celery_of(config, handlers)) if config.celery.lost_after else None,
    )


async def schema_of(database_url: str) -> Schema:
    """Raises Unavailable or StoreError if it cannot be asked; changes nothing."""
    if database_url.startswith(POSTGRES):
        from fairlead.store.postgres import schema

        return Schema(await schema.found_version(database_url), schema.known_version())
    from fairlead.store.sqlite import connect

    path, _ = sqlite_options(database_url)
    return Schema(connect.found_version(path), connect.known_version())


def _disk_of(database_url: str) -> tuple[int, int] | None:
    """(free, total) bytes where the database's file is; None if it is another machine's matter."""
    if database_url.startswith(POSTGRES):
        return None
    path, _ = sqlite_options(database_url)
    try:
        usage = shutil.disk_usage(os.path.dirname(os.path.abspath(path)))
    except OSError:
        return None
    return usage.free, usage.total


async def _redis_of(settings: Settings, clock: Callable[[], float]) -> dict[str, RedisFacts]:
    """By shard. One that does not answer is there with its problem."""
    urls = _redis_urls(settings)
    found = await asyncio.gather(*(_one_redis(url, clock) for url in urls.values()))
    return dict(zip(urls, found, strict=True))


async def _one_redis(url: str, clock: Callable[[], float]) -> RedisFacts:
    from fairlead.dispatch.redis import facts

    hosts = facts.hosts_of(url)
    shown = ", ".join(dict.fromkeys(hosts)) or "a socket of this machine"
    on_loopback, has_login = all(map(is_loopback, hosts)), facts.has_login(url)
    try:
        async with asyncio.timeout(ANSWERS_WITHIN):
            nodes = [RedisNode(info, time, asked_at) for info, time, asked_at in await facts.ask(url, clock)]
    except (Unavailable, TimeoutError) as error:
        problem = str(error) or f"it does not answer within {ANSWERS_WITHIN:g} s"
        return RedisFacts(shown, problem, (), on_loopback, has_login)
    return RedisFacts(shown, None, nodes, on_loopback, has_login)


async def _leaders_of(settings: Settings) -> dict[str, LineFacts]:
    """By shard: who leads, asked by somebody who does not stand for election."""
    from fairlead.dispatch.redis.leadership import RedisLeadership

    found = {}
    for name, url in _redis_urls(settings).items():
        prefix = PREFIX if name == MAIN_SHARD else f"{PREFIX}.{name}"
        leadership = RedisLeadership(url, prefix=prefix, holder="nobody")
        found[name] = await led(leadership)
        await leadership.close()
    return found


def _redis_urls(settings: Settings) -> dict[str, str]:
    return {} if settings.redis_url is None else {MAIN_SHARD: settings.redis_url, **settings.shards}


async def _celery_of(config: Config, handlers: Mapping[str, Handler]) -> dict[str, CeleryFacts]:
    """By service. Each Celery app is asked once."""
    try:
        apps = applications_of(config, handlers)
    except ConfigError:
        return {}  # a finding of its own
    distinct = {id(app): app for app in apps.values()}
    found = dict(zip(distinct, await asyncio.gather(*map(_one_celery, distinct.values())), strict=True))
    return {service: found[id(app)] for service, app in apps.items()}


async def _one_celery(app: Any) -> CeleryFacts:
    try:
        async with asyncio.timeout(ANSWERS_WITHIN):
            return CeleryFacts(await asyncio.to_thread(known_tasks, app))
    except TimeoutError:
        return CeleryFacts(problem=f"it does not answer within {ANSWERS_WITHIN:g} s")
    except Exception as error:  # whatever the transport raises
        return CeleryFacts(problem=f"{type(error).__name__}: {error}")
