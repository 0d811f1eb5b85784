"""The writer's thread: one call after the other, each answered on the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from fairlead.store.sqlite.thread import Thread


@pytest.fixture
async def thread() -> AsyncIterator[Thread]:
    thread = Thread("test-write")
    yield thread
    thread.shutdown()


async def call(thread: Thread, function: Any, *arguments: Any) -> Any:
    async with asyncio.timeout(5):
        return await asyncio.get_running_loop().run_in_executor(thread, function, *arguments)


async def test_what_is_called_runs_in_that_thread_and_its_result_comes_back(thread: Thread) -> None:
    assert await call(thread, lambda: threading.current_thread().name) == "test-write"
    assert await call(thread, pow, 2, 5) == 32


async def test_an_error_comes_back_and_the_thread_goes_on(thread: Thread) -> None:
    with pytest.raises(ZeroDivisionError):
        await call(thread, divmod, 1, 0)
    assert await call(thread, pow, 2, 5) == 32


async def test_calls_are_made_in_their_order(thread: Thread) -> None:
    made: list[int] = []
    await asyncio.gather(*(call(thread, made.append, number) for number in range(20)))
    assert made == list(range(20))


async def test_a_caller_that_is_cancelled_is_not_in_the_way_of_the_next(thread: Thread) -> None:
    gate, problems = threading.Event(), list[Any]()
    asyncio.get_running_loop().set_exception_handler(lambda loop, problem: problems.append(problem))
    waiting = asyncio.ensure_future(call(thread, gate.wait, 5))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    gate.set()
    assert await call(thread, pow, 2, 5) == 32
    assert not problems


async def test_it_ends_after_what_was_asked_before() -> None:
    thread, made = Thread("test-write"), list[int]()
    pending = asyncio.get_running_loop().run_in_executor(thread, made.append, 1)
    thread.shutdown()
    assert made == [1]
    await pending


def test_a_loop_that_is_closed_meanwhile_does_not_end_it_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    gate, problems = threading.Event(), list[Any]()
    monkeypatch.setattr(threading, "excepthook", problems.append)

    async def leave_it_at_work() -> Thread:
        thread = Thread("test-write")
        asyncio.get_running_loop().run_in_executor(thread, gate.wait, 5)
        return thread

    thread = asyncio.run(leave_it_at_work())
    gate.set()
    thread.shutdown()
    assert not problems
