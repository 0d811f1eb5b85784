"""An accepted job is durable: a process killed at any instant loses no job that it acknowledged."""

from __future__ import annotations

import random
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from fairlead.store.sqlite.store import COPY_AFTER

ROUNDS = 15

# Prints the id of every job once its submit is acknowledged. Several callers submit at once, so that commits are
# batches.
SUBMITTER = """
import asyncio, itertools, os, sys, time
from fairlead.domain.job import Job
from fairlead.domain.transitions import submit
from fairlead.store.group_commit import GroupCommit
from fairlead.store.sqlite import SqliteStore, store as sqlite_store

async def caller(group_commit, name):
    for n in itertools.count():
        job = Job(f"{name}-{n}", "f", f"user-{n % 7}", ("draw",))
        await group_commit.write(submit(job, '{"x":"' + "y" * 300 + '"}', now=time.time(), waits={}))
        os.write(1, f"{job.id}\\n".encode())

async def main():
    sqlite_store.COPY_AFTER = int(sys.argv[3])
    store = SqliteStore(sys.argv[1])
    await store.open()
    group_commit = GroupCommit(store)
    group_commit.start()
    await asyncio.gather(*(caller(group_commit, f"{sys.argv[2]}-{n}") for n in range(8)))

asyncio.run(main())
"""


@pytest.mark.parametrize("copy_after", [COPY_AFTER, 1], ids=["", "while-the-log-is-copied"])
def test_a_killed_process_loses_no_acknowledged_job(tmp_path: Path, copy_after: int) -> None:
    path = tmp_path / "fairlead.db"
    chance = random.Random(20240501)
    acknowledged: set[str] = set()
    for number in range(ROUNDS):
        acknowledged |= acknowledged_until_killed(path, number, chance.randint(1, 400), copy_after)
        with closing(sqlite3.connect(path)) as raw:
            assert raw.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            stored = {row[0] for row in raw.execute("SELECT id FROM job JOIN job_input USING (seq)")}
            in_line = {row[0] for row in raw.execute("SELECT job_id FROM outbox")}
        assert acknowledged <= stored
        assert stored == in_line
    assert len(acknowledged) >= ROUNDS


def acknowledged_until_killed(path: Path, number: int, after: int, copy_after: int) -> set[str]:
    """The kill happens after a number of acknowledgements and not after a time, so the process is always busy."""
    command = [sys.executable, "-c", SUBMITTER, str(path), str(number), str(copy_after)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    lines = [child.stdout.readline() for _ in range(after)]
    child.kill()
    lines += child.stdout.readlines()
    child.stdout.close()
    child.wait()
    # The last line may be incomplete.
    return {line.rstrip("\n") for line in lines if line.endswith("\n")}
