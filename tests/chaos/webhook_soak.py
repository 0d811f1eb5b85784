"""Delivers webhooks while managers are killed, and checks that none is lost, that the events of a job arrive in order,
and that a delivery keeps its id over retries.

    python -m tests.chaos.webhook_soak --deliveries 10000

The managers are processes of their own, on one PostgreSQL; each is killed with SIGKILL again and again. The receiver
refuses some deliveries at first.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import signal
import sys
import time
from collections import Counter
from dataclasses import dataclass, field

from aiohttp import web

from fairlead.domain import transitions
from fairlead.domain.config_webhooks import WebhooksConfig
from fairlead.domain.job import Job
from fairlead.domain.webhooks import CANCELLED, STARTED, JobWebhook
from fairlead.engine.clock import SystemClock, id_at
from fairlead.engine.loop_runner import LoopRunner
from fairlead.engine.webhooks import delivery_loop
from fairlead.engine.webhooks.delivery_loop import WebhooksLoop
from fairlead.store.group_commit import GroupCommit
from fairlead.store.postgres import PostgresStore
from fairlead.store.webhooks import RecordEvent
from tests import servers
from tests.webhook_receiver import Receiver, Request, receiver

MANAGERS = 3
PATIENCE_S = 900.0
REFUSED = 0.02
BATCH = 500


@dataclass
class Report:
    expected: set[str] = field(default_factory=set)
    arrived: list[str] = field(default_factory=list)
    accepted: set[str] = field(default_factory=set)
    kills: int = 0
    seconds: float = 0.0

    def problems(self) -> list[str]:
        found = []
        if lost := self.expected - self.accepted:
            found.append(f"{len(lost)} deliveries were lost, for example {min(lost)}")
        if unknown := set(self.arrived) - self.expected:
            found.append(f"{len(unknown)} arrived that no event made, for example {min(unknown)}")
        first = {id_: n for n, id_ in reversed(list(enumerate(self.arrived)))}
        ends = [id_ for id_ in self.expected if id_.endswith("_1")]
        early = [end for end in ends if first.get(end, 1 << 60) < first.get(f"{end[:-2]}_0", -1)]
        if early:
            found.append(f"{len(early)} ends arrived before their starts, for example {early[0]}")
        return found

    def __str__(self) -> str:
        repeated = sum(count - 1 for count in Counter(self.arrived).values())
        return (
            f"{len(self.accepted)} of {len(self.expected)} deliveries in {self.seconds:.0f} s, {self.kills} managers "
            f"killed, {repeated} repeated"
        )


async def manage(url: str) -> None:
    """One manager, until it is killed. What it was sending then is sent again soon."""
    delivery_loop.LEASE_MARGIN = 2.0
    store = PostgresStore(url, pool_size=2)
    await store.open()
    group_commit = GroupCommit(store)
    group_commit.start()
    config = WebhooksConfig(allow_http=True, allow_private=True, timeout=1)
    loop = WebhooksLoop(config, store, group_commit, SystemClock())
    await LoopRunner([loop], SystemClock()).run()


async def submit(url: str, hooks: Receiver, count: int, report: Report) -> None:
    """Write two deliveries each of `count` jobs."""
    store = PostgresStore(url, pool_size=2)
    await store.open()
    group_commit = GroupCommit(store)
    group_commit.start()
    webhooks = [JobWebhook(f"{hooks.url}/{n}", (STARTED, CANCELLED)) for n in range(10)]
    for begin in range(0, count, BATCH):
        now = await store.now()
        new = [
            Job(id_at(now), "draw", f"user {n % 7}", ("draw",), webhook=webhooks[n % len(webhooks)])
            for n in range(begin, min(count, begin + BATCH))
        ]
        await group_commit.write_each([transitions.submit(job, "{}", now=now, waits={}) for job in new])
        stored = list((await store.get_jobs([job.id for job in new])).values())
        await group_commit.write_each(
            [RecordEvent(job.id, job.run, STARTED, job.webhook, {}) for job in stored if job.webhook is not None]
        )
        await group_commit.write_each([transitions.cancel(job, now=now) for job in stored])
        report.expected |= {f"msg_{job.id}_{run}" for job in stored for run in (0, 1)}
    await group_commit.close()
    await store.close()


async def soak(deliveries: int, *, kill_every: int, seed: int = 0) -> Report:
    """Kill a manager after each `kill_every` requests."""
    url, chance, report = await servers.shared_database(), random.Random(seed), Report()
    await servers.empty(url)
    seen: set[str] = set()
    async with receiver() as hooks:

        def answer(request: Request) -> web.Response:
            first = request.id not in seen
            seen.add(request.id)
            report.arrived.append(request.id)
            if first and chance.random() < REFUSED:
                return web.Response(status=503)
            report.accepted.add(request.id)
            return web.Response(status=204)

        hooks.answer = answer
        await submit(url, hooks, deliveries // 2, report)
        began = time.monotonic()
        managers = [await _start(url) for _ in range(MANAGERS)]
        try:
            while await _more(report, kill_every, began):
                victim = chance.randrange(MANAGERS)
                managers[victim].send_signal(signal.SIGKILL)
                await managers[victim].wait()
                report.kills += 1
                managers[victim] = await _start(url)
        finally:
            for manager in managers:
                manager.kill()
                await manager.wait()
        report.seconds = time.monotonic() - began
    return report


async def _more(report: Report, requests: int, began: float) -> bool:
    """Wait for so many more requests. Returns False if all deliveries are accepted, or it takes too long."""
    until = len(report.arrived) + requests
    while report.expected - report.accepted and time.monotonic() - began < PATIENCE_S:
        if len(report.arrived) >= until:
            return True
        await asyncio.sleep(0.02)
    return False


async def _start(url: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(sys.executable, "-m", "tests.chaos.webhook_soak", "--manage", url)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--deliveries", type=int, default=10_000)
    parser.add_argument("--kill-every", type=int, default=500, help="requests")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--manage", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.manage:
        asyncio.run(manage(options.manage))
        return 0
    report = asyncio.run(soak(options.deliveries, kill_every=options.kill_every, seed=options.seed))
    print(report)
    for problem in report.problems():
        print(problem)
    return 1 if report.problems() else 0


if __name__ == "__main__":
    sys.exit(main())
