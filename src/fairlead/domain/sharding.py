"""Which services may live on which shards: what is wrong with the way a configuration splits them.

Asked of what was written and not of what it became, so that a file with other mistakes is told of these as well; that
is why nothing here relies on the types of values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fairlead.domain.job import Priority
from fairlead.domain.limits import MAIN_SHARD

ALL_BANDS = ", ".join(Priority)


def contradictions(services: Mapping[str, Any], shards: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(key, what is wrong). `services` are the tables of `[services]`, `shards` the names of `[shards]`."""
    if MAIN_SHARD in shards:
        yield f"shards.{MAIN_SHARD}", "this is the Redis of REDIS_URL; give the shard another name"
    known = {MAIN_SHARD, *shards}
    tables = {name: said for name, said in services.items() if isinstance(said, dict)}
    for name, said in tables.items():
        for key, text in _of_service(said, known):
            yield f"services.{name}{key}", text
    yield from _pools_that_span(tables)


def pools_of(service: Mapping[str, Any]) -> dict[str, Any]:
    """The pools that it names, as a whole and of its regions, by their key."""
    regions = service.get("regions")
    tables = regions.items() if isinstance(regions, dict) else ()
    named = {f".regions.{name}.pool": said.get("pool") for name, said in tables if isinstance(said, dict)}
    return {key: pool for key, pool in {".pool": service.get("pool"), **named}.items() if pool is not None}


def total(shares: Any) -> int | None:
    """The sum of the shares' limits; None if not all of them have one."""
    if not isinstance(shares, dict) or not shares:
        return None
    limits: list[int] = []
    for share in shares.values():
        limit = share.get("limit") if isinstance(share, dict) else None
        if type(limit) is not int:
            return None
        limits.append(limit)
    return sum(limits)


def _of_service(said: Mapping[str, Any], known: set[str]) -> Iterator[tuple[str, str]]:
    shard, shares = said.get("shard"), said.get("shards")
    if isinstance(shard, str) and shard not in known:
        yield ".shard", _unknown(shard, known)
    if not isinstance(shares, dict) or not shares:
        return
    if shard is not None:
        yield "", "shard and shards are given; a service lives on one shard, or is split over several"
    for name in shares:
        if name not in known:
            yield f".shards.{name}", _unknown(name, known)
    yield from _not_a_partition(shares)
    limit, limits = said.get("limit"), total(shares)
    if limits is not None and type(limit) is int and limit != limits:
        yield ".limit", f"is {limit}, but its shards have {limits} slots together; leave it out, or write {limits}"
    if said.get("pool") is not None:
        yield ".pool", "a service that is split over shards cannot be in a pool: one Redis counts a pool's slots"
    if said.get("regions"):
        yield ".regions", "a service that is split over shards cannot have regions: one Redis counts a region's slots"
    if said.get("order") == "fifo":
        yield ".order", 'a FIFO lane knows no priority, so it cannot be split by it; use one shard, or order = "fair"'


def _not_a_partition(shares: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    where: dict[str, list[str]] = {}
    for shard, share in shares.items():
        bands = share.get("bands") if isinstance(share, dict) else None
        if not isinstance(bands, list) or not bands:
            return  # that is told already, and nothing can be said of the rest
        for band in bands:
            where.setdefault(str(band), []).append(shard)
    if missing := [band for band in Priority if band not in where]:
        yield ".shards", f"{' and '.join(missing)} would wait nowhere; each of {ALL_BANDS} belongs to exactly one shard"
    for band, there in where.items():
        if len(there) > 1:
            yield ".shards", f"{band} is listed twice ({', '.join(there)}); it belongs to exactly one shard"


def _pools_that_span(tables: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    pools: dict[str, dict[str, list[str]]] = {}
    for name, said in tables.items():
        shard = said.get("shard") or MAIN_SHARD
        for pool in dict.fromkeys(pools_of(said).values()):
            if isinstance(pool, str) and not said.get("shards"):
                pools.setdefault(pool, {}).setdefault(str(shard), []).append(name)
    for pool, there in pools.items():
        if len(there) > 1:
            spread = "; ".join(f"{', '.join(names)} on {shard}" for shard, names in sorted(there.items()))
            yield f"pools.{pool}", f"its services live on several shards ({spread}); one Redis counts a pool's slots"


def _unknown(shard: str, known: set[str]) -> str:
    return f"no shard is called {shard!r}; known are: {', '.join(sorted(known))}"
