"""The same application on SQLite, on PostgreSQL, and on PostgreSQL with Redis, all of it in one process."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fairlead import (
    Config,
    Fairlead,
)
from tests import redis_servers, servers


@pytest.fixture(params=["sqlite", "postgres", "redis"])
async def engines(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    """The same application on all engines: the code above must not depend on them."""
    if request.param == "sqlite":
        return {"database_url": f"sqlite:///{tmp_path}/fairlead.db"}
    servers.postgres_url()
    database_url = await servers.shared_database()
    await servers.empty(database_url)
    if request.param == "postgres":
        return {"database_url": database_url}
    redis_url = redis_servers.server_url()
    redis_servers.empty(redis_url)
    return {"database_url": database_url, "redis_url": redis_url}


@pytest.fixture
def make_app(engines: dict[str, str]) -> Callable[..., Fairlead]:
    def make(**sections: Any) -> Fairlead:
        return Fairlead(Config.model_validate(sections), **engines)

    return make
