"""Celery with the load balancer compared to plain Celery: how long others wait behind a user's bulk, and the cost of a
call.

    python -m bench.celery_balance            both, in about four minutes
    python -m bench.celery_balance waits      [--rounds 3] [--bulk 1000] [--seconds 0.01]
    python -m bench.celery_balance cost       [--blocks 60]

`waits`: one user submits 1,000 tasks (as a group, or by single calls where the row says so), then ten users submit one
each; then a worker with four threads starts, which consumes all queues in turn, as Celery's workers do. For each of the
ten: how many tasks started before theirs, and how long that took. `cost`: the same task sent by `delay()` with and
without the balancer, in alternating blocks of equal size.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import redis
from celery import Celery, group
from celery.signals import before_task_publish
from tests.celery_workers import CeleryWorker
from tests.redis_servers import Server

from bench.celery_site import BROKER, ONCE, PLAIN, QUEUES, SINGLE, SINGLY, STARTED, WAY, make
from fairlead.celery import LoadBalancer
from fairlead.celery.strategies import STRATEGIES

OTHERS = 10
THREADS = 4
BLOCK = 100
PATIENCE_S = 300.0


def _on_publish(**_: Any) -> None:
    """A handler as tracing uses it; the queue must then be known before the message is sent."""


@dataclass(frozen=True)
class Case:
    name: str
    results: bool = False
    traced: bool = False
    elsewhere: bool = False


CASES = (
    Case("results ignored"),
    Case("results in Redis", results=True),
    Case("results ignored, with a receiver of `before_task_publish`", traced=True),
    Case("results ignored, and the counts are not in the broker", elsewhere=True),
)


# ---------------------------------------------------------------- waits


@dataclass
class Waits:
    """For the ten users of every round: tasks that started before theirs, and seconds since the first start."""

    before: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)


def waits(server: Server, rounds: int, bulk: int, seconds: float) -> dict[str, Waits]:
    found = {way: Waits() for way in (SINGLE, ONCE, SINGLY, *STRATEGIES, PLAIN)}
    for number in range(rounds):
        for way, each in found.items():
            _measure(server, way, each, f"round{number}", bulk, seconds)
    return found


def _measure(server: Server, way: str, found: Waits, salt: str, bulk: int, seconds: float) -> None:
    server.client.flushall()
    app, balancer = make(server.url, way)
    _submit(app, way, server.client, salt, bulk, seconds)
    environment = {BROKER: server.url, WAY: way}
    with CeleryWorker("bench.celery_site", app, pool="threads", concurrency=THREADS, **environment):
        deadline = time.monotonic() + PATIENCE_S
        while server.client.llen(STARTED) < bulk + OTHERS:
            if time.monotonic() > deadline:
                raise SystemExit(f"{way}: {server.client.llen(STARTED)} of {bulk + OTHERS} tasks began")
            time.sleep(0.1)
    if balancer is not None:
        balancer.close()
    started = [line.decode().split() for line in server.client.lrange(STARTED, 0, -1)]
    first = min(float(at) for _, at in started)
    for place, (user, at) in enumerate(started):
        if user != f"bulk-{salt}":
            found.before.append(place)
            found.seconds.append(float(at) - first)


def _submit(app: Any, way: str, client: redis.Redis, salt: str, bulk: int, seconds: float) -> None:
    work = app.tasks["bench.work"]

    def one(user: str, **options: Any) -> Any:
        if way in (ONCE, SINGLY) and not options:
            options["queue"] = _by_counters(client, 1)
        return work.s(user_id=f"{user}-{salt}", seconds=seconds).set(**options)

    if way == SINGLY:
        for _ in range(bulk):
            one("bulk").apply_async()
    else:
        options = {"queue": _by_counters(client, bulk)} if way == ONCE else {"ignore_result": True}
        group(one("bulk", **options) for _ in range(bulk)).apply_async()
    for number in range(OTHERS):
        one(f"user-{number}").apply_async()


def _by_counters(client: redis.Redis, tasks: int) -> str:
    """Reads all counters, takes the lowest (names compared as text), counts all tasks there."""
    names = [f"queue_{index}" for index in range(QUEUES)]
    counts = client.mget([f"counter:{name}:pending" for name in names])
    chosen = min(zip((int(count or 0) for count in counts), names, strict=True))[1]
    client.incrby(f"counter:{chosen}:pending", tasks)
    return chosen


def waits_table(found: dict[str, Waits], bulk: int) -> str:
    lines = [
        f"| {bulk:,} tasks of one user, then ten users one each | tasks that began before theirs: median, worst "
        "| seconds: median, worst |",
        "| --- | --- | --- |",
    ]
    for way, each in found.items():
        name = f'`strategy="{way}"`' if way in STRATEGIES else way
        lines.append(
            f"| {name} | {median(each.before):.0f}, {max(each.before)} "
            f"| {median(each.seconds):.2f}, {max(each.seconds):.2f} |"
        )
    return "\n".join(lines)


# ---------------------------------------------------------------- cost


@dataclass
class Cost:
    """Per call: wall-clock seconds of each, and mean CPU seconds of this process."""

    calls: list[float] = field(default_factory=list)
    cpu: float = 0.0

    @property
    def cpu_us(self) -> float:
        return self.cpu / len(self.calls) * 1e6

    def run(self, send: Callable[[], Any], times: int) -> None:
        before = time.process_time()
        for _ in range(times):
            began = time.perf_counter()
            send()
            self.calls.append(time.perf_counter() - began)
        self.cpu += time.process_time() - before


def cost(server: Server, blocks: int, case: Case) -> tuple[Cost, Cost, float]:
    """Plain, balanced, and the median ratio of balanced to plain over pairs of blocks."""
    server.client.flushall()
    plain, balanced = (_sender(server.url, name, case.results) for name in ("plain", "balanced"))
    elsewhere = server.url.replace("/0", "/1") if case.elsewhere else None
    balancer = LoadBalancer(balanced.app, queues=QUEUES, user_of="user_id", redis_url=elsewhere)
    for task in (plain, balanced):
        Cost().run(lambda task=task: task.delay(user_id="ada", n=1), 2 * BLOCK)
    sides = (Cost(), plain), (Cost(), balanced)
    ratios = []
    for number in range(blocks):
        for side, task in sides if number % 2 else reversed(sides):
            side.run(lambda task=task: task.delay(user_id="ada", n=1), BLOCK)
        ours, theirs = (sum(side.calls[-BLOCK:]) for side, _ in reversed(sides))
        ratios.append(ours / theirs)
    balancer.close()
    return sides[0][0], sides[1][0], median(ratios)


def _sender(url: str, name: str, results: bool) -> Any:
    app = Celery(name, broker=url, backend=url if results else None, set_as_current=False)
    app.conf.update(task_ignore_result=not results, task_default_queue=name)

    @app.task(name=f"{name}.work", shared=False)
    def work(user_id: str, n: int) -> None:
        pass

    return work


def cost_table(server: Server, blocks: int) -> str:
    lines = [
        "| one `delay()` | plain, µs: median, CPU | balanced, µs: median, CPU | balanced to plain: time, CPU |",
        "| --- | --- | --- | --- |",
    ]
    for case in CASES:
        if case.traced:
            before_task_publish.connect(_on_publish)
        plain, balanced, ratio = cost(server, blocks, case)
        before_task_publish.disconnect(_on_publish)
        lines.append(
            f"| {case.name} | {median(plain.calls) * 1e6:.0f}, {plain.cpu_us:.0f} "
            f"| {median(balanced.calls) * 1e6:.0f}, {balanced.cpu_us:.0f} "
            f"| {ratio:.2f}, {balanced.cpu_us / plain.cpu_us:.2f} |"
        )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    assert __doc__ is not None
    parser = argparse.ArgumentParser("python -m bench.celery_balance", description=__doc__.partition("\n")[0])
    parser.add_argument("what", nargs="?", choices=["waits", "cost"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--bulk", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=0.01)
    parser.add_argument("--blocks", type=int, default=60)
    given = parser.parse_args(arguments)
    server = Server().start()
    try:
        if given.what != "cost":
            print(waits_table(waits(server, given.rounds, given.bulk, given.seconds), given.bulk), end="\n\n")
        if given.what != "waits":
            print(cost_table(server, given.blocks))
    finally:
        server.kill()


if __name__ == "__main__":
    main()
