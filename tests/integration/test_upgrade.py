"""A database and a Redis that an earlier release left behind work with this one, without a rebuild.

`tests/release_fixture.py` generated the files with the last commit of that release: jobs in every state, and a worker
that was killed in the middle of a call.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import shutil
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import httpx2
import pytest
import redis

from fairlead import Fairlead, JobStatus
from fairlead.dispatch.redis import RedisDispatcher
from tests import redis_servers, servers
from tests.integration.cli_process import COMMAND, Up, fairlead, started
from tests.release_fixture import application

RELEASE = Path(__file__).parents[1] / "data" / "release-0.1"
OPEN = {"SCHEDULED", "PENDING", "RUNNING", "RETRYING"}


async def statuses(app: Fairlead) -> Counter[str]:
    page = await app.list_jobs(limit=100)
    return Counter(job.status.value for job in page.data)


async def finish_everything(app: Fairlead) -> None:
    """The jobs of the fixture: two failed, one complete, the others still have to run."""
    before = await statuses(app)
    assert before["FAILED"] == 2
    assert before["COMPLETED"] == 1
    assert sum(before.values()) == 22
    await app.unpause("second")
    await app.unpause("pooled")
    async with asyncio.timeout(60):
        while OPEN & (await statuses(app)).keys():
            await asyncio.sleep(0.05)
    [retryable] = [job for job in (await app.list_jobs(status=JobStatus.FAILED)).data if job.retryable]
    await app.resume(retryable.job_id)
    assert (await app.wait(retryable.job_id, 30)).status is JobStatus.COMPLETED
    assert await statuses(app) == Counter(COMPLETED=21, FAILED=1)


async def test_a_sqlite_database_of_the_previous_release_continues(tmp_path: Path) -> None:
    database = tmp_path / "fairlead.db"
    shutil.copyfile(RELEASE / "fairlead.db", database)
    app = application(database_url=f"sqlite:///{database}")
    async with app.running():
        await finish_everything(app)


async def test_postgresql_and_redis_of_the_previous_release_continue_without_a_rebuild() -> None:
    database = await servers.new_database()
    server = redis_servers.Server().start()
    connection = await asyncpg.connect(database)
    try:
        await connection.execute((RELEASE / "postgres.sql").read_text(encoding="utf-8"))
        restore(server.client)
        epochs = await as_built_on(connection, server.url)
        app = application(database_url=database, redis_url=server.url)
        async with app.running():
            await finish_everything(app)
        assert (
            await connection.fetch(
                "SELECT scope, number FROM fairlead.epoch WHERE scope NOT LIKE 'leader:%' ORDER BY scope"
            )
            == epochs
        )
    finally:
        await connection.close()
        server.kill()
        await servers.drop_database(database)


def restore(client: redis.Redis) -> None:
    """Every key but the leader's, which would have expired."""
    kept: dict[str, str] = json.loads((RELEASE / "redis.json").read_text(encoding="utf-8"))
    for key, value in kept.items():
        if not key.endswith(":leader"):
            client.restore(key, 0, base64.b64decode(value))


async def as_built_on(connection: asyncpg.Connection, redis_url: str) -> list[asyncpg.Record]:
    """The restored keys are on another server than they were written on; the database has to name this one."""
    dispatcher = RedisDispatcher(redis_url)
    [state] = (await dispatcher.states(["service:echo"])).values()
    await dispatcher.close()
    await connection.execute("UPDATE fairlead.epoch SET server = $1", state.server)
    return await connection.fetch(
        "SELECT scope, number FROM fairlead.epoch WHERE scope NOT LIKE 'leader:%' ORDER BY scope"
    )


# ---------------------------------------------------------------- one process after the other

OLD_SOURCE = os.environ.get("FAIRLEAD_TEST_OLD_SOURCE")
"""The directory `src` of an earlier version. Without it, the old processes run this version too."""
COUNTING = """
from pathlib import Path
from fairlead import Call, Fairlead

app = Fairlead()

@app.service(limit=4)
async def count(call: Call):
    with Path("calls").open("a") as calls:
        calls.write(call.job_id + "\\n")
"""


class Clients(threading.Thread):
    """Submits jobs through the gateways in turn, as behind a load balancer: a gateway that closes the connection is
    followed by the next one, with the same idempotency key."""

    def __init__(self, urls: list[str]) -> None:
        super().__init__()
        self.urls, self.jobs, self.refused = urls, list[str](), list[str]()
        self.stopped, self.more = threading.Event(), threading.Condition()

    def run(self) -> None:
        with httpx2.Client(trust_env=False, timeout=30) as http:
            while not self.stopped.wait(0.01):
                key = {"Idempotency-Key": f"job-{len(self.jobs)}"}
                urls = [*self.urls]
                first = len(self.jobs) % len(urls)
                for url in [*urls[first:], *urls, *urls]:
                    with contextlib.suppress(httpx2.TransportError):
                        body = {"feature_name": "count", "user_id": f"user-{len(self.jobs) % 5}"}
                        response = http.post(f"{url}/api/v1/jobs", json=body, headers=key)
                        if response.status_code in (200, 202):
                            self.jobs.append(response.json()["job_id"])
                            break
                        self.refused.append(response.text)
                with self.more:
                    self.more.notify_all()

    def submit_more(self) -> None:
        """Wait for twenty further jobs."""
        until = len(self.jobs) + 20
        with self.more:
            assert self.more.wait_for(lambda: len(self.jobs) >= until, 30)


@contextlib.contextmanager
def process(role: str, folder: Path, env: dict[str, str], *, old: bool = False) -> Iterator[Up]:
    command = (*COMMAND, role, "counting:app", *(("--port", "0") if role == "api" else ()), "--json")
    if role == "manager":
        command = (*COMMAND, role, "--json")
    if old and OLD_SOURCE:
        command = ("env", f"PYTHONPATH={OLD_SOURCE}", *command)
    with started(command, cwd=folder, env=env) as up:
        up.banner = json.loads(up.wait_for('"process"'))
        yield up


@pytest.mark.slow
def test_processes_are_replaced_one_by_one_while_jobs_come_and_run(tmp_path: Path, database: str) -> None:
    """The order of docs/production.md: migrate, managers, workers, gateways. No request is refused, no job is lost, and
    no call is repeated."""
    (tmp_path / "counting.py").write_text(COUNTING, encoding="utf-8")
    redis_url = redis_servers.server_url()
    redis_servers.empty(redis_url)
    env = {"DATABASE_URL": database, "REDIS_URL": redis_url}
    with contextlib.ExitStack() as stack:
        olds = {
            name: stack.enter_context(process(name.rstrip("12"), tmp_path, env, old=True))
            for name in ("manager", "worker", "api1", "api2")
        }
        address = {name: olds[name].banner["urls"]["gateway"][0] for name in ("api1", "api2")}
        clients = Clients([*address.values()])
        clients.start()
        stack.callback(clients.stopped.set)
        clients.submit_more()
        assert fairlead("migrate", cwd=tmp_path, env=env).code == 0
        for name, old in olds.items():
            new = stack.enter_context(process(name.rstrip("12"), tmp_path, env))
            if name in address:
                clients.urls.append(new.banner["urls"]["gateway"][0])
                clients.urls.remove(address[name])
            clients.submit_more()
            old.signal(signal.SIGTERM)
            assert old.ended() == 0, old.output
            clients.submit_more()
        clients.stopped.set()
        clients.join(30)
        assert clients.refused == []
        with httpx2.Client(base_url=clients.urls[0], trust_env=False, timeout=30) as http:
            for job_id in clients.jobs:
                ended = http.get(f"/api/v1/jobs/{job_id}", headers={"Prefer": "wait=30"}).json()
                assert ended["status"] == "COMPLETED"
    calls = Counter((tmp_path / "calls").read_text(encoding="utf-8").split())
    assert calls == Counter(clients.jobs)
