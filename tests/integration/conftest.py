from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.integration.gateway_site import Site, open_site


@pytest.fixture
async def make_site(tmp_path: Path) -> AsyncIterator[Callable[..., Awaitable[Site]]]:
    """`await make_site(admin_key=..., running=False, max_body=...)`"""
    async with AsyncExitStack() as stack:

        async def make(**settings: Any) -> Site:
            return await stack.enter_async_context(open_site(tmp_path / "jobs.db", **settings))

        yield make


@pytest.fixture
async def site(make_site: Callable[..., Awaitable[Site]]) -> Site:
    return await make_site()


@pytest.fixture
async def still_site(make_site: Callable[..., Awaitable[Site]]) -> Site:
    """Jobs are accepted and stay where they are: nothing runs them."""
    return await make_site(running=False)
