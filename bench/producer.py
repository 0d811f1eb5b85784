"""The producer of a system, in a separate process and the system's own virtual environment.

    python -m bench.producer peers.celery

It reads one JSON command per line and writes one JSON line as the result; `bench/peers/node/producer.js` is the same
for the systems on Node.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib
import inspect
import itertools
import json
import random
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from bench import handlers
from bench.system_port import Job, System

LOST_AFTER_S = 20.0


class Producer:
    def __init__(self, system: System) -> None:
        self._system = system
        self._tasks = inspect.iscoroutinefunction(system.enqueue)
        self._bulk_awaits = inspect.iscoroutinefunction(system.enqueue_many)

    async def describe(self) -> dict[str, Any]:
        return self._system.describe()

    async def setup(self) -> dict[str, Any]:
        await self._system.setup()
        return {}

    async def open(self) -> dict[str, Any]:
        await self._system.open()
        return {}

    async def work(self, use: str) -> dict[str, Any]:
        await self._system.work(use)
        return {}

    async def enqueue(self, seconds: float, callers: int, at_most: int | None = None) -> dict[str, Any]:
        """Enqueue no-op jobs one per call, by concurrent callers, for a time or up to a number."""
        await self._one(Job("noop"))
        begun = time.perf_counter()
        numbers = itertools.islice(_until(begun + seconds), at_most)
        if self._tasks:
            count = await _by_tasks(numbers, callers, self._system.enqueue)
        else:
            count = await asyncio.to_thread(_by_threads, numbers, callers, self._system.enqueue)
        return {"count": count + 1, "seconds": time.perf_counter() - begun}

    async def fill(self, count: int, seconds: float, kind: str = "noop", user: str = "ada") -> dict[str, Any]:
        """Enqueue up to a number of jobs within a time, in the fastest way the system has."""
        begun = time.perf_counter()
        size = self._system.bulk_size if self._system.enqueue_many is not None else 50
        filled = 0
        while filled < count and time.perf_counter() - begun < seconds:
            jobs = [Job(kind, filled + n, user) for n in range(min(size, count - filled))]
            await self._many(jobs)
            filled += len(jobs)
        return {"count": filled, "seconds": time.perf_counter() - begun}

    async def one(self, kind: str, number: int, user: str) -> dict[str, Any]:
        await self._one(Job(kind, number, user))
        return {"at": time.time_ns()}

    async def steps(self, count: int) -> dict[str, Any]:
        for number in range(count):
            answer = self._system.enqueue_steps(number)
            if inspect.isawaitable(answer):
                await answer
        return {}

    async def latency(self, count: int, seconds: float) -> dict[str, Any]:
        """Milliseconds from the call to the first line of the job, one job at a time on an idle system."""
        where, asked = handlers.folder(), list[int]()
        before = handlers.started(where)
        until = time.perf_counter() + seconds
        while len(asked) < count and (time.perf_counter() < until or len(asked) < 5):
            await asyncio.sleep(random.uniform(0.005, 0.03))
            asked.append(time.time_ns())
            await self._one(Job("stamp", len(asked) - 1))
            await _until_started(where, before + len(asked))
        begun = dict(handlers.starts(where)[before:])
        return {"ms": [(begun[number] - at) / 1e6 for number, at in enumerate(asked)]}

    async def _one(self, job: Job) -> None:
        answer = self._system.enqueue(job)
        if inspect.isawaitable(answer):
            await answer

    async def _many(self, jobs: list[Job]) -> None:
        if self._system.enqueue_many is not None:
            answer = self._system.enqueue_many(jobs)
            if inspect.isawaitable(answer):
                await answer
        elif self._tasks:
            await asyncio.gather(*map(self._system.enqueue, jobs))
        else:
            for job in jobs:
                self._system.enqueue(job)


def _until(end: float) -> Iterator[int]:
    return itertools.takewhile(lambda _: time.perf_counter() < end, itertools.count(1))


async def _by_tasks(numbers: Iterator[int], callers: int, enqueue: Callable[[Job], Awaitable[object]]) -> int:
    async def caller() -> int:
        count = 0
        for number in numbers:
            await enqueue(Job("noop", number, f"user-{number % 20}"))
            count += 1
        return count

    return sum(await asyncio.gather(*(caller() for _ in range(callers))))


def _by_threads(numbers: Iterator[int], callers: int, enqueue: Callable[[Job], object]) -> int:
    lock, counts = threading.Lock(), [0] * callers

    def caller(me: int) -> None:
        while True:
            with lock:
                number = next(numbers, None)
            if number is None:
                return
            enqueue(Job("noop", number, f"user-{number % 20}"))
            counts[me] += 1

    threads = [threading.Thread(target=caller, args=(me,)) for me in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts)


async def _until_started(where: Any, count: int) -> None:
    """In a thread: the event loop belongs to the system, which may still work on the job after it accepted it."""
    await asyncio.to_thread(_look_until_started, where, count)


def _look_until_started(where: Any, count: int) -> None:
    lost = time.perf_counter() + LOST_AFTER_S
    while handlers.started(where) < count:
        if time.perf_counter() > lost:
            raise TimeoutError(f"a job did not start within {LOST_AFTER_S:g} s")
        time.sleep(0.001)


async def main() -> None:
    system: System = importlib.import_module(f"bench.{sys.argv[1]}").system
    # For all systems, as in a gateway that accepts jobs by the thousand: the collector finds nothing here.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    producer, loop = Producer(system), asyncio.get_running_loop()
    answers, sys.stdout = sys.stdout, sys.stderr  # keep what libraries print out of the results
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        asked = json.loads(line)
        try:
            answer = await getattr(producer, asked.pop("do"))(**asked)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)
    with contextlib.suppress(Exception):
        await asyncio.wait_for(system.close(), 2)


if __name__ == "__main__":
    try:
        import uvloop
    except ImportError:
        asyncio.run(main())
    else:
        uvloop.run(main())
