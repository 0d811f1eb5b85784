"""Turns for threads."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from fairlead import Fairlead, FairleadError, JobStatus, TurnLost, TurnTimeout
from tests.integration.turn_apps import MODELS, config_of, running_app, until_ready


async def test_threads_get_the_slot_one_at_a_time(engines: dict[str, str]) -> None:
    at_once, most, lock = 0, 0, threading.Lock()

    def work(app: Fairlead, number: int) -> str:
        nonlocal at_once, most
        with app.turn_sync("flux", user_id=number) as turn:
            with lock:
                at_once += 1
                most = max(most, at_once)
            turn.result = {"number": number}
            with lock:
                at_once -= 1
        return turn.id

    async with running_app(MODELS, engines) as app:
        ids = await asyncio.gather(*(asyncio.to_thread(work, app, number) for number in range(8)))
        assert most == 1
        turns = [await app.get(turn_id) for turn_id in ids]
        assert [turn.result for turn in turns] == [{"number": number} for number in range(8)]


async def test_a_thread_receives_its_position_in_its_own_thread(embedded: dict[str, str]) -> None:
    positions: list[tuple[int, int]] = []
    notified = threading.Event()

    def tell(position: int) -> None:
        positions.append((position, threading.get_ident()))
        notified.set()

    def waits(app: Fairlead) -> int:
        with app.turn_sync("flux", user_id="ann", on_position=tell):
            return threading.get_ident()

    async with running_app(MODELS, embedded) as app:
        async with app.turn("flux", "holder"):
            thread = asyncio.create_task(asyncio.to_thread(waits, app))
            await asyncio.to_thread(notified.wait, 20)
        assert positions == [(1, await thread)]


async def test_a_thread_whose_callback_fails_leaves_the_queue(embedded: dict[str, str]) -> None:
    def fails(app: Fairlead) -> None:
        with app.turn_sync("flux", user_id="ann", on_position=lambda position: 1 // 0):
            pass

    async with running_app(MODELS, embedded) as app:
        async with app.turn("flux", "holder"):
            with pytest.raises(ZeroDivisionError):
                await asyncio.to_thread(fails, app)
        async with app.turn("flux", "next"):
            left = (await app.list_jobs(user_id="ann")).data
            assert [turn.status for turn in left] == [JobStatus.CANCELLED]


async def test_exceptions_timeouts_and_losses_reach_the_thread(embedded: dict[str, str]) -> None:
    def raises(app: Fairlead) -> None:
        with app.turn_sync("flux", user_id="ann"):
            raise ValueError("no")

    def gives_up(app: Fairlead) -> None:
        with app.slot_sync("flux", wait_timeout=0.2):
            pass

    def overruns(app: Fairlead) -> bool:
        with app.turn_sync("flux", user_id="slow") as turn:
            while not turn.lost.is_set():
                threading.Event().wait(0.01)
        return True

    async with running_app(config_of(flux={"timeout": 1.0}), embedded) as app:
        with pytest.raises(ValueError, match="no"):
            await asyncio.to_thread(raises, app)
        async with app.turn("flux", "holder"):
            with pytest.raises(TurnTimeout):
                await asyncio.to_thread(gives_up, app)
        with pytest.raises(TurnLost):
            await asyncio.to_thread(overruns, app)
        codes = [(turn.error or {}).get("code") for turn in reversed((await app.list_jobs()).data)]
        assert codes == ["EXCEPTION", None, "RESOURCE_EXHAUSTED", "TIMEOUT"]


async def test_the_loops_own_thread_must_use_the_asynchronous_form(embedded: dict[str, str]) -> None:
    async with running_app(MODELS, embedded) as app:
        with pytest.raises(FairleadError, match="use `async with app"), app.turn_sync("flux"):
            pass


def test_a_program_without_an_event_loop_takes_turns(embedded: dict[str, str]) -> None:
    app = Fairlead(MODELS, **embedded)
    order: list[int] = []

    def work(number: int) -> None:
        with app.turn_sync("flux", user_id=number):
            order.append(number)

    with app.sync.running(), ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(4)))
    assert sorted(order) == [0, 1, 2, 3]


async def test_a_program_without_an_event_loop_uses_a_queue_of_other_processes(distributed: dict[str, str]) -> None:
    def work() -> str:
        caller = Fairlead(MODELS, **distributed)
        try:
            with caller.turn_sync("flux", user_id=7) as turn:
                return turn.id
        finally:
            caller.sync.close()

    app = Fairlead(MODELS, **distributed)
    async with app.running():
        await until_ready(app)
        assert (await app.get(await asyncio.to_thread(work))).status is JobStatus.COMPLETED
