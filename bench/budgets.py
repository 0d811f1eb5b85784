"""What budgets cost a drain on PostgreSQL and Redis: python -m bench.budgets [--jobs 6000] [--rounds 3]

Two processes run all jobs of 100 users, with handlers that do nothing, without a budget, with one for each user, and
with one for everyone, whose counter is one row. The time is from the first finished job to the last.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from typing import Any

from tests import redis_servers, servers

from fairlead.app.fairlead import Fairlead
from fairlead.config import Settings
from fairlead.domain.config import Config
from fairlead.domain.job import OPEN
from fairlead.executors.port import Call
from fairlead.store.port import JobFilter

USERS, PROCESSES, LIMIT = 100, 2, 200
BUDGETS: dict[str, dict[str, Any]] = {
    "no budget": {},
    "each user": {"each": {"seconds": 1e9, "per": "month", "each_user": True}},
    "everyone": {"all": {"seconds": 1e9, "per": "month"}},
    "everyone and each user": {
        "all": {"seconds": 1e9, "per": "month"},
        "each": {"seconds": 1e9, "per": "month", "each_user": True},
    },
}


def app_of(options: dict[str, Any]) -> Fairlead:
    config = Config.model_validate({"budgets": BUDGETS[options["budgets"]]})
    app = Fairlead(Settings(config, options["database"], redis_url=options["redis"]))

    @app.service("nothing", limit=LIMIT)
    async def nothing(call: Call) -> None: ...

    return app


async def work(options: dict[str, Any]) -> None:
    async with app_of(options).running():
        await asyncio.Event().wait()


async def drain(options: dict[str, Any], jobs: int) -> float:
    """Jobs per second."""
    async with app_of(options) as app:
        for first in range(0, jobs, 500):
            some = [("nothing", {}, f"user-{n % USERS}") for n in range(first, min(jobs, first + 500))]
            await asyncio.gather(*(app.submit(feature, data, user_id=user) for feature, data, user in some))
        store = app._runtime.store
        text = json.dumps(options)
        children = [
            await asyncio.create_subprocess_exec(sys.executable, "-m", "bench.budgets", "--child", text)
            for _ in range(PROCESSES)
        ]
        try:
            began, left = 0.0, jobs
            while True:
                now_left = await store.count(JobFilter(statuses=OPEN))
                if not began and now_left < jobs:
                    began, left = time.perf_counter(), now_left
                if not now_left:
                    return left / (time.perf_counter() - began)
                await asyncio.sleep(0.02)
        finally:
            for child in children:
                child.kill()
                await child.wait()


async def measure(jobs: int, rounds: int) -> None:
    rates: dict[str, list[float]] = {name: [] for name in BUDGETS}
    for _ in range(rounds):
        for name in BUDGETS:
            redis = redis_servers.Server().start()
            try:
                options = {"database": await servers.new_database(), "redis": redis.url, "budgets": name}
                rates[name].append(await drain(options, jobs))
            finally:
                redis.kill()
    for name, found in rates.items():
        median = statistics.median(found)
        share = median / statistics.median(rates["no budget"])
        each = ", ".join(f"{rate:.0f}" for rate in found)
        print(f"{name}: {median:.0f} jobs/s (rounds: {each}), {share:.2f} of no budget", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=6000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child is not None:
        asyncio.run(work(json.loads(arguments.child)))
    else:
        asyncio.run(measure(arguments.jobs, arguments.rounds))


if __name__ == "__main__":
    main()
