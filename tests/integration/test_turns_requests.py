"""ImageQueue's own examples, with its own names: requests that are queued, and started when they are first."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

import pytest

from fairlead import Fairlead, JobStatus, NotFound, TurnLost, WrongState
from fairlead.dispatch.port import Lease
from fairlead.errors import InvalidInput, UnknownFeature
from tests.integration.turn_apps import MODELS, position_is, running_app, until


async def add(app: Fairlead, *prompts: str, model: str = "flux") -> list[str]:
    return [await app.add_request(model, prompt, number) for number, prompt in enumerate(prompts, 123456)]


async def positions(app: Fairlead, *ids: str, model: str = "flux") -> list[int | None]:
    return [await app.get_queue_position(request, model) for request in ids]


async def status(app: Fairlead, request: str) -> JobStatus:
    return (await app.turns.get(request)).status


async def test_a_request_is_queued_with_its_prompt_and_user(engines: dict[str, str]) -> None:
    async with running_app(MODELS, engines) as app:
        (cat,) = await add(app, "cat")
        request = await app.get_next_pending("flux")
        assert request is not None
        assert (request.request_id, request.model, request.prompt) == (cat, "flux", "cat")
        assert (request.user_id, request.status) == ("123456", JobStatus.PENDING)
        assert await app.get_next_pending("sdxl") is None


async def test_only_the_first_pending_can_start_and_only_once(engines: dict[str, str]) -> None:
    """Queue: [A-PENDING, B-PENDING]."""
    async with running_app(MODELS, engines) as app:
        a, b = await add(app, "a", "b")
        assert await app.try_start_processing(b, "flux") is False
        assert await app.try_start_processing(a, "flux") is True
        assert await status(app, a) is JobStatus.RUNNING
        assert await app.try_start_processing(a, "flux") is False, "it was started before"
        assert await app.try_start_processing(b, "flux") is False, "no slot is free"
        assert await app.try_start_processing(b, "sdxl") is False, "it belongs to another model"


async def test_positions_count_the_pending_only(engines: dict[str, str]) -> None:
    """Queue: [A-PROCESSING, B-PENDING, C-PENDING, D-COMPLETED]."""
    async with running_app(MODELS, engines) as app:
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
    async with running_app(MODELS, engines) as app:
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
    async with running_app(MODELS, engines) as app:
        (a,) = await add(app, "cat")
        (b,) = await add(app, "dog", model="sdxl")
        (c,) = await add(app, "bird")
        assert await app.try_start_processing(a, "flux")
        assert await app.try_start_processing(b, "sdxl")
        assert await app.try_start_processing(c, "flux") is False
        await app.mark_completed(b, "dog.png")
        assert await app.try_start_processing(c, "flux") is False, "it waits for A, whatever happens to B"
        await app.mark_failed(a, "the model refused")
        assert await app.try_start_processing(c, "flux") is True


async def test_a_failure_is_stored_and_frees_the_slot(engines: dict[str, str]) -> None:
    async with running_app(MODELS, engines) as app:
        a, b = await add(app, "a", "b")
        assert await app.try_start_processing(a, "flux")
        await app.mark_failed(a, "out of memory")
        failed = await app.turns.get(a)
        assert (failed.status, (failed.error or {})["message"]) == (JobStatus.FAILED, "out of memory")
        assert await app.try_start_processing(b, "flux") is True
        await app.mark_failed(a, "again")
        await app.mark_completed(a, "late.png")
        assert (await app.turns.get(a)).error == failed.error, "an ended request does not change"


async def test_a_waiting_request_can_fail_but_not_complete(engines: dict[str, str]) -> None:
    async with running_app(MODELS, engines) as app:
        a, b = await add(app, "a", "b")
        with pytest.raises(WrongState, match="no slot yet"):
            await app.mark_completed(a, "never.png")
        await app.mark_failed(a, "the user went away")
        assert await positions(app, a, b) == [None, 1]


async def test_cleanup_removes_a_request_in_any_state(engines: dict[str, str]) -> None:
    async with running_app(MODELS, engines) as app:
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
    async with running_app(MODELS, engines) as app:
        a, b = await add(app, "a", "b")
        assert await app.try_start_processing(a, "flux")
        positions: list[int] = []
        waiting = asyncio.create_task(app.wait_for_turn(b, "flux", positions.append))
        await until(lambda: positions)
        assert positions == [1]
        assert not waiting.done()
        await app.mark_completed(a, "a.png")
        await waiting
        assert await status(app, b) is JobStatus.RUNNING
        await app.mark_completed(b, "b.png")


async def test_of_many_concurrent_starts_one_succeeds(engines: dict[str, str]) -> None:
    async with running_app(MODELS, engines) as app:
        requests = await add(app, *map(str, range(10)))
        tries = [app.try_start_processing(request, "flux") for request in requests for _ in range(3)]
        started = await asyncio.gather(*tries)
        assert sum(started) == 1
        assert any(started[:3]), "and it is the first"


async def test_a_request_that_is_not_started_does_not_block_waiters(engines: dict[str, str]) -> None:
    async with running_app(MODELS, engines) as app:
        (idle,) = await add(app, "never started")
        async with app.turn("flux", user_id="behind"):
            left = await app.turns.get(idle)
            assert left.kept_until is not None
            assert left.kept_until > left.created_at
            behind = await app.add_request("flux", "behind", 2)
            assert await app.try_start_processing(idle, "flux") is False
        assert await app.try_start_processing(behind, "flux") is False
        assert await app.try_start_processing(idle, "flux") is True, "it has kept its place"


async def test_a_caller_can_take_an_offered_slot_for_a_short_time(engines: dict[str, str]) -> None:
    async with running_app(MODELS, engines) as app:
        (first,) = await add(app, "asks when somebody else does")
        behind = asyncio.create_task(app.wait_for_turn(*await add(app, "behind"), "flux"))
        await position_is(app, first, None)
        assert await app.try_start_processing(first, "flux") is True
        assert not behind.done()
        await app.mark_completed(first, "first.png")
        await behind


async def test_an_offer_from_before_a_rebuild_does_not_block_the_turn(embedded: dict[str, str]) -> None:
    async with running_app(MODELS, embedded) as app:
        (first,) = await add(app, "cat")
        node = app._runtime.node
        assert node is not None
        waiter = app._runtime.waiters.get(first)
        assert waiter is not None
        node.slot_brokers[0].offer(waiter, Lease("7:1", first, 0, 0, "flux", "123456", "w", 0.0, 0.0))
        behind = asyncio.create_task(app.wait_for_turn(*await add(app, "behind"), "flux"))
        await position_is(app, first, None)
        assert await app.try_start_processing(first, "flux") is True
        await app.mark_completed(first, "cat.png")
        await behind


async def test_invalid_requests_are_refused(engines: dict[str, str]) -> None:
    async with running_app(MODELS, engines) as app:
        with pytest.raises(UnknownFeature, match="no service is called 'dalle'"):
            await app.add_request("dalle", "cat", 1)
        with pytest.raises(UnknownFeature, match=r"no service is called 'dalle'; known are: .*flux"):
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


async def test_a_block_whose_turn_is_removed_ends_before_the_next_gets_the_slot(engines: dict[str, str]) -> None:
    async with running_app(MODELS, engines) as app:
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


CALLS: dict[str, Callable[[Fairlead, str], Awaitable[object]]] = {
    "try_start_processing": lambda app, request: app.try_start_processing(request, "flux"),
    "get_queue_position": lambda app, request: app.get_queue_position(request, "flux"),
    "get_next_pending": lambda app, request: app.get_next_pending("flux"),
    "mark_completed": lambda app, request: app.mark_completed(request, "x.png"),
    "mark_failed": lambda app, request: app.mark_failed(request, "no"),
    "cleanup_request": lambda app, request: app.cleanup_request(request),
}


@pytest.mark.parametrize("deleted", [False, True], ids=["ends", "is_deleted"])
@pytest.mark.parametrize("call", CALLS)
async def test_a_request_may_end_between_any_two_reads_of_a_call(
    call: str, deleted: bool, embedded: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call returns False, None or nothing, as promised for a request that has ended; it never raises."""
    async with running_app(MODELS, embedded) as app:
        store = app._runtime.store
        reads = {name: getattr(store, name) for name in ("get_jobs", "get")}
        results: list[object] = []
        left = ends_after = 0
        while left <= 0:  # until the call makes fewer reads
            ends_after += 1
            (request,) = await add(app, "cat")
            if call == "mark_completed":
                await app.wait_for_turn(request, "flux")
            else:
                waiter = app._runtime.waiters.get(request)
                assert waiter is not None
                app._runtime.waiters.forget(waiter)  # as in a process that has not seen the request yet
            left = ends_after
            with monkeypatch.context() as patch:

                async def interfere(request: str, read: Callable[..., Awaitable[object]], *args: object) -> object:
                    nonlocal left
                    found, left = await read(*args), left - 1
                    if left == 0:
                        patch.undo()
                        await _end(app, request, deleted=deleted)
                    return found

                for name, read in reads.items():
                    patch.setattr(store, name, partial(interfere, request, read))
                results.append(await CALLS[call](app, request))
            await app.cleanup_request(request)
        assert ends_after > 1
        if call not in ("get_queue_position", "get_next_pending"):  # these may have read all they need
            assert not any(results[:-1])


async def _end(app: Fairlead, request: str, *, deleted: bool) -> None:
    with suppress(WrongState, NotFound):
        await app.turns.cancel(request)
    if deleted:
        with suppress(NotFound):
            await app.delete(request)
