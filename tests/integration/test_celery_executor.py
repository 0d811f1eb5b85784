"""Celery tasks as services, run by real Celery workers: their arguments, the outcome of each result, and lost
workers."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery

from fairlead import Config, Fairlead, JobFailed, JobStatus
from tests import redis_servers
from tests.celery_workers import CeleryWorker, closed, let_go
from tests.integration.doctor_site import provokes

PATIENCE = 60.0
pytestmark = pytest.mark.timeout(300)  # a worker starts slowly on a busy machine
MODULE = "tests.integration.celery_tasks"
Make = Callable[..., Fairlead]


@pytest.fixture(autouse=True)
def _nothing_left_behind() -> Iterator[None]:
    yield
    let_go()


@pytest.fixture(scope="module")
def server() -> Iterator[redis_servers.Server]:
    """A Redis of the team's own."""
    own = redis_servers.Server().start()
    yield own
    own.kill()


@pytest.fixture(scope="module")
def team(server: redis_servers.Server) -> Iterator[Any]:
    with closed(Celery("team", broker=server.url, backend=server.url, set_as_current=False)) as app:
        yield app


def start_worker(server: redis_servers.Server, team: Any, pool: str, **options: Any) -> CeleryWorker:
    return CeleryWorker(MODULE, team, pool=pool, TEAM_REDIS_URL=server.url, **options)


@pytest.fixture(scope="module")
def worker(server: redis_servers.Server, team: Any) -> Iterator[CeleryWorker]:
    """A worker for the tests that do not disturb it."""
    with start_worker(server, team, "prefork", concurrency=3) as worker:
        yield worker


@pytest.fixture
def board(server: redis_servers.Server) -> Iterator[redis.Redis]:
    with redis.Redis(port=server.port) as client:
        client.delete("inside", "most", "go on", *client.keys("tries:*"))
        yield client


@pytest.fixture
def make_app(tmp_path: Path, server: redis_servers.Server) -> Make:
    def make(task: str, *, lost_after: float = 30, more: dict[str, Any] | None = None, **options: Any) -> Fairlead:
        service = {"celery": task, "celery_queue": "team", "limit": 2, "backoff": {"base": 0, "jitter": 0}, **options}
        celery = {"broker_url": server.url, "lost_after": lost_after}
        config = {"services": {"gpu": service}, "celery": celery, **(more or {})}
        return Fairlead(Config.model_validate(config), database_url=f"sqlite:///{tmp_path}/fairlead.db")

    return make


async def message(board: redis.Redis, key: str) -> str:
    """Wait for a message of a task."""
    entry = await asyncio.to_thread(board.blpop, [key], PATIENCE)
    assert entry is not None, key
    return str(entry[1].decode())


async def test_the_params_are_the_tasks_arguments_and_its_return_value_the_result(
    make_app: Make, worker: CeleryWorker
) -> None:
    async with make_app("team.caption").running() as app:
        job = await app.submit("gpu", {"prompt": "a city", "loud": True}, user_id="ada")
        assert await job.result(PATIENCE) == {"caption": "A CITY", "user": "ada", "job": job.id}


async def test_a_body_names_the_tasks_arguments(make_app: Make, worker: CeleryWorker) -> None:
    body = {"prompt": "{input.text} at night", "loud": "{input.loud}"}
    async with make_app("team.caption", body=body).running() as app:
        job = await app.submit("gpu", {"text": "a city", "loud": True, "other": 1}, user_id="ada")
        assert (await job.result(PATIENCE))["caption"] == "A CITY AT NIGHT"
        with pytest.raises(JobFailed, match=r"needs \{input.text\}, but input has no 'text'") as error:
            await (await app.submit("gpu", {"loud": True}, user_id="ada")).result(PATIENCE)
    assert error.value.error["code"] == "MISSING_FIELD"


async def test_with_the_envelope_a_task_gets_the_same_body_as_an_endpoint(make_app: Make, worker: CeleryWorker) -> None:
    async with make_app("team.enveloped", format="envelope").running() as app:
        job = await app.submit("gpu", {"prompt": "a city"})
        assert await job.result(PATIENCE) == {
            "meta": {"job_id": job.id, "step_index": 0, "service_name": "gpu", "attempt": 1},
            "payload": {"params": {"prompt": "a city"}, "context": {}},
        }
        context = (await job.get()).context
    assert context is not None
    assert context["step_0_gpu"]["metrics"]["model"] == "v2"


async def test_a_task_declared_in_code_is_run_by_celery_and_not_here(
    tmp_path: Path, team: Any, worker: CeleryWorker
) -> None:
    app = Fairlead(Config(), database_url=f"sqlite:///{tmp_path}/fairlead.db")

    @app.service(limit=1, celery_queue="team")
    @team.task(name="team.caption", shared=False)
    def caption(prompt: str) -> None:
        raise AssertionError("only its name is needed here")

    async with app.running():
        assert (await (await app.submit("caption", {"prompt": "a city"})).result(PATIENCE))["caption"] == "a city"


@pytest.mark.filterwarnings("ignore::celery.exceptions.CDeprecationWarning")  # removed in Celery 6
async def test_a_task_is_published_to_its_declared_queue(tmp_path: Path, team: Any, worker: CeleryWorker) -> None:
    app = Fairlead(Config(), database_url=f"sqlite:///{tmp_path}/fairlead.db")

    @app.service(limit=1, timeout=20, max_attempts=1)
    @team.task(name="team.ignored", shared=False, queue="team", priority=9)
    def ignored() -> None:
        raise AssertionError("only what it was declared with is needed here")

    async with app.running():
        assert await (await app.submit("ignored")).result(PATIENCE) == "kept all the same"


async def test_the_teams_app_routes_its_tasks(
    make_app: Make, worker: CeleryWorker, server: redis_servers.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEAM_REDIS_URL", server.url)
    async with make_app("team.caption", celery_queue=None, more={"celery": {"app": f"{MODULE}:app"}}).running() as app:
        assert (await (await app.submit("gpu", {"prompt": "a city"})).result(PATIENCE))["caption"] == "a city"


async def test_results_are_stored_for_a_task_that_ignores_them(make_app: Make, worker: CeleryWorker) -> None:
    async with make_app("team.ignored").running() as app:
        assert await (await app.submit("gpu")).result(PATIENCE) == "kept all the same"


@pytest.mark.parametrize(("how", "code"), [("luck", "EXCEPTION"), ("own kind", "EXCEPTION"), ("retry", "RETRY_ASKED")])
async def test_a_transient_failure_is_retried(
    make_app: Make, worker: CeleryWorker, board: redis.Redis, how: str, code: str
) -> None:
    async with make_app("team.failing").running() as app:
        job = await app.submit("gpu", {"how": how, "until": 2})
        assert await job.result(PATIENCE) == "after 2 tries"
        assert [entry["error"]["code"] for entry in (await job.get()).attempts or []] == [code]


@pytest.mark.parametrize(
    ("how", "code", "text"),
    [
        ("permanent", "PERMANENT", "there is no image"),
        ("large", "BAD_RESULT", "too large"),
        ("no json", "BAD_RESULT", "JSON"),
    ],
)
async def test_a_permanent_failure_is_final(
    make_app: Make, worker: CeleryWorker, board: redis.Redis, how: str, code: str, text: str
) -> None:
    async with make_app("team.failing", more={"worker": {"max_result": 2048}}).running() as app:
        with pytest.raises(JobFailed, match=text) as caught:
            await (await app.submit("gpu", {"how": how})).result(PATIENCE)
    assert caught.value.error["code"] == code
    assert int(board.get(f"tries:{how}") or 0) == 1


async def test_a_task_that_no_worker_knows_fails_permanently_with_its_reason(
    make_app: Make, worker: CeleryWorker
) -> None:
    async with make_app("team.misspelt").running() as app:
        with pytest.raises(JobFailed, match=r"not registered with the Celery worker.*team\.misspelt"):
            await (await app.submit("gpu")).result(PATIENCE)


async def test_progress_reaches_watchers(make_app: Make, worker: CeleryWorker, board: redis.Redis) -> None:
    async with make_app("team.progressing").running() as app:
        job = await app.submit("gpu")
        async for event in app.watch(job.id):
            if event is not None and event["type"] == "PROGRESS":
                assert (event["fraction"], event["message"], event["layer"]) == (0.25, "a quarter", 7)
                board.rpush("go on", "")
        assert (await job.get()).result == "all of it"


async def test_the_output_of_a_task_reaches_readers_while_it_runs(
    make_app: Make, worker: CeleryWorker, board: redis.Redis
) -> None:
    async with make_app("team.talking").running() as app:
        job = await app.submit("gpu")
        chunks = []
        async with asyncio.timeout(PATIENCE):
            async for chunk in job.stream():
                chunks.append(str(chunk))
                board.rpush("go on", "")
        assert chunks == ["Hello", " there", "!"]
        assert (await job.get()).result == "Hello there!"


async def test_the_workers_never_see_more_than_the_limit(
    make_app: Make, worker: CeleryWorker, board: redis.Redis
) -> None:
    async with make_app("team.counted", limit=2).running() as app:
        jobs = [await app.submit("gpu", {"seconds": 0.02}, user_id=f"u{n % 3}") for n in range(30)]
        await asyncio.gather(*(job.result(PATIENCE) for job in jobs))
    assert board.zscore("most", "most") == 2


@pytest.mark.parametrize("way", ["cancel", "timeout"])
async def test_a_cancelled_task_is_terminated_and_its_slot_freed(
    make_app: Make, worker: CeleryWorker, board: redis.Redis, way: str
) -> None:
    options = {"timeout": 2.0, "max_attempts": 1} if way == "timeout" else {}
    async with make_app("team.held", limit=1, **options).running() as app:
        job = await app.submit("gpu", {"name": way})
        _, pid = (await message(board, f"begun:{way}")).split()
        if way == "cancel":
            await job.cancel()
        with pytest.raises(Exception, match=r"cancelled|did not answer within 2 s"):
            await job.result(PATIENCE)
        await until_gone(int(pid))
        board.rpush("go:next", "")
        assert (await (await app.submit("gpu", {"name": "next"})).result(PATIENCE)).startswith("next by")


async def until_gone(pid: int) -> None:
    async with asyncio.timeout(PATIENCE):
        while await asyncio.to_thread(Path(f"/proc/{pid}").exists):
            await asyncio.sleep(0.02)


async def test_a_killed_child_is_a_transient_failure(make_app: Make, worker: CeleryWorker, board: redis.Redis) -> None:
    async with make_app("team.held").running() as app:
        job = await app.submit("gpu", {"name": "child"})
        _, pid = (await message(board, "begun:child")).split()
        os.kill(int(pid), signal.SIGKILL)
        await message(board, "begun:child")
        board.rpush("go:child", "")
        await job.result(PATIENCE)
        assert [entry["error"]["code"] for entry in (await job.get()).attempts or []] == ["WORKER_DIED"]


@pytest.mark.parametrize("pool", ["prefork", "threads"])
async def test_a_killed_worker_is_noticed_and_the_task_sent_to_another(
    make_app: Make, server: redis_servers.Server, team: Any, board: redis.Redis, pool: str
) -> None:
    name = f"killed-{pool}"
    with start_worker(server, team, pool, queues=name) as first:
        async with make_app("team.held", lost_after=2, celery_queue=name).running() as app:
            job = await app.submit("gpu", {"name": name})
            first_task, _ = (await message(board, f"begun:{name}")).split()
            await until_noticed(app, first_task)
            await asyncio.to_thread(first.kill)
            with start_worker(server, team, pool, queues=name):
                second_task, _ = (await message(board, f"begun:{name}")).split()
                board.rpush(f"go:{name}", "")
                assert await job.result(PATIENCE) == f"{name} by {second_task}"
            assert second_task != first_task
            codes = {entry["error"]["code"] for entry in (await job.get()).attempts or []}
            assert codes == {"WORKER_DIED"}


async def until_noticed(app: Fairlead, task_id: str) -> None:
    """By then the workers were asked once, and one of them reported that it has the task."""
    assert app._runtime.node is not None
    [worker] = app._runtime.node.workers
    silence = worker._executors["gpu"]._client._silence  # type: ignore[attr-defined]
    async with asyncio.timeout(PATIENCE):
        while task_id not in silence._holders:
            await asyncio.sleep(0.05)


async def test_without_a_worker_the_job_fails_before_its_timeout(make_app: Make, server: redis_servers.Server) -> None:
    nowhere = {"broker_url": server.url.replace("/0", "/9"), "lost_after": 1}
    app = make_app("team.caption", max_attempts=1, timeout=600, more={"celery": nowhere})
    async with app.running():
        with pytest.raises(JobFailed, match="no Celery worker has replied"):
            await (await app.submit("gpu")).result(PATIENCE)


async def test_a_retried_job_waits_for_its_task_that_is_still_running(
    make_app: Make, worker: CeleryWorker, board: redis.Redis
) -> None:
    """Losing a Fairlead worker does not lose the work of its Celery task."""
    async with make_app("team.held", limit=2, timeout=600).running() as app:
        job = await app.submit("gpu", {"name": "kept"})
        task_id, _ = (await message(board, "begun:kept")).split()
    async with make_app(
        "team.held", limit=2, timeout=600
    ).running() as app:  # the first one is gone without deregistering
        with app.hub.subscribe(job.id) as subscription:
            shown = await app.get(job.id)
            while not (shown.attempts and shown.status is JobStatus.RUNNING):
                await subscription.next(0.1)
                shown = await app.get(job.id)
        service = (await app.status())["services"][0]
        assert (service["in_use"], service["held"]) == (2, 1), "a task may still be running: its slot is held"
        board.rpush("go:kept", "")
        ended = await app.wait(job.id, PATIENCE)
        assert ended.result == f"kept by {task_id}"
        assert (await app.get(job.id)).attempts
    assert board.llen("begun:kept") == 0, "the task ran once"


async def test_a_drained_workers_task_is_awaited_by_the_next_worker(
    make_app: Make, worker: CeleryWorker, board: redis.Redis
) -> None:
    more = {"worker": {"drain_timeout": 0}}
    async with make_app("team.held", timeout=600, more=more).running() as app:
        job = await app.submit("gpu", {"name": "drained"})
        task_id, _ = (await message(board, "begun:drained")).split()
        await app.drain()
        assert (await job.get()).status is JobStatus.PENDING
    async with make_app("team.held", timeout=600).running() as app:
        board.rpush("go:drained", "")
        assert (await app.wait(job.id, PATIENCE)).result == f"drained by {task_id}"


async def test_results_in_another_backend_are_polled(
    make_app: Make, server: redis_servers.Server, team: Any, board: redis.Redis, tmp_path: Path
) -> None:
    results = f"file://{tmp_path}"
    celery = {"broker_url": server.url, "result_backend": results}
    with start_worker(server, team, "threads", queues="files", TEAM_RESULTS=results):
        async with make_app("team.failing", celery_queue="files", more={"celery": celery}).running() as app:
            job = await app.submit("gpu", {"how": "luck", "until": 2})
            assert await job.result(PATIENCE) == "after 2 tries"
            job = await app.submit("gpu", {"how": "permanent"})
            with pytest.raises(JobFailed, match="there is no image") as caught:
                await job.result(PATIENCE)
    assert caught.value.error["code"] == "PERMANENT"


@pytest.fixture
async def restless() -> AsyncIterator[redis_servers.Server]:
    """A Redis that a test may stop."""
    server = redis_servers.Server("--appendonly", "yes").start()
    yield server
    server.kill()


async def test_an_unreachable_broker_is_a_transient_failure(make_app: Make, restless: redis_servers.Server) -> None:
    restless.kill()
    app = make_app("team.caption", max_attempts=2, more={"celery": {"broker_url": restless.url}})
    async with app.running():
        job = await app.submit("gpu")
        with pytest.raises(JobFailed):
            await job.result(PATIENCE)
        assert [entry["error"]["code"] for entry in (await job.get()).attempts or []] == ["CONNECTION"] * 2


async def test_results_arrive_again_when_redis_is_back(make_app: Make, restless: redis_servers.Server) -> None:
    """A task that ended during the outage is looked up."""
    with closed(Celery("team", broker=restless.url, backend=restless.url, set_as_current=False)) as team:
        app = make_app("team.held", more={"celery": {"broker_url": restless.url}})
        with start_worker(restless, team, "threads"), redis.Redis(port=restless.port) as board:
            async with app.running():
                job = await app.submit("gpu", {"name": "away"})
                await message(board, "begun:away")
                await asyncio.to_thread(restless.client.client_kill_filter, _type="pubsub")
                board.rpush("go:away", "")
                assert (await job.result(PATIENCE)).startswith("away by")


@provokes("celery-task-unknown", "celery-no-worker", "celery-unreachable")
async def test_the_doctor_reports_a_task_without_a_worker(
    make_app: Make, worker: CeleryWorker, server: redis_servers.Server, restless: redis_servers.Server
) -> None:
    async def seen(app: Fairlead) -> set[str]:
        async with app.running():
            return {finding.code for finding in await app.doctor() if finding.code.startswith("celery")}

    assert await seen(make_app("team.caption")) == set()
    assert await seen(make_app("team.misspelt")) == {"celery-task-unknown"}
    nowhere = {"broker_url": server.url.replace("/0", "/9")}
    assert await seen(make_app("team.caption", more={"celery": nowhere})) == {"celery-no-worker"}
    restless.kill()
    assert await seen(make_app("team.caption", more={"celery": {"broker_url": restless.url}})) == {"celery-unreachable"}
