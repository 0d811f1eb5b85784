"""A process that submits jobs until it is killed, and prints the id of each job once its submit is acknowledged."""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
import time

from fairlead.domain.job import Job
from fairlead.domain.transitions import submit
from fairlead.store.group_commit import GroupCommit
from fairlead.store.sqlite import SqliteStore
from fairlead.store.sqlite import store as sqlite_store


async def caller(group_commit: GroupCommit, name: str) -> None:
    for number in itertools.count():
        job = Job(f"{name}-{number}", "f", f"user-{number % 7}", ("draw",))
        await group_commit.write(submit(job, '{"x":"' + "y" * 300 + '"}', now=time.time(), waits={}))
        os.write(1, f"{job.id}\n".encode())


async def main(path: str, name: str, copy_after: int) -> None:
    """Several callers submit at once, so that commits are batches."""
    sqlite_store.COPY_AFTER = copy_after
    store = SqliteStore(path)
    await store.open()
    group_commit = GroupCommit(store)
    group_commit.start()
    await asyncio.gather(*(caller(group_commit, f"{name}-{number}") for number in range(8)))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
