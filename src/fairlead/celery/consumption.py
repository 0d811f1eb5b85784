"""Finds queues to which the load balancer sends tasks although no Celery worker consumes them, for example because all
Celery workers were started with `-Q queue_0`.

Each Celery worker reports the queues that it consumes with its heartbeat, and writes the settings of its load balancer
to the Redis key `BALANCERS`, so that the doctor finds the balancer without importing the Celery app.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fairlead.celery.redis_link import RedisLink
from fairlead.celery.task_counts import BALANCERS, CeleryWorker, TaskCounts


@dataclass(frozen=True, slots=True)
class Consumption:
    """Whether the queues of one balancer are consumed. `workers` is the number of live workers. `unconsumed` maps each
    queue that no live worker consumes to the number of its pending tasks."""

    prefix: str
    queues: int
    workers: int
    unconsumed: Mapping[str, int]


def unconsumed(names: Sequence[str], workers: Iterable[CeleryWorker]) -> tuple[str, ...]:
    """Return the names of the queues that none of the workers consumes."""
    known = list(workers)
    return tuple(name for name in names if not any(worker.consumes(name) for worker in known))


def consumption_of(counts: TaskCounts, worker_ttl: float) -> Consumption:
    workers, loads = counts.live_workers(worker_ttl), counts.loads()
    left = {name: loads[name].pending for name in unconsumed(counts.names, workers)}
    return Consumption(counts.prefix, len(counts.names), len(workers), left)


def consumption_at(url: str) -> list[Consumption]:
    """Return the `Consumption` of every balancer that stores its counts in this Redis and had a worker within the last
    week. Raises `Unavailable`."""
    link = RedisLink(lambda: url, "load balancing: the queues cannot be read")
    try:
        found = [(prefix.decode(), json.loads(value)) for prefix, value in link.execute("HGETALL", BALANCERS).items()]
        return [
            consumption_of(TaskCounts(link, prefix, settings["queues"]), settings["worker_ttl"])
            for prefix, settings in sorted(found)
        ]
    finally:
        link.close()


def advice(names: Sequence[str]) -> str:
    """Return the part of a message that says what to do about queues which no worker consumes."""
    return f"start workers without -Q, or one more with -Q {','.join(names)}"


def in_words(prefix: str, names: Sequence[str]) -> str:
    """Return the names of queues as text, with ranges: `queue_0, queue_3 to queue_19`."""
    numbers = sorted(int(name.removeprefix(prefix)) for name in names)
    parts = []
    for _, run in itertools.groupby(enumerate(numbers), lambda pair: pair[1] - pair[0]):
        first, *_, last = [number for _, number in run] * 2
        parts.append(f"{prefix}{first}" if first == last else f"{prefix}{first} to {prefix}{last}")
    return ", ".join(parts)
