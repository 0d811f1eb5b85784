"""Submits recurring jobs while managers are killed, and checks that each occurrence was submitted once.

    python -m tests.chaos.schedule_soak --seconds 60 --engine sqlite

The managers are processes of their own, on one database; one of them is killed with SIGKILL again and again. Every
schedule is due each second and catches up with what it missed, so that its jobs must be those of consecutive seconds.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import orjson

from fairlead.domain import transitions
from fairlead.domain.job import Job
from fairlead.domain.schedules import Missed, Overlap, Schedule, Timing
from fairlead.domain.submission import Submission
from fairlead.domain.transitions import Submit
from fairlead.engine.clock import SystemClock, id_at
from fairlead.engine.loop_runner import LoopRunner
from fairlead.engine.loops.schedules import SchedulesLoop
from fairlead.store.group_commit import GroupCommit
from fairlead.store.port import JobFilter, Store
from fairlead.store.postgres import PostgresStore
from fairlead.store.schedules import SaveSchedule
from fairlead.store.sqlite import SqliteStore
from tests import servers

MANAGERS = 3
PATIENCE_S = 60.0
PAGE = 500
TIMINGS = (Timing(every=1.0), Timing("* * * * * *"))


class Prepared:
    """Prepares jobs without a configuration."""

    async def prepare(self, submission: Submission, *, key: str | None, lowers_only: bool) -> Submit:
        now = time.time()
        job = Job(id_at(now), submission.feature_name, submission.user_id, (submission.feature_name,))
        metadata = orjson.dumps(submission.metadata).decode()
        return transitions.submit(
            job, "{}", now=now, waits={}, metadata_json=metadata, idempotency_key=key, body_hash=key
        )

    async def accepted(self, submit: Submit) -> None:
        pass


@dataclass
class Report:
    due: dict[str, Counter[str]] = field(default_factory=dict)
    """For each schedule: how many jobs each occurrence has."""
    kills: int = 0
    unfinished: int = 0

    def problems(self) -> list[str]:
        found = [f"{self.unfinished} schedules were still due at the end"] if self.unfinished else []
        for id_, counts in self.due.items():
            if twice := [due_at for due_at, count in counts.items() if count > 1]:
                found.append(f"{id_}: {len(twice)} occurrences have several jobs, for example {twice[0]}")
            seconds = sorted(round(1000 * _seconds(due_at)) for due_at in counts)
            gaps = [later for earlier, later in pairwise(seconds) if later - earlier != 1000]
            if gaps or not seconds:
                found.append(f"{id_}: {len(gaps)} gaps between {len(seconds)} occurrences")
        return found

    def __str__(self) -> str:
        jobs = sum(counts.total() for counts in self.due.values())
        return f"{jobs} jobs of {len(self.due)} schedules, {self.kills} managers killed"


def _seconds(moment: str) -> float:
    return datetime.fromisoformat(moment).timestamp()


def _store(url: str) -> Store:
    return PostgresStore(url, pool_size=2) if "://" in url else SqliteStore(url, synchronous="NORMAL")


async def manage(url: str) -> None:
    """One manager, until it is killed."""
    store = _store(url)
    await store.open()
    group_commit = GroupCommit(store)
    group_commit.start()
    await LoopRunner([SchedulesLoop(store, group_commit, Prepared())], SystemClock()).run()


async def soak(url: str, *, schedules: int, seconds: float, seed: int = 0) -> Report:
    chance, report, store = random.Random(seed), Report(), _store(url)
    await store.open()
    group_commit = GroupCommit(store)
    group_commit.start()
    for n in range(schedules):
        timing, now = TIMINGS[n % len(TIMINGS)], await store.now()
        new = Schedule(
            f"s{n}", f"user {n % 5}", timing, {"feature_name": "draw"}, Missed.ALL, Overlap.ALLOW, secret="x",
            created_at=now, next_at=timing.after(now),
        )  # fmt: skip
        await group_commit.write(SaveSchedule(new))
    managers = [await _start(url) for _ in range(MANAGERS)]
    try:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            await asyncio.sleep(chance.uniform(0.2, 1.5))
            victim = chance.randrange(MANAGERS)
            await _kill(managers[victim])
            report.kills += 1
            managers[victim] = await _start(url)
        report.unfinished = await _caught_up(store)
    finally:
        for manager in managers:
            await _kill(manager)
    await _read(store, report)
    await group_commit.close()
    await store.close()
    return report


async def _caught_up(store: Store) -> int:
    """Wait until nothing is overdue; then return 0, else the number of schedules that are."""
    until = time.monotonic() + PATIENCE_S
    while overdue := [each for each in await store.schedules() if (each.next_at or 0) < await store.now() - 1.5]:
        if time.monotonic() > until:
            return len(overdue)
        await asyncio.sleep(0.1)
    return 0


async def _read(store: Store, report: Report) -> None:
    report.due = {each.id: Counter() for each in await store.schedules()}
    before: int | None = None
    while jobs := await store.list_jobs(JobFilter(), before_seq=before, limit=PAGE):
        before = jobs[-1].seq
        for record in (await store.get_records([job.id for job in jobs])).values():
            about = orjson.loads(record.metadata_json or "{}")["schedule"]
            report.due[about["id"]][about["due_at"]] += 1


async def _start(url: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(sys.executable, "-m", "tests.chaos.schedule_soak", "--manage", url)


async def _kill(manager: asyncio.subprocess.Process) -> None:
    manager.kill()
    await manager.wait()


async def _run(options: argparse.Namespace) -> Report:
    sizes = {"schedules": options.schedules, "seconds": options.seconds, "seed": options.seed}
    if options.engine == "sqlite":
        with tempfile.TemporaryDirectory() as folder:
            return await soak(str(Path(folder) / "fairlead.db"), **sizes)
    url = await servers.shared_database()
    await servers.empty(url)
    return await soak(url, **sizes)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", choices=("sqlite", "postgres"), default="postgres")
    parser.add_argument("--schedules", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--manage", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.manage:
        asyncio.run(manage(options.manage))
        return 0
    report = asyncio.run(_run(options))
    print(report)
    for problem in report.problems():
        print(problem)
    return 1 if report.problems() else 0


if __name__ == "__main__":
    sys.exit(main())
