"""A status query that its caller cancels."""

from __future__ import annotations

import asyncio
import gc

import pytest

from fairlead import Fairlead
from fairlead.config import Settings
from fairlead.domain.config import Config

STEPS = 12


@pytest.mark.parametrize("steps", range(STEPS))
async def test_a_status_query_can_be_cancelled_at_any_step(embedded: dict[str, str], steps: int) -> None:
    """As when a dashboard is closed. No coroutine is left unawaited."""
    app = Fairlead(Settings(Config()), **embedded)  # type: ignore[arg-type]
    app.service("echo", limit=1)(lambda call: None)
    async with app.running():
        looking = asyncio.create_task(app.status())
        for _ in range(steps):
            await asyncio.sleep(0)
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)
        # A coroutine that was never awaited is a warning, and so an error.
        gc.collect()
