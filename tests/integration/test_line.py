"""From submit to result in one process: the whole line, on SQLite, on PostgreSQL, and on PostgreSQL with Redis."""

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fairlead import (
    Call,
    Config,
    Fairlead,
    FairleadError,
    JobCancelled,
    JobFailed,
    JobStatus,
    JobView,
    Permanent,
    ResultTimeout,
    Retry,
    Submission,
    Unavailable,
    WrongState,
)
from fairlead.errors import AlreadyDispatching, ConfigError, InvalidInput, NotFound, UnknownFeature
from fairlead.runtime.roles import Roles
from tests import redis_servers, servers
from tests.integration.turning import stands

PATIENCE = 30.0
AT_ONCE = {"base": 0, "jitter": 0}


@pytest.fixture(params=["sqlite", "postgres", "redis"])
async def engines(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    """The same application on all engines: nothing above them may know which are below."""
    if request.param == "sqlite":
        return {"database_url": f"sqlite:///{tmp_path}/fairlead.db"}
    servers.postgres_url()
    database_url = await servers.shared_database()
    await servers.empty(database_url)
    if request.param == "postgres":
        return {"database_url": database_url}
    redis_url = redis_servers.server_url()
    redis_servers.empty(redis_url)
    return {"database_url": database_url, "redis_url": redis_url}


@pytest.fixture
def make_app(engines: dict[str, str]) -> Callable[..., Fairlead]:
    def make(**sections: Any) -> Fairlead:
        return Fairlead(Config.model_validate(sections), **engines)

    return make


async def ended(app: Fairlead, job_id: str) -> JobView:
    job = await app.wait(job_id, PATIENCE)
    assert job.status.finished, job
    return job


async def reaches(app: Fairlead, job_id: str, status: JobStatus) -> None:
    """Waits on the job's events; the timeout of `next` only covers what happened before we listened."""
    with app.hub.subscribe(job_id) as heard:
        async with asyncio.timeout(PATIENCE):
            while (await app.get(job_id)).status is not status:
                await heard.next(0.2)


async def test_a_job_runs_from_submit_to_result(make_app: Callable[..., Fairlead]) -> None:
    app = make_app()

    @app.service(limit=2)
    async def double(call: Call) -> dict[str, Any]:
        return {"doubled": call.params["n"] * 2, "for": call.user_id, "attempt": call.attempt}

    async with app.running():
        job = await app.submit("double", {"n": 21}, user_id="ada")
        assert await job.result(timeout=PATIENCE) == {"doubled": 42, "for": "ada", "attempt": 1}
        shown = await job.get()
        assert shown.status is JobStatus.COMPLETED
        assert shown.context is not None
        entry = shown.context["step_0_double"]
        assert entry["status"] == "SUCCESS"
        assert entry["metrics"]["execution_time_ms"] >= 0
        assert (shown.current_step_index, shown.total_steps, shown.position) == (1, 1, None)


async def test_sync_functions_run_in_threads_and_do_not_block_the_loop(make_app: Callable[..., Fairlead]) -> None:
    app = make_app()
    gate = threading.Event()

    @app.service(limit=1)
    def slow(call: Call) -> str:
        assert gate.wait(PATIENCE)
        return threading.current_thread().name

    async with app.running():
        job = await app.submit("slow")
        # The loop turns while the function waits, or this submit and read would not come through.
        other = await app.submit("slow")
        assert (await other.get()).status in (JobStatus.PENDING, JobStatus.RUNNING)
        gate.set()
        assert "fairlead-call" in await job.result(timeout=PATIENCE)


async def test_functions_can_run_in_processes(make_app: Callable[..., Fairlead]) -> None:
    app = make_app(
        services={"pid": {"limit": 1, "function": "tests.integration.handlers:own_pid", "run_in": "process"}}
    )
    async with app.running():
        job = await app.submit("pid", {"x": 1})
        answer = await job.result(timeout=PATIENCE)
        import os

        assert answer["pid"] != os.getpid()
        assert answer["params"] == {"x": 1}


async def test_a_pipeline_hands_each_steps_result_to_the_next(make_app: Callable[..., Fairlead]) -> None:
    app = make_app()

    @app.service(limit=1)
    async def enhance(call: Call) -> dict[str, str]:
        return {"prompt": call.params["prompt"] + ", photorealistic"}

    @app.service(limit=1)
    async def draw(call: Call) -> dict[str, str]:
        assert call.context["step_0_enhance"]["data"] == call.result_of("enhance")
        return {"image": f"<{call.result_of('enhance')['prompt']}>"}

    app.pipeline("picture", ["enhance", "draw"])
    async with app.running():
        job = await app.submit("picture", {"prompt": "a harbour"})
        assert await job.result(timeout=PATIENCE) == {"image": "<a harbour, photorealistic>"}
        assert list((await job.get()).context or {}) == ["step_0_enhance", "step_1_draw"]


async def test_a_failing_call_is_tried_again_and_every_attempts_error_is_kept(
    make_app: Callable[..., Fairlead],
) -> None:
    app = make_app()
    keys: list[str] = []

    @app.service(limit=1, backoff=AT_ONCE)
    async def flaky(call: Call) -> str:
        keys.append(call.idempotency_key)
        if call.attempt < 3:
            raise ValueError(f"no luck {call.attempt}")
        return "at last"

    async with app.running():
        job = await app.submit("flaky")
        assert await job.result(timeout=PATIENCE) == "at last"
        attempts = (await job.get()).attempts or []
        assert [entry["error"]["message"] for entry in attempts] == ["ValueError: no luck 1", "ValueError: no luck 2"]
        assert len(set(keys)) == 1, "all attempts carry the same idempotency key"


async def test_attempts_used_up_is_a_dead_letter_that_an_operator_can_requeue(
    make_app: Callable[..., Fairlead],
) -> None:
    app = make_app()
    broken = True

    @app.service(limit=1, backoff=AT_ONCE, max_attempts=2)
    async def flaky(call: Call) -> str:
        if broken:
            raise ValueError("no")
        return "mended"

    async with app.running():
        job = await app.submit("flaky", user_id="ada")
        with pytest.raises(JobFailed) as caught:
            await job.result(timeout=PATIENCE)
        assert caught.value.error["reason"] == "ATTEMPTS_USED_UP"
        assert not caught.value.retryable
        with pytest.raises(WrongState):
            await job.resume()
        assert [entry.job_id for entry in (await app.dead()).data] == [job.id]
        assert await app.requeue(all=True, dry_run=True) == 1
        broken = False
        assert await app.requeue(job_ids=[job.id]) == 1
        assert await job.result(timeout=PATIENCE) == "mended"


async def test_a_permanent_failure_is_not_tried_again(make_app: Callable[..., Fairlead]) -> None:
    app = make_app()
    calls = 0

    @app.service(limit=1)
    async def picky(call: Call) -> str:
        nonlocal calls
        calls += 1
        raise Permanent("this prompt will never do")

    async with app.running():
        job = await app.submit("picky")
        with pytest.raises(JobFailed, match="this prompt will never do"):
            await job.result(timeout=PATIENCE)
        assert calls == 1


async def test_a_handler_may_choose_when_it_is_tried_again(make_app: Callable[..., Fairlead]) -> None:
    app = make_app()

    @app.service(limit=1, backoff=[500])
    async def busy(call: Call) -> str:
        raise Retry("later", after=1000)

    async with app.running():
        job = await app.submit("busy")
        await reaches(app, job.id, JobStatus.RETRYING)
        shown = await job.get()
        assert shown.error == {"code": "RETRY_ASKED", "message": "later"}
        await job.cancel()
        with pytest.raises(JobCancelled):
            await job.result(timeout=PATIENCE)


async def test_a_users_resume_continues_at_the_failed_step_and_runs_no_done_step_again(
    make_app: Callable[..., Fairlead],
) -> None:
    app = make_app()
    ran: list[str] = []
    broken = True

    @app.service(limit=1)
    async def first(call: Call) -> str:
        ran.append("first")
        return "one"

    @app.service(limit=1, retry="manual")
    async def second(call: Call) -> str:
        ran.append("second")
        if broken:
            raise ConnectionError("router glitch")
        return f"{call.result_of('first')}, two"

    app.pipeline("both", ["first", "second"])
    async with app.running():
        job = await app.submit("both")
        with pytest.raises(JobFailed) as caught:
            await job.result(timeout=PATIENCE)
        assert caught.value.retryable
        broken = False
        await job.resume()
        assert await job.result(timeout=PATIENCE) == "one, two"
        assert ran == ["first", "second", "second"]


async def test_a_result_that_is_no_json_fails_the_step_for_good_and_says_so(make_app: Callable[..., Fairlead]) -> None:
    app = make_app(worker={"max_result": 1024})

    @app.service(limit=1)
    async def odd(call: Call) -> Any:
        return {"set": {1, 2}, "nan": float("nan"), "big": "x" * 5000}[call.params["kind"]]

    async with app.running():
        for kind, said in [("set", "not JSON"), ("nan", "NaN"), ("big", "too large")]:
            with pytest.raises(JobFailed, match=said) as caught:
                await (await app.submit("odd", {"kind": kind})).result(timeout=PATIENCE)
            assert caught.value.error["code"] == "BAD_RESULT"
            assert not caught.value.retryable


async def test_a_call_that_takes_too_long_is_stopped_and_tried_again(make_app: Callable[..., Fairlead]) -> None:
    app = make_app()
    stopped = asyncio.Event()

    @app.service(limit=1, timeout=0.2, backoff=AT_ONCE)
    async def hangs_once(call: Call) -> str:
        if call.attempt > 1:
            return "quick"
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        return "never"

    async with app.running():
        job = await app.submit("hangs_once")
        assert await job.result(timeout=PATIENCE) == "quick"
        assert stopped.is_set()
        assert [entry["error"]["code"] for entry in (await job.get()).attempts or []] == ["TIMEOUT"]


async def test_a_thread_that_cannot_be_stopped_keeps_its_slot_until_it_ends(make_app: Callable[..., Fairlead]) -> None:
    app = make_app()
    gate, inside, most = threading.Event(), 0, 0
    lock = threading.Lock()

    @app.service(limit=1, timeout=0.2, max_attempts=2, backoff=AT_ONCE)
    def stubborn(call: Call) -> str:
        nonlocal inside, most
        with lock:
            inside += 1
            most = max(most, inside)
        if call.attempt == 1:
            assert gate.wait(PATIENCE)
        with lock:
            inside -= 1
        return "done"

    async with app.running():
        job = await app.submit("stubborn")
        with app.hub.subscribe(job.id) as heard:
            while not (await job.get()).attempts:
                await heard.next(0.1)
        assert (await app.status())["services"][0]["in_use"] == 1, "timed out, but the thread still computes"
        gate.set()
        assert await job.result(timeout=PATIENCE) == "done"
        assert most == 1


async def test_cancelling_a_running_job_stops_its_handler_and_frees_the_slot(make_app: Callable[..., Fairlead]) -> None:
    app = make_app()
    begun, stopped = asyncio.Event(), asyncio.Event()

    @app.service(limit=1)
    async def endless(call: Call) -> str:
        if call.params.get("quick"):
            return "quick"
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        return "never"

    async with app.running():
        job = await app.submit("endless")
        await asyncio.wait_for(begun.wait(), PATIENCE)
        assert (await app.cancel(job.id)).status is JobStatus.CANCELLED
        await asyncio.wait_for(stopped.wait(), PATIENCE)
        assert await (await app.submit("endless", {"quick": True})).result(timeout=PATIENCE) == "quick"
        with pytest.raises(WrongState):
            await app.cancel(job.id)


async def test_a_cancelled_waiting_job_never_runs(make_app: Callable[..., Fairlead]) -> None:
    app = make_app()
    gate = asyncio.Event()
    ran: list[str] = []

    @app.service(limit=1)
    async def one(call: Call) -> str:
        ran.append(call.params["name"])
        await gate.wait()
        return "ok"

    async with app.running():
        first = await app.submit("one", {"name": "first"})
        second = await app.submit("one", {"name": "second"})
        third = await app.submit("one", {"name": "third"})
        await second.cancel()
        gate.set()
        await asyncio.gather(first.result(PATIENCE), third.result(PATIENCE))
        assert ran == ["first", "third"]


async def test_a_job_is_released_at_its_due_moment(make_app: Callable[..., Fairlead]) -> None:
    app = make_app()

    @app.service(limit=1)
    async def note(call: Call) -> float:
        return time.time()

    async with app.running():
        later = await app.submit("note", delay=0.3)
        assert (await later.get()).status is JobStatus.SCHEDULED
        ran_at = await later.result(timeout=PATIENCE)
        shown = await later.get()
        assert shown.scheduled_at is not None
        assert ran_at >= shown.scheduled_at
        assert shown.queued_at is not None
        assert shown.queued_at >= shown.scheduled_at


async def test_a_wait_timeout_fails_the_job_but_it_can_be_resumed(make_app: Callable[..., Fairlead]) -> None:
    app = make_app()
    gate = asyncio.Event()

    @app.service(limit=1, wait_timeout=0.2)
    async def scarce(call: Call) -> str:
        await gate.wait()
        return "ok"

    async with app.running():
        await stands(app)
        holder = await app.submit("scarce")
        await reaches(app, holder.id, JobStatus.RUNNING)
        waiter = await app.submit("scarce")
        with pytest.raises(JobFailed) as caught:
            await waiter.result(timeout=PATIENCE)
        assert caught.value.error["code"] == "RESOURCE_EXHAUSTED"
        assert caught.value.retryable
        gate.set()
        await holder.result(timeout=PATIENCE)
        await waiter.resume()
        assert await waiter.result(timeout=PATIENCE) == "ok"


async def test_a_passed_deadline_stops_the_running_call(make_app: Callable[..., Fairlead]) -> None:
    app = make_app()
    stopped = asyncio.Event()

    @app.service(limit=1)
    async def endless(call: Call) -> str:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        return "never"

    async with app.running():
        await stands(app)
        job = await app.submit("endless", deadline=0.3)
        with pytest.raises(JobFailed) as caught:
            await job.result(timeout=PATIENCE)
        assert caught.value.error["code"] == "DEADLINE_PASSED"
        await asyncio.wait_for(stopped.wait(), PATIENCE)


async def test_those_who_wait_long_are_promoted_and_told(make_app: Callable[..., Fairlead]) -> None:
    app = make_app(promotion={"low_to_medium_after": 0.2, "medium_to_high_after": 0.4})
    gate = asyncio.Event()

    @app.service(limit=1)
    async def one(call: Call) -> str:
        await gate.wait()
        return "ok"

    async with app.running():
        await app.submit("one")
        job = await app.submit("one", priority="low")
        heard = []
        async for event in app.watch(job.id):
            if event is not None and event["type"] == "JOB_PROMOTED":
                heard.append((event["old"], event["new"]))
            if len(heard) == 2:
                break
        assert heard == [("low", "medium"), ("medium", "high")]
        shown = await job.get()
        assert (shown.priority, shown.original_priority) == ("high", "low")
        assert shown.promoted_at is not None
        gate.set()
        assert await job.result(timeout=PATIENCE) == "ok"


async def test_finished_jobs_are_pruned_when_they_are_kept_no_longer(make_app: Callable[..., Fairlead]) -> None:
    app = make_app(retention={"keep_finished": 0.2})

    @app.service(limit=1)
    async def one(call: Call) -> str:
        return "ok"

    async with app.running():
        job = await app.submit("one")
        await job.result(timeout=PATIENCE)
        async with asyncio.timeout(PATIENCE):
            while True:
                try:
                    await job.get()
                except NotFound:
                    break
                await asyncio.sleep(0.02)


async def test_positions_are_told_and_fall(make_app: Callable[..., Fairlead]) -> None:
    app = make_app()
    gate = asyncio.Event()

    @app.service(limit=1, order="fifo")
    async def one(call: Call) -> str:
        await gate.wait()
        return "ok"

    async with app.running():
        holder = await app.submit("one")
        await reaches(app, holder.id, JobStatus.RUNNING)
        jobs = [await app.submit("one") for _ in range(3)]
        assert [(await job.get()).position for job in jobs] == [1, 2, 3]
        await jobs[0].cancel()
        assert [(await job.get()).position for job in jobs[1:]] == [1, 2]
        wait = (await jobs[2].get()).estimated_wait
        assert wait is not None
        assert 0 <= wait.low <= wait.high
        gate.set()
        await ended(app, jobs[2].id)


async def test_progress_reaches_watchers_and_the_truth(make_app: Callable[..., Fairlead]) -> None:
    app = make_app()
    gate, begin = asyncio.Event(), asyncio.Event()

    @app.service(limit=1)
    async def works(call: Call) -> str:
        await begin.wait()
        call.progress(0.5, "half way", frames=12)
        await gate.wait()
        return "ok"

    async with app.running():
        job = await app.submit("works")
        types = []
        async for event in app.watch(job.id):
            if event is None:
                continue
            types.append(event["type"])
            if event["type"] == "SNAPSHOT":
                begin.set()
            if event["type"] == "PROGRESS":
                assert (event["fraction"], event["message"], event["frames"]) == (0.5, "half way", 12)
                async with asyncio.timeout(PATIENCE):
                    while (await job.get()).progress is None:
                        await asyncio.sleep(0.02)
                gate.set()
        assert types[0] == "SNAPSHOT"
        assert types[-2:] == ["STEP_COMPLETE", "JOB_COMPLETE"]


async def test_an_idempotency_key_seen_before_returns_the_job_it_made(make_app: Callable[..., Fairlead]) -> None:
    app = make_app()

    @app.service(limit=1)
    async def one(call: Call) -> str:
        return "ok"

    async with app.running():
        first = await app.submit("one", {"a": 1}, user_id="ada", idempotency_key="k")
        again = await app.submit("one", {"a": 1}, user_id="ada", idempotency_key="k")
        assert first.id == again.id
        other = await app.submit("one", {"a": 1}, user_id="bob", idempotency_key="k")
        assert other.id != first.id, "a key belongs to its user"
        with pytest.raises(InvalidInput):
            await app.submit("one", {"a": 2}, user_id="ada", idempotency_key="k")
        many = [Submission("one", {"n": n}, "ada") for n in range(3)]
        jobs = await app.submit_many(many, idempotency_key="bulk")
        assert [job.id for job in await app.submit_many(many, idempotency_key="bulk")] == [job.id for job in jobs]


async def test_a_bulk_submit_is_all_or_nothing(make_app: Callable[..., Fairlead]) -> None:
    app = make_app()

    @app.service(limit=1)
    async def one(call: Call) -> str:
        return "ok"

    async with app:
        with pytest.raises(InvalidInput) as caught:
            await app.submit_many([Submission("one"), Submission("one", priority="urgent"), Submission("one")])
        assert caught.value.details["index"] == 1
        assert (await app.list_jobs()).data == []


async def test_another_process_may_submit_and_is_noticed(make_app: Callable[..., Fairlead]) -> None:
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
async def test_a_second_process_that_would_dispatch_refuses_to_start(make_app: Callable[..., Fairlead]) -> None:
    first, second = make_app(), make_app()
    async with first.running():
        with pytest.raises(AlreadyDispatching):
            async with second.running():
                pass
    async with second.running():
        pass


@pytest.mark.parametrize("engines", ["redis"], indirect=True)
async def test_memory_and_redis_do_not_dispatch_side_by_side(engines: dict[str, str]) -> None:
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
        assert (await app.list_jobs()).data == [], "still open, as it was before"
        async with app.running():
            pass


async def test_what_waited_and_ran_comes_back_after_a_stop_without_notice(make_app: Callable[..., Fairlead]) -> None:
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


async def test_draining_lets_calls_finish_and_hands_back_the_rest_unharmed(make_app: Callable[..., Fairlead]) -> None:
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
        await stands(app)
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


async def test_bad_submissions_get_a_typed_error_and_store_nothing(make_app: Callable[..., Fairlead]) -> None:
    app = make_app()

    @app.service(limit=1)
    async def one(call: Call) -> str:
        return "ok"

    bad: list[tuple[dict[str, Any], str]] = [
        ({"feature_name": "nope"}, "/feature_name"),
        ({"feature_name": ""}, "/feature_name"),
        ({"feature_name": 7}, "/feature_name"),
        ({"user_id": ""}, "/user_id"),
        ({"user_id": "x" * 1024}, "/user_id"),
        ({"user_id": "a\nb"}, "/user_id"),
        ({"user_id": "a\u2028b"}, "/user_id"),
        ({"user_id": 42}, "/user_id"),
        ({"priority": "urgent"}, "/priority"),
        ({"delay": -1}, "/delay"),
        ({"delay": 1e12}, "/delay"),
        ({"delay": float("nan")}, "/delay"),
        ({"delay": True}, "/delay"),
        ({"scheduled_at": "tomorrow"}, "/scheduled_at"),
        ({"scheduled_at": "9999-01-01T00:00:00Z"}, "/scheduled_at"),
        ({"delay": 5, "scheduled_at": "2030-01-01T00:00:00Z"}, "/delay"),
        ({"deadline": "2001-01-01T00:00:00Z"}, "/deadline"),
        ({"deadline": 5, "delay": 10}, "/deadline"),
        ({"deadline": 0}, "/deadline"),
        ({"cost": 0}, "/cost"),
        ({"cost": float("inf")}, "/cost"),
        ({"input_data": [1]}, "/input_data"),
        ({"input_data": {"x": float("nan")}}, "/input_data"),
        ({"input_data": {"x": {1}}}, "/input_data"),
        ({"input_data": {1: 2}}, "/input_data"),
        ({"metadata": {"x": "y" * 20000}}, "/metadata"),
    ]
    async with app:
        for said, pointer in bad:
            with pytest.raises(InvalidInput) as caught:
                await app.accept([Submission(**{"feature_name": "one", **said})])
            assert caught.value.pointer == pointer, said
        with pytest.raises(UnknownFeature, match="known are: one"):
            await app.submit("two")
        for job_id in ("x", "", "0190d0c5-7b5a-7cc0-b1f0-3f8f4c9d2a1", "{0190d0c5-7b5a-7cc0-b1f0-3f8f4c9d2a10}"):
            with pytest.raises(InvalidInput):
                await app.get(job_id)
        with pytest.raises(NotFound):
            await app.get("0190d0c5-7b5a-7cc0-b1f0-3f8f4c9d2a10")
        for cursor in ("x", "!!", "MS4wMDAwMDAwMA", "é"):
            with pytest.raises(InvalidInput):
                await app.list_jobs(cursor=cursor)
        assert (await app.list_jobs()).data == []


async def test_lists_are_paged_newest_first_and_a_cursor_belongs_to_its_list(make_app: Callable[..., Fairlead]) -> None:
    app = make_app()

    @app.service(limit=1)
    async def one(call: Call) -> str:
        return "ok"

    async with app:
        ids = [(await app.submit("one", user_id=f"u{n % 2}")).id for n in range(7)]
        seen: list[str] = []
        cursor = None
        while True:
            page = await app.list_jobs(limit=3, cursor=cursor)
            seen += [job.job_id for job in page.data]
            cursor = page.next_cursor
            if cursor is None:
                break
        assert seen == ids[::-1]
        page = await app.list_jobs(user_id="u0", limit=2)
        with pytest.raises(InvalidInput):
            await app.list_jobs(user_id="u1", limit=2, cursor=page.next_cursor)
        assert (await app.list_jobs(status=JobStatus.FAILED)).data == []


async def test_a_cap_on_waiting_jobs_per_user_is_kept(make_app: Callable[..., Fairlead]) -> None:
    from fairlead.errors import TooManyWaiting

    app = make_app(server={"max_waiting_per_user": 3})

    @app.service(limit=1)
    async def one(call: Call) -> str:
        return "ok"

    async with app:
        outcomes = await asyncio.gather(*(app.submit("one", user_id="ada") for _ in range(10)), return_exceptions=True)
        assert sum(isinstance(outcome, TooManyWaiting) for outcome in outcomes) == 7
        await app.submit("one", user_id="bob")


async def test_only_finished_jobs_can_be_deleted(make_app: Callable[..., Fairlead]) -> None:
    app = make_app()

    @app.service(limit=1)
    async def one(call: Call) -> str:
        return "ok"

    async with app:
        job = await app.submit("one")
        with pytest.raises(WrongState):
            await app.delete(job.id)
        await job.cancel()
        await app.delete(job.id)
        with pytest.raises(NotFound):
            await job.get()


async def test_a_handler_that_blocks_the_loop_is_named_and_keeps_its_lease(
    make_app: Callable[..., Fairlead], caplog: pytest.LogCaptureFixture
) -> None:
    app = make_app()

    @app.service(limit=1, lease_ttl=1)
    async def rude(call: Call) -> int:
        time.sleep(2.5)  # noqa: ASYNC251
        return call.attempt

    async with app.running():
        job = await app.submit("rude")
        assert await job.result(timeout=PATIENCE) == 1
    said = [record.getMessage() for record in caplog.records if "blocked" in record.getMessage()]
    assert said
    assert "time.sleep(2.5)" in said[0]


async def test_results_can_be_waited_for_only_so_long(make_app: Callable[..., Fairlead]) -> None:
    app = make_app()

    @app.service(limit=1)
    async def one(call: Call) -> str:
        return "ok"

    async with app:
        job = await app.submit("one")
        with pytest.raises(ResultTimeout):
            await job.result(timeout=0.05)


async def test_an_app_that_is_not_open_says_so(make_app: Callable[..., Fairlead]) -> None:
    with pytest.raises(Unavailable, match="not open"):
        await make_app().submit("one")


def test_a_wrong_declaration_says_what_is_allowed(make_app: Callable[..., Fairlead]) -> None:
    app = make_app()
    with pytest.raises(ConfigError) as caught:
        app.service(limit=0, timeot=3)(lambda call: None)
    assert len(caught.value.problems) >= 2


async def test_a_pipeline_of_unknown_services_refuses_to_start(make_app: Callable[..., Fairlead]) -> None:
    app = make_app(pipelines={"p": ["nowhere"], "q": ["idle"]}, services={"idle": {"limit": 1}})
    with pytest.raises(ConfigError) as caught:
        await app.open()
    assert len(caught.value.problems) == 2


def test_the_synchronous_front_serves_code_without_a_loop(make_app: Callable[..., Fairlead]) -> None:
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


@pytest.mark.parametrize("engines", ["redis"], indirect=True)
async def test_a_worker_that_knows_few_services_takes_none_from_the_others(engines: dict[str, str]) -> None:
    whole, part = Fairlead(Config(), **engines), Fairlead(Config(), **engines)

    @whole.service(limit=3)
    async def known(call: Call) -> str:
        return "by whoever has it"

    @whole.service(limit=2)
    async def other(call: Call) -> str:
        return "other"

    @part.service("known", limit=9)
    async def known_too(call: Call) -> str:
        return "by whoever has it"

    @part.service(limit=1)
    async def added(call: Call) -> str:
        return "added"

    async with whole.running(), part.running(Roles(api=False, manager=False)):
        services = {service["service"]: service["limit"] for service in (await whole.status())["services"]}
        services.pop("added", None)  # of which the gateway may or may not have heard yet
        assert services == {"known": 3, "other": 2}
        for name, result in (("known", "by whoever has it"), ("other", "other")):
            assert await (await whole.submit(name)).result(timeout=PATIENCE) == result
        async with asyncio.timeout(PATIENCE):
            while "added" not in {service["service"] for service in (await whole.status())["services"]}:
                await asyncio.sleep(0.05)


async def test_the_watcher_of_a_process_that_runs_nothing_hears_of_the_end(make_app: Callable[..., Fairlead]) -> None:
    app, gateway = make_app(), make_app()
    gate = asyncio.Event()

    async def slow(call: Call) -> str:
        await gate.wait()
        return "done"

    app.service(limit=1)(slow)
    gateway.service(limit=1)(slow)
    async with app.running(), gateway:
        job = await gateway.submit("slow")
        heard = []
        async with asyncio.timeout(PATIENCE):
            async for event in gateway.watch(job.id, heartbeat=PATIENCE * 2):
                gate.set()
                heard.append(event["type"] if event else None)
        assert heard[0] == "SNAPSHOT"
        assert heard[-1] == "JOB_COMPLETE"


async def test_push_task_is_a_durable_submit(make_app: Callable[..., Fairlead]) -> None:
    app = make_app()

    @app.service(limit=1)
    async def default(call: Call) -> str:
        return str(call.params["task_id"])

    async with app.running():
        assert await app.push_task("default", {"task_id": 7}) is True
        page = await app.list_jobs()
        assert (page.data[0].priority.value, page.data[0].feature_name) == ("low", "default")
        assert (await ended(app, page.data[0].job_id)).status is JobStatus.COMPLETED
        with pytest.raises(InvalidInput):
            await app.push_task("default", [7])  # type: ignore[arg-type]
        with pytest.raises(UnknownFeature):
            await app.push_task("nowhere", {})
