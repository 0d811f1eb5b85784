"""Parts of the load balancer that need neither a broker nor a worker."""

from __future__ import annotations

import ssl
import subprocess
import sys
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery

from fairlead.celery.broker import redis_of_broker
from fairlead.celery.task_counts import ticket_of
from fairlead.dispatch.redis.servers import parse
from fairlead.errors import ConfigError
from fairlead.executors.celery.celery_client import CeleryClient, RegisteredTask
from fairlead.executors.celery.results import POLL_EVERY, RedisResults


@pytest.mark.parametrize(
    ("broker", "settings", "expected"),
    [
        ("redis://:s3cret@redis:6380/2", {}, "redis://:s3cret@redis:6380/2"),
        ("redis://a:1/0;redis://b:1/0", {}, "redis://a:1/0"),
        ("rediss://redis:6379/0", {}, "rediss://redis:6379/0?ssl_cert_reqs=none"),  # Celery's own default
        ("redis://redis:6379/0", {"broker_use_ssl": True}, "rediss://redis:6379/0"),
        (
            "redis://redis:6379/0",
            {"broker_use_ssl": {"ssl_cert_reqs": ssl.CERT_NONE, "ssl_ca_certs": "/ca.pem"}},
            "rediss://redis:6379/0?ssl_cert_reqs=none&ssl_ca_certs=%2Fca.pem",
        ),
        ("redis+socket:///run/redis.sock", {}, "unix:///run/redis.sock"),
        ("sentinel://a:26379", {}, "redis+sentinel://a:26379/mymaster/0"),
        (
            "sentinel://:p%40w@a:26379/3;sentinel://:p%40w@b:26380/3",
            {"broker_transport_options": {"master_name": "main"}},
            "redis+sentinel://:p%40w@a:26379,b:26380/main/3",
        ),
    ],
)
def test_the_redis_of_the_broker_is_used(broker: str, settings: dict[str, Any], expected: str) -> None:
    app = Celery(broker=broker, set_as_current=False)
    app.conf.update(settings)
    found = redis_of_broker(app)
    assert found == expected
    parse(found)


def test_another_broker_needs_a_redis_for_the_counts() -> None:
    app = Celery(broker="amqp://guest@rabbit//", set_as_current=False)
    with pytest.raises(ConfigError, match="redis_url: the broker is amqp"):
        redis_of_broker(app)


def test_a_retry_and_a_replacement_have_their_own_attempt_ids() -> None:
    assert ticket_of("id", 0, 0) == ticket_of("id", None, None) == "id"
    assert len({ticket_of("id", retries, nesting) for retries in range(3) for nesting in range(3)}) == 9


def test_results_are_polled_where_the_redis_client_hides_its_socket(caplog: pytest.LogCaptureFixture) -> None:
    results = RedisResults(SimpleNamespace(get_key_for_task=lambda task_id: b"celery-task-meta-_"))
    pubsub = SimpleNamespace(connection=SimpleNamespace())
    for _ in range(2):
        sockets, patience = results._sockets(pubsub)
        assert (len(sockets), patience) == (1, POLL_EVERY)
    assert caplog.text.count("hides its socket") == 1
    results._wakeup_writer.close()
    results._wakeup_reader.close()


async def test_a_task_expires_by_the_database_clock() -> None:
    sent: dict[str, Any] = {}
    app = SimpleNamespace(
        backend=None,
        conf=SimpleNamespace(result_expires=None),
        tasks={},
        send_task=lambda name, **options: sent.update(options),
    )
    client = CeleryClient(app, lost_after=0, now=lambda: 1_000_000.0)
    await client.send(RegisteredTask("key"), "draw", {}, 60.0, headers={})
    assert sent["expires"] == datetime(1970, 1, 12, 13, 47, 40, tzinfo=UTC)
    assert sent["time_limit"] == 60.0
    await client.close()


def test_the_balancer_imports_nothing_of_the_server() -> None:
    program = """
import sys, fairlead.celery
print(sorted({"typer", "fastapi", "starlette", "uvicorn", "prometheus_client", "rich"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"
