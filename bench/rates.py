"""What rates cost a claim: CPU time of Redis, and of the memory dispatcher, for an exchange of 1 and of 20 steps.

    python -m bench.rates [--rounds 5]

Each round measures all variants in turn, on a temporary Redis. The table has the lowest figures, because other work on
the machine only adds to them. For the cost of the code when no rate is used, run it with `--unused` in two working
trees. `tests/chaos/rates.py` measures how much of a rate is used.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import secrets
import time
import uuid
from collections.abc import Callable
from typing import Any

import redis
from tests.redis_servers import server_url

from fairlead.dispatch.memory import MemoryDispatcher
from fairlead.dispatch.port import Claim, Offer, Release
from fairlead.dispatch.redis import RedisDispatcher
from fairlead.domain.rules import Rules, ServiceRules

SERVICE, USERS, WAITING = "llm", 100, 4000
CALLS = {1: 500, 20: 50}


def variants() -> dict[str, dict[str, Any]]:
    try:
        from fairlead.domain.rates import Rate
    except ImportError:  # a version without rates
        return {"no rate": {}}
    requests, many = Rate(1_000_000, None, 60.0), Rate(1_000_000, 1e9, 60.0)
    return {
        "no rate": {},
        "requests": {"rate": requests},
        "requests and tokens": {"rate": many},
        "requests, and of each user": {"rate": requests, "user_rate": requests},
    }


def offers(count: int) -> list[Offer]:
    return [
        Offer(str(uuid.uuid4()), number, SERVICE, f"user-{number % USERS}", 2, 2, 0, 1, cost=5.0)
        for number in range(count)
    ]


async def measure(dispatcher: Any, rules: ServiceRules, batch: int, cpu: Callable[[], float]) -> float:
    """Microseconds of CPU for each step of an exchange that releases and claims `batch` steps."""
    await dispatcher.configure(Rules({SERVICE: rules}, version=1))
    await dispatcher.close_scope(rules.scope, 1)
    await dispatcher.open_scope(rules.scope, 1)
    await dispatcher.offer(offers(WAITING))
    claim = Claim("w", batch, frozenset((SERVICE,)))
    leases = await dispatcher.exchange(claim)
    began = cpu()
    for _ in range(CALLS[batch]):
        releases = [Release(lease.name, SERVICE) for lease in leases]
        leases = await dispatcher.exchange(claim, releases)
        assert len(leases) == batch
    return (cpu() - began) * 1e6 / CALLS[batch] / batch


async def round_of(
    url: str, results: dict[tuple[str, str, int], list[float]], chosen: dict[str, dict[str, Any]]
) -> None:
    server = redis.Redis.from_url(url)

    def server_cpu() -> float:
        info = server.info("cpu")
        return float(info["used_cpu_user"] + info["used_cpu_sys"])

    for (name, rates), batch in itertools.product(chosen.items(), CALLS):
        rules = ServiceRules(SERVICE, limit=100, **rates)
        remote = RedisDispatcher(url, prefix=f"bench-{secrets.token_hex(4)}")
        results.setdefault(("redis", name, batch), []).append(await measure(remote, rules, batch, server_cpu))
        await remote.close()
        memory = MemoryDispatcher(time.monotonic)
        results.setdefault(("memory", name, batch), []).append(await measure(memory, rules, batch, time.process_time))
        await memory.close()


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--unused", action="store_true", help="measure only without a rate")
    options = parser.parse_args()
    results: dict[tuple[str, str, int], list[float]] = {}
    for _ in range(options.rounds):
        await round_of(server_url(), results, {"no rate": {}} if options.unused else variants())
    lowest = {key: min(values) for key, values in results.items()}
    print("| dispatcher | steps | rate | CPU for each step, us | of no rate |\n| --- | --- | --- | --- | --- |")
    for (engine, name, batch), value in sorted(lowest.items(), key=lambda each: (each[0][0], each[0][2])):
        print(f"| {engine} | {batch} | {name} | {value:.1f} | {value / lowest[engine, 'no rate', batch]:.2f} |")


if __name__ == "__main__":
    asyncio.run(main())
