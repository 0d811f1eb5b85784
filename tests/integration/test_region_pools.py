"""A budget that only some regions of several services share, as the endpoints count it."""

from __future__ import annotations

from typing import Any

from fairlead import Config, Fairlead
from tests.integration.regional import World, world_of

PATIENCE = 30.0


def config(world: World) -> dict[str, Any]:
    """`chat` in us and eu, `draw` in us; of the pool of 2 are only those in us."""

    def region(name: str, **more: str) -> dict[str, Any]:
        return {"url": f"{world.url}/{name}", "limit": 3, **more}

    return {
        "services": {
            "chat": {"limit": 9, "regions": {"us": region("chat_us", pool="modal"), "eu": region("chat_eu")}},
            "draw": {"limit": 9, "regions": {"us": region("draw_us", pool="modal")}},
        },
        "pools": {"modal": 2},
    }


async def test_the_budget_holds_where_it_counts_and_nowhere_else(engines: dict[str, str]) -> None:
    async with world_of("chat_us", "chat_eu", "draw_us") as world:
        world.together = ("chat_us", "draw_us")
        world["chat_us"].takes = world["draw_us"].takes = 0.01
        async with Fairlead(Config.model_validate(config(world)), **engines).running() as app:
            world.switch("chat_eu", "hangs")
            beside = [await app.submit("chat", allowed_regions=["eu"]) for _ in range(3)]
            jobs = [
                await app.submit(name, {"name": name}, allowed_regions=["us"])
                for _ in range(8)
                for name in ("chat", "draw")
            ]
            for job in jobs:
                await job.result(PATIENCE)
            assert (world.most, world["chat_eu"].open) == (2, 3)
            world.switch("draw_us", "hangs")
            held = [await app.submit("draw") for _ in range(2)]
            await world["draw_us"].reaches(2)
            waiting = await app.submit("chat", allowed_regions=["us"])
            why = await app.why(waiting.id)
            assert "pool_full" in [reason.code for reason in why.reasons]
            status = await app.status()
            assert status["pools"] == {"modal": {"limit": 2, "in_use": 2}}
            shown = {each["service"]: each for each in status["services"]}["chat"]["regions"]
            assert {name: each["pool"] for name, each in shown.items()} == {"us": "modal", "eu": None}
            world.switch("chat_eu", "works")
            for job in beside:
                await job.result(PATIENCE)
            assert await (await app.submit("chat")).result(PATIENCE) == {"region": "chat_eu"}, "the pool is full"
            world.switch("draw_us", "works")
            for job in [*held, waiting]:
                await job.result(PATIENCE)
        assert world.most == 2
