"""What any test may ask for."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests import servers


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
