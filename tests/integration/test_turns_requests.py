"""ImageQueue's own examples, by its own names: requests that are put in line, and started when they are first."""

from __future__ import annotations

import asyncio

import pytest

from fairlead import Fairlead, JobStatus, NotFound, TurnLost, WrongState
from fairlead.dispatch.port import Lease
from fairlead.errors import InvalidInput, UnknownFeature
from tests.integration.turning import MODELS, line_of, position_is, until


async def add(app: Fairlead, *prompts: str, model: str = "flux") -> list[str]:
    return [await app.add_request(model, prompt, number) for number, prompt in enumerate(prompts, 123456)]


async def positions(app: Fairlead, *ids: str, model: str = "flux") -> list[int | None]:
    return [await app.get_queue_position(request, model) for request in ids]


async def status(app: Fairlead, request: str) -> JobStatus:
    return (await app.turns.get(request)).status


async def test_a_request_is_put_in_line_as_it_was_given(engines: dict[str, str]) -> None:
    async with line_of(MODELS, engines) as app:
        (cat,) = await add(app, "cat")
        request = await app.get_next_pending("flux")
        assert request is not None
        assert (request.request_id, request.model, request.prompt) == (cat, "flux", "cat")
        assert (request.user_id, request.status) == ("123456", JobStatus.PENDING)
        assert await app.get_next_pending("sdxl") is None


async def test_only_the_first_pending_can_start_and_only_once(engines: dict[str, str]) -> None:
    """Queue: [A-PENDING, B-PENDING]."""
    async with line_of(MODELS, engines) as app:
        a, b = await add(app, "a", "b")
        assert await app.try_start_processing(b, "flux") is False
        assert await app.try_start_processing(a, "flux") is True
        assert await status(app, a) is JobStatus.RUNNING
        assert await app.try_start_processing(a, "flux") is False, "it is started already"
        assert await app.try_start_processing(b, "flux") is False, "no slot is free"
        assert await app.try_start_processing(b, "sdxl") is False, "it is not that model's"


async def test_positions_count_the_pending_only(engines: dict[str, str]) -> None:
    """Queue: [A-PROCESSING, B-PENDING, C-PENDING, D-COMPLETED]."""
    async with line_of(MODELS, engines) as app:
        d, a, b, c = await add(app, "d", "a", "b", "c")
        assert await positions(app, d, a, b, c) == [1, 2, 3, 4]
        assert await app.try_start_processing(d, "flux")
        await app.mark_completed(d, "/images/d.png")
        assert await app.try_start_processing(a, "flux")
        assert await positions(app, a, b, c, d) == [None, 1, 2, None]
        assert await positions(app, b, model="sdxl") == [None]
        assert (await app.turns.get(d)).result == {"image_path": "/images/d.png"}


async def test_four_requests_run_in_the_order_of_their_arrival(engines: dict[str, str]) -> None:
    """The seed's timeline, t=0 to t=45."""
    async with line_of(MODELS, engines) as app:
        requests = await add(app, "a", "b", "c", "d")
        assert await positions(app, *requests) == [1, 2, 3, 4]
        for number, request in enumerate(requests):
            behind = requests[number + 1 :]
            assert await app.try_start_processing(request, "flux") is True
            assert not any([await app.try_start_processing(other, "flux") for other in behind])
            assert await positions(app, *behind) == list(range(1, len(behind) + 1))
            await app.mark_completed(request, f"{number}.png")
        assert await app.get_next_pending("flux") is None


async def test_both_models_run_at_once_and_do_not_wait_for_each_other(engines: dict[str, str]) -> None:
    async with line_of(MODELS, engines) as app:
        (a,) = await add(app, "cat")
        (b,) = await add(app, "dog", model="sdxl")
        (c,) = await add(app, "bird")
        assert await app.try_start_processing(a, "flux")
        assert await app.try_start_processing(b, "sdxl")
        assert await app.try_start_processing(c, "flux") is False
        await app.mark_completed(b, "dog.png")
        assert await app.try_start_processing(c, "flux") is False, "it waits for A, whatever becomes of B"
        await app.mark_failed(a, "the model said no")
        assert await app.try_start_processing(c, "flux") is True


async def test_a_failure_is_kept_and_frees_the_slot(engines: dict[str, str]) -> None:
    async with line_of(MODELS, engines) as app:
        a, b = await add(app, "a", "b")
        assert await app.try_start_processing(a, "flux")
        await app.mark_failed(a, "out of memory")
        failed = await app.turns.get(a)
        assert (failed.status, (failed.error or {})["message"]) == (JobStatus.FAILED, "out of memory")
        assert await app.try_start_processing(b, "flux") is True
        await app.mark_failed(a, "again")
        await app.mark_completed(a, "late.png")
        assert (await app.turns.get(a)).error == failed.error, "what has ended stays as it is"


async def test_a_request_that_waits_can_fail_and_not_be_completed(engines: dict[str, str]) -> None:
    async with line_of(MODELS, engines) as app:
        a, b = await add(app, "a", "b")
        with pytest.raises(WrongState, match="no slot yet"):
            await app.mark_completed(a, "never.png")
        await app.mark_failed(a, "the user went away")
        assert await positions(app, a, b) == [None, 1]


async def test_cleanup_removes_a_request_whatever_its_state(engines: dict[str, str]) -> None:
    async with line_of(MODELS, engines) as app:
        done, running, waiting, last = await add(app, "done", "running", "waiting", "last")
        assert await app.try_start_processing(done, "flux")
        await app.mark_completed(done, "done.png")
        assert await app.try_start_processing(running, "flux")
        for request in (done, waiting, running):
            await app.cleanup_request(request)
            with pytest.raises(NotFound):
                await app.get(request)
            await app.cleanup_request(request)
        assert await app.try_start_processing(last, "flux") is True
        assert await positions(app, done, waiting, running) == [None, None, None]


async def test_wait_for_turn_returns_when_the_request_is_started(engines: dict[str, str]) -> None:
    async with line_of(MODELS, engines) as app:
        a, b = await add(app, "a", "b")
        assert await app.try_start_processing(a, "flux")
        told: list[int] = []
        waiting = asyncio.create_task(app.wait_for_turn(b, "flux", told.append))
        await until(lambda: told)
        assert told == [1]
        assert not waiting.done()
        await app.mark_completed(a, "a.png")
        await waiting
        assert await status(app, b) is JobStatus.RUNNING
        await app.mark_completed(b, "b.png")


async def test_many_who_try_at_once_start_one(engines: dict[str, str]) -> None:
    async with line_of(MODELS, engines) as app:
        requests = await add(app, *map(str, range(10)))
        tries = [app.try_start_processing(request, "flux") for request in requests for _ in range(3)]
        started = await asyncio.gather(*tries)
        assert sum(started) == 1
        assert any(started[:3]), "and that is the first"


async def test_a_request_that_nobody_starts_does_not_hold_up_those_who_wait(engines: dict[str, str]) -> None:
    async with line_of(MODELS, engines) as app:
        (idle,) = await add(app, "nobody asks")
        async with app.turn("flux", user_id="behind"):
            left = await app.turns.get(idle)
        assert (left.status, (left.error or {})["code"]) == (JobStatus.FAILED, "NOT_TAKEN")


async def test_who_is_offered_the_slot_may_still_take_it_for_a_moment(engines: dict[str, str]) -> None:
    async with line_of(MODELS, engines) as app:
        (first,) = await add(app, "asks when somebody else does")
        behind = asyncio.create_task(app.wait_for_turn(*await add(app, "behind"), "flux"))
        await position_is(app, first, None)
        assert await app.try_start_processing(first, "flux") is True
        assert not behind.done()
        await app.mark_completed(first, "first.png")
        await behind


async def test_an_offer_of_a_line_that_is_no_more_does_not_stand_in_the_way(embedded: dict[str, str]) -> None:
    async with line_of(MODELS, embedded) as app:
        (first,) = await add(app, "cat")
        process = app.turns.process
        assert process is not None
        ticket = app._tickets.get(first)
        assert ticket is not None
        process.ushers[0].offer(ticket, Lease("7:1", first, 0, 0, "flux", "123456", "w", 0.0, 0.0))
        behind = asyncio.create_task(app.wait_for_turn(*await add(app, "behind"), "flux"))
        await position_is(app, first, None)
        assert await app.try_start_processing(first, "flux") is True
        await app.mark_completed(first, "cat.png")
        await behind


async def test_requests_that_cannot_be_are_refused(engines: dict[str, str]) -> None:
    async with line_of(MODELS, engines) as app:
        with pytest.raises(UnknownFeature, match="no service is called 'dalle'"):
            await app.add_request("dalle", "cat", 1)
        with pytest.raises(UnknownFeature):
            await app.try_start_processing("img_a1b2c3d4", "dalle")
        with pytest.raises(InvalidInput, match="user_id"):
            await app.add_request("flux", "cat", "")
        with pytest.raises(InvalidInput, match="not JSON"):
            await app.add_request("flux", object(), 1)
        assert await app.try_start_processing("img_a1b2c3d4", "flux") is False
        assert await app.get_queue_position("img_a1b2c3d4", "flux") is None
        await app.mark_completed("img_a1b2c3d4", "x.png")
        await app.cleanup_request("img_a1b2c3d4")
        with pytest.raises(NotFound):
            await app.wait_for_turn("img_a1b2c3d4", "flux")
        assert (await app.list_jobs()).data == []


async def test_a_block_whose_turn_is_removed_has_left_before_the_next_has_the_slot(engines: dict[str, str]) -> None:
    async with line_of(MODELS, engines) as app:
        seen: list[str] = []
        holds: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        async def hold() -> None:
            try:
                async with app.turn("flux", 1) as turn:
                    holds.set_result(turn.id)
                    await asyncio.sleep(60)
            finally:
                seen.append("left")

        async def wait() -> None:
            async with app.turn("flux", 2):
                seen.append("next")

        holder = asyncio.create_task(hold())
        request = await holds
        waiting = asyncio.create_task(wait())
        await app.cleanup_request(request)
        with pytest.raises(TurnLost):
            await asyncio.wait_for(holder, 30)
        await waiting
        assert seen == ["left", "next"]
        with pytest.raises(NotFound):
            await app.turns.get(request)
