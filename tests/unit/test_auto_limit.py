"""The decisions of `limit = "auto"`, as pure functions of measured windows: no clock, no store, no queue."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.domain.auto_limit import KEPT, Calls, Ceiling, Ending, LimitDecision, Window, changed, decide, ending_of
from fairlead.domain.retry import CONNECTION, EXCEPTION, RETRY_ASKED, TIMEOUT, Failure, of_http_status
from fairlead.domain.rules import Auto, Change, Rules, ServiceRules
from fairlead.engine.counters import Counters
from fairlead.engine.loops.auto_limit import Count, decode, encode

AUTO = Auto(1, 16)


def window(ok: int = 0, *, overloaded: int = 0, each: float = 1.0, used: bool = True) -> Window:
    return Window(0, Calls(ok, overloaded, 0, ok * each), used)


def decided(auto: Auto, limit: int, seen: Window, best: float | None = 1.0) -> LimitDecision:
    decision = decide(auto, limit, best, seen)
    assert decision is not None
    return decision


def test_the_limit_rises_by_one_when_all_slots_were_used_and_latency_held() -> None:
    decision = decided(AUTO, 4, window(4))
    assert (decision.limit, decision.why) == (5, "all slots were used, and calls took 1 s")


def test_the_limit_falls_by_30_percent_and_at_least_by_one_when_calls_were_rejected() -> None:
    decision = decided(AUTO, 10, window(9, overloaded=1))
    assert (decision.limit, decision.why) == (7, "1 of 10 calls were refused or timed out")
    assert decided(AUTO, 2, window(overloaded=2)).limit == 1


def test_the_limit_stays_when_no_slot_is_missing() -> None:
    decision = decided(AUTO, 4, window(4, used=False))
    assert (decision.limit, decision.why) == (4, None)


@pytest.mark.parametrize(("each", "limit"), [(2.0, 5), (2.1, 4)])
def test_without_a_target_latency_may_reach_twice_the_best_measured(each: float, limit: int) -> None:
    assert decided(AUTO, 4, window(4, each=each), best=1.0).limit == limit


@pytest.mark.parametrize(("each", "limit"), [(5.0, 5), (5.1, 4)])
def test_a_target_replaces_the_measured_latency(each: float, limit: int) -> None:
    assert decided(Auto(1, 16, latency_target=5.0), 4, window(4, each=each), best=1.0).limit == limit


def test_one_slow_window_is_smoothed_and_the_best_is_remembered() -> None:
    slow = decided(AUTO, 4, replace(window(4, each=4.0), latency=1.0), best=1.0)
    assert slow.window.latency == pytest.approx(1.9)
    assert (slow.limit, slow.best) == (5, 1.0)
    assert decided(AUTO, 4, window(4, each=0.5), best=1.0).best == 0.5


def test_calls_that_neither_succeeded_nor_overloaded_are_ignored() -> None:
    assert decided(AUTO, 4, Window(0, Calls(other=9), used=True)).limit == 4


def test_nothing_is_decided_before_as_many_calls_have_ended_as_the_limit_allows() -> None:
    seen = Window().seen(Calls(ok=3, seconds=3.0), used=True)
    assert decide(AUTO, 4, 1.0, seen) is None
    assert decided(AUTO, 4, seen.seen(Calls(ok=1, seconds=1.0), used=False)).limit == 5


def test_calls_rejected_after_a_rise_lower_the_limit_at_once() -> None:
    risen = decided(AUTO, 4, window(ok=4)).window
    assert (risen.skip, decide(AUTO, 5, 1.0, risen)) == (4, None)
    seen = risen.seen(Calls(ok=1, overloaded=1), used=True)
    fallen = decided(AUTO, 5, seen)
    assert fallen.limit < 5
    # Calls that were open when the limit fell were open because it was too high. The fall already answers them.
    assert decide(AUTO, fallen.limit, 1.0, fallen.window.seen(Calls(overloaded=4), used=True)) is None


def probes(size: int, windows: int, most: int = 16) -> list[int]:
    """Return the windows in which the limit was one above the capacity of the endpoint."""
    auto, limit, best, now, found = Auto(1, most), 1, None, Window(), []
    for number in range(windows):
        while (decision := decide(auto, limit, best, now)) is None:
            ok = min(limit, size)
            now = now.seen(Calls(ok, limit - ok, 0, float(ok)), used=True)
        if limit > size:
            found.append(number)
        limit, best, now = decision.limit, decision.best, decision.window
    return found


def test_a_limit_that_was_too_high_is_retried_after_growing_pauses() -> None:
    tried = probes(3, 500)
    apart = [later - earlier for earlier, later in pairwise(tried)]
    # A fall to 2, a rise to 3, the pause and the rise to 4.
    assert [each - 3 for each in apart] == [4, 8, 16, 32, 64, 64, 64, 64, 64, 64]


def test_a_limit_that_holds_rises_further_without_a_pause() -> None:
    now = Window(ceiling=Ceiling(5, failed=4, pause=1), calls=Calls(4, seconds=4.0), used=True)
    waits = decided(AUTO, 4, now)
    assert (waits.limit, waits.why) == (4, None)
    tries = decided(AUTO, 4, replace(waits.window, calls=Calls(4, seconds=4.0), used=True))
    assert tries.limit == 5
    holds = decided(AUTO, 5, replace(tries.window, skip=0, calls=Calls(5, seconds=5.0), used=True))
    assert (holds.limit, holds.window.ceiling) == (6, None)


def test_an_unused_limit_counts_as_untested() -> None:
    tried = Window(ceiling=Ceiling(5, failed=2, pause=0), calls=Calls(5, seconds=5.0), rose=True)
    idle = decided(AUTO, 5, tried)
    assert (idle.limit, idle.window.ceiling, idle.window.rose) == (5, tried.ceiling, True)
    fell = decided(AUTO, 5, idle.window.seen(Calls(overloaded=1), used=True))
    assert (fell.limit, fell.window.ceiling) == (3, Ceiling(5, failed=3, pause=16))


def test_a_lower_capacity_is_found_without_a_pause() -> None:
    known = Window(ceiling=Ceiling(9, failed=3, pause=20), calls=Calls(4, 4), used=True)
    assert decided(AUTO, 8, known).window.ceiling is None


def test_calls_that_were_open_at_a_change_do_not_judge_the_new_limit() -> None:
    fell = decided(AUTO, 10, window(overloaded=10))
    late = fell.window.seen(Calls(overloaded=4), used=True).seen(Calls(overloaded=6), used=True)
    assert late == Window(latency=fell.window.latency)
    assert decided(AUTO, fell.limit, late.seen(Calls(ok=7, seconds=7.0), used=True)).limit == 8
    rose = decided(AUTO, 4, window(4))
    assert rose.window.skip == 4
    assert decided(AUTO, 4, window(4, used=False)).window.skip == 0


@st.composite
def _bounds(draw: st.DrawFn) -> Auto:
    low = draw(st.integers(1, 50))
    target = draw(st.none() | st.floats(0.01, 10))
    return Auto(low, draw(st.integers(low, low + 50)), target)


_calls = st.builds(
    Calls, st.integers(0, 40), st.integers(0, 3), st.integers(0, 3), st.floats(0, 100, allow_subnormal=False)
)


@given(_bounds(), st.lists(st.tuples(_calls, st.booleans()), max_size=60))
def test_the_limit_stays_within_its_bounds_and_every_change_has_a_reason(
    auto: Auto, seen: list[tuple[Calls, bool]]
) -> None:
    limit, best, now = auto.min, None, Window()
    for calls, used in seen:
        now = now.seen(calls, used=used)
        decision = decide(auto, limit, best, now)
        if decision is None:
            assert now.skip or now.calls.ended < limit
            continue
        assert auto.min <= decision.limit <= auto.max
        assert (decision.why is None) == (decision.limit == limit)
        if decision.limit > limit:
            assert decision.limit == limit + 1
            assert now.used
            assert not now.calls.overloaded
        if now.calls.overloaded and limit > auto.min:
            assert decision.limit < limit
        limit, best, now = decision.limit, decision.best, decision.window


@given(st.integers(1, 30), st.integers(1, 30), st.integers(1, 64))
def test_the_limit_settles_falls_and_recovers_for_endpoints_of_any_size(first: int, then: int, most: int) -> None:
    """The endpoint serves a number of calls at once and rejects the others; later its capacity changes."""
    auto, limit, best, now = Auto(1, most), 1, None, Window()
    for size in (first, then):
        reached = []
        for _ in range(300):
            ok = min(limit, size)
            calls = Calls(ok, limit - ok, 0, float(ok))
            now = now.seen(calls, used=True)
            if (decision := decide(auto, limit, best, now)) is None:
                continue
            limit, best, now = decision.limit, decision.best, decision.window
            reached.append(limit)
        settled = reached[len(reached) // 2 :]
        assert max(settled) <= min(size + 1, most)
        assert max(settled) >= min(size, most)
        assert min(settled) >= min(int(0.7 * (size + 1)), size, most)


@pytest.mark.parametrize(
    ("failure", "ending"),
    [
        (None, Ending.OK),
        (of_http_status(429, ""), Ending.OVERLOADED),
        (of_http_status(503, ""), Ending.OVERLOADED),
        (of_http_status(504, ""), Ending.OVERLOADED),
        (Failure(TIMEOUT, "", retryable=True), Ending.OVERLOADED),
        (Failure(RETRY_ASKED, "", retryable=True), Ending.OVERLOADED),
        (of_http_status(500, ""), Ending.OTHER),
        (of_http_status(502, ""), Ending.OTHER),
        (Failure(CONNECTION, "", retryable=True), Ending.OTHER),
        (Failure(EXCEPTION, "", retryable=True), Ending.OTHER),
    ],
)
def test_what_counts_as_overload(failure: Failure | None, ending: Ending) -> None:
    assert ending_of(failure) is ending


def test_the_history_keeps_the_newest_changes_in_order() -> None:
    history: tuple[Change, ...] = ()
    for limit in range(KEPT + 5):
        adapted = changed(history, LimitDecision(limit, 0.5, "because", Window()), now=100.0 + limit)
        history = adapted.history
    assert [change.limit for change in history] == list(range(5, KEPT + 5))
    assert (adapted.limit, adapted.best, history[-1]) == (24, 0.5, Change(124.0, 24, "because"))


def test_a_process_reports_outcomes_only_for_services_with_an_automatic_limit() -> None:
    seen = Counters()
    for ending, count in ((Ending.OK, 3), (Ending.OVERLOADED, 1), (Ending.OTHER, 2)):
        for _ in range(count):
            seen.answered("gpu", ending, 1.5)
    seen.answered("cpu", Ending.OK, 9.0)
    calls = seen.calls_of
    gpu, far = ServiceRules("gpu", 1, auto=AUTO), ServiceRules("far", 1, auto=AUTO, shard="b")
    rules = Rules({"gpu": gpu, "far": far, "cpu": ServiceRules("cpu", 1)})
    assert encode(calls, rules, {"main": 7}) == {"calls": {"gpu": (3, 1, 2, 4.5, 7)}}
    assert encode(calls, rules, {"b": 8}) == {"calls": {"far": (0, 0, 0, 0.0, 8)}}
    assert encode(calls, Rules({"cpu": ServiceRules("cpu", 1)}), {"main": 7}) == {}
    assert decode({"calls": {"gpu": [3, 1, 2, 4.5, 7]}}) == {"gpu": Count(Calls(3, 1, 2, 4.5), 7)}


@pytest.mark.parametrize("encoded", [None, [], "x", {"gpu": None}, {"gpu": [1, 2]}, {"gpu": ["a", 0, 0, 0, 0]}])
def test_counts_in_the_encoding_of_another_release_are_ignored(encoded: object) -> None:
    assert decode({"calls": encoded}) == {}
