"""Fixtures of the store contract."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.contract.stores import ENGINES, Clock, StoreHarness


@pytest.fixture(params=sorted(ENGINES))
async def harness(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[StoreHarness]:
    """An empty store of each engine."""
    clock = Clock()
    engine = ENGINES[request.param]
    async with engine(tmp_path, clock) as store:
        yield StoreHarness(store, clock, lambda: engine(tmp_path, clock))
