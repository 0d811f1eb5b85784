"""A question about the line that whoever asked it no longer wants answered."""

from __future__ import annotations

import asyncio
import gc

import pytest

from fairlead import Fairlead
from fairlead.config import Settings
from fairlead.domain.config import Config

STEPS = 12


@pytest.mark.parametrize("steps", range(STEPS))
async def test_a_look_at_the_line_can_be_given_up_at_any_step(embedded: dict[str, str], steps: int) -> None:
    """A dashboard that is closed at that moment does so. What was not asked yet is not left behind half made."""
    app = Fairlead(Settings(Config()), **embedded)  # type: ignore[arg-type]
    app.service("echo", limit=1)(lambda call: None)
    async with app.running():
        looking = asyncio.create_task(app.status())
        for _ in range(steps):
            await asyncio.sleep(0)
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)
        # A question that was made and never asked is a warning, and so an error.
        gc.collect()
