"""Calls: how they run, fail, are retried, and are stopped."""

import asyncio
import gc
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from fairlead import (
    Call,
    Fairlead,
    JobCancelled,
    JobFailed,
    JobStatus,
    Permanent,
    Retry,
    WrongState,
)
from fairlead.engine.step_run import StepRun
from tests.integration.engine.waiting import PATIENCE, reaches

AT_ONCE = {"base": 0, "jitter": 0}


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


async def test_a_call_that_has_ended_leaves_no_work_for_the_garbage_collector(
    make_app: Callable[..., Fairlead],
) -> None:
    app = make_app()

    @app.service(limit=2)
    async def double(call: Call) -> int:
        return int(call.params["n"]) * 2

    def runs() -> list[StepRun]:
        return [each for each in gc.get_objects() if type(each) is StepRun]

    async with app.running():
        gc.collect()
        gc.disable()
        others = {id(run): run for run in runs()}  # of earlier tests; kept, so that no new one gets the same id
        try:
            jobs = [await app.submit("double", {"n": n}) for n in range(4)]
            assert [await job.result(timeout=PATIENCE) for job in jobs] == [0, 2, 4, 6]
            until = time.monotonic() + PATIENCE
            while any(id(run) not in others for run in runs()) and time.monotonic() < until:
                await asyncio.sleep(0.01)  # the slot of the last one is being released
            assert all(id(run) in others for run in runs())
        finally:
            gc.enable()


async def test_sync_functions_run_in_threads_and_do_not_block_the_loop(make_app: Callable[..., Fairlead]) -> None:
    app = make_app()
    gate = threading.Event()

    @app.service(limit=1)
    def slow(call: Call) -> str:
        assert gate.wait(PATIENCE)
        return threading.current_thread().name

    async with app.running():
        job = await app.submit("slow")
        # Otherwise the loop is blocked and this submit and read would hang.
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


async def test_a_pipeline_passes_each_steps_result_to_the_next(make_app: Callable[..., Fairlead]) -> None:
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


async def test_a_failing_call_is_retried_and_every_error_is_kept(
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
        assert len(set(keys)) == 1, "all attempts have the same idempotency key"


async def test_a_job_without_attempts_left_is_a_dead_letter_that_an_operator_can_requeue(
    make_app: Callable[..., Fairlead],
) -> None:
    app = make_app()
    broken = True

    @app.service(limit=1, backoff=AT_ONCE, max_attempts=2)
    async def flaky(call: Call) -> str:
        if broken:
            raise ValueError("no")
        return "done"

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
        assert await job.result(timeout=PATIENCE) == "done"


async def test_a_permanent_failure_is_not_retried(make_app: Callable[..., Fairlead]) -> None:
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


async def test_a_handler_can_choose_the_time_of_its_retry(make_app: Callable[..., Fairlead]) -> None:
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


async def test_a_resume_continues_at_the_failed_step_and_repeats_no_completed_one(
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


async def test_a_result_that_is_not_json_fails_the_step_permanently(make_app: Callable[..., Fairlead]) -> None:
    app = make_app(worker={"max_result": 1024})

    @app.service(limit=1)
    async def odd(call: Call) -> Any:
        return {"set": {1, 2}, "nan": float("nan"), "big": "x" * 5000}[call.params["kind"]]

    async with app.running():
        for kind, message in [("set", "not JSON"), ("nan", "NaN"), ("big", "too large")]:
            with pytest.raises(JobFailed, match=message) as caught:
                await (await app.submit("odd", {"kind": kind})).result(timeout=PATIENCE)
            assert caught.value.error["code"] == "BAD_RESULT"
            assert not caught.value.retryable


async def test_a_call_that_exceeds_its_timeout_is_stopped_and_retried(make_app: Callable[..., Fairlead]) -> None:
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
        with app.hub.subscribe(job.id) as subscription:
            while not (await job.get()).attempts:
                await subscription.next(0.1)
        assert (await app.status())["services"][0]["in_use"] == 1, "timed out, but the thread is still running"
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


async def test_a_handler_that_blocks_the_loop_is_logged_and_keeps_its_lease(
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
    warnings = [record.getMessage() for record in caplog.records if "blocked" in record.getMessage()]
    assert warnings
    assert "time.sleep(2.5)" in warnings[0]
