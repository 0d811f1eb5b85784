"""Processes: starting, crashing, draining, sharing a database, and apps that are not open."""

import asyncio
from collections.abc import Callable

import pytest

from fairlead import (
    Call,
    Config,
    Fairlead,
    FairleadError,
    JobStatus,
    Unavailable,
)
from fairlead.engine.roles import Roles
from fairlead.errors import AlreadyDispatching, ConfigError
from tests.integration.engine.waiting import PATIENCE, ended, reaches
from tests.integration.turn_apps import until_ready


async def test_a_submit_of_another_process_is_noticed(make_app: Callable[..., Fairlead]) -> None:
    def build() -> Fairlead:
        app = make_app()

        @app.service(limit=1)
        async def one(call: Call) -> str:
            return "ok"

        return app

    async with build().running(), build() as other:
        job = await other.submit("one")
        assert await job.result(timeout=PATIENCE) == "ok"
        later = await other.submit("one", delay=0.05)
        assert await later.result(timeout=60) == "ok"


@pytest.mark.parametrize("engines", ["sqlite", "postgres"], indirect=True)
async def test_a_second_dispatching_process_refuses_to_start(make_app: Callable[..., Fairlead]) -> None:
    first, second = make_app(), make_app()
    async with first.running():
        with pytest.raises(AlreadyDispatching):
            async with second.running():
                pass
    async with second.running():
        pass


@pytest.mark.parametrize("engines", ["redis"], indirect=True)
async def test_memory_and_redis_dispatchers_exclude_each_other(engines: dict[str, str]) -> None:
    def made(**urls: str) -> Fairlead:
        return Fairlead(Config(), **urls)

    alone = {"database_url": engines["database_url"]}
    async with made(**engines).running(), made(**engines).running():
        with pytest.raises(AlreadyDispatching, match="REDIS_URL"):
            async with made(**alone).running():
                pass
    async with made(**alone).running():
        with pytest.raises(AlreadyDispatching, match="from memory"):
            async with made(**engines).running():
                pass


async def test_an_app_is_opened_once_and_runs_once(make_app: Callable[..., Fairlead]) -> None:
    app = make_app()
    async with app:
        with pytest.raises(FairleadError, match="open already"):
            await app.open()
        async with app.running():
            with pytest.raises(AlreadyDispatching):
                async with app.running():
                    pass
            assert (await app.readiness())["checks"]["worker"] == "ok"
        assert (await app.list_jobs()).data == [], "still open, as before"
        async with app.running():
            pass


async def test_waiting_and_running_jobs_survive_a_crash(make_app: Callable[..., Fairlead]) -> None:
    gate = asyncio.Event()

    def build() -> Fairlead:
        app = make_app()

        @app.service(limit=1, lease_ttl=3)
        async def one(call: Call) -> int:
            if not gate.is_set():
                await asyncio.Event().wait()
            return call.attempt

        return app

    async with build().running() as app:
        running = await app.submit("one")
        waiting = await app.submit("one")
        await reaches(app, running.id, JobStatus.RUNNING)
    gate.set()
    async with build().running() as app:
        assert (await ended(app, running.id)).result == 2, "the lost call counts as an attempt"
        assert (await ended(app, waiting.id)).result == 1


async def test_draining_lets_calls_finish_and_releases_the_rest(make_app: Callable[..., Fairlead]) -> None:
    app = make_app(worker={"drain_timeout": 0.2})
    begun, gate = asyncio.Event(), asyncio.Event()

    @app.service(limit=2)
    async def one(call: Call) -> str:
        if call.params["kind"] == "finishes":
            await gate.wait()
            return "ok"
        begun.set()
        await asyncio.Event().wait()
        return "never"

    async with app.running():
        finishes = await app.submit("one", {"kind": "finishes"})
        endless = await app.submit("one", {"kind": "endless"})
        waiting = await app.submit("one", {"kind": "endless"})
        await asyncio.wait_for(begun.wait(), PATIENCE)
        await reaches(app, finishes.id, JobStatus.RUNNING)
        gate.set()
        await app.drain()
        assert (await finishes.get()).status is JobStatus.COMPLETED
        handed_back = await endless.get()
        assert handed_back.status is JobStatus.PENDING
        assert handed_back.attempts == []
        assert (await waiting.get()).status is JobStatus.PENDING
        assert (await app.readiness())["checks"]["worker"] == "draining"


async def test_limits_and_pauses_change_while_running_and_survive_a_restart(make_app: Callable[..., Fairlead]) -> None:
    two_inside = asyncio.Event()

    def build() -> tuple[Fairlead, list[int], asyncio.Event]:
        app, seen, gate = make_app(), [0, 0], asyncio.Event()

        @app.service(limit=4)
        async def one(call: Call) -> str:
            seen[0] += 1
            seen[1] = max(seen)
            if seen[0] == 2:
                two_inside.set()
            await gate.wait()
            seen[0] -= 1
            return "ok"

        return app, seen, gate

    app, seen, gate = build()
    async with app.running():
        await app.set_limit("one", 2)
        await app.pause("one")
        jobs = [await app.submit("one") for _ in range(8)]
        await until_ready(app)
        assert (await app.status())["services"][0]["in_use"] == 0
        await app.unpause("one")
        await asyncio.wait_for(two_inside.wait(), PATIENCE)
        gate.set()
        await asyncio.gather(*(job.result(PATIENCE) for job in jobs))
        assert seen[1] == 2
        await app.pause("one")
    app, seen, gate = build()
    async with app.running():
        service = (await app.status())["services"][0]
        assert (service["limit"], service["paused"]) == (2, True)
        await app.set_limit("one", None)
        assert (await app.status())["services"][0]["limit"] == 4
        assert (await app.status())["services"][0]["paused"], "lifting the limit leaves the pause alone"


@pytest.mark.parametrize("engines", ["redis"], indirect=True)
async def test_a_worker_with_few_services_leaves_the_others_queued(engines: dict[str, str]) -> None:
    whole, part = Fairlead(Config(), **engines), Fairlead(Config(), **engines)

    @whole.service(limit=3)
    async def known(call: Call) -> str:
        return "by any worker"

    @whole.service(limit=2)
    async def other(call: Call) -> str:
        return "other"

    @part.service("known", limit=9)
    async def known_too(call: Call) -> str:
        return "by any worker"

    @part.service(limit=1)
    async def added(call: Call) -> str:
        return "added"

    async with whole.running(), part.running(Roles(api=False, manager=False)):
        services = {service["service"]: service["limit"] for service in (await whole.status())["services"]}
        services.pop("added", None)  # the gateway may not have read them yet
        assert services == {"known": 3, "other": 2}
        for name, result in (("known", "by any worker"), ("other", "other")):
            assert await (await whole.submit(name)).result(timeout=PATIENCE) == result
        async with asyncio.timeout(PATIENCE):
            while "added" not in {service["service"] for service in (await whole.status())["services"]}:
                await asyncio.sleep(0.05)


async def test_an_app_that_is_not_open_raises(make_app: Callable[..., Fairlead]) -> None:
    with pytest.raises(Unavailable, match="not open"):
        await make_app().submit("one")


def test_a_wrong_declaration_names_the_valid_values(make_app: Callable[..., Fairlead]) -> None:
    app = make_app()
    with pytest.raises(ConfigError) as caught:
        app.service(limit=0, timeot=3)(lambda call: None)
    assert len(caught.value.problems) >= 2


async def test_a_pipeline_of_unknown_services_prevents_the_start(make_app: Callable[..., Fairlead]) -> None:
    app = make_app(pipelines={"p": ["nowhere"], "q": ["idle"]}, services={"idle": {"limit": 1}})
    with pytest.raises(ConfigError) as caught:
        await app.open()
    assert len(caught.value.problems) == 2


def test_the_synchronous_facade_works_without_a_loop(make_app: Callable[..., Fairlead]) -> None:
    app = make_app()

    @app.service(limit=1)
    def one(call: Call) -> str:
        return f"hello {call.user_id}"

    with app.sync.running() as line:
        job = line.submit("one", user_id="ada")
        assert job.result(timeout=PATIENCE) == "hello ada"
        assert job.get().status is JobStatus.COMPLETED
        assert [shown.job_id for shown in line.list_jobs().data] == [job.id]
    late = app.sync.submit("one", delay=3600)
    assert late.cancel().status is JobStatus.CANCELLED
    app.sync.close()
