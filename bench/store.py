"""Cost of the SQLite store: jobs per second and microseconds per job, with an idle and a busy event loop.

    python bench/store.py [--quick]

"writer" is the time that the writer thread spends on one job, inside SQLite and around it; "loop" is the time of the
event loop's thread per job, including the creation of the jobs. A life is: submit, start, finish, outbox row
deleted.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from fairlead.domain.job import Job, StepResult
from fairlead.domain.transitions import Start, Submit, step_done, submit
from fairlead.store.group_commit import GroupCommit
from fairlead.store.port import Relayed
from fairlead.store.sqlite import SqliteStore, gil

INPUT = '{"prompt":"a lighthouse in the fog, oil on canvas","seed":1234567,"steps":30}'
RESULT = '{"url":"https://cdn.example/images/0123456789.png","width":1024,"height":1024}'


class Timed(SqliteStore):
    """Adds up the time that the writer thread spends."""

    in_writer = 0.0

    def _apply(self, parameters: list[Any]) -> str:
        begun = time.perf_counter()
        try:
            return super()._apply(parameters)
        finally:
            self.in_writer += time.perf_counter() - begun


_made = 0


def new_submits(count: int) -> list[Submit]:
    global _made
    now = time.time()
    made = []
    for _ in range(count):
        _made += 1
        job = Job(f"{time.time_ns():016x}-{_made:016x}", "image", f"user-{_made % 50}", ("image",))
        made.append(submit(job, INPUT, now=now, waits={}))
    return made


async def submits(store: Timed, batch: int, rounds: int) -> list[float]:
    """Seconds per commit of `batch` submits."""
    times = []
    for _ in range(rounds):
        jobs = new_submits(batch)
        begun = time.perf_counter()
        await store.commit(jobs)
        times.append(time.perf_counter() - begun)
    return times


async def lives(store: Timed, batch: int, rounds: int) -> list[float]:
    """Seconds per `batch` whole lives."""
    times = []
    for _ in range(rounds):
        jobs = new_submits(batch)
        begun = time.perf_counter()
        changes = (await store.commit(jobs)).changes
        starts = [Start(one.job_id, 0, 0, "0:1", "service:image", "worker-1", 300.0) for one in changes]
        started = (await store.commit([*starts, Relayed(tuple(one.outbox_id for one in changes))])).outcomes
        now = time.time()
        await store.commit([finished(one.job, now) for one in started[:-1]])  # type: ignore[union-attr]
        times.append(time.perf_counter() - begun)
    return times


def finished(job: Job, now: float) -> Any:
    result = StepResult(job.id, 0, "image", job.round, RESULT, '{"execution_time_ms":812}', now, job.lease)
    return step_done(job, result, now=now, waits={})


async def through_journal(store: Timed, batch: int, rounds: int) -> list[float]:
    """`batch` callers at once, each awaiting its own submit."""
    group_commit = GroupCommit(store)
    group_commit.start()
    times = []
    for _ in range(rounds):
        jobs = new_submits(batch)
        begun = time.perf_counter()
        await asyncio.gather(*map(group_commit.write, jobs))
        times.append(time.perf_counter() - begun)
    await group_commit.close()
    return times


async def keep_busy(stop: asyncio.Event) -> None:
    """Keep the event loop busy in steps of about 2 ms, like a gateway under load."""
    while not stop.is_set():
        until = time.perf_counter() + 0.002
        while time.perf_counter() < until:
            sum(range(50))
        await asyncio.sleep(0)


Measure = Callable[[Timed, int, int], Awaitable[list[float]]]


async def run(folder: Path, name: str, measure: Measure, batch: int, rounds: int, level: str, busy: bool) -> None:
    store = Timed(str(folder / f"{name}-{batch}-{level}-{busy}.db"), synchronous=level)
    await store.open()
    await measure(store, batch, 3)
    store.in_writer = 0.0
    stop = asyncio.Event()
    other = asyncio.create_task(keep_busy(stop)) if busy else None
    cpu = time.thread_time()
    times = await measure(store, batch, rounds)
    loop_cpu = time.thread_time() - cpu
    stop.set()
    if other is not None:
        await other
    await store.close()
    per_job = statistics.median(times) / batch
    writer = store.in_writer / rounds / batch * 1e6
    loop = "     -" if busy else f"{loop_cpu / rounds / batch * 1e6:6.1f}"
    print(
        f"{name:16} {batch:5} {level:7} {'busy' if busy else 'idle':5} {1 / per_job:10,.0f}/s "
        f"{statistics.median(times) * 1e3:8.2f} ms {writer:8.1f} µs {loop} µs"
    )


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    gil.shorten_switch_interval()  # as `fairlead up` does
    print(f"{'what':16} {'batch':>5} {'sync':7} {'loop':5} {'jobs':>12} {'a commit':>11} {'writer':>11} {'loop':>9}")
    with tempfile.TemporaryDirectory() as folder:
        for level in ("FULL", "NORMAL"):
            for busy in (False, True):
                for name, measure, batch in (
                    ("submit", submits, 1),
                    ("submit", submits, 100),
                    ("submit", submits, 200),
                    ("submit", submits, 1000),
                    ("life", lives, 200),
                    ("journal", through_journal, 200),
                ):
                    rounds = 20 if quick else 100
                    await run(Path(folder), name, measure, batch, rounds, level, busy)


if __name__ == "__main__":
    asyncio.run(main())
