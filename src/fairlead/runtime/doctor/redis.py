"""Redis: can it be reached, may it lose parts of the line, is it safe?"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from fairlead.runtime.doctor.facts import Facts, RedisFacts, RedisNode
from fairlead.runtime.doctor.finding import Finding, Kind, Severity, sentence

MUCH, TOO_MUCH = 0.8, 0.95
"""Of `maxmemory`."""

Version = tuple[int, ...]
# CVE-2025-49844: a script may run code of its own in the server. The first release of each series without it.
REDIS_SAFE: tuple[Version, ...] = ((6, 2, 20), (7, 2, 11), (7, 4, 6), (8, 0, 4), (8, 2, 2))
# The same for Valkey, and CVE-2025-67733, where a script's error reaches into another answer.
VALKEY_SAFE: tuple[Version, ...] = ((7, 2, 12), (8, 0, 7), (8, 1, 6), (9, 0, 3))
# CVE-2026-23479: a blocked client that is evicted leaves memory in use behind. Of Redis alone.
BLOCKING_SINCE, BLOCKING_UNTIL = (7, 2, 0), (8, 6, 3)

UNREACHABLE = Kind("redis-unreachable", Severity.ERROR, "a Redis cannot be used")
OLD = Kind("redis-old", Severity.WARNING, "a Redis has known security holes")
EVICTS = Kind("redis-evicts", Severity.ERROR, "a Redis may throw parts of the line away")
MEMORY = Kind("redis-memory", Severity.WARNING, "a Redis has hardly any memory left")
NO_PASSWORD = Kind("redis-no-password", Severity.WARNING, "a Redis on the network asks for no password")


def check(facts: Facts) -> Iterator[Finding]:
    for shard, redis in facts.redis.items():
        if redis.problem is not None:
            yield UNREACHABLE.found(
                f"{redis.shown}: {sentence(redis.problem)} Jobs are accepted and wait; nothing is granted",
                fix="start it, or correct its address "
                f"({'REDIS_URL' if shard == 'main' else f'[shards] {shard}'}): `fairlead config show` has it",
                about=shard,
                shard=shard,
                reason=redis.problem,
            )
            continue
        for node in redis.nodes:
            # On a Cluster each primary has a version and a memory of its own.
            about = shard if len(redis.nodes) == 1 else f"{shard}, port {node.info.get('tcp_port', '?')}"
            yield from _version(shard, about, redis, node.info)
            yield from _memory(shard, about, redis, node)
        if not redis.on_loopback and not redis.has_login:
            yield NO_PASSWORD.found(
                f"{redis.shown} is reached over the network without a login: whoever reaches it can read who waits for "
                "what, and end or fake any lease",
                fix="set one, `redis-cli CONFIG SET requirepass SECRET`, and put it into the address: "
                "redis://:SECRET@host:6379/0",
                about=shard,
                shard=shard,
            )


def _version(shard: str, about: str, redis: RedisFacts, info: Mapping[str, str]) -> Iterator[Finding]:
    valkey = info.get("valkey_version")
    name, text = ("Valkey", valkey) if valkey else ("Redis", info.get("redis_version", ""))
    version = _numbers(text)
    if not version:
        return
    safe = VALKEY_SAFE if valkey else REDIS_SAFE
    if not _is_safe(version, safe):
        yield OLD.found(
            f"{redis.shown} is {name} {text}: CVE-2025-49844, with which a script runs any code in the server, is open",
            fix=f"upgrade it, at least to {' or '.join('.'.join(map(str, each)) for each in safe)}",
            about=about,
            # Who reaches it there may run code on this machine anyway.
            severity=Severity.NOTE if redis.on_loopback else None,
            shard=shard,
            server=name,
            version=text,
            cve="CVE-2025-49844",
        )
    elif not valkey and BLOCKING_SINCE <= version < BLOCKING_UNTIL:
        yield OLD.found(
            f"{redis.shown} is Redis {text}: CVE-2026-23479 (who may log in may run code, if clients are evicted) is "
            "open, unless your vendor has closed it in this version",
            fix="upgrade it to 8.6.3 or newer; Fairlead itself uses no blocking command",
            about=about,
            severity=Severity.NOTE,
            shard=shard,
            server=name,
            version=text,
            cve="CVE-2026-23479",
        )


def _numbers(text: str) -> Version:
    found = re.match(r"(\d+)\.(\d+)\.(\d+)", text)
    return tuple(int(part) for part in found.groups()) if found else ()


def _is_safe(version: Version, floors: tuple[Version, ...]) -> bool:
    """Each series has a release of its own that closed it; a series without one that is older than the last is open."""
    for floor in floors:
        if version[:2] == floor[:2]:
            return version >= floor
    return version > floors[-1]


def _memory(shard: str, about: str, redis: RedisFacts, node: RedisNode) -> Iterator[Finding]:
    most, used = (int(node.info.get(name, 0) or 0) for name in ("maxmemory", "used_memory"))
    policy = node.info.get("maxmemory_policy", "noeviction")
    if not most:
        return
    if policy != "noeviction":
        yield EVICTS.found(
            f"{redis.shown} has maxmemory-policy {policy}: when its memory is full it drops keys, and with them "
            "parts of the line, which must then be rebuilt",
            fix="`redis-cli CONFIG SET maxmemory-policy noeviction`, and the same in its redis.conf",
            about=about,
            shard=shard,
            policy=policy,
            evicted_keys=int(node.info.get("evicted_keys", 0) or 0),
        )
    if used > MUCH * most:
        yield MEMORY.found(
            f"{redis.shown} uses {used >> 20} of {most >> 20} MiB; when it is full, nothing more is put in line or "
            "granted until it has room",
            fix=f"`redis-cli CONFIG SET maxmemory {2 * most}`, and the same in its redis.conf",
            about=about,
            severity=Severity.ERROR if used > TOO_MUCH * most else None,
            shard=shard,
            used_memory=used,
            maxmemory=most,
        )
