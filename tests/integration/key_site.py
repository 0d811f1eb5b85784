"""Keys of every role, and the constants of the tests on keys and tickets."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from fairlead.app.fairlead import Fairlead
from tests.integration.gateway_site import Site

MakeSite = Callable[..., Awaitable[Site]]
JOBS = "/api/v1/jobs"
SOCKET = "/whoami"
ECHO = {"feature_name": "echo"}
PATIENCE_S = 20.0


async def keys_of(app: Fairlead) -> dict[str, str]:
    return {
        "admin": (await app.create_key("admin", name="ops")).text,
        "service": (await app.create_key("service", name="web shop")).text,
        "ada": (await app.create_key("user", user_id="ada")).text,
        "bob": (await app.create_key("user", user_id="bob")).text,
    }


async def until(what: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not await what():
            await asyncio.sleep(0.02)
