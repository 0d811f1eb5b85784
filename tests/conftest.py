"""What any test may ask for."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator

import pytest
from hypothesis import HealthCheck, settings

from tests import servers

# How long an example takes says how busy the machine is, not whether the code is right.
settings.register_profile("suite", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The slow ones first, whatever the order of the others: of several processes the first then has them all, so that
    they neither disturb each other nor begin when all else is done; the others take over what is left of its share."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """A skipped test is one letter among thousands: what this machine lacks is said in words."""
    reasons = Counter(report.longrepr[2].removeprefix("Skipped: ") for report in terminalreporter.getreports("skipped"))
    for reason, tests in sorted(reasons.items()):
        terminalreporter.write_line(f"{tests} skipped: {reason}", yellow=True)


@pytest.fixture(scope="session")
def postgres_url() -> str:
    """A PostgreSQL that is there for the length of the test run."""
    return servers.postgres_url()


@pytest.fixture
async def emptied_database(postgres_url: str) -> str:
    """A database that others have used, without what they left in it. Much faster than a new one."""
    url = await servers.shared_database()
    await servers.empty(url)
    return url


@pytest.fixture
async def database(postgres_url: str) -> AsyncIterator[str]:
    """An empty database of its own on that server."""
    url = await servers.new_database(postgres_url)
    yield url
    await servers.drop_database(url)
