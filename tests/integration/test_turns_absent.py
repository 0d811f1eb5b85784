"""Waiting turns whose callers are absent: they are skipped, and keep their place for a grace time."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import httpx2
import pytest

from fairlead import AsyncClient, Config, Fairlead, JobStatus, TurnLost, Unavailable
from fairlead.domain import turns
from fairlead.domain.turns import TurnView
from fairlead.errors import NotFound, TurnEnded, WrongState
from fairlead.gateway.app import create_gateway
from fairlead.gateway.dashboard.views import view_of
from fairlead.gateway.permissions import KEYLESS
from tests.integration.gateway_site import served
from tests.integration.test_gateway_turns import finished, looked, opened, waited
from tests.integration.turn_apps import ENOUGH, MODELS, position_is, running_app, until

ROOT = Path(__file__).parents[2]


def with_grace(seconds: float) -> Config:
    return MODELS.model_copy(update={"turns": MODELS.turns.model_copy(update={"grace": seconds})})


async def is_set_aside(app: Fairlead, request: str) -> TurnView:
    async with asyncio.timeout(ENOUGH):
        while (view := await app.turns.get(request)).kept_until is None:
            await asyncio.sleep(0.02)
    return view


async def set_aside(app: Fairlead, request: str) -> None:
    """As the leader does for a process that seems to be gone."""
    job = await app.turns.require(request)
    now = app._runtime.clock.now()
    assert await app._runtime.writer.record(
        job, turns.set_aside(job, turns.waiter_gone(job), now=now, grace=MODELS.turns.grace), now
    )


@asynccontextmanager
async def killed_with_requests(engines: dict[str, str], count: int) -> AsyncIterator[list[str]]:
    """A process that added so many requests, waits for each of them, and is killed at the end of the block."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.integration.turn_requester", json.dumps(engines), str(count),
        cwd=ROOT, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        yield json.loads(await asyncio.wait_for(process.stdout.readline(), 60))
    finally:
        process.kill()
        await process.wait()


# ---------------------------------------------------------------- the process ends


async def test_requests_of_a_stopped_process_are_taken_up_at_their_old_places(engines: dict[str, str]) -> None:
    async with running_app(MODELS, engines) as app:
        a, b = [await app.add_request("flux", prompt, 1) for prompt in "ab"]
        await position_is(app, b, 2)
    async with running_app(MODELS, engines) as again:
        late = await again.add_request("flux", "late", 2)
        view = await is_set_aside(again, a)
        assert (view.status, view.position, view.error) == (JobStatus.PENDING, None, None)
        assert [reason.code for reason in (await again.why(a)).reasons] == ["caller_absent"]
        await position_is(again, late, 1)
        assert await again.add_request("flux", "b", 1, request_id=b) == b
        await position_is(again, late, 2)
        assert await again.try_start_processing(late, "flux") is False
        assert await again.try_start_processing(a, "flux") is True
        assert [await again.get_queue_position(each, "flux") for each in (b, late)] == [1, 2]
        await again.mark_completed(a, "a.png")
        await again.wait_for_turn(b, "flux")


async def test_a_request_of_another_user_is_not_taken_up(engines: dict[str, str]) -> None:
    async with running_app(MODELS, engines) as app:
        request = await app.add_request("flux", "cat", 1)
        await set_aside(app, request)
        for other in (77, None):
            with pytest.raises(NotFound):
                await app.add_request("flux", "cat", other, request_id=request)
        assert (await app.turns.get(request)).kept_until is not None
        assert await app.add_request("flux", "cat", "1", request_id=request) == request


@pytest.mark.slow
async def test_requests_of_a_killed_process_are_taken_up_by_the_next(embedded: dict[str, str]) -> None:
    async with killed_with_requests(embedded, 3) as (held, first, second):
        pass
    async with running_app(MODELS, embedded) as again:
        new = asyncio.create_task(again.wait_for_turn(await again.add_request("flux", "new", 2), "flux"))
        await asyncio.wait_for(new, ENOUGH)  # the absent do not block the queue
        assert ((await again.turns.get(held)).error or {})["code"] == "HOLDER_DIED"
        for request in (second, first):
            await is_set_aside(again, request)
            await again.add_request("flux", "again", 1, request_id=request)
        assert [await again.get_queue_position(each, "flux") for each in (first, second)] == [1, 2]


@pytest.mark.slow
async def test_requests_of_a_killed_process_are_taken_up_in_another(distributed: dict[str, str]) -> None:
    async with running_app(MODELS, distributed) as app:
        async with app.turn("flux", "holder"):
            async with killed_with_requests(distributed, 2) as (first, second):
                behind = await app.add_request("flux", "behind", 2)
                await position_is(app, behind, 3)
            await is_set_aside(app, first)
            await is_set_aside(app, second)
            await position_is(app, behind, 1)
            taken_up = asyncio.create_task(app.wait_for_turn(second, "flux"))
            await position_is(app, behind, 2)
        await asyncio.wait_for(taken_up, ENOUGH)
        await app.mark_completed(second, "2.png")
        assert await app.try_start_processing(first, "flux") is True


async def test_a_wait_in_a_stopping_process_fails_and_its_request_is_kept(engines: dict[str, str]) -> None:
    async with running_app(MODELS, engines) as app:
        assert await app.try_start_processing(await app.add_request("flux", "a", 1), "flux")
        request = await app.add_request("flux", "b", 1)
        positions: list[int] = []
        waiting = asyncio.create_task(app.wait_for_turn(request, "flux", positions.append))
        await until(lambda: positions)
    with pytest.raises(Unavailable):
        await waiting
    async with running_app(MODELS, engines) as again:
        await again.wait_for_turn(request, "flux")


# ---------------------------------------------------------------- the grace time


async def test_a_request_that_nobody_takes_up_ends_after_the_grace_time(engines: dict[str, str]) -> None:
    config = with_grace(0.5)
    async with running_app(config, engines) as app:
        request = await app.add_request("flux", "cat", 1)
    async with running_app(config, engines) as again:
        async with asyncio.timeout(ENOUGH):
            while not (view := await again.turns.get(request)).status.finished:
                await asyncio.sleep(0.05)
        assert (view.status, (view.error or {})["code"]) == (JobStatus.FAILED, "WAITER_GONE")
        assert turns.WAIT_UNTIL not in (view.error or {})
        with pytest.raises(WrongState, match="FAILED already"):
            await again.add_request("flux", "cat", 1, request_id=request)


async def test_a_wait_timeout_goes_on_during_the_grace_time(engines: dict[str, str]) -> None:
    async with running_app(MODELS, engines) as app:
        short = (await app.turns.open("flux", 1, wait_timeout=1.0)).turn_id
        long = (await app.turns.open("flux", 1, wait_timeout=3600)).turn_id
        until_then = (await app.turns.require(long)).timer_at
        for each in (short, long):
            await set_aside(app, each)
        async with asyncio.timeout(ENOUGH):
            while not (view := await app.turns.get(short)).status.finished:
                await asyncio.sleep(0.05)
        assert (view.error or {})["code"] == "RESOURCE_EXHAUSTED"
        await app.turns.adopt(long)
        assert (await app.turns.require(long)).timer_at == until_then


async def test_a_request_that_is_set_aside_has_no_error_as_a_job(embedded: dict[str, str]) -> None:
    async with running_app(MODELS, embedded) as app, served(create_gateway(app)) as port:
        request = await app.add_request("flux", "cat", 1)
        await set_aside(app, request)
        kept_until = (await app.turns.get(request)).kept_until
        async with AsyncClient(f"http://127.0.0.1:{port}") as client:
            job = await client.get(request)
        assert kept_until is not None
        assert job.kept_until is not None
        assert (job.status, job.error) == (JobStatus.SCHEDULED, None)
        assert abs(job.kept_until - kept_until) < timedelta(milliseconds=1), "JSON has milliseconds"
        (listed,) = (await app.list_jobs()).data
        assert (listed.error, listed.kept_until) == (None, kept_until)
        shown = await view_of({"view": "job", "job_id": request}, KEYLESS).query(app)
        assert "error" not in shown["job"]
        assert "keeps its place" in shown["why"]["summary"]
        await app.wait_for_turn(request, "flux")
        assert (await app.get(request)).kept_until is None


async def test_a_request_can_be_cancelled_failed_and_removed_during_the_grace_time(engines: dict[str, str]) -> None:
    async with running_app(MODELS, engines) as app:
        requests = [await app.add_request("flux", prompt, 1) for prompt in "abc"]
        for each in requests:
            await set_aside(app, each)
        cancelled, failed, removed = requests
        assert (await app.turns.cancel(cancelled)).status is JobStatus.CANCELLED
        await app.mark_failed(failed, "the user left")
        assert (await app.turns.get(failed)).status is JobStatus.FAILED
        await app.cleanup_request(removed)
        with pytest.raises(NotFound):
            await app.turns.get(removed)
        with pytest.raises(NotFound):
            await app.add_request("flux", "c", 1, request_id=removed)
        with pytest.raises(TurnEnded):
            await app.wait_for_turn(cancelled, "flux")


# ---------------------------------------------------------------- callers that are present


async def test_a_call_that_still_waits_takes_its_turn_up_again(engines: dict[str, str]) -> None:
    """The process was cut off for a while, and seemed to be gone."""
    async with running_app(MODELS, engines) as app:
        first, second = [await app.add_request("flux", prompt, 1) for prompt in "ab"]
        assert await app.try_start_processing(first, "flux")
        positions: list[int] = []
        waiting = asyncio.create_task(app.wait_for_turn(second, "flux", positions.append))
        await until(lambda: positions)
        await set_aside(app, second)
        await position_is(app, second, 1)
        await app.mark_completed(first, "a.png")
        await asyncio.wait_for(waiting, ENOUGH)


async def test_a_block_whose_turn_was_taken_up_still_ends_with_its_process(engines: dict[str, str]) -> None:
    async with running_app(MODELS, engines) as app:
        holder = await app.add_request("flux", "a", 1)
        assert await app.try_start_processing(holder, "flux")
        positions: list[int] = []

        async def block() -> None:
            async with app.turn("flux", 2, on_position=positions.append):
                raise AssertionError("it has no slot")

        waiting = asyncio.create_task(block())
        await until(lambda: positions)
        (request,) = (each.id for each in app._runtime.waiters.all() if each.id != holder)
        await set_aside(app, request)
        await position_is(app, request, 1)
    with pytest.raises((TurnEnded, TurnLost, Unavailable)):
        await waiting
    async with running_app(MODELS, engines) as again:
        view = await again.turns.get(request)
        assert (view.status, (view.error or {})["code"]) == (JobStatus.FAILED, "WAITER_GONE")
        assert not app._runtime.waiters.blocks


async def test_of_two_processes_that_take_up_a_request_one_gets_the_slot(distributed: dict[str, str]) -> None:
    async with running_app(MODELS, distributed) as one, running_app(MODELS, distributed) as two:
        holder, request = [await one.add_request("flux", prompt, 1) for prompt in "ab"]
        assert await one.try_start_processing(holder, "flux")
        await set_aside(one, request)
        waits = [asyncio.create_task(place.wait_for_turn(request, "flux")) for place in (one, two)]
        await position_is(one, request, 1)
        await one.mark_completed(holder, "a.png")
        results = await asyncio.wait_for(asyncio.gather(*waits, return_exceptions=True), ENOUGH)
        assert sorted(map(type, results), key=str) == [type(None), TurnLost]
        held = [place.turns.held_here(request) for place in (one, two)]
        assert held == [result is None for result in results]


async def test_many_tries_start_a_request_that_was_set_aside_once(distributed: dict[str, str]) -> None:
    async with running_app(MODELS, distributed) as one, running_app(MODELS, distributed) as two:
        requests = [await one.add_request("flux", "cat", 1) for _ in range(3)]
        for each in requests:
            await set_aside(one, each)
        for request in requests:
            tries = [place.try_start_processing(request, "flux") for place in (one, two) for _ in range(3)]
            started = sum(await asyncio.gather(*tries))
            assert started <= 1
            if not started:  # the tries took it up from each other
                await one.wait_for_turn(request, "flux")
            await one.mark_completed(request, "cat.png")


async def test_waiting_for_a_request_that_another_process_has_started_leaves_it_there(
    distributed: dict[str, str],
) -> None:
    async with running_app(MODELS, distributed) as one, running_app(MODELS, distributed) as two:
        request = await one.add_request("flux", "cat", 1)
        assert await one.try_start_processing(request, "flux")
        with pytest.raises(TurnLost, match="another process has started"):
            await two.wait_for_turn(request, "flux")
        assert await two.try_start_processing(request, "flux") is False
        assert one.turns.held_here(request)


async def test_the_log_names_the_turn_and_its_service(
    embedded: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "fairlead.turns")
    async with running_app(MODELS, embedded) as app:
        done, failed = [await app.add_request("flux", prompt, 1) for prompt in "ab"]
        await set_aside(app, failed)
        assert await app.try_start_processing(done, "flux")
        await app.mark_completed(done, "a.png")
        await app.wait_for_turn(failed, "flux")
        await app.mark_failed(failed, "out of memory")
    lines = [record.getMessage() for record in caplog.records if record.name == "fairlead.turns"]
    assert [line for line in lines if done in line] == [
        f"turn {done} of flux: {what}" for what in ("added", "started", "completed")
    ]
    assert [line for line in lines if failed in line] == [
        f"turn {failed} of flux: {what}"
        for what in (
            "added",
            "set aside, its caller is absent",
            "back in the queue",
            "started",
            "failed (EXCEPTION: 'out of memory')",
        )
    ]


@asynccontextmanager
async def gateway(engines: dict[str, str]) -> AsyncIterator[httpx2.AsyncClient]:
    async with (
        running_app(MODELS, engines) as app,
        served(create_gateway(app)) as port,
        httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30) as client,
    ):
        yield client


async def test_callers_over_http_continue_after_a_restart_of_the_only_gateway(embedded: dict[str, str]) -> None:
    async with gateway(embedded) as http:
        holder, first, second = [await opened(http, user, service="flux") for user in ("ada", "bob", "cleo")]
        assert (await waited(http, holder))["status"] == "RUNNING"
        assert (await waited(http, first, seconds=1))["position"] == 1
    async with gateway(embedded) as http:
        assert (await looked(http, first))["kept_until"] is not None
        assert (await waited(http, first))["status"] == "RUNNING"
        returned = await waited(http, second, seconds=1)
        assert (returned["status"], returned["position"]) == ("PENDING", 1)
        await finished(http, first)
        assert (await waited(http, second))["status"] == "RUNNING"
