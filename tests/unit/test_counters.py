"""The counters of one process."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fairlead.domain import transitions
from fairlead.domain.job import Job, JobStatus, Priority
from fairlead.domain.retry import Failure, RetryPolicy, of_http_status
from fairlead.domain.stats import Histogram
from fairlead.domain.transitions import Move
from fairlead.engine.counters import Counters

JOB = Job(
    "j1",
    "story",
    "ada",
    ("chat", "paint"),
    status=JobStatus.RUNNING,
    attempt=1,
    waiting_since=10.0,
    call_started_at=12.5,
)


def failed(failure: Failure, *, attempts: int = 3) -> Move:
    return transitions.failed(JOB, failure, RetryPolicy(max_attempts=attempts), now=20.0, randomness=0.5)


def test_a_histogram_includes_its_upper_bounds() -> None:
    histogram = Histogram((1.0, 5.0))
    for value in (0.0, 1.0, 1.1, 5.0, 5.1, 100.0):
        histogram.observe(value)
    assert histogram.counts == [2, 2, 2]
    assert histogram.total == pytest.approx(112.2)


def test_waits_and_runs_are_counted_per_service_and_band() -> None:
    seen = Counters()
    seen.started(JOB)
    seen.started(replace(JOB, step=1, priority=Priority.HIGH))
    seen.ran(JOB, 0.7)
    assert {lane: wait.total for lane, wait in seen.waits.items()} == {("chat", "medium"): 2.5, ("paint", "high"): 2.5}
    assert {lane: run.total for lane, run in seen.runs.items()} == {("chat", "medium"): 0.7}


def test_a_clock_that_was_set_back_makes_no_negative_wait() -> None:
    seen = Counters()
    seen.started(replace(JOB, call_started_at=9.0))
    assert seen.waits["chat", Priority.MEDIUM].total == 0


def test_a_retry_counts_as_failure_and_retry_and_not_as_end() -> None:
    seen = Counters()
    seen.moved(JOB, failed(Failure("CONNECTION", "gone", retryable=True)))
    assert seen.failures == {("chat", "CONNECTION"): 1}
    assert seen.retries == {"chat": 1}
    assert seen.ended == {}


def test_the_last_attempt_counts_as_end_and_not_as_retry() -> None:
    seen = Counters()
    seen.moved(JOB, failed(Failure("TIMEOUT", "slow", retryable=True), attempts=1))
    assert seen.failures == {("chat", "TIMEOUT"): 1}
    assert seen.retries == {}
    assert seen.ended == {("story", "FAILED"): 1}


def test_a_timeout_in_the_queue_counts_as_failure_with_its_own_code() -> None:
    seen = Counters()
    waiting = replace(JOB, status=JobStatus.PENDING, timer_at=15.0)
    move = transitions.timer_rang(waiting, now=20.0, waits={})
    assert move is not None
    seen.moved(waiting, move)
    assert seen.failures == {("chat", "RESOURCE_EXHAUSTED"): 1}


def test_a_carried_error_is_not_counted_again() -> None:
    seen = Counters()
    retrying = replace(JOB, status=JobStatus.RETRYING, error={"code": "TIMEOUT"})
    seen.moved(retrying, transitions.due(retrying, now=20.0, waits={}))
    seen.moved(retrying, transitions.cancel(retrying, now=20.0))
    assert seen.failures == {}
    assert seen.ended == {("story", "CANCELLED"): 1}


def test_a_promotion_is_counted_under_its_new_band() -> None:
    seen = Counters()
    waiting = replace(JOB, status=JobStatus.PENDING, priority=Priority.LOW)
    seen.moved(waiting, transitions.promote(waiting, now=20.0, waits={}))
    assert seen.promotions == {"medium": 1}


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (of_http_status(503, ""), "HTTP_503"),
        (of_http_status(418, ""), "HTTP_4xx"),
        (of_http_status(599, ""), "HTTP_5xx"),
        (of_http_status(302, ""), "HTTP_3xx"),
        (of_http_status(999, ""), "OTHER"),
        (Failure("EXCEPTION", "", retryable=True), "EXCEPTION"),
        (Failure("ada@example.com", "", retryable=True), "OTHER"),
    ],
)
def test_error_codes_are_a_bounded_set(failure: Failure, code: str) -> None:
    seen = Counters()
    seen.moved(JOB, failed(failure))
    assert seen.failures == {("chat", code): 1}
