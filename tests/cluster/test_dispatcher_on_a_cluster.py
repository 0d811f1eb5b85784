"""The dispatcher's contract on a Redis Cluster of three masters, over which the services are spread."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator

import pytest

from fairlead.dispatch.redis import RedisDispatcher
from tests.contract.dispatchers import FakeClock, QueueHarness
from tests.contract.test_dispatcher import *  # noqa: F403
from tests.contract.test_dispatcher_limits import *  # noqa: F403
from tests.contract.test_dispatcher_positions import *  # noqa: F403
from tests.contract.test_dispatcher_rebuild import *  # noqa: F403
from tests.contract.test_dispatcher_regions import *  # noqa: F403
from tests.contract.test_dispatcher_wakeups import *  # noqa: F403
from tests.redis_servers import cluster_url

del globals()["test_a_backlog_of_thousands_keeps_its_order"]  # thousands of round trips without new coverage


@pytest.fixture
async def queue() -> AsyncIterator[QueueHarness]:
    clock = FakeClock()
    dispatcher = RedisDispatcher(cluster_url(), prefix=f"test-{secrets.token_hex(6)}", clock=clock)
    yield QueueHarness(dispatcher, clock)
    await dispatcher.close()
