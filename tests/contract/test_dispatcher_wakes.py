"""When every dispatcher wakes the workers: once per operation at most, and never too seldom."""

from __future__ import annotations

import pytest

from fairlead.dispatch.port import Claim, Release
from fairlead.domain.limits import ServiceRules
from tests.contract.dispatchers import Line, open_pool

FAIR = ServiceRules("s", limit=1)


async def test_an_offer_wakes_once_when_its_lane_turns_runnable(line: Line) -> None:
    await line.open(FAIR)
    await line.offer("a")
    assert line.woken() == [{"s"}]
    await line.offer("b")
    assert line.woken() == []


async def test_an_offer_to_a_lane_without_a_free_slot_wakes_nobody(line: Line) -> None:
    await line.open(FAIR)
    await line.offer("a")
    await line.take()
    line.woken()
    await line.offer("b")
    assert line.woken() == []


async def test_a_release_wakes_if_something_waits(line: Line) -> None:
    await line.open(FAIR)
    await line.offer_all("ab")
    lease = await line.take()
    line.woken()
    await line.end(lease)
    assert line.woken() == [{"s"}]
    await line.end(await line.take())
    assert line.woken() == []


async def test_an_exchange_that_takes_what_it_frees_wakes_nobody(line: Line) -> None:
    await line.open(FAIR)
    await line.offer_all("abc")
    lease = await line.take()
    line.woken()
    await line.dispatcher.exchange(Claim("w", 1, frozenset("s")), [Release(lease.name, "s")])
    assert line.woken() == []


async def test_an_exchange_that_only_gives_back_wakes_for_what_it_frees(line: Line) -> None:
    await line.open(FAIR)
    await line.offer_all("ab")
    lease = await line.take()
    line.woken()
    await line.dispatcher.exchange(Claim("w", 0, frozenset("s")), [Release(lease.name, "s")])
    assert line.woken() == [{"s"}]


async def test_a_claim_that_leaves_a_lane_runnable_wakes_the_next_worker(line: Line) -> None:
    await line.open(ServiceRules("s", limit=9), ServiceRules("t", limit=9))
    await line.offer_all("abc")
    await line.offer("t0", service="t")
    line.woken()
    await line.claim(1)
    assert line.woken() == [{"s", "t"}], "the claimer is full: both are for the next"
    await line.claim(9)
    assert line.woken() == []


async def test_a_claim_in_vain_wakes_nobody(line: Line) -> None:
    await line.open(ServiceRules("s", limit=9))
    await line.offer("low", band=3)
    line.woken()
    assert await line.claimed(5, bands=frozenset({1})) == []
    assert line.woken() == []


async def test_one_operation_wakes_at_most_once(line: Line) -> None:
    await line.open(*(ServiceRules(name, limit=1) for name in "xyz"))
    for name in "xyz":
        await line.offer_all([f"{name}0", f"{name}1"], service=name)
    leases = await line.claim(3)
    line.woken()
    await line.dispatcher.release([Release(lease.name, lease.service) for lease in leases])
    assert line.woken() == [{"x", "y", "z"}]


@pytest.mark.parametrize(
    ("before", "after"), [({"limit": 1}, {"limit": 2}), ({"paused": True}, {"paused": False}), ({"user_limit": 1}, {})]
)
async def test_changed_rules_wake_what_they_make_runnable(
    line: Line, before: dict[str, int], after: dict[str, int]
) -> None:
    open_rules = {"limit": 9, "paused": False, "user_limit": None}
    await line.open(ServiceRules("s", limit=9))
    await line.offer_all("abc")
    await line.take()
    await line.change("s", **open_rules | before)
    line.woken()
    await line.change("s", **open_rules | after)
    assert line.woken() == [{"s"}]


async def test_the_end_of_a_hold_wakes(line: Line) -> None:
    await line.open(FAIR)
    await line.hold("gone", 60)
    await line.offer("a")
    assert line.woken() == []
    await line.dispatcher.end_holds(line.clock.now + 60)
    assert line.woken() == [{"s"}]


async def test_a_promotion_and_a_withdrawal_wake_nobody(line: Line) -> None:
    await line.open(FAIR)
    await line.offer_all("ab", band=3)
    line.woken()
    await line.promote("a", band=2)
    await line.withdraw("b")
    assert line.woken() == []


async def test_a_lane_that_runs_empty_wakes_again_when_something_arrives(line: Line) -> None:
    await line.open(FAIR)
    await line.offer("a")
    await line.withdraw("a")
    line.woken()
    await line.offer("b")
    assert line.woken() == [{"s"}]


async def test_a_user_that_is_let_back_in_wakes(line: Line) -> None:
    await line.open(ServiceRules("s", limit=9, user_limit=1))
    await line.offer_all("ab")
    (lease,) = await line.claim(9)
    line.woken()
    await line.end(lease)
    assert line.woken() == [{"s"}]


async def test_a_pools_free_slot_wakes_all_its_services_that_wait(line: Line) -> None:
    await open_pool(line, 1, "x", "y", "z")
    await line.offer_all(["x0", "x1"], service="x")
    lease = await line.take()
    await line.offer("y0", service="y")
    line.woken()
    await line.end(lease)
    assert line.woken() == [{"x", "y"}]
