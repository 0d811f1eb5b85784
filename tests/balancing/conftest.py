"""A broker, and an app with a balancer on it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis

from fairlead.celery import LoadBalancer
from tests import redis_servers
from tests.balancing.site import DEFAULTS, make_app
from tests.celery_workers import let_go


@pytest.fixture(autouse=True)
def _nothing_left_behind() -> Iterator[None]:
    yield
    let_go()


@pytest.fixture(scope="session")
def broker_server() -> redis_servers.Server:
    return redis_servers.Server().start()


@pytest.fixture
def broker(broker_server: redis_servers.Server) -> Iterator[redis.Redis]:
    """A client of an empty Redis."""
    broker_server.client.flushall()
    yield broker_server.client
    broker_server.client.flushall()


@pytest.fixture
def url(broker: redis.Redis, broker_server: redis_servers.Server) -> str:
    return broker_server.url


@pytest.fixture
def app(url: str) -> Iterator[Any]:
    app = make_app(url)
    yield app
    app.close()


@pytest.fixture
def balancer(app: Any) -> Iterator[LoadBalancer]:
    balancer = LoadBalancer(app, **DEFAULTS)
    yield balancer
    balancer.close()
