"""The doctor and PostgreSQL: what pins, bloats or endangers it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import asyncpg
import pytest

from fairlead import Call, Config, Fairlead, Submission
from fairlead.runtime import doctor
from fairlead.runtime.doctor import database as checks
from tests import servers
from tests.chaos.waiting import until
from tests.integration.clinic import API, ill, named, provokes, psql, well


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
async def test_a_transaction_that_pins_vacuum(emptied_database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "OLD_TRANSACTION", 0.2)
    async with made(emptied_database) as app:
        forgotten = await asyncpg.connect(emptied_database)
        await forgotten.execute("BEGIN")
        await forgotten.execute("SELECT 1")
        seen = await ill(app, "vacuum-pinned")
        pid = await forgotten.fetchval("SELECT pg_backend_pid()")
        command = named(seen["vacuum-pinned"], "psql")
        assert str(pid) in command[2]
        await psql(emptied_database, command)
        await well(app, "vacuum-pinned")
        with contextlib.suppress(asyncpg.PostgresError, OSError):
            await forgotten.close()


@provokes("database-bloated")
async def test_dead_rows_that_pile_up(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "MANY_DEAD", 10)
    async with made(database).running() as app:
        for job in await app.submit_many([Submission("echo")] * 50):
            await app.wait(job.id, 30)
        # The server's statistics follow within a second or two.
        seen = await ill(app, "database-bloated")

        async def vacuumed() -> bool:
            await psql(database, named(seen["database-bloated"], "psql"))
            return "database-bloated" not in {finding.code for finding in await app.doctor()}

        await until("the dead rows are gone", vacuumed, patience=30)


@provokes("commit-not-durable")
async def test_a_database_whose_commits_do_not_wait(database: str) -> None:
    name = database.rpartition("/")[2]
    await psql(database, ["psql", "-c", f"ALTER DATABASE {name} SET synchronous_commit = off"])
    async with made(database) as app:
        seen = await ill(app, "commit-not-durable")
    await psql(database, named(seen["commit-not-durable"], "psql"), {"NAME": name})
    async with made(database) as app:
        await well(app, "commit-not-durable")


@provokes("database-newer")
async def test_a_database_that_was_migrated_by_a_newer_release(database: str) -> None:
    async with made(database) as app:
        await psql(database, ["psql", "-c", "UPDATE fairlead.schema_version SET number = 99"])
        await ill(app, "database-newer")
        # An upgrade cannot be shown; this is what it would find.
        await psql(database, ["psql", "-c", f"UPDATE fairlead.schema_version SET number = {_known()}"])
        await well(app, "database-newer")


def _known() -> int:
    from fairlead.store.postgres.schema import known_version

    return known_version()


@provokes("fsync-off", "autovacuum-off", "connections-short", "database-unreachable")
async def test_a_server_that_is_not_safe_has_no_connections_left_and_goes_away(
    own_server: servers.Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "FULL_SHARE", 0.6)  # what is left is for the doctor itself
    url = own_server.url
    async with made(url).running(API) as app:
        await psql(url, ["psql", "-c", "ALTER SYSTEM SET fsync = off", "-c", "ALTER SYSTEM SET autovacuum = off"])
        await psql(url, ["psql", "-c", "SELECT pg_reload_conf()"])
        seen = await ill(app, "fsync-off", "autovacuum-off")
        for code in ("fsync-off", "autovacuum-off"):
            await psql(url, named(seen[code], "psql"))
        await well(app, "fsync-off", "autovacuum-off")

        taken = [await asyncpg.connect(url) for _ in range(24)]
        await ill(app, "connections-short")
        for connection in taken:
            await connection.close()
        await well(app, "connections-short")

        own_server.stop()
        await ill(app, "database-unreachable")
        own_server.start()
        await well(app, "database-unreachable")
