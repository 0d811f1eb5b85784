"""Turns: callers that wait in the queue and do the work themselves. test_turns_distributed.py has several processes."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest

from fairlead import Call, Fairlead, JobStatus, TurnEnded, TurnLost, TurnTimeout, Unavailable, WrongState
from fairlead.app.turns.turns import Turns
from fairlead.errors import InvalidInput, TooLarge, UnknownFeature
from tests.integration.turn_apps import (
    MODELS,
    Waiters,
    config_of,
    position_is,
    running_app,
    turns_of,
    until,
    until_ready,
)


async def test_callers_get_the_slot_one_after_the_other_in_the_order_of_arrival(engines: dict[str, str]) -> None:
    async with running_app(MODELS, engines) as app:
        waiters = Waiters(app)
        for name in "abcd":
            await waiters.join(name)
        await waiters.has("a")
        await asyncio.sleep(0.05)
        assert waiters.order == ["a"]
        await waiters.go(*"abcd")
        assert waiters.order == [*"abcd"]
        turns = await turns_of(app)
        assert [turn.status for turn in turns] == [JobStatus.COMPLETED] * 4
        assert [turn.result for turn in turns] == [{"by": name} for name in "abcd"]
        assert all(turn.turn for turn in turns)


async def test_a_numeric_user_id_is_stored_as_text(embedded: dict[str, str]) -> None:
    async with running_app(MODELS, embedded) as app:
        async with app.turn("flux", user_id=42) as turn:
            assert turn.user_id == "42"
            assert (await app.get(turn.id)).user_id == "42"
            assert (await app.get(turn.id)).status is JobStatus.RUNNING
        async with app.turn("flux") as turn:
            assert turn.user_id == "anonymous"


async def test_positions_are_pushed_when_they_change_and_never_after_the_grant(engines: dict[str, str]) -> None:
    async with running_app(MODELS, engines) as app:
        waiters = Waiters(app)
        for name in "abc":
            await waiters.join(name)
        await until(lambda: waiters.positions["b"] and waiters.positions["c"])
        assert waiters.positions == {"a": [], "b": [1], "c": [2]}
        await waiters.go("a")
        await until(lambda: len(waiters.positions["c"]) == 2)
        await waiters.go("b", "c")
        assert waiters.positions == {"a": [], "b": [1], "c": [2, 1]}


async def test_positions_are_reported_at_most_once_a_second(embedded: dict[str, str]) -> None:
    async with running_app(MODELS, embedded) as app:
        waiters = Waiters(app)
        for name in "abcdef":
            await waiters.join(name)
        moments: list[float] = []
        positions: list[int] = []

        async def tell(position: int) -> None:
            moments.append(asyncio.get_running_loop().time())
            positions.append(position)

        async def last() -> None:
            async with app.turn("flux", "last", on_position=tell):
                pass

        task = asyncio.create_task(last())
        await until(lambda: positions)
        for name in "abcdef":
            await waiters.go(name)
            await asyncio.sleep(0.15)
        await task
        assert positions[0] == 6
        assert positions == sorted(set(positions), reverse=True)
        assert all(later - earlier >= 0.99 for earlier, later in pairwise(moments))


async def test_fair_queues_and_priorities_apply_to_turns_as_to_jobs(engines: dict[str, str]) -> None:
    async with running_app(config_of(flux={"order": "fair", "cost": 1.0}), engines) as app:
        waiters = Waiters(app)
        for name, user, priority in (
            ("first", "zoe", None), ("a1", "ann", None), ("a2", "ann", None), ("a3", "ann", None), ("b1", "bob", None),
            ("low", "cid", "low"), ("high", "dan", "high"),
        ):  # fmt: skip
            await waiters.join(name, user_id=user, priority=priority)
        await waiters.go("first", "high", "a1", "b1", "a2", "a3", "low")
        assert waiters.order == ["first", "high", "a1", "b1", "a2", "a3", "low"]


async def test_turns_and_jobs_share_one_queue_and_one_limit(engines: dict[str, str]) -> None:
    app = Fairlead(**engines)
    at_once, most, seen = 0, 0, []

    def enter(name: str) -> None:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        seen.append(name)

    @app.service(limit=1, order="fifo")
    async def flux(call: Call) -> None:
        nonlocal at_once
        enter(call.params["name"])
        await asyncio.sleep(0.02)
        at_once -= 1

    async def turn(name: str) -> None:
        nonlocal at_once
        async with app.turn("flux", name):
            enter(name)
            await asyncio.sleep(0.02)
            at_once -= 1

    async with app.running():
        await until_ready(app)
        tasks = []
        async with app.turn("flux", "holder"):
            for number in range(8):
                name = f"{number}"
                if number % 3 == 2:
                    tasks.append(asyncio.create_task((await app.submit("flux", {"name": name})).result(timeout=20)))
                else:
                    before = len((await app.list_jobs()).data)
                    tasks.append(asyncio.create_task(turn(name)))
                    async with asyncio.timeout(20):
                        while len((await app.list_jobs()).data) == before:
                            await asyncio.sleep(0.005)
            assert seen == []
        await asyncio.gather(*tasks)
    assert seen == [f"{number}" for number in range(8)]
    assert most == 1


async def test_cancelling_the_task_of_a_waiter_cancels_its_turn(engines: dict[str, str]) -> None:
    async with running_app(MODELS, engines) as app:
        waiters = Waiters(app)
        for name in "abc":
            await waiters.join(name)
        await waiters.has("a")
        waiters.tasks["b"].cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiters.tasks["b"]
        await waiters.go("a", "c")
        assert [turn.status for turn in await turns_of(app)] == ["COMPLETED", "CANCELLED", "COMPLETED"]


async def test_cancelling_the_task_of_a_holder_cancels_its_turn_and_frees_the_slot(engines: dict[str, str]) -> None:
    async with running_app(MODELS, engines) as app:
        waiters = Waiters(app)
        await waiters.join("a")
        await waiters.join("b")
        await waiters.has("a")
        waiters.tasks["a"].cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiters.tasks["a"]
        await waiters.go("b")
        assert [turn.status for turn in await turns_of(app)] == ["CANCELLED", "COMPLETED"]


async def test_a_waiter_whose_turn_is_cancelled_gets_an_error(engines: dict[str, str]) -> None:
    async with running_app(MODELS, engines) as app:
        waiters = Waiters(app)
        await waiters.join("a")
        await waiters.join("b")
        _, b = await turns_of(app)
        await app.cancel(b.job_id)
        with pytest.raises(TurnEnded) as ended:
            await waiters.tasks["b"]
        assert ended.value.turn_id == b.job_id
        await waiters.go("a")


async def test_a_waiter_gives_up_after_its_wait_timeout(engines: dict[str, str]) -> None:
    async with running_app(MODELS, engines) as app:
        async with app.turn("flux", "holder"):
            with pytest.raises(TurnTimeout) as late:
                async with app.turn("flux", "patient", wait_timeout=0.2):
                    pass
            assert isinstance(late.value, TimeoutError)
            with pytest.raises(TimeoutError):
                async with app.slot("flux", wait_timeout=0.2):
                    pass
        _, patient, slot = await turns_of(app)
        for turn in (patient, slot):
            assert (turn.status, turn.error["code"], turn.retryable) == ("FAILED", "RESOURCE_EXHAUSTED", False)


async def test_the_wait_timeout_of_the_service_counts_too(engines: dict[str, str]) -> None:
    async with running_app(config_of(flux={"wait_timeout": 1.0}, sdxl={}), engines) as app:
        async with app.turn("sdxl", "early"):
            pass  # no other turn waits for this one
        async with app.turn("flux", "holder"):
            with pytest.raises(TurnTimeout):
                async with app.turn("flux", "patient"):
                    pass


async def half_done(app: Fairlead) -> None:
    async with app.turn("flux", "ann") as turn:
        turn.result = {"half": True}
        _ = 1 / 0


async def test_an_exception_is_stored_and_raised(engines: dict[str, str]) -> None:
    async with running_app(MODELS, engines) as app:
        with pytest.raises(ZeroDivisionError):
            await half_done(app)
        (failed,) = await turns_of(app)
        assert (failed.status, failed.retryable, failed.result) == ("FAILED", False, None)
        assert failed.error == {"code": "EXCEPTION", "message": "ZeroDivisionError: division by zero"}
        assert [attempt["error"]["code"] for attempt in failed.attempts] == ["EXCEPTION"]
        async with app.turn("flux", "next"):
            pass


async def test_a_holder_whose_turn_is_cancelled_is_stopped_with_an_error(engines: dict[str, str]) -> None:
    async with running_app(MODELS, engines) as app:
        lost: list[bool] = []

        async def is_cancelled() -> None:
            async with app.turn("flux", "ann") as turn:
                try:
                    await app.cancel(turn.id)
                    await asyncio.sleep(20)
                finally:
                    lost.append(turn.lost.is_set())

        with pytest.raises(TurnLost) as error:
            await is_cancelled()
        assert lost == [True]
        assert asyncio.current_task().cancelling() == 0  # type: ignore[union-attr]
        assert (await app.get(error.value.turn_id)).status is JobStatus.CANCELLED
        async with app.turn("flux", "next"):
            pass


async def test_a_holder_is_stopped_at_the_timeout_of_its_service(engines: dict[str, str]) -> None:
    async with running_app(config_of(flux={"timeout": 0.3}), engines) as app:
        with pytest.raises(TurnLost, match=r"longer than its 0\.3 s"):
            async with app.turn("flux", "slow"):
                await asyncio.sleep(20)
        async with app.turn("flux", "next"):
            pass
        slow, _ = await turns_of(app)
        assert (slow.status, slow.error["code"]) == ("FAILED", "TIMEOUT")


async def test_a_holder_that_ignores_its_loss_keeps_the_slot_only_briefly(embedded: dict[str, str]) -> None:
    async with running_app(config_of(flux={"timeout": 0.2}), embedded) as app:
        stubborn, has_it = asyncio.Event(), asyncio.Event()

        async def ignores() -> None:
            async with app.turn("flux", "stubborn"):
                has_it.set()
                while not stubborn.is_set():
                    try:
                        await stubborn.wait()
                    except asyncio.CancelledError:
                        continue

        task = asyncio.create_task(ignores())
        await has_it.wait()
        async with app.turn("flux", "next"):
            assert not task.done()
        stubborn.set()
        with pytest.raises(TurnLost):
            await task


async def test_a_holder_keeps_its_slot_for_longer_than_a_lease(engines: dict[str, str]) -> None:
    async with running_app(config_of(flux={"lease_ttl": 1.0}), engines) as app:
        async with app.turn("flux", "slow") as turn:
            await asyncio.sleep(2.5)
            assert not turn.lost.is_set()
        assert (await app.get(turn.id)).status is JobStatus.COMPLETED


async def test_a_slot_waits_in_the_same_queue_and_overtakes_no_one(engines: dict[str, str]) -> None:
    async with running_app(MODELS, engines) as app:
        waiters = Waiters(app)
        order: list[str] = []

        async def limited(name: str) -> None:
            async with app.slot("flux"):
                order.append(name)
                assert waiters.order == ["a", "b"]

        for name in "ab":
            await waiters.join(name)
        slots = [asyncio.create_task(limited(name)) for name in ("one", "two")]
        async with asyncio.timeout(20):
            while len(await turns_of(app)) < 4:
                await asyncio.sleep(0.01)
        await waiters.go("a", "b")
        await asyncio.gather(*slots)
        assert sorted(order) == ["one", "two"]


async def test_a_turn_in_a_pool_takes_a_slot_of_the_pool(engines: dict[str, str]) -> None:
    services = {name: {"limit": 2, "pool": "gpu"} for name in ("flux", "sdxl")}
    config = MODELS.model_validate({"services": services, "pools": {"gpu": 1}})
    async with running_app(config, engines) as app:
        flux, sdxl = Waiters(app, "flux"), Waiters(app, "sdxl")
        await flux.join("a")
        await flux.has("a")
        await sdxl.join("b")
        await until(lambda: sdxl.positions["b"] == [1])
        await flux.go("a")
        await sdxl.go("b")


async def test_unsupported_options_of_a_turn_are_refused(embedded: dict[str, str]) -> None:
    async with running_app(MODELS, embedded) as app:
        async with app.turn("flux", "a") as turn:
            waiting = await app.turns.open("flux", "b")
            with pytest.raises(WrongState, match="no slot yet"):
                await app.turns.finish(waiting.turn_id)
        for again in (app.resume, lambda turn_id: app.retry_step(turn_id, 0)):
            with pytest.raises(WrongState, match="turn"):
                await again(turn.id)
        for end in (app.turns.cancel(turn.id), app.turns.fail(turn.id, "late")):
            with pytest.raises(WrongState, match="COMPLETED already"):
                await end
        assert (await app.get(turn.id)).status is JobStatus.COMPLETED
        await app.delete(turn.id)


async def test_bad_input_is_refused_and_stores_nothing(embedded: dict[str, str]) -> None:
    async with running_app(MODELS, embedded) as app:
        cases: list[tuple[type[Exception], dict[str, Any]]] = [
            (UnknownFeature, {"service": "dalle"}),
            (InvalidInput, {"user_id": ""}),
            (InvalidInput, {"user_id": "-slots-"}),
            (InvalidInput, {"user_id": "a\x00b"}),
            (InvalidInput, {"priority": "urgent"}),
            (InvalidInput, {"wait_timeout": 0}),
            (InvalidInput, {"wait_timeout": "soon"}),
            (InvalidInput, {"wait_timeout": float("nan")}),
            (InvalidInput, {"cost": -1}),
            (InvalidInput, {"metadata": [1]}),
            (InvalidInput, {"deadline": -5}),
        ]
        for error, given in cases:
            with pytest.raises(error):
                async with app.turn(**{"service": "flux", "user_id": "ann", **given}):
                    pass
        assert (await app.list_jobs()).data == []


async def test_a_result_that_cannot_be_stored_is_refused_where_it_is_set(embedded: dict[str, str]) -> None:
    async with running_app(MODELS, embedded) as app:
        with pytest.raises(InvalidInput, match="must be JSON"):
            async with app.turn("flux", "ann") as turn:
                turn.result = {"image": object()}
        with pytest.raises(TooLarge):
            async with app.turn("flux", "ann") as turn:
                turn.result = "x" * 2_000_000
        assert [turn.status for turn in await turns_of(app)] == ["FAILED", "FAILED"]


async def test_a_service_for_turns_takes_no_jobs(embedded: dict[str, str]) -> None:
    async with running_app(MODELS, embedded) as app:
        with pytest.raises(UnknownFeature, match="flux accepts turns only"):
            await app.submit("flux", {})
        with pytest.raises(InvalidInput):
            await app.submit_batch([{"feature_name": "flux"}])
        assert (await app.list_jobs()).data == []


async def test_turns_need_a_running_queue(embedded: dict[str, str]) -> None:
    app = Fairlead(MODELS, **embedded)
    with pytest.raises(Unavailable, match="not open"):
        app.turn("flux")
    async with app:
        with pytest.raises(Unavailable, match="turns need a running queue"):
            async with app.turn("flux"):
                pass


async def test_a_turn_without_a_waiting_caller_stays_in_the_queue(embedded: dict[str, str]) -> None:
    async with running_app(MODELS, embedded) as app, app.turn("flux", "holder") as holder:
        waiting = await app.turns.open("flux", "ann", metadata={"chat": 7}, input={"prompt": "cat"})
        await position_is(app, waiting.turn_id, 1)
        view = await app.turns.get(waiting.turn_id)
        assert (view.position, view.metadata, view.input) == (1, {"chat": 7}, {"prompt": "cat"})
        assert (await app.turns.wait(waiting.turn_id, timeout=0.05)).status is JobStatus.PENDING
        why = await app.why(waiting.turn_id)
        assert [reason.code for reason in why.reasons] == ["service_full", "in_line"]
        assert app.turns.held_here(holder.id)
        assert not app.turns.held_here(waiting.turn_id)


async def test_why_reports_that_a_turn_waits_for_its_caller(engines: dict[str, str]) -> None:
    async with running_app(MODELS, engines) as app:
        waiting = await app.turns.open("flux", "ann")
        await position_is(app, waiting.turn_id, 1)
        why = await app.why(waiting.turn_id)
        assert [reason.code for reason in why.reasons] == ["caller_absent", "in_line"]


async def test_a_restart_after_a_crash_ends_held_turns_and_sets_aside_those_that_waited(
    embedded: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def end_nothing(turns: Turns) -> None:
        waiters = turns._runtime.waiters
        for waiter in waiters.all():
            waiters.forget(waiter)

    app = Fairlead(MODELS, **embedded)
    monkeypatch.setattr(Turns, "close", end_nothing)
    async with app.running():
        held = await app.turns.open("flux", "holder")
        assert await app.turns.start_if_first(held.turn_id)
        waiting = await app.turns.open("flux", "waiter")
    monkeypatch.undo()
    async with running_app(MODELS, embedded) as again:
        async with again.turn("flux", "next"):
            pass
        assert ((await again.turns.get(held.turn_id)).error or {})["code"] == "HOLDER_DIED"
        assert (await again.turns.get(waiting.turn_id)).kept_until is not None


async def test_a_rebuild_keeps_waiting_and_held_turns(embedded: dict[str, str]) -> None:
    async with running_app(MODELS, embedded) as app:
        waiters = Waiters(app)
        for name in "abc":
            await waiters.join(name)
        await waiters.has("a")
        await app.rebuild("flux")
        await until_ready(app)
        await waiters.go("a", "b", "c")
        assert waiters.order == [*"abc"]


async def test_a_result_waits_for_a_store_that_is_briefly_unreachable(
    embedded: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_app(MODELS, embedded) as app:
        real, tries = app._runtime.writer.record, []

        async def away_at_first(*given: Any) -> bool:
            tries.append(given)
            if len(tries) < 3:
                raise Unavailable("the database is away")
            return await real(*given)

        async with app.turn("flux", "ann") as turn:
            turn.result = {"dear": True}
            monkeypatch.setattr(app._runtime.writer, "record", away_at_first)
        assert len(tries) == 3
        assert (await app.get(turn.id)).result == {"dear": True}


async def test_a_holder_that_leaves_during_a_database_outage_returns_its_slot(
    engines: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_app(MODELS, engines) as app:
        waiters = Waiters(app)
        await waiters.join("a")
        await waiters.has("a")

        async def away(*arguments: Any) -> None:
            raise Unavailable("the database is away")

        monkeypatch.setattr(Turns, "cancel", away)
        waiters.tasks["a"].cancel()
        with pytest.raises((asyncio.CancelledError, Unavailable)):
            await waiters.tasks["a"]
        await waiters.join("b")
        await waiters.go("b")


async def test_turns_are_measured_like_calls(embedded: dict[str, str]) -> None:
    async with running_app(MODELS, embedded) as app:
        async with app.turn("flux", "ann") as turn:
            await asyncio.sleep(0.05)
        context = (await app.get(turn.id)).context
        assert context["step_0_flux"]["metrics"]["execution_time_ms"] >= 45
