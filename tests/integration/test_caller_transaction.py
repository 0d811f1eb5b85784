"""Submitting inside the caller's own transaction, with every supported kind of connection."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from fairlead import Call, Config, Fairlead
from fairlead.domain.job import Job, Priority
from fairlead.domain.rules import Lanes
from fairlead.domain.transitions import Submit, submit
from fairlead.errors import IdempotencyMismatch, InvalidInput, NotFound, StoreError
from fairlead.store.port import JobFilter
from fairlead.store.postgres import PostgresStore
from fairlead.store.postgres.caller_transaction import submit_on, submit_on_sync
from tests import servers

ALL = JobFilter()


def job(job_id: str, **extra: Any) -> Submit:
    return submit(Job(job_id, "f", "ann", ("draw",)), '{"n":1}', now=time.time(), waits={}, **extra)


@pytest.fixture
def database(emptied_database: str) -> str:
    return emptied_database


@pytest.fixture
async def store(database: str) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(database, pool_size=2)
    await store.open()
    connection = await asyncpg.connect(servers.direct(database))
    await connection.execute("CREATE TABLE IF NOT EXISTS thing (name text)")  # the application's own table
    await connection.close()
    yield store
    await store.close()


class Unwanted(Exception):
    """Rolls a transaction back."""


@asynccontextmanager
async def with_asyncpg(url: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(servers.direct(url))
    try:
        async with connection.transaction():
            await connection.execute("INSERT INTO thing VALUES ('x')")
            yield connection
    finally:
        await connection.close()


@asynccontextmanager
async def with_asyncpg_pool(url: str) -> AsyncIterator[Any]:
    pool = await asyncpg.create_pool(servers.direct(url), min_size=1, max_size=1)
    try:
        async with pool.acquire() as connection, connection.transaction():
            await connection.execute("INSERT INTO thing VALUES ('x')")
            yield connection
    finally:
        await pool.close()


@asynccontextmanager
async def with_psycopg_async(url: str) -> AsyncIterator[Any]:
    async with await psycopg.AsyncConnection.connect(url) as connection:
        await connection.execute("INSERT INTO thing VALUES ('x')")
        yield connection


@asynccontextmanager
async def with_psycopg(url: str) -> AsyncIterator[Any]:
    with psycopg.connect(servers.direct(url), row_factory=psycopg.rows.dict_row) as connection:
        connection.execute("INSERT INTO thing VALUES ('x')")
        yield connection


def of_driver(url: str, driver: str) -> str:
    return url.replace("postgresql://", f"postgresql+{driver}://")


def sqlalchemy_async(driver: str, *, session: bool, first: bool) -> Callable[[str], Any]:
    """`first`: the submit is the first statement of the transaction."""

    @asynccontextmanager
    async def opened(url: str) -> AsyncIterator[Any]:
        engine = create_async_engine(of_driver(url, driver))
        try:
            async with AsyncSession(engine) if session else engine.connect() as connection, connection.begin():
                if not first:
                    await connection.execute(sqlalchemy.text("INSERT INTO thing VALUES ('x')"))
                yield connection
                if first:
                    await connection.execute(sqlalchemy.text("INSERT INTO thing VALUES ('x')"))
        finally:
            await engine.dispose()

    return opened


def sqlalchemy_sync(*, session: bool) -> Callable[[str], Any]:
    @asynccontextmanager
    async def opened(url: str) -> AsyncIterator[Any]:
        engine = sqlalchemy.create_engine(of_driver(url, "psycopg"))
        try:
            with Session(engine) if session else engine.connect() as connection, connection.begin():
                yield connection
                connection.execute(sqlalchemy.text("INSERT INTO thing VALUES ('x')"))
        finally:
            engine.dispose()

    return opened


CONNECTIONS: dict[str, Callable[[str], Any]] = {
    "asyncpg": with_asyncpg,
    "asyncpg pool": with_asyncpg_pool,
    "psycopg async": with_psycopg_async,
    "psycopg": with_psycopg,
    "sqlalchemy async connection, asyncpg": sqlalchemy_async("asyncpg", session=False, first=True),
    "sqlalchemy async session, asyncpg": sqlalchemy_async("asyncpg", session=True, first=True),
    "sqlalchemy async session, asyncpg, later": sqlalchemy_async("asyncpg", session=True, first=False),
    "sqlalchemy async connection, psycopg": sqlalchemy_async("psycopg_async", session=False, first=True),
    "sqlalchemy async session, psycopg": sqlalchemy_async("psycopg_async", session=True, first=False),
    "sqlalchemy connection": sqlalchemy_sync(session=False),
    "sqlalchemy session": sqlalchemy_sync(session=True),
}


@pytest.mark.parametrize("kind", CONNECTIONS)
async def test_the_job_exists_if_and_only_if_the_transaction_commits(
    store: PostgresStore, database: str, kind: str
) -> None:
    opened = CONNECTIONS[kind]
    with suppress(Unwanted):
        async with opened(database) as connection:
            await submit_on(connection, [job("rolled back", idempotency_key="k", body_hash="h")])
            raise Unwanted
    assert await store.count(ALL) == 0
    async with opened(database) as connection:
        batch = [job("a", idempotency_key="k", body_hash="h", metadata_json="{}"), job("b")]
        accepted = await submit_on(connection, batch)
        assert await store.count(ALL) == 0
    assert [one.job_id for one in accepted] == ["a", "b"]
    found = await store.get_jobs(["a", "b"])
    assert [job.seq for job in found.values()] == [one.seq for one in accepted]
    # No process has relayed these rows, so each process treats them as another's, however new they are.
    changes = await store.outbox(older_than=0, limit=9)
    assert [change.job for change in changes] == list(found.values())


async def test_its_outbox_rows_have_their_lane(store: PostgresStore, database: str) -> None:
    async with with_asyncpg(database) as connection:
        jobs = [Job(f"{name}-{band}", "f", "ann", (name, "z"), band) for name in ("x", "y") for band in Priority]
        await submit_on(connection, [submit(one, "{}", now=time.time(), waits={}) for one in jobs])
    lanes = Lanes(frozenset({("x", 1), ("y", 3), ("z", 2)}))
    found = await store.outbox(older_than=0, limit=9, lanes=lanes)
    assert [change.job_id for change in found] == ["x-high", "y-low"]


@pytest.mark.parametrize("kind", CONNECTIONS)
async def test_a_refused_submit_leaves_the_callers_transaction_usable(
    store: PostgresStore, database: str, kind: str
) -> None:
    await store.commit([job("old", idempotency_key="k", body_hash="h")])
    async with CONNECTIONS[kind](database) as connection:
        with pytest.raises(IdempotencyMismatch) as refused:
            await submit_on(connection, [job("a"), job("b", idempotency_key="k", body_hash="other")])
        assert refused.value.details["index"] == 1
        (replayed,) = await submit_on(connection, [job("c", idempotency_key="k", body_hash="h")])
        assert (replayed.job_id, replayed.replayed) == ("old", True)
    assert await store.count(ALL) == 1


async def test_a_missing_schema_is_reported_and_the_callers_transaction_stays_usable(postgres_url: str) -> None:
    bare = await servers.new_database(postgres_url)
    try:
        connection = await asyncpg.connect(servers.direct(bare))
        await connection.execute("CREATE TABLE thing (name text)")
        await connection.close()
        for opened in (with_asyncpg, with_psycopg_async, with_psycopg):
            async with opened(bare) as connection:
                with pytest.raises(StoreError, match="fairlead migrate"):
                    await submit_on(connection, [job("a")])
        connection = await asyncpg.connect(servers.direct(bare))
        assert await connection.fetchval("SELECT count(*) FROM thing") == 3
        await connection.close()
    finally:
        await servers.drop_database(bare)


async def test_a_synchronous_caller_needs_no_event_loop(store: PostgresStore, database: str) -> None:
    with psycopg.connect(servers.direct(database)) as connection:
        assert [one.job_id for one in submit_on_sync(connection, [job("a")])] == ["a"]
    assert await store.count(ALL) == 1


async def test_without_a_transaction_the_submit_uses_its_own(store: PostgresStore, database: str) -> None:
    connection = await asyncpg.connect(servers.direct(database))
    await submit_on(connection, [job("a")])
    await connection.close()
    async with await psycopg.AsyncConnection.connect(database, autocommit=True) as other:
        await submit_on(other, [job("b")])
    assert await store.count(ALL) == 2


async def test_any_other_object_is_refused_with_its_type() -> None:
    with pytest.raises(TypeError, match=r"builtins\.object.*asyncpg or psycopg"):
        await submit_on(object(), [job("a")])


def test_only_the_callers_driver_is_imported() -> None:
    code = (
        "import sys, fairlead.store.postgres.caller_transaction; "
        "print([m for m in ('psycopg', 'sqlalchemy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


async def test_the_app_submits_within_the_callers_transaction(database: str) -> None:
    app = Fairlead(Config(), database_url=database)

    @app.service(limit=1)
    async def one(call: Call) -> str:
        return "ok"

    async with app.running():
        connection = await asyncpg.connect(servers.direct(database))
        try:
            transaction = connection.transaction()
            await transaction.start()
            undone = await app.submit("one", connection=connection)
            await transaction.rollback()
            with pytest.raises(NotFound):
                await undone.get()
            async with connection.transaction():
                kept = await app.submit("one", connection=connection)
                with pytest.raises(NotFound):
                    await kept.get()
            assert await kept.result(timeout=30) == "ok"
        finally:
            await connection.close()


async def test_a_connection_needs_postgresql(tmp_path: Path) -> None:
    app = Fairlead(Config(), database_url=f"sqlite:///{tmp_path}/f.db")

    @app.service(limit=1)
    async def one(call: Call) -> str:
        return "ok"

    async with app:
        with pytest.raises(InvalidInput, match="PostgreSQL"):
            await app.submit("one", connection=object())
