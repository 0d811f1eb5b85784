"""Which errors are retried, and when."""

import pytest

from fairlead.domain.retry import MOST_SPARED, Backoff, Fail, Failure, Retry, RetryPolicy, of_http_status

PASSING = Failure("CONNECTION", "reset by peer", retryable=True)
FINAL = Failure("PERMANENT", "no such model", retryable=False)


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_transient_statuses_are_retried(status: int) -> None:
    assert of_http_status(status, "busy").retryable


@pytest.mark.parametrize("status", [301, 400, 401, 404, 409, 422, 500, 501, 505])
def test_every_other_status_is_final(status: int) -> None:
    assert not of_http_status(status, "no").retryable


def test_backoff_grows_by_its_factor_up_to_its_cap() -> None:
    plain = Backoff(base=2, factor=2, max=60, jitter=0)
    assert [plain.delay(attempt, 0.5) for attempt in range(1, 8)] == [2, 4, 8, 16, 32, 60, 60]


def test_jitter_spreads_the_delay_around_the_nominal_one() -> None:
    backoff = Backoff(base=10, factor=1, max=60, jitter=0.2)
    assert backoff.delay(1, 0.0) == pytest.approx(8)
    assert backoff.delay(1, 0.5) == pytest.approx(10)
    assert backoff.delay(1, 0.999999) == pytest.approx(12, rel=1e-3)


def test_an_explicit_list_has_no_jitter_and_its_last_entry_repeats() -> None:
    backoff = Backoff(explicit=(60, 120, 180))
    assert [backoff.delay(attempt, 0.9) for attempt in (1, 2, 3, 4, 50)] == [60, 120, 180, 180, 180]


def test_thousands_of_attempts_do_not_overflow() -> None:
    assert Backoff(jitter=0).delay(100_000, 0.5) == 60


def test_a_final_failure_is_not_retried_however_many_attempts_are_left() -> None:
    assert RetryPolicy(max_attempts=9).after(FINAL, 1, 0.5) == Fail(
        {"code": "PERMANENT", "message": "no such model"}, retryable=False
    )


def test_the_last_attempt_fails_for_good_and_says_so() -> None:
    then = RetryPolicy(max_attempts=3).after(PASSING, 3, 0.5)
    assert isinstance(then, Fail)
    assert not then.retryable
    assert then.error["reason"] == "ATTEMPTS_USED_UP"
    assert then.error["attempts"] == 3


def test_manual_retry_leaves_the_decision_to_the_user() -> None:
    then = RetryPolicy(manual=True).after(PASSING, 1, 0.5)
    assert isinstance(then, Fail)
    assert then.retryable


def test_manual_retry_is_permanent_after_max_attempts() -> None:
    then = RetryPolicy(max_attempts=3, manual=True).after(PASSING, 3, 0.5)
    assert isinstance(then, Fail)
    assert not then.retryable
    assert then.error["reason"] == "ATTEMPTS_USED_UP"


def test_retry_after_is_honoured_when_it_is_longer_than_the_backoff() -> None:
    policy = RetryPolicy(backoff=Backoff(base=2, jitter=0))
    asked = Failure("HTTP_429", "slow down", True, retry_after=30)
    assert policy.after(asked, 1, 0.5) == Retry({"code": "HTTP_429", "message": "slow down"}, 30)
    shorter = Failure("HTTP_429", "slow down", True, retry_after=1)
    assert policy.after(shorter, 1, 0.5) == Retry({"code": "HTTP_429", "message": "slow down"}, 2)


def test_a_call_rejected_for_overload_costs_no_attempt_up_to_a_limit() -> None:
    policy = RetryPolicy(max_attempts=1, backoff=Backoff(base=2, jitter=0))
    busy = of_http_status(503, "busy")
    first = policy.spared(busy, 0, 0.5)
    assert first is not None
    assert (first.delay, first.counts, first.error["refusals"]) == (2, False, 1)
    assert policy.spared(busy, MOST_SPARED - 1, 0.5) is not None
    assert policy.spared(busy, MOST_SPARED, 0.5) is None
    assert policy.spared(FINAL, 0, 0.5) is None
    assert RetryPolicy(manual=True).spared(busy, 0, 0.5) is None, "the user decides"
