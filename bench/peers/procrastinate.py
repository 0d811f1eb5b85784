"""Procrastinate on PostgreSQL."""

from __future__ import annotations

import procrastinate

from bench import handlers
from bench.system_port import Job, System, Uses, Workers, database_url, script

app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=database_url()))
WORKER = f"{script('procrastinate')} --app bench.peers.procrastinate.app worker"


@app.task(name="work")
async def work(kind: str, number: int) -> None:
    await handlers.run_async(kind, number)


class ProcrastinateSystem(System):
    store = "postgres"
    left = ("SELECT count(*) FROM procrastinate_jobs WHERE status IN ('todo', 'doing')",)
    workers = Uses(
        fast=Workers(f"{WORKER} -c 50", processes=2),
        sleep=Workers(f"{WORKER} -c 250", processes=2),
        narrow=Workers(f"{WORKER} -c 4"),
        default=Workers(WORKER),
    )
    packages = ("procrastinate", "psycopg")
    config = "2 workers, concurrency 50, LISTEN/NOTIFY; batch_defer of 1,000; sleepers: 2 x 250"

    async def setup(self) -> None:
        async with app.open_async():
            await app.schema_manager.apply_schema_async()

    async def open(self) -> None:
        await app.open_async()

    async def close(self) -> None:
        await app.close_async()

    async def enqueue(self, job: Job) -> None:
        await work.defer_async(kind=job.kind, number=job.number)

    async def enqueue_many(self, jobs: list[Job]) -> None:
        await work.batch_defer_async(*({"kind": job.kind, "number": job.number} for job in jobs))


system = ProcrastinateSystem()
