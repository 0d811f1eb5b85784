"""Which scopes must be rebuilt when one set of rules replaces another."""

from __future__ import annotations

import pytest

from fairlead.domain.rules import MAIN_SHARD, Rules, ServiceRules, Share, moved_scopes

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


def test_a_shards_rules_name_services_elsewhere_and_main_has_the_undeclared_ones() -> None:
    rules = Rules({"draw": FAR, "chat": ServiceRules("chat", limit=1)})
    main, far = rules.on(MAIN_SHARD), rules.on("far")
    assert (main.elsewhere, far.elsewhere) == ({"draw"}, {"chat"})
    assert [main.is_undeclared(f"service:{name}") for name in ("gone", "draw", "chat")] == [True, False, False]
    assert not far.is_undeclared("service:gone")
    assert not main.is_undeclared("pool:gpu")
    assert main.scope_of("gone") == "service:gone"
