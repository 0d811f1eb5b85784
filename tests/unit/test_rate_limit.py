from __future__ import annotations

from typing import Any

import pytest

from fairlead.domain.submission import Submission
from fairlead.gateway.problems import RateLimited
from fairlead.gateway.rate_limit import SWEEP_FROM, Attempts, SubmitRate


class Now:
    def __init__(self) -> None:
        self.time = 1000.0

    def __call__(self) -> float:
        return self.time


def jobs(**counts: int) -> list[Submission]:
    return [Submission("echo", user_id=user) for user, count in counts.items() for _ in range(count)]


def refused(rate: SubmitRate, **counts: int) -> RateLimited:
    with pytest.raises(RateLimited) as caught:
        rate.take(jobs(**counts))
    return caught.value


def test_a_full_minute_at_once_then_one_by_one() -> None:
    now = Now()
    rate = SubmitRate(6, now)
    for left in (5, 4, 3, 2, 1, 0):
        headers = rate.take(jobs(ada=1))
        assert headers["RateLimit-Policy"] == '"user";q=6;w=60'
        assert headers["RateLimit"] == f'"user";r={left};t={60 - left * 10}'
    error = refused(rate, ada=1)
    assert error.retry_after == pytest.approx(10)
    assert error.headers["RateLimit"] == '"user";r=0;t=60'
    now.time += error.retry_after
    assert rate.take(jobs(ada=1))["RateLimit"] == '"user";r=0;t=60'
    refused(rate, ada=1)


def test_a_refused_submit_does_not_count_and_users_are_independent() -> None:
    rate = SubmitRate(2, Now())
    rate.take(jobs(ada=2))
    for _ in range(5):
        assert refused(rate, ada=1).retry_after == pytest.approx(30)
    rate.take(jobs(bob=2))


def test_a_bulk_counts_each_job_and_is_atomic() -> None:
    rate = SubmitRate(10, Now())
    assert rate.take(jobs(ada=4, bob=1))["RateLimit"].startswith('"user";r=6;'), (
        "of the user with the least budget left"
    )
    refused(rate, ada=7, bob=1)
    assert rate.take(jobs(bob=1))["RateLimit"].startswith('"user";r=8;')


def test_an_oversized_bulk_needs_an_empty_bucket() -> None:
    now = Now()
    rate = SubmitRate(10, now)
    rate.take(jobs(ada=1))
    assert refused(rate, ada=20).retry_after == pytest.approx(6)
    now.time += 6
    rate.take(jobs(ada=20))
    assert refused(rate, ada=1).retry_after == pytest.approx(66)


@pytest.mark.parametrize("user_id", [None, 7.5, True, ["ada"], {}, "x" * 256])
def test_an_invalid_user_is_not_counted(user_id: Any) -> None:
    assert SubmitRate(1, Now()).take([Submission("echo", user_id=user_id)]) == {}


def test_users_with_an_empty_bucket_are_forgotten() -> None:
    now = Now()
    rate = SubmitRate(60, now)
    for number in range(10 * SWEEP_FROM):
        rate.take(jobs(**{f"user{number}": 1}))
        now.time += 0.5
    assert len(rate._free_at) <= SWEEP_FROM


# ---------------------------------------------------------------- attempts


def too_often(attempts: Attempts, name: str) -> float:
    with pytest.raises(RateLimited) as caught:
        attempts.take(name, "too often")
    assert caught.value.retry_after is not None
    return caught.value.retry_after


def test_attempts_are_refilled_one_by_one_and_refunded_ones_at_once() -> None:
    now = Now()
    attempts = Attempts(4, now)
    for _ in range(4):
        attempts.take("here", "too often")
    assert [too_often(attempts, "here") for _ in range(3)] == [pytest.approx(15)] * 3
    attempts.take("there", "too often")
    now.time += 15
    attempts.take("here", "too often")
    too_often(attempts, "here")
    attempts.give_back("here")
    attempts.take("here", "too often")


def test_the_oldest_names_are_forgotten() -> None:
    attempts = Attempts(1, Now(), most=3)
    for name in ("a", "b", "c"):
        attempts.take(name, "too often")
    too_often(attempts, "a")  # is the newest now
    attempts.take("d", "too often")
    assert len(attempts) == 3
    too_often(attempts, "a")
    attempts.take("b", "too often")
    assert len(attempts) == 3
