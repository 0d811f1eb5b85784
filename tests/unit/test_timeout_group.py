"""One timer for all calls with the same timeout."""

from __future__ import annotations

import asyncio
import time

from fairlead.engine.step_run import LATE, TimeoutGroup
from fairlead.testing.virtual_time import in_virtual_time


@in_virtual_time
async def test_the_timer_fires_once_for_the_calls_that_still_run() -> None:
    rung: list[str] = []
    alarm: TimeoutGroup[str] = TimeoutGroup(asyncio.get_running_loop(), 10.0, rung.append)
    for call in ("slow", "quick", "stuck"):
        alarm.on(call)
    await asyncio.sleep(9.0)
    alarm.off("quick")
    assert rung == []
    await asyncio.sleep(2.0)
    assert sorted(rung) == ["slow", "stuck"]
    await asyncio.sleep(60.0)
    assert len(rung) == 2


@in_virtual_time
async def test_each_call_times_out_at_its_own_time() -> None:
    loop = asyncio.get_running_loop()
    rung: list[tuple[str, float]] = []
    began = loop.time()
    alarm: TimeoutGroup[str] = TimeoutGroup(loop, 10.0, lambda call: rung.append((call, round(loop.time() - began, 1))))
    for call in ("ended", "first", "second", "ended too", "last"):
        alarm.on(call)
        await asyncio.sleep(1.0)
    alarm.off("ended")
    alarm.off("ended too")
    await asyncio.sleep(60.0)
    assert rung == [("first", 11.0), ("second", 12.0), ("last", 14.0)]
    alarm.on("later")
    await asyncio.sleep(60.0)
    assert rung[-1] == ("later", 75.0)


@in_virtual_time
async def test_a_call_that_has_ended_does_not_time_out() -> None:
    rung: list[str] = []
    alarm: TimeoutGroup[str] = TimeoutGroup(asyncio.get_running_loop(), 10.0, rung.append)
    alarm.on("ended")
    alarm.off("ended")
    await asyncio.sleep(9.0)
    alarm.on("stopped")
    alarm.close()
    await asyncio.sleep(60.0)
    assert rung == []


async def test_a_call_answered_while_the_loop_was_blocked_is_not_timed_out() -> None:
    loop = asyncio.get_running_loop()
    rung: list[str] = []
    expired = asyncio.Event()

    def ring(call: str) -> None:
        rung.append(call)
        expired.set()

    alarm = TimeoutGroup[str](loop, 0.05, ring)
    alarm.on("answered")
    alarm.on("slow")

    async def answered() -> None:
        await asyncio.sleep(0.01)
        alarm.off("answered")

    task = asyncio.create_task(answered())
    await asyncio.sleep(0)
    time.sleep(0.05 + 2 * LATE)  # noqa: ASYNC251 - it is to block
    await asyncio.wait_for(expired.wait(), 20)
    await task
    assert rung == ["slow"]
