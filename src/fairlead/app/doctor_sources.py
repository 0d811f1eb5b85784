"""Gathers the sources of the doctor's facts: the app's own parts, the servers behind its URLs, and Celery's workers."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fairlead import backends
from fairlead.app.runtime import Runtime
from fairlead.artifacts.objects import ObjectStore
from fairlead.config import Settings
from fairlead.domain.config import Config
from fairlead.errors import ConfigError, Unavailable
from fairlead.executors.celery.app_loading import application_of, applications_of
from fairlead.executors.celery.celery_client import known_tasks
from fairlead.executors.function import Handler
from fairlead.observe.doctor.facts import (
    ANSWERS_WITHIN,
    BalancerFacts,
    CeleryFacts,
    RedisFacts,
    RedisNode,
    Schema,
    Sources,
)
from fairlead.observe.doctor.settings import is_loopback
from fairlead.observe.snapshot import ShardSnapshot, read_leader


def sources_of(runtime: Runtime, *, outside: bool) -> Sources:
    """The sources from which the doctor reads its facts. If the app is not open, there is no store, and the
    configuration may be invalid."""
    settings, config, clock, is_open = runtime.settings, runtime.config, runtime.clock, runtime.is_open
    without_node = settings.redis_url is not None and runtime.node is None
    return Sources(
        settings,
        config,
        clock,
        schema=lambda: schema_of(settings.database_url),
        redis=lambda: _redis_of(settings, clock.now),
        disk=lambda: backends.disk_usage(settings.database_url),
        problems=() if is_open else runtime.declarations.problems(),
        observer=runtime.observer if is_open else None,
        leaders=(lambda: _leaders_of(settings)) if without_node else None,
        listens_on=runtime.listens_on,
        priority_problems=lambda: runtime.priorities.problems if is_open else {},
        outside=outside,
        objects=lambda: _objects_problem(runtime.files.objects if is_open else backends.objects_of(settings)),
        balancers=lambda: _balancers_of(settings, config, runtime.declarations.handlers),
        celery=(lambda: _celery_of(config, runtime.declarations.handlers)) if config.celery.lost_after else None,
    )


async def _objects_problem(objects: ObjectStore) -> str | None:
    """Why the object store cannot be used; None if it can."""
    try:
        async with asyncio.timeout(ANSWERS_WITHIN):
            await objects.check()
    except (Unavailable, TimeoutError) as error:
        return str(error) or _no_answer()
    return None


async def schema_of(database_url: str) -> Schema:
    """Read the schema version of the database without changing it. Raises Unavailable or StoreError if it cannot be
    read."""
    return Schema(*await backends.schema_versions(database_url))


async def _redis_of(settings: Settings, clock: Callable[[], float]) -> dict[str, RedisFacts]:
    """Read the facts about the Redis of each shard. If a server does not answer, its facts contain the error."""
    urls = backends.redis_urls(settings)
    facts = await asyncio.gather(*(_one_redis(url, clock) for url in urls.values()))
    return dict(zip(urls, facts, strict=True))


async def _one_redis(url: str, clock: Callable[[], float]) -> RedisFacts:
    hosts, has_login = backends.redis_hosts(url), backends.redis_has_login(url)
    shown = ", ".join(dict.fromkeys(hosts)) or "a local socket"
    on_loopback = all(map(is_loopback, hosts))
    try:
        async with asyncio.timeout(ANSWERS_WITHIN):
            nodes = [RedisNode(*node) for node in await backends.redis_info(url, clock)]
    except (Unavailable, TimeoutError) as error:
        return RedisFacts(shown, str(error) or _no_answer(), (), on_loopback, has_login)
    return RedisFacts(shown, None, nodes, on_loopback, has_login)


async def _leaders_of(settings: Settings) -> dict[str, ShardSnapshot]:
    """Read which process leads each shard, without standing for election."""
    leaders = {}
    for shard, leadership in backends.observed_leaderships(settings).items():
        leaders[shard] = await read_leader(leadership, ANSWERS_WITHIN)
        await leadership.close()
    return leaders


async def _celery_of(config: Config, handlers: Mapping[str, Handler]) -> dict[str, CeleryFacts]:
    """Read the facts about Celery's workers for each service that is a Celery task. Each Celery app is queried once."""
    try:
        apps = applications_of(config, handlers)
    except ConfigError:
        return {}  # reported as a finding of its own
    distinct = {id(app): app for app in apps.values()}
    facts = dict(zip(distinct, await asyncio.gather(*map(_one_celery, distinct.values())), strict=True))
    return {service: facts[id(app)] for service, app in apps.items()}


async def _one_celery(app: Any) -> CeleryFacts:
    try:
        async with asyncio.timeout(ANSWERS_WITHIN):
            return CeleryFacts(await asyncio.to_thread(known_tasks, app))
    except TimeoutError:
        return CeleryFacts(problem=_no_answer())
    except Exception as error:  # each transport raises errors of its own
        return CeleryFacts(problem=f"{type(error).__name__}: {error}")


async def _balancers_of(settings: Settings, config: Config, handlers: Mapping[str, Handler]) -> Sequence[BalancerFacts]:
    """Read the facts about the load balancers of Celery apps. A balancer is found only if its counts are in the broker
    of `[celery]` or in one of Fairlead's own Redis servers."""
    if importlib.util.find_spec("celery") is None:
        return ()
    urls = [url for url in backends.redis_urls(settings).values() if "+cluster://" not in url]
    try:
        async with asyncio.timeout(ANSWERS_WITHIN):
            return await asyncio.to_thread(_read_balancers, urls, config, handlers)
    except TimeoutError:
        return ()  # a Redis that does not answer is a finding of its own


def _read_balancers(urls: Sequence[str], config: Config, handlers: Mapping[str, Handler]) -> list[BalancerFacts]:
    from fairlead.celery.consumption import consumption_at, in_words  # imports Celery

    facts = {}
    for url in dict.fromkeys([*urls, *_redis_of_celery(config, handlers)]):
        # On any error, find nothing: the keys may belong to another program, or the login may not read them.
        with contextlib.suppress(Exception):
            for found in consumption_at(url):
                names = [f"{found.prefix}{index}" for index in range(found.queues)]
                # Two URLs may name the same server.
                facts[found.prefix, found.queues, found.workers, *found.unconsumed.items()] = BalancerFacts(
                    in_words(found.prefix, names),
                    found.workers,
                    found.unconsumed,
                    in_words(found.prefix, list(found.unconsumed)),
                )
    return list(facts.values())


def _redis_of_celery(config: Config, handlers: Mapping[str, Handler]) -> list[str]:
    """For each Celery app that the configuration or a service names, the URL of the Redis in which its load balancer
    keeps counts."""
    from fairlead.celery.balancer import redis_of_counts

    urls: list[str] = []
    with contextlib.suppress(ConfigError):  # a finding of its own
        apps = list(applications_of(config, handlers).values())
        if config.celery.app or config.celery.broker_url:
            apps.append(application_of(config.celery))
        for app in {id(app): app for app in apps if app is not None}.values():
            with contextlib.suppress(ConfigError):  # the broker is not Redis
                urls.append(redis_of_counts(app))
    return urls


def _no_answer() -> str:
    return f"it does not answer within {ANSWERS_WITHIN:g} s"
