"""The doctor and PostgreSQL: what blocks vacuum, bloats tables or endangers data."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import asyncpg
import pytest

from fairlead import Call, Config, Fairlead, Submission
from fairlead.observe import doctor
from fairlead.observe.doctor import database as checks
from tests import servers
from tests.chaos.waiting import until
from tests.integration.doctor_site import API, command_in, provokes, psql, until_found, until_gone


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "SECOND_LOOK", 0.1)


def made(url: str) -> Fairlead:
    app = Fairlead(Config(), database_url=url)

    @app.service(limit=20)
    async def echo(call: Call) -> str:
        return "done"

    return app


@pytest.fixture
async def own_server() -> AsyncIterator[servers.Postgres]:
    server = servers.own_postgres("-c", "max_connections=40")
    yield server
    server.remove()


@provokes("vacuum-pinned")
async def test_a_transaction_that_blocks_vacuum(emptied_database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "OLD_TRANSACTION", 0.2)
    async with made(emptied_database) as app:
        forgotten = await asyncpg.connect(servers.direct(emptied_database))
        await forgotten.execute("BEGIN")
        await forgotten.execute("SELECT 1")
        seen = await until_found(app, "vacuum-pinned")
        pid = await forgotten.fetchval("SELECT pg_backend_pid()")
        command = command_in(seen["vacuum-pinned"], "psql")
        assert str(pid) in command[2]
        await psql(emptied_database, command)
        await until_gone(app, "vacuum-pinned")
        with contextlib.suppress(asyncpg.PostgresError, OSError):
            await forgotten.close()


@provokes("database-bloated")
async def test_many_dead_rows(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "MANY_DEAD", 10)
    async with made(database).running() as app:
        for job in await app.submit_many([Submission("echo")] * 50):
            await app.wait(job.id, 30)
        # The server's statistics follow within a second or two.
        seen = await until_found(app, "database-bloated")

        async def vacuumed() -> bool:
            await psql(database, command_in(seen["database-bloated"], "psql"))
            return "database-bloated" not in {finding.code for finding in await app.doctor()}

        await until("the dead rows are gone", vacuumed, patience=30)


@provokes("commit-not-durable")
async def test_a_database_with_asynchronous_commits(database: str) -> None:
    name = database.rpartition("/")[2]
    await psql(database, ["psql", "-c", f"ALTER DATABASE {name} SET synchronous_commit = off"])
    async with made(database) as app:
        seen = await until_found(app, "commit-not-durable")
    await psql(database, command_in(seen["commit-not-durable"], "psql"), {"NAME": name})
    async with made(database) as app:
        await until_gone(app, "commit-not-durable")


@provokes("database-newer")
async def test_a_database_that_was_migrated_by_a_newer_release(database: str) -> None:
    async with made(database) as app:
        await psql(database, ["psql", "-c", "UPDATE fairlead.schema_version SET number = 99"])
        await until_found(app, "database-newer")
        # An upgrade cannot be tested; this is what it would find.
        await psql(database, ["psql", "-c", f"UPDATE fairlead.schema_version SET number = {_known()}"])
        await until_gone(app, "database-newer")


def _known() -> int:
    from fairlead.store.postgres.schema import known_version

    return known_version()


@provokes("fsync-off", "autovacuum-off", "connections-short", "database-unreachable")
async def test_a_server_that_is_unsafe_has_no_connections_left_and_stops(
    own_server: servers.Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "FULL_SHARE", 0.6)  # the rest is for the doctor itself
    url = own_server.url
    async with made(url).running(API) as app:
        await psql(url, ["psql", "-c", "ALTER SYSTEM SET fsync = off", "-c", "ALTER SYSTEM SET autovacuum = off"])
        await psql(url, ["psql", "-c", "SELECT pg_reload_conf()"])
        seen = await until_found(app, "fsync-off", "autovacuum-off")
        for code in ("fsync-off", "autovacuum-off"):
            await psql(url, command_in(seen[code], "psql"))
        await until_gone(app, "fsync-off", "autovacuum-off")

        taken = [await asyncpg.connect(servers.direct(url)) for _ in range(24)]
        await until_found(app, "connections-short")
        for connection in taken:
            await connection.close()
        await until_gone(app, "connections-short")

        own_server.stop()
        await until_found(app, "database-unreachable")
        own_server.start()
        await until_gone(app, "database-unreachable")
