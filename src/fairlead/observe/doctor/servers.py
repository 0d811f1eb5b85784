"""Checks of the servers other than the database: Redis and its pub/sub, Celery's broker and workers, and the clocks of
all machines.

Jobs use the clocks of the database and the dispatcher, so a machine with a wrong clock does not affect them. But the
times in the logs of that machine are wrong, and certificates may seem expired there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from fairlead.observe.doctor.facts import BalancerFacts, Facts, RedisFacts, RedisNode
from fairlead.observe.doctor.finding import Finding, Kind, Severity, counted, sentence, shown

MUCH, TOO_MUCH = 0.8, 0.95
"""The fractions of `maxmemory` in use from which a warning and an error are reported."""

Version = tuple[int, ...]
# CVE-2025-49844: a script may run native code in the server. The first fixed release of each series.
REDIS_SAFE: tuple[Version, ...] = ((6, 2, 20), (7, 2, 11), (7, 4, 6), (8, 0, 4), (8, 2, 2))
# The same for Valkey, where these releases also fix CVE-2025-67733: a script's error may corrupt another response.
VALKEY_SAFE: tuple[Version, ...] = ((7, 2, 12), (8, 0, 7), (8, 1, 6), (9, 0, 3))
# CVE-2026-23479: use after free when a blocked client is evicted. Redis only.
BLOCKING_SINCE, BLOCKING_UNTIL = (7, 2, 0), (8, 6, 3)

OBJECTS_UNREACHABLE = Kind("object-store-unreachable", Severity.ERROR, "the object store cannot be used")
OBJECTS_LOCAL = Kind("object-store-local", Severity.WARNING, "files are not shared between machines")
UNREACHABLE = Kind("redis-unreachable", Severity.ERROR, "a Redis cannot be used")
OLD = Kind("redis-old", Severity.WARNING, "a Redis has known vulnerabilities")
EVICTS = Kind("redis-evicts", Severity.ERROR, "a Redis may evict parts of the queue")
MEMORY = Kind("redis-memory", Severity.WARNING, "a Redis is almost out of memory")
NO_PASSWORD = Kind("redis-no-password", Severity.WARNING, "a Redis on the network has no password")
EVENTS_LOST = Kind("events-not-arriving", Severity.ERROR, "live updates do not arrive", passing=True)
BROKER_AWAY = Kind("celery-unreachable", Severity.ERROR, "Celery's broker cannot be used", passing=True)
NO_WORKER = Kind("celery-no-worker", Severity.ERROR, "no Celery worker answers", passing=True)
TASK_UNKNOWN = Kind("celery-task-unknown", Severity.ERROR, "no Celery worker has the task of a service")
UNCONSUMED = Kind(
    "celery-queue-unconsumed", Severity.WARNING, "no Celery worker consumes a balanced queue", passing=True
)
FAR = 5.0
"""Clocks that differ by more than this many seconds are reported. The delay of a registration looks like a difference
too, but is shorter."""

SKEW = Kind("clock-skew", Severity.WARNING, "clocks differ")


def check_redis(facts: Facts) -> Iterator[Finding]:
    for shard, redis in facts.redis.items():
        if redis.problem is not None:
            yield UNREACHABLE.found(
                f"{redis.shown}: {sentence(redis.problem)} Jobs are accepted and wait; none starts",
                fix="start it, or correct its address "
                f"({'REDIS_URL' if shard == 'main' else f'[shards] {shard}'}): `fairlead config show` has it",
                about=shard,
                shard=shard,
                reason=redis.problem,
            )
            continue
        for node in redis.nodes:
            # In a Cluster each primary has its own version and memory.
            about = shard if len(redis.nodes) == 1 else f"{shard}, port {node.info.get('tcp_port', '?')}"
            yield from _version(shard, about, redis, node.info)
            yield from _memory(shard, about, redis, node)
        if not redis.on_loopback and not redis.has_login:
            yield NO_PASSWORD.found(
                f"{redis.shown} is reached over the network without a login: any client can read the queue and "
                "end or forge leases",
                fix="set one with `redis-cli CONFIG SET requirepass SECRET` and add it to the URL: "
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
            f"{redis.shown} is {name} {text}: it is open to CVE-2025-49844, which lets a script run code in the server",
            fix=f"upgrade it to at least {' or '.join('.'.join(map(str, each)) for each in safe)}",
            about=about,
            # Clients on this machine can run code here anyway.
            severity=Severity.NOTE if redis.on_loopback else None,
            shard=shard,
            server=name,
            version=text,
            cve="CVE-2025-49844",
        )
    elif not valkey and BLOCKING_SINCE <= version < BLOCKING_UNTIL:
        yield OLD.found(
            f"{redis.shown} is Redis {text}: it is open to CVE-2026-23479 (a client that can log in may run code, if "
            "clients are evicted), unless your vendor has fixed that in this version",
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
    """Whether this version has the fix. `floors` has the first fixed release of each series that got the fix, in
    ascending order. Any other series is safe only if it is newer than all of them."""
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
            f"{redis.shown} has maxmemory-policy {policy}: when its memory is full it evicts keys, and the "
            "queues must be rebuilt",
            fix="`redis-cli CONFIG SET maxmemory-policy noeviction`, and the same in its redis.conf",
            about=about,
            shard=shard,
            policy=policy,
            evicted_keys=int(node.info.get("evicted_keys", 0) or 0),
        )
    if used > MUCH * most:
        yield MEMORY.found(
            f"{redis.shown} uses {used >> 20} of {most >> 20} MiB; when it is full, no job is queued or started "
            "until memory is free",
            fix=f"`redis-cli CONFIG SET maxmemory {2 * most}`, and the same in its redis.conf",
            about=about,
            severity=Severity.ERROR if used > TOO_MUCH * most else None,
            shard=shard,
            used_memory=used,
            maxmemory=most,
        )


def check_pubsub(facts: Facts) -> Iterator[Finding]:
    if facts.echo is None or facts.echo.problem is None:
        return
    yield EVENTS_LOST.found(
        f"a message from this gateway to itself through Redis did not arrive: {facts.echo.problem}",
        fix="let the user of REDIS_URL publish and subscribe: `redis-cli ACL SETUSER NAME allchannels +@pubsub`; if it "
        "may already, check that no proxy between the gateway and Redis closes long connections",
        reason=facts.echo.problem,
    )


def check_objects(facts: Facts) -> Iterator[Finding]:
    if facts.objects_problem is not None:
        yield OBJECTS_UNREACHABLE.found(
            f"{sentence(facts.objects_problem)} Jobs with files wait until it can be reached",
            fix="start it, or correct ARTIFACTS_URL: `fairlead config show` prints it",
            reason=facts.objects_problem,
        )
    hosts = sorted({process.host for process in facts.processes})
    if facts.distributed and facts.config.artifacts.url is None and len(hosts) > 1:
        yield OBJECTS_LOCAL.found(
            f"processes run on {len(hosts)} machines ({', '.join(hosts[:5])}), and each keeps files in a directory of "
            "its own: a file that one of them saved cannot be read by the others",
            fix="set ARTIFACTS_URL to a bucket or a shared directory for all processes, and restart them: "
            "`fairlead config show` prints it",
            hosts=hosts,
        )


def check_celery(facts: Facts) -> Iterator[Finding]:
    yield from _celery_services(facts)
    for balancer in facts.balancers:
        yield from _unconsumed(balancer)


def _unconsumed(balancer: BalancerFacts) -> Iterator[Finding]:
    """Find queues of a load balancer that no worker consumes. A balancer without workers and tasks is not in use, and
    gives no finding."""
    waiting = sum(balancer.unconsumed.values())
    if not balancer.unconsumed or not (balancer.workers or waiting):
        return
    tasks = f"{counted(waiting, 'task', 'wait')} there" if waiting else "tasks that are sent there will wait"
    names = ",".join(balancer.unconsumed)
    yield UNCONSUMED.found(
        f"{counted(balancer.workers, 'worker')} of the load balancer for {balancer.queues} sent a heartbeat recently, "
        f"and none consumes {balancer.shown}: {tasks}",
        fix="start workers without -Q: `celery -A APP worker`; or one more for these queues: "
        f"`celery -A APP worker -Q {names}`",
        about=balancer.queues,
        severity=Severity.ERROR if waiting else Severity.WARNING,
        workers=balancer.workers,
        waiting=waiting,
        unconsumed=list(balancer.unconsumed),
    )


def _celery_services(facts: Facts) -> Iterator[Finding]:
    for service, celery in sorted(facts.celery.items()):
        task = facts.config.services[service].celery or ""
        if celery.problem is not None:
            yield BROKER_AWAY.found(
                f"tasks of {service} cannot be sent: {celery.problem}",
                fix="start the broker, or correct its address: `fairlead config show` has it under [celery]",
                about=service,
                service=service,
                reason=celery.problem,
            )
        elif not celery.tasks:
            yield NO_WORKER.found(
                f"calls of {service} wait in Celery's queue and fail after celery.lost_after "
                f"({facts.config.celery.lost_after:g} s)",
                fix="start one: `celery -A APP worker`; if its workers have remote control switched off, set "
                "celery.lost_after to 0",
                about=service,
                service=service,
                task=task,
            )
        elif not any(task in known for known in celery.tasks.values()):
            yield TASK_UNKNOWN.found(
                f"{counted(len(celery.tasks), 'worker', 'answer')}, but none has {task}: every job of {service} fails",
                fix=f"correct services.{service}.celery: `celery -A APP inspect registered` lists their tasks; or "
                "restart the workers with the code that has it: `celery -A APP worker`",
                about=service,
                service=service,
                task=task,
                workers=sorted(celery.tasks),
            )


def check_clocks(facts: Facts) -> Iterator[Finding]:
    for process in facts.alive:
        if abs(process.skew) > FAR:
            yield _skewed(f"{process.name} on {process.host}", process.host, process.skew, process=process.name)
    for shard, redis in facts.redis.items():
        for node in redis.nodes:
            # Both clocks were compared with the clock of this process.
            skew = (node.clock - node.asked_at) - _ours_to_the_database(facts)
            if abs(skew) > FAR:
                yield _skewed(f"the Redis of {shard}", redis.shown, skew, shard=shard)


def _ours_to_the_database(facts: Facts) -> float:
    """The database's clock minus the clock of this process, in seconds."""
    asked_at = facts.store.get("asked_at")
    return 0.0 if asked_at is None else facts.now - float(asked_at)


def _skewed(who: str, host: str, skew: float, **evidence: Any) -> Finding:
    way = "ahead of" if skew > 0 else "behind"
    return SKEW.found(
        f"the clock of {who} is {shown(abs(skew))} {way} the database's",
        fix=f"synchronize the clock on {host}: `timedatectl set-ntp true`",
        about=who,
        skew=round(skew, 3),
        **evidence,
    )
