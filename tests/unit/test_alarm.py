"""One timer for calls that began together."""

from __future__ import annotations

import asyncio

from tests.virtual_time import in_virtual_time

from fairlead.runtime.alarm import Alarm


@in_virtual_time
async def test_it_rings_once_for_those_that_still_run_and_for_nobody_else() -> None:
    rung: list[str] = []
    alarm: Alarm[str] = Alarm(asyncio.get_running_loop(), 10.0, rung.append)
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
async def test_it_is_gone_when_all_have_ended() -> None:
    rung: list[str] = []
    alarm: Alarm[str] = Alarm(asyncio.get_running_loop(), 10.0, rung.append)
    alarm.on("call")
    alarm.off("call")
    await asyncio.sleep(60.0)
    assert rung == []
