"""CPU time of the Redis dispatcher, in the server and in this process. Other programs disturb CPU time little.

    python -m bench.redis_cpu [--waiting 10000] [--users 1000] [--batches 1 10 100] [--runs 5] [--order fifo] [redis://...]

One service with this many waiting jobs and users. Per size of call, in microseconds for one job, the lowest of several
runs: `offer` enqueues a step, `exchange` releases a slot and claims the next step. A job's whole cycle is one of
each.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Iterator

import redis
from tests.redis_servers import server_url

from bench.dispatcher import SERVICE, offers
from bench.redis_dispatcher import dispatcher_with
from fairlead.dispatch.port import Claim, Offer, Release
from fairlead.dispatch.redis import RedisDispatcher
from fairlead.domain.rules import Order

JOBS = 4_000
"""In one run, at calls of 10 and more; of calls of one, a quarter."""

Cost = tuple[float, float]
"""Of the server and of this process."""


class Meter:
    def __init__(self, url: str) -> None:
        self._server = redis.Redis.from_url(url)

    def _now(self) -> Cost:
        info = self._server.info("cpu")
        return info["used_cpu_user"] + info["used_cpu_sys"], time.process_time()

    async def cost(self, jobs: int, work: Callable[[], Awaitable[None]]) -> Cost:
        server, client = self._now()
        await work()
        server_after, client_after = self._now()
        return (server_after - server) * 1e6 / jobs, (client_after - client) * 1e6 / jobs


async def costs(dispatcher: RedisDispatcher, meter: Meter, arriving: Iterator[Offer], batch: int) -> tuple[Cost, Cost]:
    """With as many offers as exchanges, so that the queue keeps its length."""
    calls = max(10, (JOBS if batch > 1 else JOBS // 4) // batch)
    offered = [list(itertools.islice(arriving, batch)) for _ in range(calls)]
    claim = Claim("bench", batch, frozenset({SERVICE}))
    running = await dispatcher.exchange(claim)

    async def offer() -> None:
        for each in offered:
            await dispatcher.offer(each)

    async def exchange() -> None:
        nonlocal running
        for _ in range(calls):
            running = await dispatcher.exchange(claim, [Release(lease.name, SERVICE) for lease in running])
            assert len(running) == batch

    found = await meter.cost(batch * calls, offer), await meter.cost(batch * calls, exchange)
    await dispatcher.release([Release(lease.name, SERVICE) for lease in running])
    return found


def lowest(found: list[Cost]) -> Cost:
    return min(server for server, _ in found), min(client for _, client in found)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", nargs="?", help="an EMPTY server; without one, a throwaway server is started")
    parser.add_argument("--waiting", type=int, default=10_000)
    parser.add_argument("--users", type=int, default=1_000)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 10, 100])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--order", type=Order, default=Order.FAIR)
    arguments = parser.parse_args()
    url = arguments.url or server_url()
    dispatcher = await dispatcher_with(url, arguments.order)
    arriving = offers(arguments.users)
    for first in range(0, arguments.waiting, 5_000):
        await dispatcher.offer(list(itertools.islice(arriving, min(5_000, arguments.waiting - first))))
    meter = Meter(url)
    print(f"{arguments.order}, {arguments.waiting:,} waiting, {arguments.users:,} users; µs of server + client a job")
    for batch in arguments.batches:
        runs = [await costs(dispatcher, meter, arriving, batch) for _ in range(arguments.runs)]
        offer, exchange = lowest([each for each, _ in runs]), lowest([each for _, each in runs])
        cycle = offer[0] + exchange[0], offer[1] + exchange[1]
        print(
            f"calls of {batch:>4}: offer {offer[0]:6.1f} + {offer[1]:6.1f}   exchange {exchange[0]:6.1f} + "
            f"{exchange[1]:6.1f}   cycle {cycle[0]:6.1f} + {cycle[1]:6.1f}",
            flush=True,
        )
    await dispatcher.close()


if __name__ == "__main__":
    asyncio.run(main())
