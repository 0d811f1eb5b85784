"""DBOS on PostgreSQL: workflows on a queue, enqueued by its client."""

from __future__ import annotations

import os
import threading
import time
from typing import Any

from dbos import DBOS, DBOSClient

from bench import handlers
from bench.system_port import Job, System, Uses, Workers, database_url, script

URL = database_url().replace("postgresql://", "postgresql+psycopg://")
WORKER = f"{script('python')} -m bench.peers.dbos"


@DBOS.workflow(name="work")
async def work(kind: str, number: int) -> None:
    await handlers.run_async(kind, number)


def launch() -> None:
    DBOS(
        config={
            "name": "bench",
            "system_database_url": URL,
            "log_level": "ERROR",
            "application_version": "1",
            "executor_id": f"executor-{os.environ.get('BENCH_PROCESS', '0')}",
            "sys_db_pool_size": 20,
            "run_admin_server": False,
        }
    )
    DBOS.launch()
    at_once = os.environ.get("BENCH_AT_ONCE")
    bounds: dict[str, Any] = {"worker_concurrency": int(at_once)} if at_once else {}
    poll = float(os.environ.get("BENCH_POLL", "1.0"))
    DBOS.register_queue("bench", polling_interval_sec=poll, on_conflict="always_update", **bounds)


class DbosSystem(System):
    store = "postgres"
    left = ("SELECT count(*) FROM dbos.workflow_status WHERE status IN ('ENQUEUED', 'PENDING')",)
    workers = Uses(
        fast=Workers(WORKER, processes=2, env={"BENCH_AT_ONCE": "100", "BENCH_POLL": "0.02"}),
        sleep=Workers(WORKER, processes=2, env={"BENCH_AT_ONCE": "250", "BENCH_POLL": "0.02"}),
        narrow=Workers(WORKER, env={"BENCH_AT_ONCE": "4", "BENCH_POLL": "0.02"}),
        default=Workers(WORKER),
    )
    packages = ("dbos", "SQLAlchemy", "psycopg")
    config = (
        "2 executors, worker_concurrency 100, polling every 0.02 s, pool of 20; bulk: many enqueues in one "
        "transaction; sleepers: 2 x 250"
    )

    async def setup(self) -> None:
        # DBOS needs a thread without an event loop.
        thread = threading.Thread(target=lambda: (launch(), DBOS.destroy()))
        thread.start()
        thread.join()

    async def open(self) -> None:
        self._client = DBOSClient(system_database_url=URL)

    def enqueue(self, job: Job) -> None:
        self._client.enqueue(_options(), job.kind, job.number)

    def enqueue_many(self, jobs: list[Job]) -> None:
        with self._client._sys_db.engine.begin() as connection:
            for job in jobs:
                self._client.enqueue_in_transaction(connection, _options(), job.kind, job.number)

    bulk_size = 100


def _options() -> Any:
    return {"workflow_name": "work", "queue_name": "bench", "app_version": "1"}


system = DbosSystem()

if __name__ == "__main__":
    launch()
    time.sleep(3600)
