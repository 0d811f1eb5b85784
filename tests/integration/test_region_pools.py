"""A budget that only some regions of several services share, as the endpoints count it."""

from __future__ import annotations

from typing import Any

from fairlead import Config, Fairlead
from tests.integration.region_endpoints import Endpoints, open_endpoints

PATIENCE = 30.0


def config(endpoints: Endpoints) -> dict[str, Any]:
    """`chat` in us and eu, `draw` in us; only the regions in us count in the pool of 2."""

    def region(name: str, **more: str) -> dict[str, Any]:
        return {"url": f"{endpoints.url}/{name}", "limit": 3, **more}

    return {
        "services": {
            "chat": {"limit": 9, "regions": {"us": region("chat_us", pool="modal"), "eu": region("chat_eu")}},
            "draw": {"limit": 9, "regions": {"us": region("draw_us", pool="modal")}},
        },
        "pools": {"modal": 2},
    }


async def test_the_budget_applies_to_its_regions_only(engines: dict[str, str]) -> None:
    async with open_endpoints("chat_us", "chat_eu", "draw_us") as endpoints:
        endpoints.together = ("chat_us", "draw_us")
        endpoints["chat_us"].takes = endpoints["draw_us"].takes = 0.01
        async with Fairlead(Config.model_validate(config(endpoints)), **engines).running() as app:
            endpoints.switch("chat_eu", "hangs")
            beside = [await app.submit("chat", allowed_regions=["eu"]) for _ in range(3)]
            jobs = [
                await app.submit(name, {"name": name}, allowed_regions=["us"])
                for _ in range(8)
                for name in ("chat", "draw")
            ]
            for job in jobs:
                await job.result(PATIENCE)
            assert (endpoints.most, endpoints["chat_eu"].open) == (2, 3)
            endpoints.switch("draw_us", "hangs")
            held = [await app.submit("draw") for _ in range(2)]
            await endpoints["draw_us"].reaches(2)
            waiting = await app.submit("chat", allowed_regions=["us"])
            why = await app.why(waiting.id)
            assert "pool_full" in [reason.code for reason in why.reasons]
            status = await app.status()
            assert status["pools"] == {"modal": {"limit": 2, "in_use": 2}}
            shown = {each["service"]: each for each in status["services"]}["chat"]["regions"]
            assert {name: each["pool"] for name, each in shown.items()} == {"us": "modal", "eu": None}
            endpoints.switch("chat_eu", "works")
            for job in beside:
                await job.result(PATIENCE)
            assert await (await app.submit("chat")).result(PATIENCE) == {"region": "chat_eu"}, "the pool is full"
            endpoints.switch("draw_us", "works")
            for job in [*held, waiting]:
                await job.result(PATIENCE)
        assert endpoints.most == 2
