"""What a turn costs when many wait, and what waiting costs.

    python -m bench.turns [--few 10] [--many 10000] [--turns 300] [--waiters 1000] [--seconds 10] [--order fifo]

A turn's whole life (into the line, to the head, the slot, out) while so many others wait behind the same slot: the
number in line stays what it is, as one comes for each that goes. Then nobody moves, and Redis counts its commands.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any

from bench.servers import Servers
from fairlead import Fairlead
from fairlead.config import Settings
from fairlead.domain.config import Config

SERVICE = "flux"
USERS = 1000
AT_ONCE = 500
WARM_UP = 20
STANDS_S = 5.0


@dataclass
class Line:
    """Callers in line for one slot, each with a task of its own."""

    app: Fairlead
    told: bool

    def __post_init__(self) -> None:
        self._numbers = count()
        self._tasks: set[asyncio.Task[None]] = set()
        self._granted: asyncio.Queue[asyncio.Event] = asyncio.Queue()
        self.heard = 0

    def come(self) -> None:
        task = asyncio.create_task(self._take(f"user-{next(self._numbers) % USERS}"))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def next(self) -> asyncio.Event:
        """When somebody has the slot; setting what is returned lets go of it."""
        return await self._granted.get()

    async def _take(self, user_id: str) -> None:
        on_position = self._hear if self.told else None
        async with self.app.turn(SERVICE, user_id=user_id, on_position=on_position):
            done = asyncio.Event()
            self._granted.put_nowait(done)
            await done.wait()

    def _hear(self, position: int) -> None:
        self.heard += 1

    async def grow(self, waiting: int) -> None:
        """Until so many are in line behind the one that has the slot."""
        while (missing := waiting + 1 - len(self._tasks)) > 0:
            for _ in range(min(AT_ONCE, missing)):
                self.come()
            await self._all_in_line()

    async def _all_in_line(self) -> None:
        while True:
            [service] = (await self.app.status())["services"]
            counts = [service["in_use"], *service["waiting"].values()]
            if None not in counts and sum(counts) >= len(self._tasks):
                return
            await asyncio.sleep(0.05)

    async def leave(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@asynccontextmanager
async def line_of(order: str, engines: dict[str, str], *, told: bool) -> AsyncIterator[Line]:
    config = Config.model_validate({"services": {SERVICE: {"limit": 1, "order": order}}})
    async with Fairlead(Settings(config), **engines).running() as app:
        line = Line(app, told)
        try:
            yield line
        finally:
            await line.leave()


async def cost(line: Line, waiting: int, turns: int) -> tuple[float, float, float]:
    """Milliseconds of a turn, by the clock and of this process's CPU; and how much of a core it takes that they wait,
    which the second is without."""
    await line.grow(waiting)
    holder = await line.next()
    await asyncio.sleep(2.0)
    begun, worked = time.perf_counter(), time.process_time()
    await asyncio.sleep(STANDS_S)
    idle = (time.process_time() - worked) / (time.perf_counter() - begun)
    for number in range(WARM_UP + turns):
        if number == WARM_UP:
            begun, worked = time.perf_counter(), time.process_time()
        line.come()
        holder.set()
        holder = await line.next()
    took, cpu = time.perf_counter() - begun, time.process_time() - worked
    return took / turns * 1000, max(0.0, cpu - idle * took) / turns * 1000, idle


async def commands(line: Line, servers: Servers, waiting: int, seconds: float) -> tuple[int, int]:
    """That Redis was sent while nobody moved, and how often somebody was told its place."""
    await line.grow(waiting)
    await line.next()
    await asyncio.sleep(2.0)  # the first positions are told
    before, heard = calls_of(servers), line.heard
    await asyncio.sleep(seconds)
    return calls_of(servers) - before, line.heard - heard


def calls_of(servers: Servers) -> int:
    """Of clients: what a script does within is the script's."""
    stats: Any = servers.redis.info("commandstats")
    ours = ("cmdstat_eval", "cmdstat_fcall", "cmdstat_publish", "cmdstat_script")
    return sum(int(found["calls"]) for name, found in stats.items() if name.startswith(ours))


async def main() -> None:
    given = arguments()
    servers = Servers()
    with tempfile.TemporaryDirectory() as folder:
        print("| engines | order | waiting | a turn, by the clock | its CPU | CPU while nobody moves |")
        print("| --- | --- | --- | --- | --- | --- |")
        for number, order in enumerate(given.order or ("fifo", "fair")):
            for name in ("SQLite, memory", "PostgreSQL, Redis"):
                for waiting in (given.few, given.many):
                    if name == "SQLite, memory":
                        engines = {"database_url": f"sqlite:///{folder}/{number}-{waiting}.db"}
                    else:
                        engines = {"database_url": servers.fresh(), "redis_url": servers.redis_url}
                    async with line_of(order, engines, told=False) as line:
                        took, cpu, idle = await cost(line, waiting, given.turns)
                    figures = f"{took:.1f} ms | {cpu:.2f} ms | {idle:.1%}"
                    print(f"| {name} | {order} | {waiting:,} | {figures} |", flush=True)
        for told in (False, True):
            engines = {"database_url": servers.fresh(), "redis_url": servers.redis_url}
            async with line_of("fifo", engines, told=told) as line:
                sent, heard = await commands(line, servers, given.waiters, given.seconds)
            each = sent / given.waiters / given.seconds
            print(
                f"{given.waiters:,} wait for {given.seconds:g} s{', told their place' if told else ''}: "
                f"{sent} commands ({each:.4f} per waiter and second), {heard} positions told"
            )


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--few", type=int, default=10)
    parser.add_argument("--many", type=int, default=10_000)
    parser.add_argument("--turns", type=int, default=300)
    parser.add_argument("--waiters", type=int, default=1000)
    parser.add_argument("--order", action="append", choices=("fifo", "fair"), help="one of them only")
    parser.add_argument("--seconds", type=float, default=10.0)
    return parser.parse_args()


if __name__ == "__main__":
    asyncio.run(main())
