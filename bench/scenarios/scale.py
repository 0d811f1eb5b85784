"""The cost of one operation of the dispatcher as the backlog and the users grow, in memory and in Redis; the cost of a
claim with rates and groups of users beside one that uses none; and the cost of a plain FIFO claim in Redis. Each row
runs in a separate process, because a million jobs affect the interpreter."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable

from bench import dispatcher, plain_claim, rates, redis_dispatcher
from bench.servers import Servers
from bench.sizes import Sizes
from bench.system_run import Broken
from bench.systems import EMBEDDED, OURS, ROOT
from fairlead.domain.rules import Order

FEW = 10


def costs(servers: Servers, sizes: Sizes, keep: Callable[[str, str, str, float], None]) -> None:
    """Figures are named `exchange µs, 1000 waiting, 10 users`, and those of `bench.rates` `exchange µs with teams`."""
    servers.fresh()
    grid = [(waiting, FEW) for waiting in sizes.waiting]
    grid += [(max(sizes.waiting), users) for users in sizes.users if FEW < users <= max(sizes.waiting)]
    for system, engine in ((OURS, servers.redis_url), (EMBEDDED, "memory")):
        for waiting, users in grid:
            for figure, value in _row(engine, waiting, users).items():
                keep("scale", system, f"{figure}, {waiting} waiting, {users} users", value)
    keep("scale", OURS, "plain claim µs", _row(servers.redis_url, sizes.waiting[0], 0)["plain µs"])
    for system, engine in ((OURS, "redis"), (EMBEDDED, "memory")):
        for variant, value in _row(engine, servers.redis_url).items():
            keep("scale", system, f"exchange µs with {variant}", value)


def _row(*arguments: object) -> dict[str, float]:
    command = [sys.executable, "-m", "bench.scenarios.scale", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    if done.returncode:
        raise Broken(done.stderr.strip().splitlines()[-1])
    row: dict[str, float] = json.loads(done.stdout)
    return row


async def _measured(engine: str, waiting: int, users: int) -> dict[str, float]:
    if users == 0:
        return {"plain µs": await plain_claim.cost(engine, waiting)}
    if engine == "memory":
        found = await dispatcher.costs(Order.FAIR, waiting, users)
        found["bytes"] = await dispatcher.bytes_per_job(Order.FAIR, max(waiting, 10_000), users)
    else:
        found = await redis_dispatcher.costs(engine, Order.FAIR, waiting, users)
    return {name if name == "bytes" else f"{name} µs": value for name, value in found.items()}


def _main(engine: str, *of_row: str) -> None:
    if len(of_row) == 1:
        row = asyncio.run(rates.times(engine, 100 if engine == "redis" else 1, of_row[0]))
    else:
        row = asyncio.run(_measured(engine, *map(int, of_row)))
    print(json.dumps(row))


if __name__ == "__main__":
    _main(*sys.argv[1:])
