from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from fairlead.cli import certs
from tests import redis_servers, servers
from tests.integration.gateway_site import Site, open_site


@pytest.fixture
async def make_site(tmp_path: Path) -> AsyncIterator[Callable[..., Awaitable[Site]]]:
    """`await make_site(admin_key=..., running=False, max_body=...)`"""
    async with AsyncExitStack() as stack:

        async def make(**settings: Any) -> Site:
            return await stack.enter_async_context(open_site(tmp_path / "jobs.db", **settings))

        yield make


@pytest.fixture
def embedded(tmp_path: Path) -> dict[str, str]:
    """SQLite and memory, as arguments of `Fairlead(config, **embedded)`."""
    return {"database_url": f"sqlite:///{tmp_path}/fairlead.db"}


@pytest.fixture
async def distributed() -> dict[str, str]:
    """PostgreSQL and Redis, both empty."""
    servers.postgres_url()
    database_url = await servers.shared_database()
    await servers.empty(database_url)
    redis_url = redis_servers.server_url()
    redis_servers.empty(redis_url)
    return {"database_url": database_url, "redis_url": redis_url}


@pytest.fixture(params=["embedded", "distributed"])
def engines(request: pytest.FixtureRequest) -> dict[str, str]:
    """Each pair of engines."""
    found: dict[str, str] = request.getfixturevalue(request.param)
    return found


@pytest.fixture
async def site(make_site: Callable[..., Awaitable[Site]]) -> Site:
    return await make_site()


@pytest.fixture
async def still_site(make_site: Callable[..., Awaitable[Site]]) -> Site:
    """A site that accepts jobs and runs none of them."""
    return await make_site(running=False)


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a certificate for loopback and the authority that signed it."""
    folder = tmp_path_factory.mktemp("certificates")
    certs._make(folder, [*certs.LOCAL])
    return folder


@pytest.fixture
def authority(certificates: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same folder, and clients that trust the authority."""
    monkeypatch.setenv("SSL_CERT_FILE", str(certificates / certs.AUTHORITY))
    return certificates
