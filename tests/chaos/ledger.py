"""Does the usage ledger equal the endpoint's own log, call by call and token by token, after many kills?

    python -m tests.chaos.ledger [--kills 200] [--engine sqlite|postgres] [--budgets] [--seed N]

The endpoint runs here and writes down every call: job, attempt, status, tokens. Processes that execute the jobs (one on
SQLite, three at once on PostgreSQL) are killed again and again after a random number of calls. In the end every call of
the endpoint has exactly one row, a row that says `success` or `failed` has the tokens and the status of the endpoint,
and every other call was lost with its process. With `--budgets`, what budgets counted equals the ledger, and nothing
is left reserved.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import random
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

from fairlead.app.fairlead import Fairlead
from fairlead.config import Settings
from fairlead.domain.config import Config
from fairlead.domain.job import OPEN
from fairlead.domain.usage_report import CallRecord
from fairlead.store.port import JobFilter, Store
from tests import redis_servers, servers

PATIENCE_S = 120.0
MOST_ROWS = 1_000_000
WAITING = 40
"""Jobs that wait at least, so that every process finds some."""
Key = tuple[str, int]
BUDGETS: dict[str, Any] = {
    "everyone": {"tokens": 10**12, "per": "month"},
    "each": {"money": 1e6, "per": "month", "each_user": True, "timezone": "Asia/Kolkata"},
}


@dataclass(frozen=True)
class Entry:
    """A call as the endpoint knows it."""

    status: int
    tokens_in: int
    tokens_out: int


@dataclass
class Endpoint:
    """Answers calls with random tokens, sometimes with an error, and writes down what it answered."""

    chance: random.Random
    log: dict[Key, Entry] = field(default_factory=dict)
    repeated: list[Key] = field(default_factory=list)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    calls: Counter[str] = field(default_factory=Counter)
    """By process."""

    async def answer(self, request: web.Request) -> web.Response:
        body = await request.json()
        key = body["meta"]["job_id"], body["meta"]["attempt"]
        status = self.chance.choices((200, 503, 400), (0.85, 0.12, 0.03))[0]
        entry = Entry(status, self.chance.randrange(1, 5000), self.chance.randrange(1, 900))
        if key in self.log:
            self.repeated.append(key)
        self.log[key] = entry
        self.calls[request.query["process"]] += 1
        self.arrived.set()
        await asyncio.sleep(self.chance.uniform(0.001, 0.08))
        if status != 200:
            return web.json_response({"error": "no"}, status=status)
        usage = {"prompt_tokens": entry.tokens_in, "completion_tokens": entry.tokens_out}
        return web.json_response({"data": {}, "usage": usage, "model": "m"})

    async def busy(self, processes: Iterable[str], count: int) -> str:
        """The first of these processes that has made so many calls."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                for process in processes:
                    if self.calls[process] >= count:
                        return process
                self.arrived.clear()
                await self.arrived.wait()


@asynccontextmanager
async def served(endpoint: Endpoint) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_post("/call", endpoint.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    server: Any = site._server
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/call"
    finally:
        await runner.cleanup()


def app_of(options: dict[str, Any]) -> Fairlead:
    service = {
        "url": options["url"],
        "limit": 32,  # dead processes keep their slots for seconds
        "timeout": 20,
        "lease_ttl": 1,
        "max_attempts": 1000,
        "backoff": [0.01],
        "hold_after_crash": 0,
    }
    config: dict[str, Any] = {
        "worker": {"concurrency": 4},
        "services": {"chat": service},
        "prices": {"chat": {"per_million_tokens_in": 1000.0}},
        "groups": {"red": {}},
        "users": {"user-1": {"group": "red"}},
    }
    if options["budgets"]:
        config["budgets"] = BUDGETS
    return Fairlead(Settings(Config.model_validate(config), options["database"], redis_url=options["redis"]))


async def execute(options: dict[str, Any]) -> None:
    """The process that is killed: executes jobs until its end."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(process)d %(message)s")
    async with app_of(options).running():
        await asyncio.Event().wait()


async def started(options: dict[str, Any], name: str) -> asyncio.subprocess.Process:
    """A process that executes jobs. The URL of its calls has its name."""
    text = json.dumps(options | {"url": f"{options['url']}?process={name}"})
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.chaos.ledger", "--child", text, cwd=Path(__file__).parents[2]
    )


async def kill_again_and_again(options: dict[str, Any], endpoint: Endpoint, lives: list[int], beside: int) -> None:
    """Keep `beside` processes running. For each of the lives, kill the first process that has made so many calls."""
    alive: dict[str, asyncio.subprocess.Process] = {}
    try:
        for kill, calls in enumerate(lives):
            while len(alive) < beside:
                name = f"{kill}-{len(alive)}"
                alive[name] = await started(options, name)
            victim = alive.pop(await endpoint.busy(alive, calls))
            victim.kill()
            await victim.wait()
    finally:
        for left in alive.values():
            left.kill()
            await left.wait()


async def submit(app: Fairlead, count: int) -> None:
    for number in range(count):
        await app.submit("chat", {}, user_id=f"user-{number % 7}")


async def keep_waiting(options: dict[str, Any]) -> None:
    """Submit jobs whenever few are left."""
    async with app_of(options) as app:
        while True:
            await submit(app, max(0, WAITING - await app._runtime.store.count(JobFilter(statuses=OPEN))))
            await asyncio.sleep(0.1)


async def soak(options: dict[str, Any], endpoint: Endpoint, kills: int, chance: random.Random) -> str:
    """Submit jobs, kill, finish them, and compare. Returns what was compared."""
    lives = [chance.randint(1, 12) for _ in range(kills)]
    if options["redis"] is None:
        # Only one process can open the database: all jobs are submitted before. Calls that fail or are lost are
        # repeated, so there are enough.
        async with app_of(options) as app:
            await submit(app, sum(lives) + WAITING)
        await kill_again_and_again(options, endpoint, lives, 1)
    else:
        feeder = asyncio.create_task(keep_waiting(options))
        await kill_again_and_again(options, endpoint, lives, 3)
        feeder.cancel()
        with suppress(asyncio.CancelledError):
            await feeder
    app = app_of(options | {"url": f"{options['url']}?process=last"})
    async with app.running():
        async with asyncio.timeout(PATIENCE_S):
            while await app._runtime.store.count(JobFilter(statuses=OPEN)):
                await asyncio.sleep(0.05)
        return await compare(app, app._runtime.store, endpoint)


async def compare(app: Fairlead, store: Store, endpoint: Endpoint) -> str:
    rows = await store.latest_calls(MOST_ROWS)
    by_key: dict[Key, CallRecord] = {(row.job_id, row.attempt): row for row in rows}
    assert len({(row.job_id, row.run) for row in rows}) == len(rows) == len(by_key), "a call has several rows"
    assert not endpoint.repeated, "two calls had the same attempt"
    assert not (missing := endpoint.log.keys() - by_key.keys()), f"calls without a row: {missing}"
    for key, row in by_key.items():
        entry = endpoint.log.get(key)
        assert row.group == ("red" if row.user_id == "user-1" else None), row
        if row.outcome == "lost":
            assert row.tokens_in is None
            continue
        assert entry is not None, f"the endpoint does not know {row}"
        assert row.outcome == ("success" if entry.status == 200 else "failed"), row
        tokens = (entry.tokens_in, entry.tokens_out) if entry.status == 200 else (None, None)
        assert (row.tokens_in, row.tokens_out) == tokens, row
        assert row.price == (0 if entry.status != 200 else entry.tokens_in * 1_000_000), row
    outcomes = Counter(row.outcome for row in rows)
    (total,) = (await app.usage(interval="total")).data
    answered = sum(row.tokens_in or 0 for row in rows)
    assert (total.calls, total.tokens_in) == (len(rows), answered), total
    heard = sum(endpoint.log[key].tokens_in for key, row in by_key.items() if row.outcome == "success")
    assert heard == answered
    (team,) = (await app.usage(interval="total", filters={"group": "red"})).data
    assert team.calls == sum(row.group == "red" for row in rows), team
    if app.config.budgets:
        await compare_budgets(store, rows)
    shown = ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items()))
    return f"{len(endpoint.log)} calls at the endpoint, {len(rows)} rows ({shown}), {answered} tokens in: equal"


async def compare_budgets(store: Store, rows: list[CallRecord]) -> None:
    counters = {row.key: row.counter for row in await store.budget_counters()}
    assert not (left := {key for key, counter in counters.items() if counter.reserved}), f"reserved still: {left}"
    used = {("each", row.user_id): 0 for row in rows}
    for row in rows:
        used["each", row.user_id] += row.price or 0
    used["everyone", ""] = sum((row.tokens_in or 0) + (row.tokens_out or 0) for row in rows)
    assert {key: counter.used for key, counter in counters.items()} == used
    assert sum(counters["each", user].calls for _, user in counters if user) == len(rows)


async def run(folder: Path, engine: str, kills: int, seed: int, *, budgets: bool = False) -> str:
    chance = random.Random(seed)
    endpoint = Endpoint(random.Random(seed + 1))
    async with served(endpoint) as url:
        options: dict[str, Any] = {"url": url, "database": f"sqlite:///{folder}/ledger.db", "redis": None}
        options["budgets"] = budgets
        if engine == "sqlite":
            return await soak(options, endpoint, kills, chance)
        redis = redis_servers.Server().start()
        try:
            options |= {"database": await servers.new_database(), "redis": redis.url}
            return await soak(options, endpoint, kills, chance)
        finally:
            redis.kill()


def main() -> int:
    parser = argparse.ArgumentParser(description="Compares the usage ledger with the endpoint's log after many kills.")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--engine", choices=("sqlite", "postgres"), default="sqlite")
    parser.add_argument("--budgets", action="store_true")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1_000_000))
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child is not None:
        asyncio.run(execute(json.loads(arguments.child)))
        return 0
    print(f"{arguments.kills} kills, {arguments.engine}, seed {arguments.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="fairlead-ledger-") as folder:
        ran = run(Path(folder), arguments.engine, arguments.kills, arguments.seed, budgets=arguments.budgets)
        print(asyncio.run(ran))
    return 0


if __name__ == "__main__":
    sys.exit(main())
