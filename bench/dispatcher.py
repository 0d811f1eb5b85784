"""Cost of the memory dispatcher per operation and per waiting job.

    python bench/dispatcher.py            all sizes; --quick leaves out the million

Each row is one service with a number of waiting jobs and users. The figures are microseconds per job:

    offer      enqueue one step (in batches of 100, as the relay does)
    exchange   release a slot and claim the next step, as one operation
    place      query the position of one waiting job
    100 places query the positions of a hundred waiting jobs together
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import itertools
import random
import time
import tracemalloc
import uuid
from collections.abc import Iterator

from fairlead.dispatch.memory import MemoryDispatcher
from fairlead.dispatch.port import Claim, Offer, Release
from fairlead.domain.rules import Order, Rules, ServiceRules

SERVICE = "image_gen"
SLOTS = 8
ROUNDS = 20_000
SIZES = (1_000, 100_000, 1_000_000)
USERS = (10, 1_000, 100_000)


async def dispatcher_with(order: Order) -> MemoryDispatcher:
    dispatcher = MemoryDispatcher(time.monotonic)
    rules = ServiceRules(SERVICE, limit=SLOTS, order=order)
    await dispatcher.configure(Rules({SERVICE: rules}, version=1))
    await dispatcher.close_scope(rules.scope, epoch=1)
    await dispatcher.open_scope(rules.scope, epoch=1)
    return dispatcher


def offers(users: int) -> Iterator[Offer]:
    """Arriving jobs of random users; each has its own job id and user id strings."""
    chance = random.Random(1)
    for seq in itertools.count(1):
        user = seq if seq <= users else chance.randrange(users)
        yield Offer(str(uuid.UUID(int=seq << 64 | chance.getrandbits(64))), seq, SERVICE, f"user-{user:08}", 2, 2, 0, 1)


def per_job_us(began: float, jobs: int) -> float:
    return (time.perf_counter() - began) * 1e6 / jobs


async def offer_cost(dispatcher: MemoryDispatcher, arriving: Iterator[Offer], count: int) -> float:
    batches = [list(itertools.islice(arriving, 100)) for _ in range(count // 100)]
    began = time.perf_counter()
    for batch in batches:
        await dispatcher.offer(batch)
    return per_job_us(began, count)


async def exchange_cost(dispatcher: MemoryDispatcher, count: int) -> float:
    services = frozenset({SERVICE})
    running = [lease.name for lease in await dispatcher.exchange(Claim("bench", SLOTS, services))]
    claim = Claim("bench", 1, services)
    began = time.perf_counter()
    for i in range(count):
        slot = i % len(running)
        (lease,) = await dispatcher.exchange(claim, (Release(running[slot], SERVICE),))
        running[slot] = lease.name
    return per_job_us(began, count)


async def place_cost(dispatcher: MemoryDispatcher, job_ids: list[str]) -> float:
    times = max(1, min(100, 200_000 // (len(job_ids) * 100)))
    began = time.perf_counter()
    for _ in range(times):
        await dispatcher.positions(job_ids)
    return per_job_us(began, times)


async def full_of(order: Order, waiting: int, users: int) -> tuple[MemoryDispatcher, Iterator[Offer]]:
    dispatcher = await dispatcher_with(order)
    arriving = offers(users)
    while (missing := waiting - sum((await dispatcher.snapshot())[0].waiting.values())) > 0:
        await dispatcher.offer(list(itertools.islice(arriving, min(missing, 10_000))))
    return dispatcher, arriving


async def costs(order: Order, waiting: int, users: int) -> dict[str, float]:
    """Microseconds per step, for the benchmark's results."""
    dispatcher, arriving = await full_of(order, waiting, users)
    rounds = min(ROUNDS, waiting // 2)
    return {
        "offer": await offer_cost(dispatcher, arriving, rounds),
        "exchange": await exchange_cost(dispatcher, rounds),
    }


async def measure(order: Order, waiting: int, users: int) -> None:
    dispatcher, arriving = await full_of(order, waiting, users)
    rounds = min(ROUNDS, waiting // 2)
    recent = list(itertools.islice(arriving, 100))
    offered = await offer_cost(dispatcher, arriving, rounds)
    exchanged = await exchange_cost(dispatcher, rounds)
    await dispatcher.offer(recent)
    one = await place_cost(dispatcher, [recent[0].job_id])
    many = await place_cost(dispatcher, [offer.job_id for offer in recent])
    print(
        f"{order:5} {waiting:>9,} {users:>8,} {offered:>8.1f} {exchanged:>9.1f} {one:>10.0f} {many:>11.0f}", flush=True
    )


async def bytes_per_job(order: Order, waiting: int, users: int) -> float:
    dispatcher = await dispatcher_with(order)
    gc.collect()
    tracemalloc.start()
    arriving = offers(users)
    for _ in range(waiting // 10_000):
        await dispatcher.offer(list(itertools.islice(arriving, 10_000)))
    gc.collect()
    per_job = tracemalloc.get_traced_memory()[0] / waiting
    tracemalloc.stop()
    return per_job


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="leave out the million")
    sizes = SIZES[:-1] if parser.parse_args().quick else SIZES
    print(f"order {'waiting':>9} {'users':>8} {'offer':>8} {'exchange':>9} {'place':>10} {'100 places':>11}  (µs)")
    for order in (Order.FAIR, Order.FIFO):
        for waiting in sizes:
            for users in USERS:
                if users <= waiting:
                    await measure(order, waiting, users)
                    gc.collect()
    print()
    for order in (Order.FAIR, Order.FIFO):
        for users in (1_000, sizes[-1]):
            per_job = await bytes_per_job(order, sizes[-1], users)
            print(
                f"{order:5} {sizes[-1]:>9,} {users:>8,} {per_job:>8.0f} bytes per waiting job, ids included", flush=True
            )


if __name__ == "__main__":
    asyncio.run(main())
