"""The contract of every dispatcher: groups of users share slots, and have limits."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from fairlead.dispatch.port import Claim, Release
from fairlead.domain.groups import GroupRules
from fairlead.domain.rules import Order, ServiceRules
from tests.contract.dispatchers import QueueHarness

ONE = ServiceRules("s", limit=1)


async def fill(queue: QueueHarness, teams: dict[str | None, list[str]], each: int = 20) -> None:
    for group, users in teams.items():
        for user in users:
            await queue.offer_all([f"{user} {n}" for n in range(each)], user, group=group)


async def served_users(queue: QueueHarness, count: int) -> list[str]:
    return [job.split()[0] for job in await queue.serve(count)]


async def test_a_team_with_many_users_gets_no_more_than_a_team_with_one(queue: QueueHarness) -> None:
    await queue.open(ONE)
    many = [f"m{number}" for number in range(10)]
    await fill(queue, {"many": many, "one": ["solo"], None: ["free"]}, each=12)
    shares = Counter("many" if user in many else user for user in await served_users(queue, 33))
    assert shares == {"many": 11, "solo": 11, "free": 11}


async def test_slots_are_shared_by_weight_between_groups_and_then_within_them(queue: QueueHarness) -> None:
    await queue.open(ONE, groups={"acme": GroupRules(3.0), "acme/red": GroupRules(2.0)})
    await fill(queue, {"acme/red": ["r1", "r2"], "acme/blue": ["b1"], "other": ["o1"]})
    shares = Counter(await served_users(queue, 36))
    assert shares["o1"] == 9
    assert shares["b1"] == 9
    assert shares["r1"] == shares["r2"] == 9
    await queue.configure(ONE, groups={"acme": GroupRules(1.0)})
    assert Counter(await served_users(queue, 12))["o1"] in (5, 6, 7)


async def test_the_first_job_of_a_new_member_and_of_a_new_group_goes_first(queue: QueueHarness) -> None:
    await queue.open(ONE)
    await fill(queue, {"red": ["r1", "r2"], "blue": ["b1"]}, each=9)
    await served_users(queue, 8)
    await queue.offer("new member", "r3", group="red")
    await queue.offer("new group", "g1", group="green")
    served = await queue.serve(3)
    assert served[0] == "new group"
    assert "new member" in served


async def test_idle_time_earns_a_group_no_credit(queue: QueueHarness) -> None:
    await queue.open(ONE)
    await fill(queue, {"red": ["r1"], "blue": ["b1"]}, each=20)
    await served_users(queue, 20)
    await fill(queue, {"green": ["g1"]}, each=9)
    assert Counter(await served_users(queue, 9))["g1"] <= 4


async def test_a_group_is_charged_what_its_calls_really_took(queue: QueueHarness) -> None:
    """The calls of one team take ten times as long, so it gets a tenth of the grants."""
    await queue.open(ONE)
    await fill(queue, {"slow": ["s1", "s2"], "fast": ["f1", "f2"]}, each=60)
    seconds: Counter[str] = Counter()
    for _ in range(60):
        lease = await queue.take()
        took = 10.0 if lease.user_id.startswith("s") else 1.0
        await queue.end(lease, after=took)
        seconds[lease.user_id[0]] += int(took)
    assert abs(seconds["s"] - seconds["f"]) <= 20


async def test_a_refund_returns_the_charge_of_the_group(queue: QueueHarness) -> None:
    await queue.open(ONE)
    await fill(queue, {"acme/red": ["r1"], "blue": ["b1"]}, each=3)
    await queue.serve(2)
    before = await groups(queue)
    await queue.end(await queue.take(), refund=True)
    after = await groups(queue)
    assert [(each.path, each.tag) for each in after] == [(each.path, each.tag) for each in before]


async def groups(queue: QueueHarness) -> list:  # type: ignore[type-arg]
    return sorted((await queue.see()).groups, key=lambda each: (each.path, each.band))


@pytest.mark.parametrize("weight", [1.0, 2.0])
async def test_a_group_pays_for_calls_that_began_in_fifo_order(queue: QueueHarness, weight: float) -> None:
    """No one was charged when they began."""
    await queue.open(
        ServiceRules("s", limit=1, order=Order.FIFO), groups={"acme": GroupRules(weight), "acme/red": GroupRules()}
    )
    await queue.offer_all(["a", "b"], "ann", group="acme/red")
    lease = await queue.take()
    await queue.change("s", order=Order.FAIR)
    await queue.end(lease, after=4.0)
    assert await queue.tag("ann", band=1) == 4.0
    tags = {group.path: group.tag / 1e6 for group in (await queue.see()).groups if group.band == 1}
    assert tags == {"acme": 4.0 / weight, "acme/red": 4.0}


async def test_declared_groups_are_shown_without_a_pass_over_the_users(queue: QueueHarness) -> None:
    await queue.open(ONE, groups={"acme": GroupRules(2.0, 1), "other": GroupRules()})
    await fill(queue, {"acme/red": ["r1", "r2"], "new": ["n1"], None: ["free"]}, each=2)
    (lease,) = await queue.claim()
    (seen,) = await queue.dispatcher.snapshot(["s"])
    (acme,) = seen.groups
    assert (acme.path, acme.weight, acme.limit, acme.members, acme.running) == ("acme", 2.0, 1, 1, 1)
    assert (acme.parked, lease.user_id, seen.users) == (True, "r1", ())
    assert {each.path for each in await groups(queue)} == {"acme", "acme/red", "new"}


async def test_a_group_at_its_limit_is_set_aside_and_does_not_block_others(queue: QueueHarness) -> None:
    await queue.open(ServiceRules("s", limit=9), groups={"acme": GroupRules(limit=3), "acme/red": GroupRules(limit=2)})
    await fill(queue, {"acme/red": ["r1", "r2"], None: ["free"]}, each=5)
    await queue.offer("b1 0", "b1", group="acme/blue")
    leases = await queue.claim(9)
    running = Counter(lease.user_id[0] for lease in leases)
    assert (running["r"], running["b"], running["f"]) == (2, 1, 5)
    assert await queue.claimed(9) == []
    parked = {each.path for each in await groups(queue) if each.parked}
    assert parked == {"acme", "acme/red"}
    queue.wakeups()
    red = next(lease for lease in leases if lease.user_id.startswith("r"))
    await queue.end(red, after=1.0)
    assert queue.wakeups() == [{"s"}]
    (again,) = await queue.claim(9)
    assert again.user_id[0] == "r"


async def test_a_limit_that_is_raised_lets_a_parked_group_go_on(queue: QueueHarness) -> None:
    await queue.open(ServiceRules("s", limit=9), groups={"red": GroupRules(limit=1)})
    await fill(queue, {"red": ["r1", "r2"]}, each=2)
    assert len(await queue.claim(9)) == 1
    queue.wakeups()
    await queue.configure(queue.rules["s"], groups={"red": GroupRules(limit=3)})
    assert queue.wakeups() == [{"s"}]
    assert len(await queue.claim(9)) == 2
    await queue.configure(queue.rules["s"], groups={"red": GroupRules()})
    assert len(await queue.claim(9)) == 1


async def test_limits_of_users_and_groups_hold_together(queue: QueueHarness) -> None:
    await queue.open(ServiceRules("s", limit=9, user_limit=1), groups={"red": GroupRules(limit=2)})
    await fill(queue, {"red": ["r1", "r2", "r3"]}, each=2)
    first = await queue.claim(9)
    assert [lease.user_id for lease in first] == ["r1", "r2"]
    await queue.end(first[0], after=1.0)
    assert [lease.user_id for lease in await queue.claim(9)] == ["r3"]


async def test_a_user_that_moves_to_another_group_takes_its_slots_along(queue: QueueHarness) -> None:
    await queue.open(ServiceRules("s", limit=9), groups={"red": GroupRules(limit=2), "blue": GroupRules(limit=3)})
    await fill(queue, {"red": ["ann", "bob"]}, each=4)
    leases = await queue.claim(9)
    assert len(leases) == 2
    await queue.offer("moved", leases[0].user_id, group="blue")
    assert {each.path: each.running for each in await groups(queue)} == {"red": 1, "blue": 1}
    assert len(await queue.claim(9)) == 3  # one of red, two of blue
    for lease in leases:
        await queue.end(lease, after=1.0)
    await queue.offer("alone", "ann", group=None)
    await queue.offer("alone too", "bob", group=None)
    assert (await queue.see()).users
    assert {queue.group for queue in (await queue.see()).users} == {None}
    assert sum(each.running for each in await groups(queue)) == 0
    assert len(await queue.claim(9)) == 6


async def test_the_group_that_a_user_joins_goes_before_the_one_that_its_move_unparks(queue: QueueHarness) -> None:
    await queue.open(ServiceRules("s", limit=9), groups={"a-red": GroupRules(limit=1)})
    await queue.offer("running", "cleo")
    await queue.take()
    await queue.offer("ann 0", "ann", group="a-red")
    await queue.offer("cleo 0", "cleo", group="a-red")  # with its running step, the group is full
    assert await queue.claimed(9) == []
    await queue.offer("cleo 1", "cleo", group="solo")
    assert await queue.claimed(1) == ["cleo 0"]
    assert await queue.claimed(1) == ["ann 0"]


async def test_workers_are_woken_for_a_user_that_moved_to_a_full_group_and_leaves_it(queue: QueueHarness) -> None:
    await queue.open(ServiceRules("s", limit=9), groups={"red": GroupRules(limit=1)})
    await queue.offer("bob 0", "bob", group="red")
    await queue.take()
    await queue.offer("ann 0", "ann", group=None)
    await queue.offer("ann 1", "ann", group="red")
    assert await queue.claimed(9) == []
    queue.wakeups()
    await queue.offer("ann 2", "ann", group=None)
    assert queue.wakeups() == [{"s"}]


async def test_workers_are_woken_when_a_full_group_that_a_user_moved_to_has_a_slot(queue: QueueHarness) -> None:
    await queue.open(ServiceRules("s", limit=9), groups={"red": GroupRules(limit=1)})
    await queue.offer("bob 0", "bob", group="red")
    lease = await queue.take()
    await queue.offer("ann 0", "ann", group=None)
    await queue.offer("ann 1", "ann", group="red")
    queue.wakeups()
    await queue.end(lease, after=1.0)
    assert queue.wakeups() == [{"s"}]


async def test_groups_without_members_and_debts_are_forgotten(queue: QueueHarness) -> None:
    await queue.open(ONE)
    await fill(queue, {"acme/red": ["r1"]}, each=2)
    assert [each.path for each in await groups(queue)] == ["acme", "acme/red"]
    await queue.withdraw("r1 0")
    await queue.withdraw("r1 1")
    assert await groups(queue) == []
    assert (await queue.see()).users == ()


async def test_a_rebuild_restores_groups_and_their_running_calls(queue: QueueHarness) -> None:
    await queue.open(ServiceRules("s", limit=9), groups={"acme": GroupRules(limit=2)})
    await fill(queue, {"acme/red": ["r1", "r2"], None: ["free"]}, each=3)
    leases = [lease for lease in await queue.claim(4) if lease.user_id != "free"]
    assert len(leases) == 2
    await queue.dispatcher.close_scope("service:s", 2)
    restored = [replace(lease, group="acme/red") for lease in leases]
    assert await queue.dispatcher.restore("service:s", 2, restored, [])
    await fill(queue, {"acme/red": ["r3"], None: ["free"]}, each=1)
    await queue.dispatcher.open_scope("service:s", 2)
    assert await queue.claimed(9) == ["free 0"]
    exchanged = await queue.dispatcher.exchange(Claim("w", 9, frozenset("s")), [Release(leases[0].name, "s")])
    assert [lease.job_id for lease in exchanged] == ["r3 0"]


@pytest.mark.parametrize("order", Order)
async def test_fifo_services_ignore_groups_until_their_order_changes(queue: QueueHarness, order: Order) -> None:
    await queue.open(ServiceRules("s", limit=1, order=order), groups={"red": GroupRules(limit=1)})
    await queue.offer_all(["a0", "a1", "a2"], "ann", group="red")
    await queue.offer_all(["b0", "b1"], "bob", group="red")
    await queue.offer_all(["c0", "c1"], "cleo")
    if order is Order.FIFO:
        assert await queue.serve(2) == ["a0", "a1"]
        await queue.change("s", order=Order.FAIR)
        assert {each.path: each.members for each in await groups(queue)} == {"red": 2}
    served = Counter(job[0] for job in await queue.serve(4))
    assert served["c"] == 2
    await queue.change("s", order=Order.FIFO if order is Order.FAIR else Order.FAIR)
    assert len(await queue.serve(1)) == 1


async def test_positions_account_for_groups(queue: QueueHarness) -> None:
    await queue.open(ONE)
    await fill(queue, {"many": ["m1", "m2", "m3"], "acme/one": ["solo"]}, each=3)
    jobs = [f"{user} {n}" for user in ("m1", "m2", "m3", "solo") for n in range(3)]
    places = await queue.dispatcher.positions(jobs)
    in_order = sorted(jobs, key=lambda job: places[job].position)
    assert [places[job].position for job in in_order] == list(range(1, 13))
    second = places["solo 1"]
    assert [(group.path, group.ahead) for group in second.groups] == [("acme", 1), ("acme/one", 1)]
    assert (second.ahead_own, second.ahead_of_group, second.ahead_groups) == (1, 0, second.position - 2)
    assert [group.path for group in places["m2 0"].groups] == ["many"]
    assert await queue.serve(12) == in_order


async def test_estimated_waits_account_for_the_limit_of_a_group(queue: QueueHarness) -> None:
    await queue.open(ServiceRules("s", limit=9, cost=10.0), groups={"red": GroupRules(limit=1)})
    await fill(queue, {"red": ["r1", "r2"]}, each=2)
    await queue.claim(9)
    places = await queue.dispatcher.positions(["r2 0", "r2 1"])
    assert not places["r2 0"].starts_at_once
    waits = sorted(place.plain_wait for place in places.values())
    assert waits == [pytest.approx(10.0), pytest.approx(30.0)]
    group = places["r2 0"].waits_for_group
    assert group is not None
    assert (group.path, group.slots, group.free) == ("red", 1, 0)


@pytest.mark.parametrize("groups", [(None, None), ("red", "blue"), ("red", "red"), ("acme/red", "acme/blue")])
@pytest.mark.parametrize(
    ("ended", "seconds", "then"), [("ann", 1.0, "ann 1"), ("bob", 20.0, "ann 1"), ("bob", 9.0, "bob 1")]
)
async def test_a_release_decides_who_is_next_in_the_same_exchange(
    queue: QueueHarness, groups: tuple[str | None, str | None], ended: str, seconds: float, then: str
) -> None:
    """After the first steps, ann is charged 10 s and bob 3 s, so bob is next until a call has ended."""
    await queue.open(ServiceRules("s", limit=9))
    for user, group, cost in zip(("ann", "bob"), groups, (10.0, 3.0), strict=True):
        await queue.offer_all([f"{user} {n}" for n in range(3)], user, group=group, cost=cost)
    leases = {lease.user_id: lease for lease in await queue.claim(2)}
    queue.clock.advance(seconds)
    release = Release(leases[ended].name, "s")
    (lease,) = await queue.dispatcher.exchange(Claim("w", 1, frozenset({"s"})), [release])
    assert lease.job_id == then
