"""Every command of docs/monitoring.md, as it is written there, against a system with a job in each state."""

from __future__ import annotations

import asyncio
import re
import shlex
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest
import typer.main
from redis.asyncio import Redis

from fairlead import Call, Config, Fairlead, Permanent
from fairlead.cli.root import app as cli
from fairlead.gateway.app import create_gateway
from fairlead.gateway.metrics import METRICS
from fairlead.store.rows import STATUSES
from tests.integration.gateway_site import client_of

PATIENCE = 30.0
TEXT = (Path(__file__).parents[2] / "docs" / "monitoring.md").read_text(encoding="utf-8")
NOW = [row.split(" | ", 1)[-1] for row in TEXT.splitlines() if row.startswith("|") and row.count(" | ") >= 2]
"""The second and third column of every table."""
SNIPPETS = [snippet for row in NOW for snippet in re.findall(r"`([^`]+)`", row)]
REDIS = sorted({snippet.removeprefix("redis-cli ") for snippet in SNIPPETS if snippet.startswith("redis-cli ")})
SQL = sorted({snippet for snippet in SNIPPETS if snippet.startswith("SELECT ")})
ROUTES = sorted(
    {snippet.removeprefix("GET ") for snippet in SNIPPETS if snippet.startswith("GET /") and "{" not in snippet}
)


@asynccontextmanager
async def busy(engines: dict[str, str]) -> AsyncIterator[Fairlead]:
    """One call of `image_gen` runs; one waits in each band; one job has failed, and one is scheduled."""
    app = Fairlead(Config(), **engines)
    entered, gate = asyncio.Event(), asyncio.Event()

    @app.service("image_gen", limit=1)
    async def image_gen(call: Call) -> None:
        entered.set()
        await gate.wait()

    @app.service("broken", limit=1)
    async def broken(call: Call) -> None:
        raise Permanent("broken")

    async with app.running():
        await app.submit("image_gen")
        await entered.wait()
        for priority in ("high", "medium", "low"):
            await app.submit("image_gen", priority=priority)
        await app.submit("image_gen", delay=3600)
        failed = await app.submit("broken")
        await app.wait(failed.id, PATIENCE)
        yield app
        gate.set()


async def test_the_commands_for_redis_answer(distributed: dict[str, str]) -> None:
    expected: dict[str, Any] = {"line": 1, "leases": 1, "entries": 3}
    assert len(REDIS) > 6
    assert len(ROUTES) > 3
    async with busy(distributed), aclosing(Redis.from_url(distributed["redis_url"])) as client:
        for command in REDIS:
            words = shlex.split(command)
            answer = await client.execute_command(*words)
            key = words[1].rpartition(":")[2]
            if words[0] in ("ZLEXCOUNT", "HLEN"):
                assert answer == expected[key], command
            elif words[0] == "HKEYS":
                assert len(answer) == 1, command
            elif words[:2] == ["GET", "fairlead:leader"]:
                assert re.fullmatch(rb"\d+ .+", answer), command


@pytest.mark.parametrize("query", SQL)
async def test_the_queries_are_valid(distributed: dict[str, str], query: str) -> None:
    async with Fairlead(Config(), **distributed):
        connection = await asyncpg.connect(distributed["database_url"])
        try:
            await connection.fetch(query)
        finally:
            await connection.close()


async def test_the_routes_answer_with_the_fields_that_the_page_names(distributed: dict[str, str]) -> None:
    async with busy(distributed) as app, client_of(create_gateway(app)) as client:
        for path in ROUTES:
            if path != "/queue/status/US":
                assert (await client.get(path)).status_code == 200, path
        stats = (await client.get("/admin/runtime/stats")).json()
        assert stats["queues"] == {"main": 3, "retry": 0, "dead": 1, "scheduled": 1, "running": 1}
        assert {"leaders", "loops", "outbox", "scopes"} <= stats.keys()
        assert {"timers", "promote"} <= stats["loops"]["main"].keys()
        assert "latency" in stats["loops"]["main"]["timers"]
        (service,) = [
            each for each in (await client.get("/queue/status")).json()["services"] if each["service"] == "image_gen"
        ]
        assert (service["in_use"], service["limit"], len(service["running"])) == (1, 1, 1)
        assert {band: service["waiting"][band] for band in ("high", "medium", "low")} == {
            "high": 1,
            "medium": 1,
            "low": 1,
        }


def test_commands_metrics_and_numbers_exist() -> None:
    commands = typer.main.get_command(cli).commands  # type: ignore[attr-defined]
    assert {snippet.split()[1] for snippet in SNIPPETS if snippet.startswith("fairlead ")} <= set(commands)
    named = set(re.findall(r"`(fairlead_\w+)`", TEXT))
    assert {name.removesuffix("_total") for name in named} <= METRICS.keys()
    numbers = re.findall(r"^\| `\w+` \| `(\w+)` \| (\d) \|", TEXT, re.MULTILINE)
    assert [(name, int(number)) for name, number in numbers] == [
        (status.value, number) for number, status in enumerate(STATUSES)
    ]
