"""Cost of a turn while many wait, and of waiting.

    python -m bench.turns [--few 10] [--many 10000] [--turns 300] [--waiters 1000] [--seconds 10] [--order fifo]

A turn's whole life (enqueue, wait, slot, finish) while many others wait for the same slot; for each that leaves,
another arrives. Then no caller moves, and the commands that Redis receives are counted.
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
IDLE_S = 5.0


@dataclass
class Callers:
    """Callers that wait for one slot, each in its own task."""

    app: Fairlead
    with_positions: bool

    def __post_init__(self) -> None:
        self._numbers = count()
        self._tasks: set[asyncio.Task[None]] = set()
        self._granted: asyncio.Queue[asyncio.Event] = asyncio.Queue()
        self.positions = 0

    def come(self) -> None:
        task = asyncio.create_task(self._take(f"user-{next(self._numbers) % USERS}"))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def next(self) -> asyncio.Event:
        """Wait until a caller holds the slot; setting the returned event releases it."""
        return await self._granted.get()

    async def _take(self, user_id: str) -> None:
        on_position = self._count_position if self.with_positions else None
        async with self.app.turn(SERVICE, user_id=user_id, on_position=on_position):
            done = asyncio.Event()
            self._granted.put_nowait(done)
            await done.wait()

    def _count_position(self, position: int) -> None:
        self.positions += 1

    async def grow(self, waiting: int) -> None:
        """Wait until this many callers wait behind the holder."""
        while (missing := waiting + 1 - len(self._tasks)) > 0:
            for _ in range(min(AT_ONCE, missing)):
                self.come()
            await self._all_queued()

    async def _all_queued(self) -> None:
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
async def callers_of(order: str, engines: dict[str, str], *, with_positions: bool) -> AsyncIterator[Callers]:
    config = Config.model_validate({"services": {SERVICE: {"limit": 1, "order": order}}})
    async with Fairlead(Settings(config), **engines).running() as app:
        callers = Callers(app, with_positions)
        try:
            yield callers
        finally:
            await callers.leave()


async def cost(callers: Callers, waiting: int, turns: int) -> tuple[float, float, float]:
    """Milliseconds of a turn, elapsed and of this process's CPU; and the share of a core that the waiting callers take,
    which the second figure excludes."""
    await callers.grow(waiting)
    holder = await callers.next()
    await asyncio.sleep(2.0)
    begun, worked = time.perf_counter(), time.process_time()
    await asyncio.sleep(IDLE_S)
    idle = (time.process_time() - worked) / (time.perf_counter() - begun)
    for number in range(WARM_UP + turns):
        if number == WARM_UP:
            begun, worked = time.perf_counter(), time.process_time()
        callers.come()
        holder.set()
        holder = await callers.next()
    took, cpu = time.perf_counter() - begun, time.process_time() - worked
    return took / turns * 1000, max(0.0, cpu - idle * took) / turns * 1000, idle


async def commands(callers: Callers, servers: Servers, waiting: int, seconds: float) -> tuple[int, int]:
    """The commands sent to Redis while no caller moved, and the number of position updates."""
    await callers.grow(waiting)
    await callers.next()
    await asyncio.sleep(2.0)  # the first position updates
    before, positions = calls_of(servers), callers.positions
    await asyncio.sleep(seconds)
    return calls_of(servers) - before, callers.positions - positions


def calls_of(servers: Servers) -> int:
    """Commands of clients; those inside a script are not counted."""
    stats: Any = servers.redis.info("commandstats")
    ours = ("cmdstat_eval", "cmdstat_fcall", "cmdstat_publish", "cmdstat_script")
    return sum(int(found["calls"]) for name, found in stats.items() if name.startswith(ours))


async def main() -> None:
    given = arguments()
    servers = Servers()
    with tempfile.TemporaryDirectory() as folder:
        print("| engines | order | waiting | elapsed time per turn | CPU per turn | CPU while no caller moves |")
        print("| --- | --- | --- | --- | --- | --- |")
        for number, order in enumerate(given.order or ("fifo", "fair")):
            for name in ("SQLite, memory", "PostgreSQL, Redis"):
                for waiting in (given.few, given.many):
                    if name == "SQLite, memory":
                        engines = {"database_url": f"sqlite:///{folder}/{number}-{waiting}.db?switch_interval=short"}
                    else:
                        engines = {"database_url": servers.fresh(), "redis_url": servers.redis_url}
                    async with callers_of(order, engines, with_positions=False) as callers:
                        took, cpu, idle = await cost(callers, waiting, given.turns)
                    figures = f"{took:.1f} ms | {cpu:.2f} ms | {idle:.1%}"
                    print(f"| {name} | {order} | {waiting:,} | {figures} |", flush=True)
        for with_positions in (False, True):
            engines = {"database_url": servers.fresh(), "redis_url": servers.redis_url}
            async with callers_of("fifo", engines, with_positions=with_positions) as callers:
                sent, positions = await commands(callers, servers, given.waiters, given.seconds)
            each = sent / given.waiters / given.seconds
            print(
                f"{given.waiters:,} wait for {given.seconds:g} s{', with positions' if with_positions else ''}: "
                f"{sent} commands ({each:.4f} per waiter and second), {positions} positions sent"
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
