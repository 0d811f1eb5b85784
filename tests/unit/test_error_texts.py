"""Responses name what is unreachable but not its address: addresses and paths are for the log."""

from __future__ import annotations

import logging

import orjson
import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from fairlead.dispatch.redis.errors import unavailable
from fairlead.errors import FairleadError, StoreError, Unavailable, shown
from fairlead.gateway.problems import REQUEST_ID, problem_response
from fairlead.outage import Outage
from fairlead.store.postgres.connect import translated

SERVER = "db.internal.example:5432/jobs"


def away() -> FairleadError:
    with pytest.raises(Unavailable) as raised, translated(SERVER):
        raise OSError(111, "Connect call failed ('10.1.2.3', 5432)")
    return raised.value


def redis_away() -> FairleadError:
    return unavailable(RedisConnectionError("Error 111 connecting to 10.1.2.3:6379. Connection refused."))


@pytest.mark.parametrize("error", [away(), redis_away()], ids=["postgres", "redis"])
def test_a_response_contains_no_address_and_the_log_does(
    error: FairleadError, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="fairlead.gateway"):
        response = problem_response(error, {REQUEST_ID: "r1"})
    body = orjson.loads(bytes(response.body))
    assert (response.status_code, body["code"]) == (503, "unavailable")
    assert "10.1.2.3" not in bytes(response.body).decode()
    assert "example" not in bytes(response.body).decode()
    assert "10.1.2.3" in caplog.text
    assert "r1" in caplog.text


def test_the_reason_of_an_outage_contains_no_address(caplog: pytest.LogCaptureFixture) -> None:
    outage = Outage(logging.getLogger("fairlead.test"), "claiming")
    outage.began(redis_away())
    assert outage.reason == "Redis is unavailable"
    assert "10.1.2.3" in caplog.text


def test_an_unusable_database_is_shown_without_its_address() -> None:
    assert "example" not in shown(StoreError(f"the database at {SERVER} cannot be used: no such role"))


def test_an_error_without_an_address_is_shown_unchanged() -> None:
    assert shown(Unavailable("too many writes are pending")) == "too many writes are pending"
