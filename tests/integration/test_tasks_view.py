"""The view `tasks`: the questions that TaskFlow's operators ask their database, on both engines."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from typing import Any

import asyncpg
import pytest

from fairlead import Call, Config, Fairlead, JobStatus, Permanent

PATIENCE = 30.0


class Sql:
    """Asks in the dialect of the engine; `{tasks}`, `{now}` and `{minutes_ago}` stand for what differs."""

    def __init__(self, engines: dict[str, str]) -> None:
        self.url = engines["database_url"]
        self.postgres = self.url.startswith("postgres")

    async def __call__(self, query: str) -> list[tuple[Any, ...]]:
        text = query.format(
            tasks="fairlead.tasks" if self.postgres else "tasks",
            now="now()" if self.postgres else "datetime('now')",
            minutes_ago="now() - interval '5 minutes'" if self.postgres else "datetime('now', '-5 minutes')",
        )
        if not self.postgres:
            with closing(sqlite3.connect(self.url.removeprefix("sqlite:///"))) as connection:
                return list(connection.execute(text))
        connection = await asyncpg.connect(self.url)
        try:
            return [tuple(row) for row in await connection.fetch(text)]
        finally:
            await connection.close()


@asynccontextmanager
async def one_of_each(engines: dict[str, str]) -> AsyncIterator[tuple[Fairlead, dict[str, str]]]:
    """A job in every state, by state."""
    app, entered, gate = Fairlead(Config(), **engines), asyncio.Event(), asyncio.Event()

    @app.service("gated", limit=1)
    async def gated(call: Call) -> None:
        entered.set()
        await gate.wait()

    @app.service("echo", limit=5)
    async def echo(call: Call) -> None: ...

    @app.service("broken", limit=5)
    async def broken(call: Call) -> None:
        raise Permanent("broken")

    @app.service("flaky", limit=5, backoff=[3600.0])
    async def flaky(call: Call) -> None:
        raise RuntimeError("not yet")

    async with app.running():
        jobs = {"IN_PROGRESS": await app.submit("gated", priority="high")}
        await entered.wait()
        jobs["QUEUED"] = await app.submit("gated", priority="low")
        jobs["SCHEDULED"] = await app.submit("echo", delay=3600)
        jobs["COMPLETED"] = await app.submit("echo")
        jobs["FAILED"] = await app.submit("broken")
        jobs["CANCELLED"] = await app.submit("echo", delay=3600)
        await app.cancel(jobs["CANCELLED"].id)
        jobs["PENDING"] = await app.submit("flaky")
        for name in ("COMPLETED", "FAILED"):
            await app.wait(jobs[name].id, PATIENCE)
        async with asyncio.timeout(PATIENCE):
            while (await app.get(jobs["PENDING"].id)).status is not JobStatus.RETRYING:
                await asyncio.sleep(0.01)
        yield app, {name: job.id for name, job in jobs.items()}
        gate.set()


@pytest.fixture
def sql(engines: dict[str, str]) -> Sql:
    return Sql(engines)


async def test_the_view_has_taskflow_s_names_of_every_state(engines: dict[str, str], sql: Sql) -> None:
    async with one_of_each(engines) as (_, jobs):
        rows = await sql("SELECT id, status, job_status, priority, retry_count, error_code FROM {tasks}")
        assert {status: id_ for id_, status, *_ in rows} == jobs
        by_status = {status: tuple(rest) for _, status, *rest in rows}
        assert by_status == {
            "SCHEDULED": ("SCHEDULED", "medium", 0, None),
            "QUEUED": ("PENDING", "low", 0, None),
            "PENDING": ("RETRYING", "medium", 1, by_status["PENDING"][3]),
            "IN_PROGRESS": ("RUNNING", "high", 0, None),
            "COMPLETED": ("COMPLETED", "medium", 0, None),
            "FAILED": ("FAILED", "medium", 1, "PERMANENT"),
            "CANCELLED": ("CANCELLED", "medium", 0, None),
        }


async def test_taskflow_s_questions_are_answered(engines: dict[str, str], sql: Sql) -> None:
    async with one_of_each(engines) as (_, jobs):
        due = "SELECT count(*) FROM {tasks} WHERE status = 'SCHEDULED' AND scheduled_at "
        assert await sql(due + "<= {now}") == [(0,)]
        assert await sql(due + "> {now}") == [(1,)]
        retries = (
            "SELECT id FROM {tasks} WHERE status = 'PENDING' AND scheduled_at > {now} ORDER BY scheduled_at LIMIT 100"
        )
        assert await sql(retries) == [(jobs["PENDING"],)]
        stuck = "SELECT count(*) FROM {tasks} WHERE status = 'IN_PROGRESS' AND updated_at "
        assert await sql(stuck + "< {minutes_ago}") == [(0,)]
        assert await sql(stuck + ">= {minutes_ago}") == [(1,)]
        assert await sql("SELECT count(*) FROM {tasks} WHERE updated_at < created_at OR updated_at IS NULL") == [(0,)]
        counts = await sql("SELECT status, count(*) FROM {tasks} GROUP BY status")
        assert dict(counts) == dict.fromkeys(jobs, 1)


async def test_questions_about_open_and_failed_jobs_do_not_read_the_finished_ones(
    engines: dict[str, str], sql: Sql
) -> None:
    async with one_of_each(engines):
        for status in ("IN_PROGRESS", "FAILED"):
            if sql.postgres:
                explain = f"EXPLAIN SELECT id FROM {{tasks}} WHERE status = '{status}'"
                plan = "\n".join(row[0] for row in await sql(explain))
                assert "ended = 4" not in plan, plan
            else:
                explain = f"EXPLAIN QUERY PLAN SELECT id FROM {{tasks}} WHERE status = '{status}'"
                plan = "\n".join(row[-1] for row in await sql(explain))
                assert "SCAN job" not in plan, plan


async def test_a_monitoring_role_needs_rights_on_the_view_only(distributed: dict[str, str]) -> None:
    async with Fairlead(Config(), **distributed):
        connection = await asyncpg.connect(distributed["database_url"])
        try:
            async with connection.transaction():
                await connection.execute("CREATE ROLE watcher; GRANT USAGE ON SCHEMA fairlead TO watcher")
                await connection.execute("GRANT SELECT ON fairlead.tasks TO watcher; SET LOCAL ROLE watcher")
                assert await connection.fetchval("SELECT count(*) FROM fairlead.tasks") == 0
                await connection.execute("RESET ROLE; DROP OWNED BY watcher; DROP ROLE watcher")
        finally:
            await connection.close()
