"""Helpers of the doctor's tests: query its findings, and carry out the commands of a fix."""

from __future__ import annotations

import asyncio
import re
import shlex
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import asyncpg
import httpx2
import pytest
import redis
import typer.main
from typer.testing import CliRunner, Result

from fairlead import Fairlead
from fairlead.cli.process import bands_of, regions_of, services_of
from fairlead.cli.root import app as command_line
from fairlead.engine.roles import ALL, Roles
from fairlead.gateway.app import create_gateway
from fairlead.observe.doctor.finding import Finding
from tests import servers
from tests.chaos.waiting import until
from tests.integration.gateway_site import served

API = Roles(worker=False, manager=False)
MANAGER = Roles(api=False, worker=False)
WORKER = Roles(api=False, manager=False)
COMMANDS = typer.main.get_command(command_line).commands  # type: ignore[attr-defined]


def provokes(*codes: str) -> Callable[[Any], Any]:
    """Marks the findings that a test provokes; test_doctor.py checks that each is provoked."""

    def mark(test: Any) -> Any:
        test.provoked_codes = codes
        return test

    return mark


async def found(app: Fairlead) -> dict[str, Finding]:
    """The findings by code; of several with the same code the first."""
    findings: dict[str, Finding] = {}
    for finding in await app.doctor():
        findings.setdefault(finding.code, finding)
    return findings


async def until_found(app: Fairlead, *codes: str) -> dict[str, Finding]:
    """Wait until all of these are found, and return the findings."""

    async def looked() -> dict[str, Finding] | None:
        seen = await found(app)
        return seen if seen.keys() >= set(codes) else None

    seen = await until(f"the doctor finds {codes}", looked, patience=30)
    assert seen is not None
    for code in codes:
        assert seen[code].cause
        assert seen[code].fix
    return seen


async def until_gone(app: Fairlead, *codes: str) -> None:
    """Wait until none of these is found."""

    async def looked() -> bool:
        return not (await found(app)).keys() & set(codes)

    await until(f"the doctor finds {codes} no more", looked, patience=30)


def commands_in(fix: str) -> list[list[str]]:
    return [shlex.split(command) for command in re.findall(r"`([^`]+)`", fix)]


def command_in(finding: Finding, *beginning: str) -> list[str]:
    """The whole command of this fix that starts with these words."""
    for command in commands_in(finding.fix):
        if command[: len(beginning)] == list(beginning):
            return command
    raise AssertionError(f"{finding.fix!r} names no {' '.join(beginning)}")


async def run(arguments: list[str]) -> Result:
    """The command line in a thread of this process, which is much faster than a process of its own."""
    opened: list[httpx2.Client] = []

    class Closed(httpx2.Client):
        """The connections of a command end with its process. Here they would outlive it."""

        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            opened.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("httpx2.Client", Closed)
        patch.setattr("fairlead.cli.root.log_to_stderr", lambda level: None)
        ended = await asyncio.to_thread(CliRunner().invoke, command_line, arguments)
    for client in opened:
        client.close()
    return ended


class Operator:
    """Carries out a fix as an operator would type it: `fairlead` by its command line, `redis-cli` and `psql` by a
    connection to the server."""

    def __init__(self, environment: pytest.MonkeyPatch) -> None:
        self._environment = environment
        self._stack = AsyncExitStack()

    async def serve(self, app: Fairlead) -> None:
        """Serve the gateway that `fairlead` connects to."""
        port = await self._stack.enter_async_context(served(create_gateway(app)))
        self._environment.setenv("FAIRLEAD_URL", f"http://127.0.0.1:{port}")

    async def close(self) -> None:
        await self._stack.aclose()

    async def fairlead(self, command: list[str]) -> str:
        assert command[0] == "fairlead"
        if command[1] not in COMMANDS:
            pytest.skip(f"fairlead {command[1]} is not there; tests/docs/test_doctor_docs.py says so too")
        ended = await run(command[1:])
        assert ended.exit_code == 0, (command, ended.output, ended.exception)
        return ended.output

    @asynccontextmanager
    async def started(self, app: Fairlead, command: list[str]) -> AsyncIterator[Fairlead]:
        """`fairlead up`, `worker` or `manager`, as part of this process. `app` takes the place of MODULE:APP."""
        parts = [part for part in command[2:] if part != "MODULE:APP"]
        options = dict(zip(parts[::2], parts[1::2], strict=True))
        roles = {"up": ALL, "api": API, "manager": MANAGER, "worker": WORKER}[command[1]]
        if command[1] == "worker":
            services = services_of(options.get("--services"), app.config.services)
            roles = Roles(
                api=False,
                manager=False,
                services=services,
                bands=bands_of(options.get("--bands")),
                regions=regions_of(options.get("--regions"), app.config),
            )
        async with app.running(roles):
            yield app


async def redis_cli(client: redis.Redis, command: list[str], **names: str) -> None:
    assert command[0] == "redis-cli"
    await asyncio.to_thread(client.execute_command, *(names.get(word, word) for word in command[1:]))


async def psql(url: str, command: list[str], names: Mapping[str, str] | None = None) -> None:
    """Run every `-c`; `names` fills in the placeholders."""
    assert command[0] == "psql"
    connection = await asyncpg.connect(servers.direct(url))
    try:
        for statement in command[2::2]:
            for name, value in (names or {}).items():
                statement = statement.replace(name, value)
            await connection.execute(statement)
    finally:
        await connection.close()
