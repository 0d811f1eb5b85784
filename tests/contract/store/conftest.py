"""What the files of the store's contract share."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.contract.stores import ENGINES, Clock, Line


@pytest.fixture(params=sorted(ENGINES))
async def line(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Line]:
    """A store of every engine, empty."""
    clock = Clock()
    engine = ENGINES[request.param]
    async with engine(tmp_path, clock) as store:
        yield Line(store, clock, lambda: engine(tmp_path, clock))
