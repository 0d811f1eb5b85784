"""One browser per test process, a window per test, and a gateway on a port of its own.

All of them use one event loop per process, the session's: a browser outlives the loop of a single test.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, expect

from tests.browser import chromium, gateway_site, strict_window
from tests.browser.gateway_site import Stage
from tests.browser.sample_data import SampleData, add_sample_data
from tests.browser.strict_window import Window, Windows

HERE = Path(__file__).parent

# As long as all other timeouts here: five seconds are short on a busy machine.
expect.set_options(timeout=strict_window.PATIENCE_MS)

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


@pytest.fixture(scope="session")
def all_windows(browser: Browser) -> Windows:
    return Windows(browser)


@pytest_asyncio.fixture(loop_scope="session")
async def raise_stage(tmp_path: Path) -> AsyncIterator[Raise]:
    """`await raise_stage(admin_key=...)`: an empty app."""
    async with AsyncExitStack() as stack:

        async def make(**settings: Any) -> Stage:
            engines = {"database_url": f"sqlite:///{tmp_path}/fairlead.db"}
            return await stack.enter_async_context(gateway_site.raised(engines, **settings))

        yield make


@pytest_asyncio.fixture(loop_scope="session")
async def open_window(all_windows: Windows, raise_stage: Raise) -> AsyncIterator[Open]:
    """`await open_window(stage, color_scheme="dark")`; a complaint of any window fails the test at its end. (It depends
    on `raise_stage`, so that windows are closed before their gateway stops, of which they would complain.)"""
    windows: list[Window] = []
    async with AsyncExitStack() as stack:

        async def make(stage: Stage, **options: Any) -> Window:
            window = await stack.enter_async_context(all_windows.opened(stage.url, **options))
            windows.append(window)
            return window

        yield make
    if complaints := [each for window in windows for each in window.unexpected]:
        pytest.fail("\n".join(complaints), pytrace=False)


@pytest_asyncio.fixture(loop_scope="session")
async def bare_stage(raise_stage: Raise) -> Stage:
    return await raise_stage()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def sampled(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Stage, SampleData]]:
    """One stage for all tests of a module that only read. (Not for longer: between two modules, tests with other loops
    may run for minutes, during which no lease is renewed here.)"""
    folder = tmp_path_factory.mktemp("sampled")
    async with gateway_site.raised({"database_url": f"sqlite:///{folder}/fairlead.db"}) as raised:
        yield raised, await add_sample_data(raised)
