"""Fixtures of the dispatcher's contract tests."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.contract.dispatchers import ENGINES, FakeClock, QueueHarness


@pytest.fixture(params=sorted(ENGINES))
async def queue(request: pytest.FixtureRequest) -> AsyncIterator[QueueHarness]:
    """An empty dispatcher of each engine."""
    clock = FakeClock()
    queue = QueueHarness(await ENGINES[request.param](clock), clock)
    yield queue
    await queue.dispatcher.close()
