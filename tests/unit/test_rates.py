"""The window of a rate: no window of the provider sees more than the rate, whatever the calls' delays."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.config import load
from fairlead.dispatch.memory import MemoryDispatcher
from fairlead.dispatch.port import Claim, Offer, Release
from fairlead.domain.fair_share import SECOND
from fairlead.domain.rates import Demand, Rate, Window
from fairlead.domain.rules import Rules, ServiceRules
from fairlead.errors import ConfigError

PER = 10 * SECOND
CALL = st.tuples(
    st.integers(0, 2 * SECOND),  # after the call before, when there is one to grant
    st.integers(0, 6 * SECOND),  # from the grant until it is sent
    st.integers(0, PER // 40),  # on the way
    st.integers(0, 30 * SECOND),  # until it ends
    st.sampled_from(["never", "release", "report"]),  # who says when it was sent
    st.integers(1, 40),  # units
)


@given(calls=st.lists(CALL, max_size=40))
def test_no_window_of_the_provider_sees_more_than_the_rate(calls: list[tuple[int, int, int, int, str, int]]) -> None:
    window, now, arrivals = Window(Rate(3, 50.0, 10.0)), 1000 * SECOND, []
    events: list[tuple[int, int, str, int, int]] = []
    for number, (pause, delay, way, duration, says, units) in enumerate(calls):
        now += pause
        units *= SECOND
        while True:
            for event in sorted(event for event in events if event[0] <= now):
                events.remove(event)
                _happens(window, *event)
            window.advance(now)
            if window.fits(units):
                break
            now += SECOND // 4
        window.requests, window.units = window.requests + 1, window.units + units
        arrived = now + delay + way
        arrivals.append((arrived, units))
        if says == "report":
            events.append((now + delay, number, "report", units, now + delay))
        events.append((arrived + duration, number, says, units, now + delay))
    for start, _ in arrivals:
        within = [units for at, units in arrivals if start <= at < start + PER]
        assert len(within) <= 3
        assert sum(within) <= 50 * SECOND


def _happens(window: Window, at: int, _: int, says: str, units: int, sent_at: int) -> None:
    if says == "report" and at == sent_at:
        window.sent(units, sent_at)
    else:
        sent = None if says == "never" else sent_at
        window.ended(units, None, sent, at, reported=says == "report")


@given(
    events=st.lists(
        st.tuples(
            st.integers(0, SECOND) | st.integers(0, 3) | st.integers(0, 2 * PER),  # after the event before
            st.sampled_from(["grant", "grant", "end", "end", "end", "add", "advance", "refund", "clear", "change"]),
            st.integers(0, 40),
        ),
        max_size=60,
    )
)
def test_the_quick_end_of_a_call_counts_as_any_other(events: list[tuple[int, str, int]]) -> None:
    quick, plain, now, is_open = Window(Rate(3, 50.0, 10.0)), Window(Rate(3, 50.0, 10.0)), SECOND, list[int]()
    for pause, event, units in events:
        now += pause
        if event == "end" and is_open:
            units = is_open.pop()
            if now <= quick.until:
                quick.counted, quick.counted_units = quick.counted + 1, quick.counted_units + units
            else:
                quick.close(units, now)
            plain.ended(units, None, None, now)
        refunded = is_open.pop() if event == "refund" and is_open else None
        for window in (quick, plain):
            if event == "grant":
                window.requests, window.units = window.requests + 1, window.units + units
            elif event == "add":
                window.add(now + units * SECOND, 1, units)
            elif event == "change":
                window.take_rate(Rate(3, 50.0, 8.0 + units % 5))
            elif event == "advance":
                window.advance(now)
            elif event == "clear":
                window.clear()
            elif refunded is not None:
                window.refund(refunded)
        if event == "grant":
            is_open.append(units)
        assert (quick.requests, quick.units, quick.counted) == (plain.requests, plain.units, plain.counted)
        assert quick.entries == plain.entries


def test_a_window_keeps_about_a_hundred_entries() -> None:
    window = Window(Rate(1_000_000, None, 60.0))
    for tick in range(60_000):
        now = tick * 2_000
        window.advance(now)
        window.requests += 1
        window.ended(0, None, None, now, reported=False)
        assert len(window.entries) / 3 <= 102
    assert window.requests <= 30_600


def test_the_wait_for_a_rate_counts_those_ahead() -> None:
    window = Window(Rate(2, None, 10.0))
    for at in (100, 103):
        window.add(at * SECOND, 1, 0)
    waits = [window.wait(Demand(count, 1, 1, 0, 0), SECOND, 104 * SECOND) / SECOND for count in range(1, 6)]
    assert waits == [6.0, 9.0, 16.0, 19.0, 26.0]


def test_the_wait_for_units_counts_the_mean_for_those_ahead() -> None:
    window = Window(Rate(None, 100.0, 10.0))
    window.add(100 * SECOND, 1, 60 * SECOND)
    each = 60 * SECOND
    demands = [Demand(n + 1, SECOND, each, n * SECOND, n * each, each) for n in range(3)]
    waits = [window.wait(demand, SECOND, 104 * SECOND) / SECOND for demand in demands]
    assert waits == [0.0, 6.0, 10.0], "a small step does not go before large ones"


@pytest.mark.parametrize(
    ("rate", "problem"),
    [
        ("{ requests = 0 }", "services.s.rate.requests: should be greater than or equal to 1, not 0"),
        ("{ requests = -3 }", "services.s.rate.requests: "),
        ("{ requests = 1000001 }", "services.s.rate.requests: should be less than or equal to 1000000"),
        ("{ tokens = 0 }", "services.s.rate.tokens: should be greater than 0, not 0"),
        ("{ tokens = 1e10 }", "services.s.rate.tokens: "),
        ("{ tokens = nan }", "services.s.rate.tokens: "),
        ("{ requests = 1, per = 0 }", "services.s.rate.per: should be greater than or equal to 1, not 0"),
        ("{ requests = 1, per = 1e6 }", "services.s.rate.per: "),
        ("{ calls = 5 }", "services.s.rate.calls: unknown key"),
        ("{ per = 60 }", "services.s.rate: needs requests, tokens or units"),
        ("{ tokens = 5, units = 5 }", "services.s.rate: tokens and units are both set"),
        ("60", "services.s.rate: "),
    ],
)
def test_a_rate_that_makes_no_sense_is_refused_at_the_start(tmp_path: Path, rate: str, problem: str) -> None:
    file = tmp_path / "fairlead.toml"
    file.write_text(f"[services.s]\nlimit = 1\nrate = {rate}\n")
    with pytest.raises(ConfigError) as refused:
        load(file, {})
    assert any(each.startswith(f"{file}: {problem}") for each in refused.value.problems), refused.value.problems


@pytest.mark.parametrize(
    ("rate", "name"),
    [
        ("rate = { tokens = 5 }", "rate"),
        ("user_rate = { tokens = 5 }", "user_rate"),
        ("regions.us = { url = 'http://us/', limit = 1, rate = { tokens = 5 } }", "regions.us.rate"),
    ],
)
def test_a_rate_in_tokens_of_a_service_with_another_unit_is_refused(tmp_path: Path, rate: str, name: str) -> None:
    file = tmp_path / "fairlead.toml"
    file.write_text(f"[services.s]\nlimit = 1\ncost_unit = 'images'\n{rate}\n")
    with pytest.raises(ConfigError, match=f"services.s: {name} is in tokens, but cost_unit is 'images'"):
        load(file, {})


def test_rates_of_pools_regions_and_users_are_read(tmp_path: Path) -> None:
    file = tmp_path / "fairlead.toml"
    file.write_text(
        "[pools]\nsmall = 3\nmodal = { limit = 10, rate = { requests = 60 } }\n"
        "[services.s]\nlimit = 1\npool = 'modal'\nuser_rate = { tokens = 5, per = 3600 }\n"
        "regions.us = { url = 'http://us/', limit = 1, rate = { requests = 2, per = 1 } }\n"
    )
    config = load(file, {}).config
    assert config.pool_limits == {"small": 3, "modal": 10}
    assert config.pool_rates == {"modal": Rate(60)}
    rules = config.services["s"].rules("s")
    assert (rules.user_rate, rules.region_rates) == (Rate(None, 5.0, 3600.0), {"us": Rate(2, None, 1.0)})


def test_a_service_that_is_split_over_shards_has_no_rate(tmp_path: Path) -> None:
    file = tmp_path / "fairlead.toml"
    file.write_text(
        "[shards]\nb = 'redis://b'\n[services.s]\nrate = { requests = 1 }\n"
        "shards.main = { bands = ['high'], limit = 1 }\nshards.b = { bands = ['medium', 'low'], limit = 1 }\n"
    )
    with pytest.raises(ConfigError, match="cannot have a rate"):
        load(file, {})


async def test_a_timer_of_rates_that_fires_early_is_set_again() -> None:
    """uvloop's timers may fire up to a millisecond before their time."""
    now = [1000.0]
    dispatcher = MemoryDispatcher(lambda: now[0])
    rules = ServiceRules("s", limit=5, rate=Rate(requests=1, per=60.0))
    await dispatcher.configure(Rules(version=1, services={"s": rules}))
    await dispatcher.close_scope(rules.scope, 1)
    await dispatcher.open_scope(rules.scope, 1)
    await dispatcher.offer([Offer(job, seq, "s", "ann", 2, 0, 0, 0) for seq, job in enumerate("ab")])
    [lease] = await dispatcher.exchange(Claim("w", 1, frozenset("s")))
    await dispatcher.release([Release(lease.name, "s", sent=0.0)])
    assert dispatcher._timer is not None
    now[0] = dispatcher._rates_due - 0.0005
    dispatcher._fire()
    assert dispatcher._timer is not None
    await dispatcher.close()
