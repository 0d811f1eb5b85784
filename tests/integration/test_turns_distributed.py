"""Turns of several processes, on PostgreSQL and Redis: the slot goes to the next caller in any process."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import redis.asyncio as aioredis

from fairlead import Call, Fairlead, JobStatus, TurnLost
from fairlead.engine.roles import Roles
from tests.integration.turn_apps import (
    ENOUGH,
    MODELS,
    Waiters,
    config_of,
    position_is,
    running_app,
    turns_of,
    until,
    until_ready,
)

ROOT = Path(__file__).parents[2]
SHORT = config_of(flux={"lease_ttl": 2.0})


@asynccontextmanager
async def caller_of(engines: dict[str, str]) -> AsyncIterator[Fairlead]:
    """A process that only calls: opened, without roles."""
    app = Fairlead(SHORT, **engines)
    async with app:
        yield app


@asynccontextmanager
async def taker(engines: dict[str, str], how: str, count: int = 1) -> AsyncIterator[asyncio.subprocess.Process]:
    """Another process, in which this many callers wait, or the first holds the slot."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.integration.turn_process", engines["database_url"], engines["redis_url"], how,
        str(count), cwd=ROOT, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert await asyncio.wait_for(process.stdout.readline(), 30) == b"ready\n"
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def test_callers_of_several_processes_are_served_in_the_order_of_arrival(distributed: dict[str, str]) -> None:
    async with running_app(SHORT, distributed) as app, caller_of(distributed) as one, caller_of(distributed) as two:
        order: list[str] = []
        waiters = {place: Waiters(place) for place in (app, one, two)}
        for group in waiters.values():
            group.order = order
        places = [one, two, app, two, one, app, one]
        for number, place in enumerate(places):
            await waiters[place].join(str(number))
        for number, place in enumerate(places):
            await waiters[place].go(str(number))
        assert order == [str(number) for number in range(len(places))]
        assert {turn.status for turn in await turns_of(app)} == {JobStatus.COMPLETED}


async def test_a_worker_hands_the_slot_to_the_caller_whose_turn_it_is(distributed: dict[str, str]) -> None:
    app = Fairlead(**distributed)
    seen: list[str] = []

    @app.service(limit=1, order="fifo", lease_ttl=1.0)
    async def flux(call: Call) -> None:
        seen.append(call.params["name"])

    async with app.running(), caller_of(distributed) as caller:
        await until_ready(app)
        waiters = Waiters(caller)
        async with app.turn("flux", "holder"):
            await waiters.join("turn")
            job = await app.submit("flux", {"name": "job"})
            await position_is(app, (await turns_of(app))[1].job_id, 1)
        await waiters.has("turn")
        await asyncio.sleep(1.5)  # it is renewed under the worker's name
        assert seen == []
        await waiters.go("turn")
        await job.result(timeout=20)


async def test_turns_of_a_service_with_workers_do_not_need_them(distributed: dict[str, str]) -> None:
    app = Fairlead(**distributed)

    @app.service(limit=1, order="fifo")
    async def flux(call: Call) -> None: ...

    async with app.running(Roles(worker=False)), asyncio.timeout(20), app.turn("flux", "ann") as turn:
        assert (await app.get(turn.id)).status is JobStatus.RUNNING


async def error_kept_for(app: Fairlead, turn_id: str) -> str:
    """The code of the error with which a turn that is set aside fails if its caller does not return."""
    job = await app.turns.require(turn_id)
    assert job.is_set_aside
    assert job.error is not None
    return str(job.error["code"])


async def test_the_waiting_callers_of_a_killed_process_leave_the_queue(distributed: dict[str, str]) -> None:
    async with running_app(SHORT, distributed) as app:
        waiters = Waiters(app)
        await waiters.join("first")
        await waiters.has("first")
        async with taker(distributed, "waits", 3) as process:
            await waiters.join("behind")
            await until(lambda: waiters.positions["behind"] == [4])
            process.kill()
            await process.wait()
            await until(lambda: waiters.positions["behind"][-1] == 1)
        await waiters.go("first", "behind")
        gone = [turn for turn in await turns_of(app) if turn.status is not JobStatus.COMPLETED]
        assert [(turn.status, turn.error) for turn in gone] == [(JobStatus.SCHEDULED, None)] * 3
        assert [await error_kept_for(app, turn.job_id) for turn in gone] == ["WAITER_GONE"] * 3


async def test_a_killed_process_whose_caller_holds_the_slot_frees_it(distributed: dict[str, str]) -> None:
    async with running_app(SHORT, distributed) as app:
        async with taker(distributed, "holds", 2) as process:
            waiters = Waiters(app)
            await waiters.join("behind")
            process.kill()
            await process.wait()
            await waiters.go("behind")
        held, waited, _ = await turns_of(app)
        assert (held.status, held.error["code"]) == (JobStatus.FAILED, "HOLDER_DIED")
        assert await error_kept_for(app, waited.job_id) in ("WAITER_GONE", "NOT_TAKEN")


async def test_a_process_that_stops_takes_its_callers_out_of_the_queue(distributed: dict[str, str]) -> None:
    async with running_app(SHORT, distributed) as app:
        waiters = Waiters(app)
        async with caller_of(distributed) as caller:
            leaving = Waiters(caller)
            await leaving.join("left behind")
            await leaving.has("left behind")
            await waiters.join("behind")
        with pytest.raises(TurnLost, match="stopping"):
            await leaving.tasks["left behind"]
        await waiters.go("behind")


async def test_waiting_and_held_turns_survive_the_loss_of_all_redis_data(distributed: dict[str, str]) -> None:
    async with running_app(SHORT, distributed) as app, caller_of(distributed) as caller:
        here, there = Waiters(app), Waiters(caller)
        order = here.order = there.order
        await there.join("a")
        await there.has("a")
        await here.join("b")
        await there.join("c")
        async with aioredis.Redis.from_url(distributed["redis_url"]) as redis:
            await redis.flushall()
        await asyncio.sleep(2.5)  # longer than a lease: it is renewed although Redis lost its data
        assert order == ["a"]
        await there.go("a")
        await here.go("b")
        await there.go("c")
        assert order == [*"abc"]


async def test_a_caller_that_reconnects_elsewhere_keeps_its_position(distributed: dict[str, str]) -> None:
    async with running_app(SHORT, distributed) as app, caller_of(distributed) as caller:
        async with app.turn("flux", "holder"):
            turn = await caller.turns.open("flux", "ann")
            await app.turns.open("flux", "bob")
            await position_is(app, turn.turn_id, 1)
            assert (await app.turns.adopt(turn.turn_id)).status is JobStatus.PENDING
            await until(lambda: not caller.turns.owned_here(turn.turn_id))
            assert app.turns.owned_here(turn.turn_id)
        assert (await app.turns.wait(turn.turn_id, timeout=20)).status is JobStatus.RUNNING
        await caller.turns.adopt(turn.turn_id)
        await until(lambda: not app.turns.owned_here(turn.turn_id))
        await asyncio.sleep(2.5)  # longer than a lease: it is renewed from there
        assert (await caller.turns.finish(turn.turn_id, {"ok": True})).result == {"ok": True}


async def test_a_call_gets_the_slot_although_another_process_has_asked_for_the_turn(
    distributed: dict[str, str],
) -> None:
    async with running_app(MODELS, distributed) as app, Fairlead(MODELS, **distributed) as other:
        first, second = [await app.add_request("flux", "cat", 1) for _ in range(2)]
        await app.wait_for_turn(first, "flux")
        waiting = asyncio.create_task(app.wait_for_turn(second, "flux"))
        waiter = app._runtime.waiters.get(second)
        assert waiter is not None
        await until(lambda: waiter.callers)
        assert not await other.try_start_processing(second, "flux")
        await until(lambda: waiter.elsewhere or app._runtime.waiters.get(second) is not waiter)
        await app.mark_completed(first, "cat.png")
        async with asyncio.timeout(ENOUGH):
            await waiting
        assert not await other.try_start_processing(second, "flux")
        await app.mark_completed(second, "cat.png")


async def test_a_slot_goes_to_the_process_where_a_call_waits_for_the_turn(distributed: dict[str, str]) -> None:
    """The process that owns the turn claims the slot for another turn. Only the other process waits for this one."""
    async with running_app(MODELS, distributed) as app, Fairlead(MODELS, **distributed) as other:
        first, second, third = [await app.add_request("flux", "cat", 1) for _ in range(3)]
        await app.wait_for_turn(first, "flux")
        waiting = asyncio.create_task(app.wait_for_turn(second, "flux"))
        waiter = app._runtime.waiters.get(second)
        assert waiter is not None
        await until(lambda: waiter.callers)
        behind = asyncio.create_task(other.wait_for_turn(third, "flux"))
        assert not await other.try_start_processing(second, "flux")
        await until(lambda: waiter.elsewhere or app._runtime.waiters.get(second) is not waiter)
        await app.mark_completed(first, "cat.png")
        async with asyncio.timeout(ENOUGH):
            await waiting
        assert not behind.done()
        await app.mark_completed(second, "cat.png")
        async with asyncio.timeout(ENOUGH):
            await behind
        await other.mark_completed(third, "cat.png")


async def test_a_holder_in_another_process_is_notified_of_a_cancel(distributed: dict[str, str]) -> None:
    async with running_app(SHORT, distributed) as app, caller_of(distributed) as caller:
        waiters = Waiters(caller)
        await waiters.join("ann")
        await waiters.has("ann")
        (turn,) = await turns_of(app)
        await app.cancel(turn.job_id)
        with pytest.raises(TurnLost):
            await waiters.tasks["ann"]
        async with app.turn("flux", "next"):
            pass


async def test_two_processes_never_start_two_requests(distributed: dict[str, str]) -> None:
    async with running_app(MODELS, distributed) as one, running_app(MODELS, distributed) as two:
        requests = [await place.add_request("flux", "cat", 1) for place in (one, two, one, two)]
        await position_is(two, requests[-1], 4)
        for request in requests:
            tries = [place.try_start_processing(other, "flux") for other in requests for place in (one, two)]
            assert sum(await asyncio.gather(*tries)) == 1
            assert (await one.turns.get(request)).status is JobStatus.RUNNING
            await two.mark_completed(request, "cat.png")


async def test_operators_see_a_turn_under_its_holder_and_no_problem(distributed: dict[str, str]) -> None:
    async with running_app(SHORT, distributed) as app, caller_of(distributed) as caller:
        here, there = Waiters(app), Waiters(caller)
        await here.join("first")
        await here.has("first")
        await there.join("ann")
        await here.go("first")
        await there.has("ann")
        turn = (await turns_of(app))[1]
        why = await app.why(turn.job_id)
        assert [reason.code for reason in why.reasons] == ["running"]
        assert why.reasons[0].details["worker"] == (await app.turns.get(turn.job_id)).process
        assert [worker["running"] for worker in await app.workers()] == [0]
        assert not {finding.code for finding in await app.doctor()} & {"no-worker", "worker-gone"}
        await there.go("ann")
