"""What rates, stated costs and groups of users add to a claim: CPU time of Redis, and of the memory dispatcher, for an
exchange of 1, 20 and 100 steps.

    python -m bench.rates [--rounds 10] [--before ../other-tree] [--only redis]

All variants take turns in every round, on one temporary Redis, so that a slow minute of the machine meets all of them.
The table has the lowest figure of each, because other work only adds to it, and the median ratio of its turns to those
of a claim that uses none of this, in the same rounds. With `--before`, the dispatchers of another working tree take
turns with them. The commands that one exchange sends within Redis are counted too; these numbers are exact.
`tests/chaos/rates.py` measures how much of a rate is used.
The scenario `scale` of the benchmark measures the same variants as the dispatcher's caller sees them (`times`).
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import secrets
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from operator import truediv
from pathlib import Path
from typing import Any

import redis

from fairlead.dispatch.memory import MemoryDispatcher
from fairlead.dispatch.port import Claim, Offer, Release
from fairlead.dispatch.redis import RedisDispatcher
from fairlead.domain.rules import Rules, ServiceRules

SERVICE, USERS, TEAMS, WAITING = "llm", 1000, 20, 4000
CALLS = {1: 200, 20: 20, 100: 5}
"""Exchanges in one turn, by the number of steps."""

BEFORE, UNUSED = "before", "nothing"
ENGINES = ("redis", "memory")
TURNS = 60
"""Of each variant, in the scenario `scale`."""


def variants() -> dict[str, tuple[dict[str, Any], dict[str, Any], Callable[[int], dict[str, Any]]]]:
    """By name: the rules of the service, other rules, and what the offer of a user's number says."""
    try:
        from fairlead.domain.groups import GroupRules
        from fairlead.domain.rates import Rate
    except ImportError:  # a version without rates
        return {UNUSED: ({}, {}, lambda user: {})}
    requests, tokens = Rate(1_000_000, None, 60.0), Rate(1_000_000, 1e9, 60.0)
    team = [f"team-{number}" for number in range(TEAMS)]
    inner = [f"org-{number % 4}/team-{number}" for number in range(TEAMS)]
    return {
        UNUSED: ({}, {}, lambda user: {}),
        "costs": ({}, {}, lambda user: {"cost": 5.0}),
        "requests": ({"rate": requests}, {}, lambda user: {}),
        "tokens": ({"rate": tokens}, {}, lambda user: {"cost": 5.0}),
        "requests of each user": ({"rate": requests, "user_rate": requests}, {}, lambda user: {}),
        "tokens of each user": ({"rate": tokens, "user_rate": tokens}, {}, lambda user: {"cost": 5.0}),
        "teams": ({}, {}, lambda user: {"group": team[user % TEAMS]}),
        "teams in organisations": ({}, {}, lambda user: {"group": inner[user % TEAMS]}),
        "teams with rates": (
            {},
            {"groups": {name: GroupRules(rate=requests) for name in team}},
            lambda user: {"group": team[user % TEAMS]},
        ),
    }


class Bench:
    """One dispatcher with one variant, whose queue keeps its length. `clock` measures the exchanges: by default the CPU
    time of Redis, or of this process for the memory dispatcher."""

    def __init__(self, engine: str, name: str, url: str, clock: Callable[[], float] | None = None) -> None:
        self._rules, self._others, self._said = variants()[name]
        self._server = redis.Redis.from_url(url)
        self._dispatcher: Any = (
            RedisDispatcher(url, prefix=f"bench-{secrets.token_hex(4)}")
            if engine == "redis"
            else MemoryDispatcher(time.monotonic)
        )
        self._cpu = clock or (self._server_cpu if engine == "redis" else time.process_time)
        self._offers = self._arriving()
        self._opened = False

    def _arriving(self) -> Iterator[Offer]:
        for number in itertools.count():
            user = number % USERS
            yield Offer(str(uuid.uuid4()), number, SERVICE, f"user-{user}", 2, 2, 0, 1, **self._said(user))

    def _server_cpu(self) -> float:
        info = self._server.info("cpu")
        return float(info["used_cpu_user"] + info["used_cpu_sys"])

    def _commands(self) -> int:
        stats = self._server.info("commandstats")
        return sum(each["calls"] for name, each in stats.items() if name not in ("cmdstat_info", "cmdstat_evalsha"))

    async def turn(self, batch: int) -> tuple[float, float]:
        """Microseconds for each step of exchanges that release and claim `batch` steps, and the number of commands
        within Redis of one exchange."""
        calls = CALLS[batch]
        if not self._opened:
            rules = ServiceRules(SERVICE, limit=max(CALLS), **self._rules)
            await self._dispatcher.configure(Rules({SERVICE: rules}, version=1, **self._others))
            await self._dispatcher.close_scope(rules.scope, 1)
            await self._dispatcher.open_scope(rules.scope, 1)
            await self._dispatcher.offer(list(itertools.islice(self._offers, WAITING)))
            self._opened = True
        claim = Claim("w", batch, frozenset((SERVICE,)))
        leases = await self._dispatcher.exchange(claim)
        commands, began = self._commands(), self._cpu()
        for _ in range(calls):
            releases = [Release(lease.name, SERVICE) for lease in leases]
            leases = await self._dispatcher.exchange(claim, releases)
            assert len(leases) == batch
        took, commands = self._cpu() - began, self._commands() - commands
        await self._dispatcher.release([Release(lease.name, SERVICE) for lease in leases])
        await self._dispatcher.offer(list(itertools.islice(self._offers, batch * (calls + 1))))
        return took * 1e6 / calls / batch, commands / calls


async def times(engine: str, batch: int, url: str) -> dict[str, float]:
    """By variant, the microseconds that the dispatcher's caller waits for each step of an exchange. Those of a variant
    are those of a claim that uses nothing, times the median ratio of their turns, of which each round has one: a
    machine that is slow for some seconds is slow for all of them."""
    benches = {name: Bench(engine, name, url, time.perf_counter) for name in variants()}
    found: dict[str, list[float]] = {name: [] for name in benches}
    for number in range(TURNS + 1):
        for name in list(benches) if number % 2 else reversed(benches):
            took, _ = await benches[name].turn(batch)
            if number > 0:  # the first warms up
                found[name].append(took)
    plain = found[UNUSED]
    return {name: min(plain) * statistics.median(map(truediv, turns, plain)) for name, turns in found.items()}


async def serve(url: str) -> None:
    """Take turns as they are asked for, one line of JSON each."""
    benches: dict[tuple[str, str], Bench] = {}
    for line in sys.stdin:
        engine, name, batch = json.loads(line)
        if (engine, name) not in benches:
            benches[engine, name] = Bench(engine, name, url)
        print(json.dumps(await benches[engine, name].turn(batch)), flush=True)


class Tree:
    """The dispatchers of a working tree, in a process of their own."""

    def __init__(self, tree: Path, url: str) -> None:
        command = [sys.executable, "-P", __file__, "--serve", url]
        environment = os.environ | {"PYTHONPATH": str(tree.resolve() / "src")}
        self._process = subprocess.Popen(command, env=environment, stdin=-1, stdout=-1, text=True)

    def turn(self, engine: str, name: str, batch: int) -> tuple[float, float]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps([engine, name, batch]), file=self._process.stdin, flush=True)
        cpu, commands = json.loads(self._process.stdout.readline())
        return cpu, commands


def _costs(turns: list[tuple[float, float]]) -> list[float]:
    return [cpu for cpu, _ in turns]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--before", type=Path, help="a working tree to compare with; it needs no installation")
    parser.add_argument("--only", choices=ENGINES, action="append", help="this dispatcher")
    parser.add_argument("--variant", choices=list(variants()), action="append", help="these, and the one with nothing")
    parser.add_argument("--serve", metavar="URL", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        asyncio.run(serve(options.serve))
        return
    from tests.redis_servers import server_url

    url = server_url()
    here = Tree(Path(__file__).parents[1], url)
    cells = [(name, here, name) for name in variants() if not options.variant or name in {UNUSED, *options.variant}]
    if options.before:
        cells.insert(1, (BEFORE, Tree(options.before, url), UNUSED))
    found: dict[tuple[str, int, str], list[tuple[float, float]]] = {}
    for number in range(options.rounds + 1):
        for engine, batch in itertools.product(options.only or ENGINES, CALLS):
            for row, tree, name in cells if number % 2 else cells[::-1]:
                turn = tree.turn(engine, name, batch)
                if number > 0:  # the first warms up
                    found.setdefault((engine, batch, row), []).append(turn)
    bases = [name for name in (UNUSED, BEFORE) if any(row == name for row, _, _ in cells)]
    print("| dispatcher | steps | with | CPU for each step, us |", *(f"of {name} |" for name in bases), "commands |")
    print("| --- " * (5 + len(bases)) + "|")
    for engine, batch, (row, _, _) in itertools.product(options.only or ENGINES, CALLS, cells):
        costs, commands = zip(*found[engine, batch, row], strict=True)
        ratios = [statistics.median(map(truediv, costs, _costs(found[engine, batch, base]))) for base in bases]
        shown = [f"{ratio:.2f} |" for ratio in ratios]
        print(f"| {engine} | {batch} | {row} | {min(costs):.1f} |", *shown, f"{statistics.median(commands):.0f} |")


if __name__ == "__main__":
    main()
