"""The dispatcher's contract once more, on a Redis Cluster of three masters: its services are spread over them."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator

import pytest

from fairlead.dispatch.redis import RedisDispatcher
from tests.contract.dispatchers import FakeClock, Line
from tests.contract.test_dispatcher import *  # noqa: F403
from tests.contract.test_dispatcher_limits import *  # noqa: F403
from tests.contract.test_dispatcher_places import *  # noqa: F403
from tests.contract.test_dispatcher_rebuild import *  # noqa: F403
from tests.contract.test_dispatcher_regions import *  # noqa: F403
from tests.contract.test_dispatcher_wakes import *  # noqa: F403
from tests.redis_servers import cluster_url

del globals()["test_a_backlog_of_thousands_keeps_its_order"]  # thousands of round trips, and nothing new


@pytest.fixture
async def line() -> AsyncIterator[Line]:
    clock = FakeClock()
    dispatcher = RedisDispatcher(cluster_url(), prefix=f"test-{secrets.token_hex(6)}", clock=clock)
    yield Line(dispatcher, clock)
    await dispatcher.close()
