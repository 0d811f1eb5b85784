"""Checks of a configuration that concern several sections.

The functions take the sections as raw TOML tables, before the models validate them, so that all problems are reported
together. A table may therefore hold values of any type. Each check yields (key, problem).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from fairlead.domain import body_template
from fairlead.domain.job import Priority
from fairlead.domain.rules import MAIN_SHARD

MAX_STEPS = 100
WAYS = ("url", "function", "regions", "celery", "openai")
USER_ID = "{user_id}"
_PLACEHOLDER = re.compile(r"\{[^{}]*\}")


def contradictions(
    services: Mapping[str, Any], pipelines: Mapping[str, Any], pools: Mapping[str, Any], shards: Mapping[str, Any]
) -> Iterator[tuple[str, str]]:
    """Yield a (key, problem) for every pipeline, pool or shard that does not fit the services, and for region names
    that contradict each other."""
    for name, steps in pipelines.items():
        if not isinstance(steps, list):
            continue
        if not steps:
            yield f"pipelines.{name}", "a pipeline needs at least one service"
        if len(steps) > MAX_STEPS:
            yield f"pipelines.{name}", f"a pipeline has at most {MAX_STEPS} steps"
        for step in dict.fromkeys(steps):
            if step not in services:
                yield f"pipelines.{name}", f"no service is called {step!r}; {known(services)}"
            yield from ((f"pipelines.{name}", text) for text in _results_too_early(step, steps, services))
        if name in services:
            yield f"pipelines.{name}", "a service has the same name; choose another name for the pipeline"
    for name, table in services.items():
        if isinstance(table, dict):
            yield from ((f"services.{name}{key}", text) for key, text in _wrong_pools(table, pools))
            yield from ((f"services.{name}.body{key}", text) for key, text in _wrong_body(table))
            if table.get("stream") is not None and not (table.get("url") or table.get("regions")):
                yield f"services.{name}.stream", "only HTTP endpoints answer with a stream; a function yields or emits"
    yield from alike_regions(services)
    yield from _shard_problems(services, shards)


def _wrong_body(service: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    body, celery = service.get("body"), service.get("celery")
    if not isinstance(body, Mapping):
        return
    if not (celery or service.get("url") or service.get("regions")):
        yield "", "only the requests of HTTP endpoints and Celery tasks have a body; this service has neither"
    elif service.get("format") != "raw" and not (celery and service.get("format") is None):
        yield "", 'needs format = "raw"; in an envelope, the payload is the job\'s own'
    yield from body_template.problems(body)


def _results_too_early(step: str, steps: list[Any], services: Mapping[str, Any]) -> Iterator[str]:
    """Yield a problem for each result that the body of `step` uses but that no earlier step produces."""
    table = services.get(step)
    body = table.get("body") if isinstance(table, Mapping) else None
    first = steps.index(step)
    for used in sorted(body_template.steps_used(body)) if isinstance(body, Mapping) else ():
        if used >= first:
            yield f"step {first} ({step}) needs the result of step {used}, which does not run before it"


def _wrong_pools(service: Mapping[str, Any], pools: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    named = pools_of(service)
    for key, pool in named.items():
        if pool not in pools:
            yield key, f"no pool is called {pool!r}; {known(pools)}"
    if len(named) > 1 and ".pool" in named:
        yield (
            ".pool",
            "the whole service is in a pool, and so are its regions; set pool here or in the regions, not both",
        )
    elif len(set(named.values())) > 1:
        spread = ", ".join(sorted(set(map(str, named.values()))))
        yield (
            ".regions",
            f"its regions are in several pools ({spread}); the calls of a service count in at most one pool",
        )


def unknown_plans(users: Mapping[str, Any], plans: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for user_id, table in users.items():
        plan = table.get("plan") if isinstance(table, dict) else None
        if plan is not None and plan not in plans:
            yield f"users.{user_id}.plan", f"no plan is called {plan!r}; {known(plans)}"


def unknown_services(prices: Iterable[str], services: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name in prices:
        if name not in services:
            yield f"prices.{name}", f"no service is called {name!r}; {known(services)}"


def unscheduled_features(schedules: Mapping[str, str], features: Collection[str]) -> Iterator[tuple[str, str]]:
    for name, feature in schedules.items():
        if feature not in features:
            yield f"schedules.{name}", f"no pipeline or service is called {feature!r}; {known(features)}"


def unknown_in_worker_pools(worker_pools: Mapping[str, Any], services: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    regions = regions_of(services)
    for name, table in worker_pools.items():
        for key, what, declared in (("services", "service", services), ("regions", "region", regions)):
            named = table.get(key) if isinstance(table, dict) else None
            for each in dict.fromkeys(named) if isinstance(named, list) else ():
                if each not in declared:
                    yield f"worker_pools.{name}.{key}", f"no {what} is called {each!r}; {known(declared)}"


def regions_of(services: Mapping[str, Any]) -> dict[str, None]:
    """The names of all regions of all services."""
    sections = (table.get("regions") for table in services.values() if isinstance(table, dict))
    return {region: None for section in sections if isinstance(section, dict) for region in section}


def alike_regions(services: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield a (key, problem) for regions whose names differ in case only. Requests may write region names in upper or
    lower case, so such names would be ambiguous."""
    first: dict[str, str] = {}
    for name, table in services.items():
        for region in regions_of({name: table}):
            other = first.setdefault(region.casefold(), region)
            if other != region:
                yield (
                    f"services.{name}.regions.{region}",
                    f"differs from the region {other!r} in case only; use one name",
                )


def spelled(region: str, regions: Iterable[str]) -> str:
    """The configured spelling of a region name, found regardless of case. Returns `region` unchanged if no region
    matches."""
    folded = region.casefold()
    return next((each for each in regions if each.casefold() == folded), region)


def priority_url_problem(url: str) -> str | None:
    """Return what is wrong with `priority.url`, or None. The user id may be part of the path or query, but never of the
    host."""
    parts = urlsplit(url)
    if unknown := set(_PLACEHOLDER.findall(url)) - {USER_ID}:
        return f"{', '.join(sorted(unknown))} is not a placeholder; {USER_ID} is the only one"
    if USER_ID not in url:
        if "?" in url or "#" in url:
            return f"a URL with a query must be complete, with {USER_ID} where the user id goes"
        return None
    if USER_ID in parts.netloc:
        return f"{USER_ID} is allowed in the path and the query, not in the host"
    if USER_ID not in parts.path + parts.query:
        return f"{USER_ID} must be in the path or the query; the part after # is never sent"
    return None


def too_many_ways(service: Mapping[str, Any]) -> str | None:
    ways = [way for way in WAYS if service.get(way)]
    return (
        f"{' and '.join(ways)} are both set; a service has exactly one of {', '.join(WAYS)}" if len(ways) > 1 else None
    )


def front_problem(service: Mapping[str, Any]) -> str | None:
    """Return the problem of a service's settings for the OpenAI front, or None. `service` has only the keys that are
    set."""
    speaks = service.get("format") == "openai"
    if speaks and not (service.get("url") or service.get("regions")):
        return 'format = "openai" needs a url or regions'
    if speaks and service.get("body") is not None:
        return 'body: a service with format = "openai" sends the bodies of its clients'
    if service.get("openai") and service.get("format"):
        return "openai and format are both set; openai needs no format"
    named = [key for key in ("models", "aliases") if service.get(key)]
    if named and not speaks and any(service.get(way) for way in ("url", "regions", "celery", "function")):
        return f'{" and ".join(named)}: only with openai, format = "openai" or @app.model'
    if service.get("retry_streams") and not (speaks or service.get("openai")):
        return 'retry_streams: only with openai, or with format = "openai"'
    if service.get("responses") and not (speaks or service.get("openai")):
        return 'responses: only with openai, or with format = "openai"'
    return None


def known(names: Collection[str]) -> str:
    return f"known are: {', '.join(sorted(names))}" if names else "none is declared"


ALL_BANDS = ", ".join(Priority)


def _shard_problems(services: Mapping[str, Any], shards: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield a (key, problem) for services that do not fit the shards. `services` holds the tables of `[services]`,
    `shards` the names of `[shards]`."""
    if MAIN_SHARD in shards:
        yield f"shards.{MAIN_SHARD}", "this name is reserved for the Redis of REDIS_URL; choose another name"
    known = {MAIN_SHARD, *shards}
    tables = {name: table for name, table in services.items() if isinstance(table, dict)}
    for name, table in tables.items():
        for key, text in _service_problems(table, known):
            yield f"services.{name}{key}", text
    yield from _pools_that_span(tables)


def pools_of(service: Mapping[str, Any]) -> dict[str, Any]:
    """Map each `pool` setting of a service and its regions to the pool it names. The keys are the positions of the
    settings within the service's table, such as `.pool` and `.regions.eu.pool`."""
    regions = service.get("regions")
    tables = regions.items() if isinstance(regions, dict) else ()
    named = {f".regions.{name}.pool": table.get("pool") for name, table in tables if isinstance(table, dict)}
    return {key: pool for key, pool in {".pool": service.get("pool"), **named}.items() if pool is not None}


def total_limit(shares: Any) -> int | None:
    """Add up the limits of a service that is split over several shards. `shares` is its table `shards`, with one entry
    per shard. Returns None if the service is not split, or if an entry has no integer `limit`."""
    if not isinstance(shares, dict) or not shares:
        return None
    limits: list[int] = []
    for share in shares.values():
        limit = share.get("limit") if isinstance(share, dict) else None
        if type(limit) is not int:
            return None
        limits.append(limit)
    return sum(limits)


def _service_problems(service: Mapping[str, Any], known: set[str]) -> Iterator[tuple[str, str]]:
    shard, shares = service.get("shard"), service.get("shards")
    if isinstance(shard, str) and shard not in known:
        yield ".shard", _unknown(shard, known)
    if not isinstance(shares, dict) or not shares:
        return
    if shard is not None:
        yield "", "shard and shards are both set; a service lives on one shard or is split over several"
    for name in shares:
        if name not in known:
            yield f".shards.{name}", _unknown(name, known)
    yield from _not_a_partition(shares)
    limit, limits = service.get("limit"), total_limit(shares)
    if limits is not None and type(limit) is int and limit != limits:
        yield ".limit", f"is {limit}, but its shards have {limits} slots in total; remove it or set it to {limits}"
    if service.get("pool") is not None:
        yield ".pool", "a service that is split over shards cannot be in a pool: one Redis counts a pool's slots"
    if service.get("regions"):
        yield ".regions", "a service that is split over shards cannot have regions: one Redis counts a region's slots"
    if service.get("order") == "fifo":
        yield ".order", 'a FIFO lane ignores priority and cannot be split by it; use one shard, or order = "fair"'


def _not_a_partition(shares: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    where: dict[str, list[str]] = {}
    for shard, share in shares.items():
        bands = share.get("bands") if isinstance(share, dict) else None
        if not isinstance(bands, list) or not bands:
            return  # the model reports this; nothing more can be checked
        for band in bands:
            where.setdefault(str(band), []).append(shard)
    if missing := [band for band in Priority if band not in where]:
        yield ".shards", f"{' and '.join(missing)} is on no shard; each of {ALL_BANDS} belongs to exactly one shard"
    for band, there in where.items():
        if len(there) > 1:
            yield ".shards", f"{band} is listed twice ({', '.join(there)}); it belongs to exactly one shard"


def _pools_that_span(tables: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    pools: dict[str, dict[str, list[str]]] = {}
    for name, table in tables.items():
        shard = table.get("shard") or MAIN_SHARD
        for pool in dict.fromkeys(pools_of(table).values()):
            if isinstance(pool, str) and not table.get("shards"):
                pools.setdefault(pool, {}).setdefault(str(shard), []).append(name)
    for pool, there in pools.items():
        if len(there) > 1:
            spread = "; ".join(f"{', '.join(names)} on {shard}" for shard, names in sorted(there.items()))
            yield f"pools.{pool}", f"its services live on several shards ({spread}); one Redis counts a pool's slots"


def _unknown(shard: str, known: set[str]) -> str:
    return f"no shard is called {shard!r}; known are: {', '.join(sorted(known))}"
