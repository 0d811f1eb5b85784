"""`client.turn(...)`, asynchronous and synchronous, against a real gateway over real connections."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from fairlead import AsyncClient, Client, JobStatus, TurnEnded, TurnLost, TurnTimeout
from fairlead.client import patience
from fairlead.errors import InvalidInput
from tests.integration.gateway_site import Site, served


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "FIRST_PAUSE", 0.01)


@pytest.fixture
async def url(site: Site) -> AsyncIterator[str]:
    async with served(site.gateway) as port:
        yield f"http://127.0.0.1:{port}"


@pytest.fixture
async def client(url: str) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(url) as client:
        yield client


async def test_a_turn_and_its_result(client: AsyncClient) -> None:
    async with client.turn("slot", user_id=42) as turn:
        assert (turn.service, turn.user_id) == ("slot", "42")
        assert (await client.get_turn(turn.id)).status is JobStatus.RUNNING
        turn.result = {"path": "cat.png"}
    state = await client.get_turn(turn.id)
    assert (state.status, state.result) == (JobStatus.COMPLETED, {"path": "cat.png"})


async def test_the_cost_of_a_turn_reaches_the_queue(client: AsyncClient, site: Site) -> None:
    async with client.turn("slot", "ada", cost=12.5) as turn:
        assert (await site.app._runtime.store.get_jobs([turn.id]))[turn.id].cost == 12.5


async def test_turns_are_granted_one_after_the_other_and_positions_are_sent(client: AsyncClient) -> None:
    positions: list[int] = []
    notified, order = asyncio.Event(), []

    async def hear(position: int) -> None:
        positions.append(position)
        notified.set()

    async def second() -> None:
        async with client.turn("slot", "bob", on_position=hear):
            order.append("bob")

    async with client.turn("slot", "ada"):
        waiting = asyncio.create_task(second())
        await notified.wait()
        order.append("ada")
    await waiting
    assert (positions, order) == ([1], ["ada", "bob"])


async def test_an_error_in_the_block_is_stored_and_raised(client: AsyncClient) -> None:
    with pytest.raises(ZeroDivisionError):
        async with client.turn("slot", "ada") as turn:
            raise ZeroDivisionError("by nothing")
    state = await client.get_turn(turn.id)
    assert (state.status, (state.error or {})["message"]) == (JobStatus.FAILED, "ZeroDivisionError: by nothing")


async def test_a_cancelled_waiter_leaves_the_queue(client: AsyncClient, site: Site) -> None:
    async with client.turn("slot", "ada"):
        notified = asyncio.Event()

        async def wait() -> None:
            async with client.turn("slot", "bob", on_position=lambda position: notified.set()):
                raise AssertionError("the slot is ada's")

        waiting = asyncio.create_task(wait())
        await notified.wait()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        [job] = (await client.list(user_id="bob")).data
        assert job.status is JobStatus.CANCELLED


async def test_a_wait_timeout_has_its_own_error(client: AsyncClient) -> None:
    async with client.turn("slot", "ada"):
        with pytest.raises(TurnTimeout) as found:
            async with client.turn("slot", "bob", wait_timeout=0.1):
                raise AssertionError("the slot is ada's")
    assert found.value.error["code"] == "RESOURCE_EXHAUSTED"


async def test_a_cancelled_turn_is_never_granted(client: AsyncClient) -> None:
    cancelling: list[asyncio.Task[Any]] = []

    async def cancel() -> None:
        [job] = (await client.list(user_id="bob")).data
        await client.cancel(job.job_id)

    async with client.turn("slot", "ada"):
        with pytest.raises(TurnEnded, match="CANCELLED"):
            async with client.turn(
                "slot", "bob", on_position=lambda position: cancelling.append(asyncio.create_task(cancel()))
            ):
                raise AssertionError("the slot is ada's")
    await asyncio.gather(*cancelling)


async def test_the_block_is_cancelled_when_its_slot_is_lost(client: AsyncClient) -> None:
    async def hold() -> None:
        async with client.turn("short", "ada") as turn:
            await client.cancel_turn(turn.id)
            await asyncio.sleep(60)

    with pytest.raises(TurnLost):
        await hold()
    task = asyncio.current_task()
    assert task is not None
    assert not task.cancelling(), "the cancellation of the block is over"


async def test_a_cancelled_holder_has_left_before_the_next_gets_the_slot(client: AsyncClient) -> None:
    seen: list[str] = []
    holds = asyncio.Event()

    async def hold() -> None:
        try:
            async with client.turn("slot", "ada") as turn:
                seen.append(turn.id)
                holds.set()
                await asyncio.sleep(60)
        finally:
            seen.append("left")

    async def wait() -> None:
        async with client.turn("slot", "bob"):
            seen.append("bob")

    holder = asyncio.create_task(hold())
    await holds.wait()
    waiting = asyncio.create_task(wait())
    await client.cancel_turn(seen.pop())
    with pytest.raises(TurnLost):
        await holder
    await waiting
    assert seen == ["left", "bob"]


async def test_a_block_that_ignores_its_loss_leaves_its_task_usable(client: AsyncClient) -> None:
    async def hold() -> None:
        async with client.turn("short", "ada") as turn:
            await client.cancel_turn(turn.id)
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(60)

    with pytest.raises(TurnLost):
        await hold()
    task = asyncio.current_task()
    assert task is not None
    assert not task.cancelling()


async def test_an_invalid_request_is_refused_before_any_wait(client: AsyncClient) -> None:
    with pytest.raises(InvalidInput):
        async with client.turn("nowhere", "ada"):
            pass


async def test_the_synchronous_client_does_the_same(url: str) -> None:
    def use() -> list[Any]:
        results: list[Any] = []
        notified = threading.Event()
        with Client(url) as client:

            def wait() -> None:
                with client.turn("slot", "bob", on_position=lambda position: notified.set()) as turn:
                    results.append(turn.user_id)

            waiting = threading.Thread(target=wait)
            with client.turn("slot", "ada") as turn:
                waiting.start()
                assert notified.wait(30)
                results.append("ada")
                turn.result = 1
            waiting.join()
            results.append(client.get_turn(turn.id).result)
            try:
                with client.turn("short", "ada") as turn:
                    client.cancel_turn(turn.id)
                    assert turn.lost.wait(30)
            except TurnLost:
                results.append("lost")
        return results

    assert await asyncio.to_thread(use) == ["ada", "bob", 1, "lost"]
