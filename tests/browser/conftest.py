"""One browser for each test process, a window for each test, and a gateway on a port of its own.

All of it lives in one event loop per process, the session's: a browser outlives the loop of a single test.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, expect

from tests.browser import chromium, eyes, stage
from tests.browser.eyes import Window
from tests.browser.furnish import Furniture, furnish
from tests.browser.stage import Stage

HERE = Path(__file__).parent

# As patient as everything else here: on a busy machine five seconds are nothing.
expect.set_options(timeout=eyes.PATIENCE_MS)

Open = Callable[..., Awaitable[Window]]
Raise = Callable[..., Awaitable[Stage]]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents and pytest_asyncio.is_async_test(item):
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    async with chromium.launched() as launched:
        yield launched


@pytest_asyncio.fixture(loop_scope="session")
async def raise_stage(tmp_path: Path) -> AsyncIterator[Raise]:
    """`await raise_stage(admin_key=...)`: nothing has happened there yet."""
    async with AsyncExitStack() as stack:

        async def make(**settings: Any) -> Stage:
            engines = {"database_url": f"sqlite:///{tmp_path}/fairlead.db"}
            return await stack.enter_async_context(stage.raised(engines, **settings))

        yield make


@pytest_asyncio.fixture(loop_scope="session")
async def open_window(browser: Browser, raise_stage: Raise) -> AsyncIterator[Open]:
    """`await open_window(stage, color_scheme="dark")`; a complaint of any window fails the test at its end. (It needs
    `raise_stage` to be gone before any stage is: a window would complain of a gateway that has left.)"""
    windows: list[Window] = []
    async with AsyncExitStack() as stack:

        async def make(stage: Stage, **options: Any) -> Window:
            window = await stack.enter_async_context(eyes.opened(browser, stage.url, **options))
            windows.append(window)
            return window

        yield make
    if complaints := [each for window in windows for each in window.unexpected]:
        pytest.fail("\n".join(complaints), pytrace=False)


@pytest_asyncio.fixture(loop_scope="session")
async def bare_stage(raise_stage: Raise) -> Stage:
    return await raise_stage()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def furnished(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Stage, Furniture]]:
    """One for all tests of a module, who look and change nothing. (No longer than a module: between two of them tests
    of other loops may run for minutes, in which nobody renews a lease here.)"""
    folder = tmp_path_factory.mktemp("furnished")
    async with stage.raised({"database_url": f"sqlite:///{folder}/fairlead.db"}) as raised:
        yield raised, await furnish(raised)
