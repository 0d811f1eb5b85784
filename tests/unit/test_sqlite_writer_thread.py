"""The writer thread runs one call after the other and returns each result on the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from fairlead.store.sqlite.writer_thread import WriterThread


@pytest.fixture
async def thread() -> AsyncIterator[WriterThread]:
    thread = WriterThread("test-write")
    yield thread
    thread.shutdown()


async def call(thread: WriterThread, function: Any, *arguments: Any) -> Any:
    async with asyncio.timeout(5):
        return await asyncio.get_running_loop().run_in_executor(thread, function, *arguments)


async def test_a_call_runs_in_the_thread_and_returns_its_result(thread: WriterThread) -> None:
    assert await call(thread, lambda: threading.current_thread().name) == "test-write"
    assert await call(thread, pow, 2, 5) == 32


async def test_an_error_is_returned_and_the_thread_continues(thread: WriterThread) -> None:
    with pytest.raises(ZeroDivisionError):
        await call(thread, divmod, 1, 0)
    assert await call(thread, pow, 2, 5) == 32


async def test_calls_run_in_order(thread: WriterThread) -> None:
    made: list[int] = []
    await asyncio.gather(*(call(thread, made.append, number) for number in range(20)))
    assert made == list(range(20))


async def test_a_cancelled_caller_does_not_block_the_next(thread: WriterThread) -> None:
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


async def test_the_thread_ends_after_the_calls_made_before() -> None:
    thread, made = WriterThread("test-write"), list[int]()
    pending = asyncio.get_running_loop().run_in_executor(thread, made.append, 1)
    thread.shutdown()
    assert made == [1]
    await pending


def test_closing_the_loop_during_a_call_raises_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    gate, problems = threading.Event(), list[Any]()
    monkeypatch.setattr(threading, "excepthook", problems.append)

    async def leave_it_at_work() -> WriterThread:
        thread = WriterThread("test-write")
        asyncio.get_running_loop().run_in_executor(thread, gate.wait, 5)
        return thread

    thread = asyncio.run(leave_it_at_work())
    gate.set()
    thread.shutdown()
    assert not problems
