"""Which scopes must be rebuilt when one set of rules replaces another."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fairlead.domain.groups import GroupRules
from fairlead.domain.rates import Rate, RateOf
from fairlead.domain.rules import MAIN_SHARD, Order, Rules, ServiceRules, Share, moved_scopes, with_rates

ALONE = ServiceRules("draw", limit=3)
POOLED = ServiceRules("draw", limit=3, pool="gpu")
FAR = ServiceRules("draw", limit=3, shard="far")
HIGH, REST, ALL = frozenset({1}), frozenset({2, 3}), frozenset({1, 2})
SPLIT = ServiceRules("draw", limit=3, shares={"far": Share(HIGH, 1), MAIN_SHARD: Share(REST, 2)})
SHIFTED = ServiceRules("draw", limit=3, shares={"far": Share(ALL, 1), MAIN_SHARD: Share(frozenset({3}), 2)})
PARTS = {"service:draw@far", "service:draw@main"}


@pytest.mark.parametrize(
    ("before", "after", "moved"),
    [
        (ALONE, ALONE, set()),
        (ALONE, ServiceRules("draw", limit=9, paused=True), set()),
        (ALONE, POOLED, {"service:draw", "pool:gpu"}),
        (POOLED, ALONE, {"service:draw", "pool:gpu"}),
        (ALONE, FAR, {"service:draw"}),
        (ALONE, SPLIT, {"service:draw", *PARTS}),
        (SPLIT, SHIFTED, PARTS),
        (None, ALONE, set()),
        (ALONE, None, set()),
        (POOLED, None, {"service:draw", "pool:gpu"}),
        (FAR, None, {"service:draw"}),
    ],
)
def test_scopes_that_steps_leave_or_enter_are_rebuilt(
    before: ServiceRules | None, after: ServiceRules | None, moved: set[str]
) -> None:
    old, new = (Rules({} if each is None else {"draw": each}) for each in (before, after))
    assert moved_scopes(old, new) == moved


MINUTE, HOUR = Rate(60, per=60.0), Rate(1, per=3600.0)
POOL = {"draw": replace(POOLED, regions={"eu": 1})}
BASE = Rules(POOL, {"gpu": 3}, groups={"acme": GroupRules()})
EVERY = [
    RateOf("service", "draw"),
    RateOf("user", "draw"),
    RateOf("region", "draw", "eu"),
    RateOf("pool", "gpu"),
    RateOf("plan", "free"),
    RateOf("group", "acme"),
]


@pytest.mark.parametrize("of", EVERY, ids=lambda of: str(of.kind))
def test_scopes_whose_rates_count_a_longer_time_are_rebuilt(of: RateOf) -> None:
    none, minute, hour = BASE, with_rates(BASE, {of: MINUTE}), with_rates(BASE, {of: HOUR})
    assert (minute.rate_of(of), hour.rate_of(of)) == (MINUTE, HOUR)
    assert moved_scopes(minute, hour) == moved_scopes(none, minute) == {"pool:gpu"}
    for before, after in ((hour, minute), (minute, none), (hour, with_rates(BASE, {of: replace(HOUR, requests=9)}))):
        assert moved_scopes(before, after) == set()


def test_users_of_a_plan_that_loses_its_rate_have_the_longer_window_of_all_users() -> None:
    user, plan = RateOf("user", "draw"), RateOf("plan", "free")
    both = with_rates(BASE, {user: HOUR, plan: MINUTE})
    assert moved_scopes(both, with_rates(BASE, {user: HOUR})) == {"pool:gpu"}
    assert moved_scopes(with_rates(BASE, {user: HOUR}), both) == set()


def test_a_rate_of_a_group_does_not_concern_services_in_order_of_arrival() -> None:
    fifo = replace(BASE, services={"draw": replace(POOLED, order=Order.FIFO)})
    assert moved_scopes(fifo, with_rates(fifo, {RateOf("group", "acme"): HOUR})) == set()


def test_a_shards_rules_name_services_elsewhere_and_main_has_the_undeclared_ones() -> None:
    rules = Rules({"draw": FAR, "chat": ServiceRules("chat", limit=1)})
    main, far = rules.on(MAIN_SHARD), rules.on("far")
    assert (main.elsewhere, far.elsewhere) == ({"draw"}, {"chat"})
    assert [main.is_undeclared(f"service:{name}") for name in ("gone", "draw", "chat")] == [True, False, False]
    assert not far.is_undeclared("service:gone")
    assert not main.is_undeclared("pool:gpu")
    assert main.scope_of("gone") == "service:gone"
