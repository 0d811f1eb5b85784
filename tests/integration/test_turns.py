"""Turns: callers that wait in line, and do the work themselves."""

from __future__ import annotations

import asyncio

from fairlead import Config, Fairlead

CONFIG = Config.model_validate(
    {
        "services": {
            "flux": {"limit": 1, "order": "fifo"},
            "sdxl": {"limit": 1, "order": "fifo"},
        }
    }
)


async def test_a_turn_waits_in_line_and_keeps_its_result(engines: dict[str, str]) -> None:
    app = Fairlead(CONFIG, **engines)
    order: list[int] = []

    async def one(number: int) -> None:
        async with app.turn("flux", user_id=number) as turn:
            order.append(number)
            await asyncio.sleep(0.01)
            turn.result = {"path": f"{number}.png"}

    async with app.running():
        async with asyncio.TaskGroup() as group:
            for number in range(5):
                group.create_task(one(number))
                await asyncio.sleep(0.05)
        page = await app.list_jobs(feature_name="flux")
        assert order == [0, 1, 2, 3, 4]
        assert [job.status for job in page.data] == ["COMPLETED"] * 5
        assert (await app.get(page.data[0].job_id)).result == {"path": "4.png"}
