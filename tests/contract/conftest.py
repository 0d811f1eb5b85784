"""What the files of the dispatcher's contract share."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.contract.dispatchers import ENGINES, FakeClock, Line


@pytest.fixture(params=sorted(ENGINES))
async def line(request: pytest.FixtureRequest) -> AsyncIterator[Line]:
    """A dispatcher of every engine, empty."""
    clock = FakeClock()
    line = Line(await ENGINES[request.param](clock), clock)
    yield line
    await line.dispatcher.close()
