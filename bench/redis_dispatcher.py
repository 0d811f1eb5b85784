"""Cost of the Redis dispatcher per operation and per waiting job: the table of `bench/dispatcher.py`.

    python bench/redis_dispatcher.py [redis://...]      all sizes; --quick leaves out the million

Without a URL a temporary server is started. Each row is one service with a number of waiting jobs and users. The
figures are microseconds per job, over one connection, with one call at a time:

    offer 1, 20, 100      enqueue this many steps per call
    exchange 1, 20, 100   release this many slots and claim as many steps per call
    grants/s              of the exchanges of 100
    place, 100 places     the position of one waiting job, and of a hundred together
    bytes                 of the server's memory per waiting job
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import secrets
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import redis.asyncio

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.redis_servers import server_url

from bench.dispatcher import SERVICE, SIZES, USERS, offers, per_job_us
from fairlead.dispatch.port import Claim, Offer, Release
from fairlead.dispatch.redis import RedisDispatcher
from fairlead.domain.rules import Order, Rules, ServiceRules

BATCHES = (1, 20, 100)
CALLS = 200
"""Of every kind and size; of single ones, ten times as many."""


async def dispatcher_with(url: str, order: Order) -> RedisDispatcher:
    dispatcher = RedisDispatcher(url, prefix=f"bench-{secrets.token_hex(4)}")
    rules = ServiceRules(SERVICE, limit=max(BATCHES), order=order)
    await dispatcher.configure(Rules({SERVICE: rules}, version=1))
    await dispatcher.close_scope(rules.scope, epoch=1)
    await dispatcher.open_scope(rules.scope, epoch=1)
    return dispatcher


def calls_of(batch: int, waiting: int) -> int:
    return max(1, min(CALLS * 10 if batch == 1 else CALLS, waiting // 8 // batch))


async def offer_cost(dispatcher: RedisDispatcher, arriving: Iterator[Offer], batch: int, calls: int) -> float:
    batches = [list(itertools.islice(arriving, batch)) for _ in range(calls)]
    began = time.perf_counter()
    for each in batches:
        await dispatcher.offer(each)
    return per_job_us(began, batch * calls)


async def exchange_cost(dispatcher: RedisDispatcher, batch: int, calls: int) -> float:
    claim = Claim("bench", batch, frozenset({SERVICE}))
    running = await dispatcher.exchange(claim)
    began = time.perf_counter()
    for _ in range(calls):
        running = await dispatcher.exchange(claim, [Release(lease.name, SERVICE) for lease in running])
    taken = per_job_us(began, batch * calls)
    await dispatcher.release([Release(lease.name, SERVICE) for lease in running])
    return taken


async def place_cost(dispatcher: RedisDispatcher, job_ids: list[str]) -> float:
    times = 10
    began = time.perf_counter()
    for _ in range(times):
        await dispatcher.positions(job_ids)
    return per_job_us(began, times)


async def full_of(
    server: redis.asyncio.Redis, url: str, order: Order, waiting: int, users: int
) -> tuple[RedisDispatcher, Iterator[Offer], float]:
    """A dispatcher with this many waiting jobs, the next arrivals, and the bytes of the server's memory per waiting
    job."""
    before = (await server.info("memory"))["used_memory"]
    dispatcher = await dispatcher_with(url, order)
    arriving = offers(users)
    for first in range(0, waiting, 5_000):
        await dispatcher.offer(list(itertools.islice(arriving, min(5_000, waiting - first))))
    used = ((await server.info("memory"))["used_memory"] - before) / waiting
    return dispatcher, arriving, used


async def costs(url: str, order: Order, waiting: int, users: int) -> dict[str, float]:
    """Microseconds per step in batches of 100, and bytes, for the benchmark's results. As many jobs arrive as are
    taken, so that the backlog keeps its size."""
    server = redis.asyncio.Redis.from_url(url)
    dispatcher, arriving, used = await full_of(server, url, order, waiting, users)
    offered, taken = [], []
    for _ in range(CALLS // 10):
        offered.append(await offer_cost(dispatcher, arriving, 100, 5))
        taken.append(await exchange_cost(dispatcher, 100, 4))  # and one before its clock starts
    await dispatcher.close()
    await server.flushall()
    await server.aclose()
    return {"offer": statistics.median(offered), "exchange": statistics.median(taken), "bytes": used}


async def measure(url: str, order: Order, waiting: int, users: int) -> None:
    server = redis.asyncio.Redis.from_url(url)
    dispatcher, arriving, used = await full_of(server, url, order, waiting, users)
    offered = [await offer_cost(dispatcher, arriving, batch, calls_of(batch, waiting)) for batch in BATCHES]
    taken = [await exchange_cost(dispatcher, batch, calls_of(batch, waiting)) for batch in BATCHES]
    recent = list(itertools.islice(arriving, 100))
    await dispatcher.offer(recent)
    one = await place_cost(dispatcher, [recent[0].job_id])
    many = await place_cost(dispatcher, [offer.job_id for offer in recent])
    row = " ".join(f"{cost:>7.1f}" for cost in (*offered, *taken))
    print(
        f"{order:5} {waiting:>9,} {users:>8,} {row} {1e6 / taken[-1]:>9,.0f} {one:>8.0f} {many:>10.0f} {used:>6.0f}",
        flush=True,
    )
    await dispatcher.close()
    await server.flushall()
    await server.aclose()


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", nargs="?", help="an EMPTY server: it is flushed")
    parser.add_argument("--quick", action="store_true", help="leave out the million")
    arguments = parser.parse_args()
    url = arguments.url or server_url()
    heads = " ".join(f"{name + ' ' + str(batch):>7}" for name in ("offer", "exch.") for batch in BATCHES)
    print(
        f"order {'waiting':>9} {'users':>8} {heads} {'grants/s':>9} {'place':>8} {'100 places':>10} {'bytes':>6}  (µs)"
    )
    for order in (Order.FAIR, Order.FIFO):
        for waiting in SIZES[:-1] if arguments.quick else SIZES:
            for users in USERS:
                if users <= waiting:
                    await measure(url, order, waiting, users)


if __name__ == "__main__":
    asyncio.run(main())
