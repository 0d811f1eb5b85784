"""A process with callers of turns, to be killed: `python -m tests.integration.turn_process DATABASE REDIS waits|holds
N`.

Prints `ready` when all N are queued, or the first holds its slot.
"""

from __future__ import annotations

import asyncio
import sys

from fairlead import Fairlead
from tests.integration.turn_apps import config_of


async def main(database_url: str, redis_url: str, how: str, count: int) -> None:
    app = Fairlead(config_of(flux={"lease_ttl": 2.0}), database_url=database_url, redis_url=redis_url)
    ready = asyncio.Semaphore(0)

    async def caller(number: int) -> None:
        in_line = ready.release if how == "waits" else lambda: None
        async with app.turn("flux", f"taker {number}", on_position=lambda _: in_line()):
            ready.release()
            await asyncio.sleep(3600)

    async with app:
        callers = [asyncio.create_task(caller(number)) for number in range(count)]
        for _ in range(1 if how == "holds" else count):
            await ready.acquire()
        print("ready", flush=True)
        await asyncio.gather(*callers)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])))
