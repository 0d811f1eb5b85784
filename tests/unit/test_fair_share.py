"""The arithmetic of fair shares, in whole microseconds and exact."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.domain.fair_share import SECOND, QueuePosition, averaged, charge, micros, served_before, smoothed

COSTS = st.integers(0, 10**12)
WEIGHTS = st.floats(0.001, 1000)


def test_a_charge_is_cost_divided_by_weight_in_whole_microseconds() -> None:
    assert charge(10, 1.0) == 10
    assert charge(10, 3.0) == 3
    assert charge(10, 0.5) == 20


@given(COSTS, WEIGHTS)
def test_every_charge_moves_the_user_back(cost: int, weight: float) -> None:
    assert charge(cost, weight) >= 1


@given(COSTS, COSTS, WEIGHTS)
def test_a_more_expensive_step_is_never_charged_less(cost: int, more: int, weight: float) -> None:
    assert charge(cost, weight) <= charge(cost + more, weight)


def test_seconds_are_rounded_to_microseconds_and_never_negative() -> None:
    assert micros(0.1 + 0.2) == 300_000
    assert micros(1_700_000_000.3 - 1_700_000_000.0) == 300_000
    assert micros(-1.0) == 0


def test_the_first_measurement_is_the_mean() -> None:
    assert smoothed(None, 7) == 7
    assert smoothed(None, 0) == 0


@given(COSTS)
def test_a_measurement_equal_to_the_mean_leaves_it(mean: int) -> None:
    assert smoothed(mean, mean) == mean


@given(COSTS, COSTS)
def test_the_mean_moves_towards_the_measurement_and_not_beyond(mean: int, measured: int) -> None:
    assert min(mean, measured) <= smoothed(mean, measured) <= max(mean, measured)


def test_the_mean_follows_a_permanent_change() -> None:
    mean = 10 * SECOND
    for _ in range(100):
        mean = smoothed(mean, SECOND)
    assert mean == pytest.approx(SECOND, rel=0.001)


@given(
    tag=st.integers(0, 50),
    user=st.sampled_from("abc"),
    step=st.integers(1, 9),
    count=st.integers(1, 9),
    mark=st.integers(0, 99),
    marked=st.sampled_from("abc"),
)
def test_served_before_counts_the_starts_that_come_first(
    tag: int, user: str, step: int, count: int, mark: int, marked: str
) -> None:
    starts = [(tag + n * step, user) for n in range(count)]
    expected = sum(start < (mark, marked) for start in starts)
    assert served_before(tag, user, step, count, mark=mark, marked_user=marked) == expected


def test_the_estimated_wait_is_divided_by_the_slots() -> None:
    assert QueuePosition(position=3, work_ahead=12.0, slots=4, mean=5.0).estimated_wait() == (3.0, 8.0)


def test_a_stalled_queue_has_no_estimate() -> None:
    assert QueuePosition(position=3, work_ahead=12.0, slots=0, mean=5.0).estimated_wait() is None
    assert QueuePosition(position=1, work_ahead=0.0, slots=4, mean=5.0, free=4, undated=True).estimated_wait() is None


def test_an_average_covers_all_values_until_it_forgets_the_oldest() -> None:
    mean, count = None, 0
    for measured in (10, 20, 60):
        mean, count = averaged(mean, measured, count)
    assert (mean, count) == (30, 3)
    for _ in range(1000):
        mean, count = averaged(mean, 10, count)
    assert (mean, count) == (10, 64)


def test_a_step_with_a_free_slot_for_it_does_not_wait() -> None:
    place = QueuePosition(2, 30.0, 4, 10.0, free=2)
    assert place.plain_wait == 0.0
    assert place.estimated_wait() == (0.0, 0.0)
    assert QueuePosition(3, 30.0, 4, 10.0, free=2).plain_wait == 7.5


def test_a_step_waits_for_its_users_limit_although_slots_are_free() -> None:
    waits = [QueuePosition(n + 1, 2.0 * n, 10, 2.0, free=10, ahead_own=n, user_slots=1, user_free=1) for n in range(6)]
    assert [place.plain_wait for place in waits] == [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]
    assert [place.starts_at_once for place in waits] == [True, False, False, False, False, False]
    assert waits[2].estimated_wait() == (4.0, 6.0)
    assert waits[2].pace == 2.0, "one after the other"
    busy = QueuePosition(1, 1.5, 10, 2.0, free=9, running=1.5, user_slots=1, user_free=0, user_running=1.5)
    assert busy.plain_wait == 1.5
    assert busy.waits_for_own


def test_a_full_queue_may_take_longer_than_the_users_limit() -> None:
    place = QueuePosition(9, 80.0, 1, 10.0, ahead_own=1, user_slots=1, user_free=1)
    assert place.plain_wait == 80.0
    assert not place.waits_for_own


def test_the_first_running_call_to_end_frees_a_slot() -> None:
    assert QueuePosition(1, 6.0, 1, 10.0, running=6.0).plain_wait == 6.0
    assert QueuePosition(1, 20.0, 4, 10.0, running=20.0).plain_wait == 2.0, "of four that are half done, the first"
    assert QueuePosition(3, 40.0, 4, 10.0, running=20.0).plain_wait == 7.0


def test_an_estimate_is_corrected_by_measured_waits() -> None:
    place = QueuePosition(9, 80.0, 4, 10.0)
    assert place.surprise_of(20.0) == 1.0
    learned = replace(place, surprise=(1.2, 2.0))
    low, high = learned.estimated_wait() or (0.0, 0.0)
    assert (learned.surprise_of(low), learned.surprise_of(high)) == pytest.approx((1.2, 2.0))
    assert replace(place, work_ahead=0.0, surprise=(0.1, 0.5)).estimated_wait() == (0.0, 0.0), "no wait is negative"
