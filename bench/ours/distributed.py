"""Fairlead on PostgreSQL and Redis: a manager, workers, and a producer that submits and relays as a gateway does."""

from __future__ import annotations

import asyncio
import contextlib

from bench.ours import app as ours
from bench.system_port import Job, System, Uses, Workers, script
from fairlead.engine.roles import Roles

COMMAND = f"{script('python')} -m fairlead.cli {{role}} bench.ours.app:app --log-level warning"
WORKER = COMMAND.format(role="worker")


class DistributedSystem(System):
    store = "postgres"
    left = ("SELECT count(*) FROM fairlead.job WHERE ended IS NULL",)
    workers = Uses(
        fast=Workers(WORKER, processes=2),
        sleep=Workers(WORKER, processes=2),
        narrow=Workers(WORKER),
        default=Workers(WORKER),
        steps=Workers(WORKER, processes=2),
    )
    beside = (COMMAND.format(role="manager"),)
    packages = ("fairlead", "asyncpg", "redis", "uvloop")
    config = "1 manager, 2 workers, all else by default; submit_many of 1,000"

    async def open(self) -> None:
        self._opened = contextlib.AsyncExitStack()
        await self._opened.enter_async_context(ours.app.running(Roles(worker=False, manager=False)))
        # The manager was started just now. The benchmark measures a running system, not its start.
        while any(check != "ok" for check in (await ours.app.readiness())["checks"].values()):  # noqa: ASYNC110
            await asyncio.sleep(0.05)

    async def close(self) -> None:
        await self._opened.aclose()

    async def enqueue(self, job: Job) -> None:
        await ours.submit(job)

    async def enqueue_many(self, jobs: list[Job]) -> None:
        await ours.submit_many(jobs)

    async def enqueue_steps(self, number: int) -> None:
        await ours.submit_steps(number)


system = DistributedSystem()
