from __future__ import annotations

from typing import Any

import pytest

from fairlead.gateway.problems import RateLimited
from fairlead.gateway.rates import SWEEP_FROM, SubmitRate
from fairlead.runtime.submission import Submission


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


def test_a_minute_s_worth_at_once_then_one_by_one() -> None:
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


def test_whoever_was_refused_is_not_charged_and_nobody_pays_for_another() -> None:
    rate = SubmitRate(2, Now())
    rate.take(jobs(ada=2))
    for _ in range(5):
        assert refused(rate, ada=1).retry_after == pytest.approx(30)
    rate.take(jobs(bob=2))


def test_a_bulk_counts_each_job_and_is_taken_whole_or_not_at_all() -> None:
    rate = SubmitRate(10, Now())
    assert rate.take(jobs(ada=4, bob=1))["RateLimit"].startswith('"user";r=6;'), "of the one who has least left"
    refused(rate, ada=7, bob=1)
    assert rate.take(jobs(bob=1))["RateLimit"].startswith('"user";r=8;')


def test_a_bulk_of_more_than_a_minute_s_worth_goes_alone_and_is_paid_for() -> None:
    now = Now()
    rate = SubmitRate(10, now)
    rate.take(jobs(ada=1))
    assert refused(rate, ada=20).retry_after == pytest.approx(6)
    now.time += 6
    rate.take(jobs(ada=20))
    assert refused(rate, ada=1).retry_after == pytest.approx(66)


@pytest.mark.parametrize("user_id", [None, 7, ["ada"], {}, "x" * 256])
def test_whoever_is_no_user_is_left_to_the_check_of_the_fields(user_id: Any) -> None:
    assert SubmitRate(1, Now()).take([Submission("echo", user_id=user_id)]) == {}


def test_users_who_have_all_of_it_again_are_forgotten() -> None:
    now = Now()
    rate = SubmitRate(60, now)
    for number in range(10 * SWEEP_FROM):
        rate.take(jobs(**{f"user{number}": 1}))
        now.time += 0.5
    assert len(rate._free_at) <= SWEEP_FROM
