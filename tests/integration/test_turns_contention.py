"""Many processes, many callers in each, one slot: on PostgreSQL and Redis, with kill -9 at random."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from fairlead import Fairlead, JobView
from fairlead.errors import Unavailable
from tests.chaos.waiting import until, until_true
from tests.integration.turn_contenders import SERVICE, app_of

PATIENCE_S = 90.0
BUSY_S = 4.0
"""What a machine that has other things to do may add to a wait."""

Line = dict[str, Any]


class Contest:
    """Holds the slot until all callers are queued, then releases it to them."""

    def __init__(self, app: Fairlead, engines: dict[str, str], folder: Path, lease_ttl: float) -> None:
        self.app = app
        self._engines = engines
        self._folder = folder
        self._lease_ttl = lease_ttl
        self._nursery: asyncio.subprocess.Process | None = None
        self.arrivals: list[str] = []
        """Who contends, in the order in which they were accepted."""

    async def start(self, processes: int, tasks: int, hold: float) -> None:
        arguments = (self._folder, json.dumps(self._engines), self._lease_ttl, tasks, hold)
        self._nursery = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.integration.turn_contenders", str(processes), *map(str, arguments)),
            cwd=Path(__file__).parents[2],
        )

        async def all_wait() -> bool:
            with suppress(Unavailable):  # while the processes start, the status may take longer than its time limit
                [service] = (await self.app.status())["services"]
                return bool(sum(service["waiting"].values()) == processes * tasks)
            return False

        await until("all are queued", all_wait, patience=PATIENCE_S)
        self.arrivals = [job.user_id for job in reversed(await self._jobs()) if job.user_id.startswith("user-")]

    async def _jobs(self) -> list[JobView]:
        found: list[JobView] = []
        cursor = None
        while True:
            page = await self.app.list_jobs(feature_name=SERVICE, limit=100, cursor=cursor)
            found += page.data
            if (cursor := page.next_cursor) is None:
                return found

    def book(self, what: str | None = None) -> list[Line]:
        path = self._folder / "book"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line for line in map(json.loads, lines) if what is None or line["what"] == what]

    @property
    def processes(self) -> set[int]:
        return {_process_of(user) for user in self.arrivals}

    async def ended(self) -> None:
        assert self._nursery is not None
        async with asyncio.timeout(PATIENCE_S):
            await self._nursery.wait()

    async def close(self) -> None:
        if self._nursery is not None and self._nursery.returncode is None:
            for pid in self.processes:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._nursery.kill()
            await self._nursery.wait()


def _process_of(user: str) -> int:
    return int(user.split("-")[1])


@asynccontextmanager
async def contest(engines: dict[str, str], folder: Path, lease_ttl: float) -> AsyncIterator[Contest]:
    app = app_of(engines, lease_ttl)
    async with app.running():
        found = Contest(app, engines, folder, lease_ttl)
        try:
            yield found
        finally:
            await found.close()


@pytest.mark.slow
async def test_two_hundred_callers_in_ten_processes_get_one_slot_in_the_order_of_arrival(
    distributed: dict[str, str], tmp_path: Path
) -> None:
    async with contest(distributed, tmp_path, lease_ttl=15) as found:
        async with found.app.turn(SERVICE, user_id="first"):
            await found.start(10, 20, hold=0.01)
            places = {user: place for place, user in enumerate(found.arrivals, 1)}
            await until_true("all know their place", lambda: last_positions(found) == places, patience=PATIENCE_S)
            before = len(found.book("position"))
        await found.ended()
    assert found.book("two") == []
    assert [line["user"] for line in found.book("enter")] == found.arrivals
    assert len(found.arrivals) == len(found.book("leave")) == 200
    moved = found.book("position")[before:]
    for line in moved:
        assert line["position"] < places[line["user"]], "a position only ever decreases"
        places[line["user"]] = line["position"]
    assert len({line["user"] for line in moved}) > 20, "those at the back have seen it move"


def last_positions(found: Contest) -> dict[str, int]:
    """The last position that each user received."""
    return {line["user"]: line["position"] for line in found.book("position")}


@pytest.mark.slow
async def test_killed_callers_do_not_block_the_queue(distributed: dict[str, str], tmp_path: Path) -> None:
    lease_ttl = 3.0
    async with contest(distributed, tmp_path, lease_ttl) as found:
        async with found.app.turn(SERVICE, user_id="first"):
            await found.start(8, 10, hold=0.05)
            dead = set(random.sample(sorted(found.processes), 2))
            for pid in dead:
                os.kill(pid, signal.SIGKILL)
        for _ in range(2):
            dead.add(await killed_with_the_slot(found))
        await found.ended()
    assert found.book("two") == []
    entered = [line["user"] for line in found.book("enter")]
    assert entered == [user for user in found.arrivals if user in set(entered)], "in the order of arrival"
    assert {line["pid"] for line in found.book("done")} == found.processes - dead
    assert {user for user in found.arrivals if _process_of(user) not in dead} <= set(entered), "all had their turns"
    moments = [line["at"] for line in found.book() if line["what"] in ("enter", "leave")]
    longest = max(later - earlier for earlier, later in pairwise(moments))
    assert longest < lease_ttl + BUSY_S, "a caller was stuck"


async def killed_with_the_slot(found: Contest) -> int:
    """The process that holds the slot now."""
    seen = len(found.book())
    async with asyncio.timeout(PATIENCE_S):
        while True:
            book = found.book()
            if len(book) > seen and book[-1]["what"] == "enter":
                os.kill(book[-1]["pid"], signal.SIGKILL)
                return int(book[-1]["pid"])
            await asyncio.sleep(0)
