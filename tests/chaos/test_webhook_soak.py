"""The small version of the soak of webhooks."""

from __future__ import annotations

import pytest

from tests.chaos.webhook_soak import soak


@pytest.mark.slow
async def test_killed_managers_lose_no_delivery_and_keep_the_order() -> None:
    report = await soak(200, kill_every=50)
    assert report.problems() == []
    assert report.kills > 0
