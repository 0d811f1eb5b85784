"""Cost of the PostgreSQL store: whole job lives per second through the group commit, and where the time goes.

    python -m bench.postgres [--quick] [--url postgresql://...]

A life is: submit, start, finish, outbox row deleted. Several flows share one group commit, each with `batch` jobs in
progress, so that a commit contains submits, starts and finishes at once, as under load. Without --url a temporary
server is started, with PostgreSQL's defaults except for a larger WAL, on the same cores as everything else.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from itertools import product
from pathlib import Path
from typing import Any

from tests import servers

from bench.store import finished, new_submits
from fairlead.domain.transitions import Start
from fairlead.store.group_commit import GroupCommit
from fairlead.store.port import OutboxEntry, Relayed
from fairlead.store.postgres import PostgresStore
from fairlead.store.postgres.queries import WRITES

FLOWS = 6
_NAMES = {sql: name for name, sql in WRITES.items()}


class Spent:
    """Seconds that the event loop waited for each statement, and CPU seconds of our server processes."""

    def __init__(self) -> None:
        self.waited: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()

    def __call__(self, query: Any) -> None:
        name = _NAMES.get(query.query, query.query.split(" ")[0])
        self.waited[name] += query.elapsed
        self.calls[name] += 1


async def flow(group_commit: GroupCommit, batch: int, rounds: int) -> None:
    for _ in range(rounds):
        jobs = new_submits(batch)
        await group_commit.write_each(jobs)
        starts = [Start(one.job.id, 0, 0, "0:1", "service:image", "worker-1", 300.0) for one in jobs]
        started = await group_commit.write_each(starts)
        now = time.time()
        await group_commit.write_each([finished(one.job, now) for one in started])  # type: ignore[union-attr]


async def lives(url: str, batch: int, jobs: int, writers: int, spent: Spent) -> tuple[float, float]:
    """(seconds, CPU seconds of this process) for about `jobs` lives."""
    store = PostgresStore(url)
    await store.open()
    pool = store._opened()
    async with AsyncExitStack() as stack:
        for _ in range(writers):
            connection = await stack.enter_async_context(pool.acquire())
            connection.add_query_logger(spent)

    class Relay:
        def committed(self, entries: Sequence[OutboxEntry]) -> None:
            group_commit.write_later(Relayed(tuple(entry.outbox_id for entry in entries)))

    group_commit = GroupCommit(store, Relay(), max_batch=batch + 1, writers=writers)
    group_commit.start()
    rounds = max(1, jobs // batch // FLOWS)
    await flow(group_commit, batch, 2)
    spent.waited.clear()
    spent.calls.clear()
    begun, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(flow(group_commit, batch, rounds) for _ in range(FLOWS)))
    await group_commit.flush()
    seconds, cpu = time.perf_counter() - begun, time.process_time() - cpu
    await group_commit.close()
    await store.close()
    done = rounds * FLOWS * batch
    return seconds / done, cpu / done


def server_cpu(process: int) -> float:
    """CPU seconds of a server and all its children, living or gone."""
    ticks = 0
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(folder.name) == process:
                ticks += sum(map(int, fields[11:15]))
            elif int(fields[1]) == process:
                ticks += sum(map(int, fields[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")


async def measure(url: str, batch: int, jobs: int, writers: int, commit: str, process: int | None) -> None:
    spent = Spent()
    before = 0.0 if process is None else server_cpu(process)
    seconds, cpu = await lives(f"{url}?synchronous_commit={commit}", batch, jobs, writers, spent)
    server = "     -" if process is None else f"{(server_cpu(process) - before) / jobs * 1e6:6.1f}"
    times = f"{seconds * 1e6:8.1f} µs {cpu * 1e6:8.1f} µs {server} µs"
    print(f"{batch:6} {writers:7} {commit:6} {1 / seconds:10,.0f}/s {times}")
    parts = ", ".join(f"{name} {waited / jobs * 1e6:.1f}" for name, waited in spent.waited.most_common(9))
    print(f"       waited per life, µs: {parts}; {spent.calls['COMMIT']} commits")


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--url")
    parser.add_argument("--batch", type=int, nargs="*", default=[200, 500, 1000])
    parser.add_argument("--writers", type=int, nargs="*", default=[1, 2])
    arguments = parser.parse_args()
    jobs = 12_000 if arguments.quick else 60_000
    server = None if arguments.url else servers.postgres("-c", "max_wal_size=4GB")
    print(f"{'batch':>6} {'writers':7} {'commit':6} {'lives':>12} {'a life':>11} {'Python':>11} {'server':>9}")
    for commit in ("on", "off"):
        for batch, writers in product(arguments.batch, arguments.writers):
            if server is None:
                await measure(arguments.url, batch, jobs, writers, commit, None)
            else:
                url = await servers.new_database(server.url)
                await measure(url, batch, jobs, writers, commit, server.pid)


if __name__ == "__main__":
    import uvloop

    uvloop.run(main())
