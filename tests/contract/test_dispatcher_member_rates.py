"""The contract of every dispatcher: the rates of plans, for each of their users, and of groups."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from fairlead.dispatch.port import Claim, Lease, Release
from fairlead.dispatch.rates import Sent, Spent
from fairlead.domain.groups import GroupRules
from fairlead.domain.rates import Rate
from fairlead.domain.rules import Order, ServiceRules
from tests.contract.dispatchers import QueueHarness

WIDE = ServiceRules("s", limit=9)
ONE, TWO = Rate(requests=1, per=64.0), Rate(requests=2, per=64.0)
WINDOW = 64.64
"""The window, and the hundredth of it by which the ends of entries are rounded up."""


async def fill(queue: QueueHarness, users: str, each: int = 3, **more: Any) -> None:
    for user in users.split():
        await queue.offer_all([f"{user}{n}" for n in range(each)], user, **more)


async def claimed_users(queue: QueueHarness) -> dict[str, int]:
    return dict(Counter(lease.user_id for lease in await queue.claim(9)))


async def end_all(queue: QueueHarness, leases: list[Lease]) -> None:
    await queue.dispatcher.release([Release(lease.name, lease.service) for lease in leases])


async def uses(queue: QueueHarness) -> dict[str, int]:
    (seen,) = await queue.dispatcher.snapshot(["s"])
    return {use.name: use.requests for use in seen.rates if use.kind == "group"}


# -- users ------------------------------------------------------------------------------------------------------------


async def test_a_user_whose_window_was_empty_meanwhile_gets_its_next_step_in_time(queue: QueueHarness) -> None:
    await queue.open(replace(WIDE, user_rate=TWO))
    await fill(queue, "ann", each=6)
    await end_all(queue, [await queue.take()])
    (late,) = await queue.claim(9)
    assert await queue.claimed(9) == []
    queue.clock.advance(3 * WINDOW)
    await queue.dispatcher.release([Release(late.name, "s", sent=0.5)])  # that is over, as all that was counted before
    following = await queue.claim(9)
    assert [lease.job_id for lease in following] == ["ann2", "ann3"]
    await end_all(queue, following)
    assert await queue.claimed(9) == []
    queue.clock.advance(WINDOW)
    assert await queue.claimed(9) == ["ann4", "ann5"]


@pytest.mark.parametrize("sent", [None, 0.25])
@pytest.mark.parametrize("member", ["user", "group"])
@pytest.mark.parametrize(
    ("rate", "expected"), [(Rate(40, None, 64.0), 40), (Rate(None, 100.0, 64.0), 66), (Rate(40, 70.0, 64.0), 40)]
)
async def test_many_exchanges_in_one_window_get_exactly_the_rate(
    queue: QueueHarness, rate: Rate, expected: int, member: str, sent: float | None
) -> None:
    groups = {"acme": GroupRules(rate=rate if member == "group" else None)}
    await queue.open(replace(WIDE, user_rate=rate if member == "user" else None), groups=groups)
    await queue.offer_all([f"ann{n}" for n in range(90)], "ann", cost=2.0, group="acme")
    claim, granted = Claim("w", 2, frozenset("s")), 0
    releases: list[Release] = []
    while leases := await queue.dispatcher.exchange(claim, releases):
        granted += len(leases)
        queue.clock.advance(0.5)
        releases = [Release(lease.name, "s", used=1.5, sent=sent) for lease in leases]
    # Two reserve 4 units, of which they use 3: the last ones are granted when 64 have used 96.
    assert granted == expected
    queue.clock.advance(2 * WINDOW)
    assert len(await queue.claim(9)) == 9


# -- plans ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", Order)
async def test_each_user_of_a_plan_has_the_rate_of_the_plan_in_place_of_the_user_rate(
    queue: QueueHarness, order: Order
) -> None:
    queue.plan_rates = {"free": ONE, "gold": Rate(requests=3, per=64.0)}
    await queue.open(replace(WIDE, order=order, user_rate=TWO))
    await fill(queue, "f1 f2", plan="free")
    await fill(queue, "g1", each=4, plan="gold")
    await fill(queue, "other", plan="silver")
    await fill(queue, "none")
    assert await claimed_users(queue) == {"f1": 1, "f2": 1, "g1": 3, "other": 2, "none": 2}


async def test_the_rate_of_a_plan_holds_in_each_service_by_itself(queue: QueueHarness) -> None:
    queue.plan_rates = {"free": ONE}
    await queue.open(WIDE, ServiceRules("t", limit=9))
    for service in "st":
        await queue.offer_all([f"{service}{n}" for n in range(3)], "ann", service, plan="free")
    assert sorted(await queue.claimed(9)) == ["s0", "t0"]


async def test_a_user_at_the_rate_of_its_plan_waits_for_the_window_and_blocks_no_one(queue: QueueHarness) -> None:
    queue.plan_rates = {"free": ONE}
    await queue.open(WIDE)
    await fill(queue, "ann bob", plan="free")
    first = await queue.claim(9)
    assert [lease.job_id for lease in first] == ["ann0", "bob0"]
    await end_all(queue, first)
    assert await queue.claimed(9) == []
    place = (await queue.dispatcher.positions(["ann1"]))["ann1"]
    assert place.user_rate_wait == pytest.approx(WINDOW, abs=1.0)
    queue.clock.advance(WINDOW)
    assert await queue.claimed(9) == ["ann1", "bob1"]


async def test_another_plan_applies_from_the_next_grant_on(queue: QueueHarness) -> None:
    queue.plan_rates = {"free": ONE, "gold": Rate(requests=5, per=64.0)}
    await queue.open(WIDE)
    await queue.offer_all("ab", plan="free")
    await end_all(queue, [await queue.take()])
    await queue.offer_all("cdefgh", plan="gold", rank=0)
    assert await queue.claimed(9) == [], "the rate of the old plan is used up"
    queue.clock.advance(WINDOW)
    assert await queue.claimed(9) == ["c", "d", "e", "f", "g"]


async def test_a_changed_rate_of_a_plan_applies_at_once_and_keeps_what_was_counted(queue: QueueHarness) -> None:
    queue.plan_rates = {"free": ONE, "gold": TWO}
    await queue.open(WIDE)
    await fill(queue, "ann", each=9, plan="free")
    await fill(queue, "bob", each=9, plan="gold")
    assert await claimed_users(queue) == {"ann": 1, "bob": 2}
    queue.plan_rates = {"free": Rate(requests=3, per=64.0), "gold": TWO}
    await queue.configure()
    assert await claimed_users(queue) == {"ann": 2}
    queue.plan_rates = {}
    await queue.configure()
    assert await claimed_users(queue) == {"ann": 2, "bob": 2}, "nothing but the limit of 9 slots holds"


async def test_the_tokens_of_a_plan_are_counted(queue: QueueHarness) -> None:
    queue.plan_rates = {"free": Rate(units=100.0, per=64.0)}
    await queue.open(WIDE)
    await queue.offer_all("abc", plan="free", cost=60.0)
    await queue.offer_all("xyz", "bob", cost=60.0)
    (first, *_) = await queue.claim(9)
    assert first.job_id == "a"
    await queue.end(first, used=30.0)
    assert await queue.claimed(9) == ["b"]


async def test_a_rebuild_restores_what_plans_count(queue: QueueHarness) -> None:
    queue.plan_rates = {"free": TWO}
    await queue.open(WIDE)
    await queue.dispatcher.close_scope("service:s", 2)
    running = Lease("1:1", "r", 0, 1, "s", "ann", "w", queue.clock.now, 0.0, plan="free")
    await queue.dispatcher.restore("service:s", 2, [running], [])
    spent = Spent("s", None, "ann", queue.clock.now - 1.0, plan="free")
    await queue.dispatcher.restore_spent("service:s", 2, [spent])
    await fill(queue, "ann bob", plan="free")
    await queue.dispatcher.open_scope("service:s", 2)
    assert await claimed_users(queue) == {"bob": 2}


# -- groups -----------------------------------------------------------------------------------------------------------


async def test_the_members_of_a_group_share_its_rate_and_block_no_one(queue: QueueHarness) -> None:
    three = GroupRules(rate=Rate(requests=3, per=64.0))
    await queue.open(WIDE, groups={"acme": three, "acme/red": GroupRules(rate=ONE)})
    await fill(queue, "r1 r2", group="acme/red")
    await fill(queue, "b1", group="acme/blue")
    await fill(queue, "free")
    leases = await queue.claim(9)
    users = Counter(lease.user_id[0] for lease in leases)
    assert users == {"r": 1, "b": 2, "f": 3}
    assert await uses(queue) == {"acme": 3, "acme/red": 1}
    assert {each.path for each in (await queue.see()).groups if each.parked} == {"acme", "acme/red"}
    queue.wakeups()
    await end_all(queue, leases)
    assert await queue.claimed(9) == []
    place = (await queue.dispatcher.positions(["r21"]))["r21"]
    assert [round(group.rate_wait / WINDOW) for group in place.groups] == [2, 3]
    assert not place.starts_at_once
    queue.clock.advance(WINDOW)
    users = Counter(lease.user_id[0] for lease in await queue.claim(9))
    assert users == {"r": 1, "b": 1}, "three of acme in a window, of which one of red; blue has no more"


async def test_a_call_that_was_never_made_gives_the_rate_of_the_group_back(queue: QueueHarness) -> None:
    await queue.open(WIDE, groups={"acme": GroupRules(rate=ONE)})
    await fill(queue, "ann bob", group="acme")
    (lease,) = await queue.claim(9)
    await queue.end(lease, refund=True)
    assert await queue.claimed(9) == ["bob0"]


@pytest.mark.parametrize("change", ["renewed", "expired"])
async def test_a_lease_with_another_expiry_keeps_its_group(queue: QueueHarness, change: str) -> None:
    await queue.open(WIDE, groups={"acme": GroupRules(rate=ONE)})
    await fill(queue, "ann bob", group="acme")
    (lease,) = await queue.claim(9)
    if change == "renewed":
        assert not queue.dispatcher.renew("w", [lease.name]).lost
    else:
        await queue.dispatcher.expire([lease])
    await queue.end(lease, refund=True)
    assert await queue.claimed(9) == ["bob0"]


async def test_a_sent_call_leaves_the_window_of_the_group(queue: QueueHarness) -> None:
    await queue.open(WIDE, groups={"acme": GroupRules(rate=ONE)})
    await fill(queue, "ann bob", group="acme")
    (lease,) = await queue.claim(9)
    queue.clock.advance(100.0)
    assert await queue.claimed(9) == [], "it is not known when it was sent"
    await queue.dispatcher.sent([Sent(lease.name, "s", 1.0)])
    assert await queue.claimed(9) == ["bob0"]


async def test_the_limit_and_the_rate_of_a_group_hold_together(queue: QueueHarness) -> None:
    await queue.open(WIDE, groups={"acme": GroupRules(limit=1, rate=TWO)})
    await fill(queue, "ann bob", group="acme")
    for _ in range(2):
        (lease,) = await queue.claim(9)
        await queue.end(lease, after=1.0)
    assert await queue.claimed(9) == []
    queue.clock.advance(WINDOW)
    assert len(await queue.claim(9)) == 1


async def test_a_user_that_leaves_its_group_gives_back_what_the_group_counted(queue: QueueHarness) -> None:
    await queue.open(WIDE, groups={"acme": GroupRules(rate=ONE), "other": GroupRules(rate=TWO)})
    await fill(queue, "ann bob", each=2, group="acme")
    (lease,) = await queue.claim(9)
    assert lease.user_id == "ann"
    await queue.offer("moved", "ann", group="other")
    assert await claimed_users(queue) == {"ann": 2}
    await queue.end(lease, refund=True)
    assert await uses(queue) == {"other": 2}
    assert await claimed_users(queue) == {"bob": 1}


async def test_a_changed_rate_of_a_group_applies_at_once(queue: QueueHarness) -> None:
    await queue.open(WIDE, groups={"acme": GroupRules(rate=ONE)})
    await fill(queue, "ann bob", group="acme")
    assert len(await queue.claim(9)) == 1
    await queue.configure(groups={"acme": GroupRules(rate=TWO)})
    assert len(await queue.claim(9)) == 1
    await queue.configure(groups={"acme": GroupRules()})
    assert len(await queue.claim(9)) == 4
    assert await uses(queue) == {}


async def test_a_rebuild_restores_what_groups_count(queue: QueueHarness) -> None:
    await queue.open(WIDE, groups={"acme": GroupRules(rate=Rate(requests=3, per=64.0))})
    await queue.dispatcher.close_scope("service:s", 2)
    running = Lease("1:1", "r", 0, 1, "s", "ann", "w", queue.clock.now, 0.0, group="acme/red")
    await queue.dispatcher.restore("service:s", 2, [running], [])
    spent = Spent("s", None, "ann", queue.clock.now - 1.0, group="acme/red")
    await queue.dispatcher.restore_spent("service:s", 2, [spent])
    await fill(queue, "ann bob", group="acme/red")
    await queue.dispatcher.open_scope("service:s", 2)
    assert await uses(queue) == {"acme": 2}
    assert len(await queue.claim(9)) == 1
    await queue.end(running, refund=True)
    assert len(await queue.claim(9)) == 1


async def test_fifo_services_ignore_the_rates_of_groups(queue: QueueHarness) -> None:
    await queue.open(replace(WIDE, order=Order.FIFO), groups={"acme": GroupRules(rate=ONE)})
    await fill(queue, "ann bob", group="acme")
    assert len(await queue.claim(9)) == 6


@pytest.mark.parametrize("by", ["exchange", "release"])
async def test_a_call_that_outlasts_the_window_of_its_group_counts_only_what_it_used_in_the_end(
    queue: QueueHarness, by: str
) -> None:
    """The request that was sent is over; the units beyond the estimate may have been counted as late as at the end."""
    await queue.open(WIDE, groups={"acme": GroupRules(rate=Rate(requests=2, units=50.0, per=64.0))})
    await queue.offer("a", group="acme", cost=4.0)
    lease = await queue.take()
    await queue.dispatcher.sent([Sent(lease.name, "s", 0.5)])
    queue.clock.advance(2 * WINDOW)
    release = Release(lease.name, "s", used=10.0)
    if by == "exchange":
        await queue.dispatcher.exchange(Claim("w", 1, frozenset("s")), [release])
    else:
        await queue.dispatcher.release([release])
    (use,) = (await queue.see()).rates
    assert (use.requests, use.units) == (0, 6.0)


@pytest.mark.parametrize("regions", [{}, {"eu": 4, "us": 4}])
async def test_a_user_at_the_user_rate_is_parked_by_its_offer_even_if_other_steps_are_runnable(
    queue: QueueHarness, regions: dict[str, int]
) -> None:
    """Its turn then counts from the time at which the rate allows its step, whatever happens in between."""
    await queue.open(ServiceRules("s", limit=9, user_rate=Rate(requests=1, per=64.0), regions=regions))
    await queue.offer("ann 0")
    await queue.take()
    await queue.offer("bob 0", "bob", band=3)
    await queue.offer("ann 1")
    assert {user.user_id: user.parked for user in (await queue.see()).users} == {"ann": True, "bob": False}


@pytest.mark.parametrize("change", ["rate", "group"])
async def test_a_group_that_a_changed_order_removed_can_be_joined_again(queue: QueueHarness, change: str) -> None:
    """The order and a rule of members change at once, twice; the user leaves the group in between."""
    first = replace(WIDE, order=Order.FIFO, user_rate=TWO if change == "rate" else None)
    await queue.open(WIDE, groups={"acme": GroupRules(limit=1)})
    await queue.offer("a0", "ann", group="acme")
    await queue.configure(first, groups={"acme": GroupRules(limit=3 if change == "group" else 1)})
    await queue.offer("a1", "ann", group=None)
    await queue.configure(WIDE, groups={"acme": GroupRules(limit=1)})
    await queue.offer_all(["b0", "b1"], "bob", group="acme")
    assert sorted(await queue.claimed(9)) == ["a0", "a1", "b0"]


async def test_a_user_whom_a_claim_of_its_band_finds_at_its_rate_is_unparked_in_time(queue: QueueHarness) -> None:
    await queue.open(replace(WIDE, user_rate=Rate(requests=2, per=60.0)))
    low = frozenset((3,))
    for job, then in ("first", 50.0), ("second", 11.0):
        await queue.offer(job)
        await queue.end(await queue.take(), sent=0.0)
        queue.clock.advance(then)
    assert await queue.claimed() == []
    await queue.offer("of others", "bob", band=1)
    await queue.offer("third", band=3)
    queue.clock.advance(1.0)
    assert await queue.claimed(1, bands=low) == []
    queue.clock.advance(2.0)  # the first call no longer counts
    assert await queue.claimed(1, bands=low) == ["third"]


@pytest.mark.parametrize("members", ["users", "groups"])
async def test_late_units_do_not_count_for_members_of_whom_nothing_else_counts(
    queue: QueueHarness, members: str
) -> None:
    """The call was sent so long ago that the window of its user or group is gone."""
    rate = Rate(units=4.0, per=64.0)
    await queue.open(
        replace(WIDE, user_rate=rate if members == "users" else None),
        groups={"acme": GroupRules(rate=rate if members == "groups" else None)},
    )
    await queue.offer_all("abc", cost=2.0, group="acme")
    lease = await queue.take()
    await queue.dispatcher.sent([Sent(lease.name, "s", 0.5)])
    queue.clock.advance(2 * WINDOW)
    assert await uses(queue) == {}
    await queue.end(lease, used=5.0)
    assert await uses(queue) == {}
    assert await queue.claimed(9) == ["b", "c"]


async def test_users_without_a_group_do_not_count_in_one_that_is_named_like_their_turn(queue: QueueHarness) -> None:
    path = "0000000000000005"  # newcomers are sorted by their number, in 16 digits
    await queue.open(WIDE, groups={path: GroupRules(rate=Rate(requests=50, per=64.0))})
    await queue.offer_all("abc", group=path)
    first, *others = await queue.claim(3)
    await queue.end(first)
    await fill(queue, "u1 u2 u3 u4 u5 u6", each=1)
    ended = [Release(lease.name, "s") for lease in others]
    assert len(await queue.dispatcher.exchange(Claim("w", 9, frozenset("s")), ended)) == 6
    assert await uses(queue) == {path: 3}


async def test_a_service_that_became_fifo_does_not_keep_the_calls_of_another_in_their_group(
    queue: QueueHarness,
) -> None:
    fair, other = ServiceRules("s", limit=9, pool="p"), ServiceRules("t", limit=9, pool="p")
    await queue.open(fair, other, pools={"p": 9}, groups={"acme": GroupRules(rate=Rate(requests=5, per=64.0))})
    for service in "st":
        await queue.offer_all([f"{service}{n}" for n in range(2)], "ann", service, group="acme")
    leases = {lease.job_id: lease for lease in await queue.claim(9)}
    await queue.configure(replace(other, order=Order.FIFO))
    ended = [Release(leases[job].name, leases[job].service) for job in ("s0", "t0", "s1")]
    await queue.dispatcher.release(ended)
    assert await uses(queue) == {"acme": 2}
    queue.clock.advance(2 * WINDOW)
    assert await uses(queue) == {}


@pytest.mark.parametrize("of", ["plan", "group", "user"])
async def test_calls_that_run_while_a_rate_is_removed_do_not_count_when_it_is_set_again(
    queue: QueueHarness, of: str
) -> None:
    async def set_rate(rate: Rate | None) -> None:
        queue.plan_rates = {"free": rate} if of == "plan" and rate else {}
        groups = {"acme": GroupRules(rate=rate if of == "group" else None)}
        await queue.configure(replace(WIDE, user_rate=rate if of == "user" else None), groups=groups)

    await queue.open(WIDE)
    await set_rate(TWO)
    await fill(queue, "ann", each=9, plan="free", group="acme")
    running = await queue.claim(9)
    assert len(running) == 2
    await set_rate(None)
    await end_all(queue, running[:1])
    await set_rate(TWO)
    await end_all(queue, running[1:])
    assert await claimed_users(queue) == {"ann": 2}
    assert await queue.dispatcher.check() == []
