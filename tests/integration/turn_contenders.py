"""Many processes that contend for the one slot of a service: `python -m tests.integration.turn_contenders`.

The holder of the slot takes a lock file that only one can hold, and appends a line to a shared file. The test reads
what happened from there, including the lines of a process that was killed in between.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fairlead import Fairlead
from fairlead.config import Settings
from fairlead.domain.config import Config

SERVICE = "flux"


def app_of(engines: dict[str, str], lease_ttl: float) -> Fairlead:
    service = {"limit": 1, "order": "fifo", "lease_ttl": lease_ttl}
    return Fairlead(Settings(Config.model_validate({"services": {SERVICE: service}})), **engines)


class Book:
    """The shared file. An append of a few bytes is one atomic write."""

    def __init__(self, folder: Path) -> None:
        self._lock = folder / "lock"
        self._file = os.open(folder / "book", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(self, what: str, **more: Any) -> None:
        line = {"what": what, "pid": os.getpid(), "at": time.monotonic(), **more}
        os.write(self._file, json.dumps(line).encode() + b"\n")

    @contextmanager
    def alone(self, user: str) -> Iterator[None]:
        try:
            self._take()
        except FileExistsError:
            holder = int(self._lock.read_text() or 0)
            if _runs(holder):
                self.write("two", user=user, other=holder)
            # The previous holder was killed with the slot: its lock file is ours now.
            self._lock.unlink(missing_ok=True)
            self._take()
        self.write("enter", user=user)
        try:
            yield
        finally:
            self._lock.unlink(missing_ok=True)
            self.write("leave", user=user)

    def _take(self) -> None:
        file = os.open(self._lock, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        os.write(file, str(os.getpid()).encode())
        os.close(file)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


async def contend(app: Fairlead, book: Book, user: str, hold: float) -> None:
    def hear(position: int) -> None:
        book.write("position", user=user, position=position)

    async with app.turn(SERVICE, user_id=user, on_position=hear):
        with book.alone(user):
            await asyncio.sleep(hold)


async def run(folder: str, engines: str, lease_ttl: str, tasks: str, hold: str) -> None:
    book = Book(Path(folder))
    async with app_of(json.loads(engines), float(lease_ttl)) as app:
        users = [f"user-{os.getpid()}-{number}" for number in range(int(tasks))]
        await asyncio.gather(*(contend(app, book, user, float(hold)) for user in users))
    book.write("done")


def main(processes: str, *arguments: str) -> None:
    """Their parent has imported everything for them: ten interpreters would take longer to start than to contend."""
    children = set()
    for _ in range(int(processes)):
        pid = os.fork()
        if pid == 0:
            asyncio.run(run(*arguments))
            os._exit(0)
        children.add(pid)
    while children:
        pid, _ = os.wait()
        children.discard(pid)


if __name__ == "__main__":
    main(*sys.argv[1:])
