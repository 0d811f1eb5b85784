"""Fairlead embedded: SQLite and memory, producer and workers in one process."""

from __future__ import annotations

import contextlib

from bench.ours import app as ours
from bench.system_port import Job, System, Uses, Workers, script

INSIDE = Workers("")
"""The producer runs the jobs itself."""


class EmbeddedSystem(System):
    store = "sqlite"
    left = ("SELECT count(*) FROM job WHERE status < 4",)
    workers = Uses(
        fast=INSIDE,
        sleep=INSIDE,
        narrow=INSIDE,
        steps=INSIDE,
        default=Workers(f"{script('python')} -m fairlead.cli up bench.ours.app:app --port 0"),
    )
    packages = ("fairlead", "uvloop")
    config = "SQLite (WAL, synchronous=FULL), dispatcher in memory, one process; submit_many of 1,000"

    async def open(self) -> None:
        self._opened = contextlib.AsyncExitStack()
        await self._opened.enter_async_context(ours.app)

    async def close(self) -> None:
        await self._opened.aclose()

    async def work(self, use: str) -> None:
        await self._opened.enter_async_context(ours.app.running())

    async def enqueue(self, job: Job) -> None:
        await ours.submit(job)

    async def enqueue_many(self, jobs: list[Job]) -> None:
        await ours.submit_many(jobs)

    async def enqueue_steps(self, number: int) -> None:
        await ours.submit_steps(number)


system = EmbeddedSystem()
