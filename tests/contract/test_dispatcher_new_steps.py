"""The contract of every dispatcher: steps that are claimed before they are in the queue."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace

import pytest

from fairlead.dispatch.port import Claim, Lease, Offer, Release, ServiceSnapshot
from fairlead.dispatch.redis.claim_new import MOST, ClaimNew
from fairlead.domain.groups import GroupRules
from fairlead.domain.rates import Rate
from fairlead.domain.rules import Order, ServiceRules
from tests.contract.dispatchers import ENGINES, FakeClock, QueueHarness, claimed_new


async def nothing_waits(queue: QueueHarness, *jobs: str) -> None:
    assert await queue.dispatcher.positions(jobs) == {}
    assert sum((await queue.see()).waiting.values()) == 0
    await queue.dispatcher.check()


async def test_a_new_step_is_claimed_within_the_limit_and_leaves_no_trace_otherwise(queue: QueueHarness) -> None:
    await queue.open(ServiceRules("s", limit=1))
    lease = await queue.claim_new("a", weight=2.0)
    assert lease is not None
    assert (await queue.see()).leases == (lease,)
    assert await queue.claim_new("b", "bob") is None
    await nothing_waits(queue, "a", "b")
    assert await queue.user("bob") is None
    assert not await queue.offer("a", run=0), "a late offer is ignored while the lease lasts"
    await queue.end(lease)
    assert (await queue.see()).leases == ()
    assert await queue.claim_new("b") is not None


async def test_a_new_step_does_not_overtake_the_step_that_is_next(queue: QueueHarness) -> None:
    await queue.open(ServiceRules("s", limit=1))
    await queue.offer("first", "bob")
    assert await queue.claim_new("new") is None
    assert await queue.claimed() == ["first"]


async def test_a_new_step_may_precede_steps_of_lower_bands(queue: QueueHarness) -> None:
    await queue.open(ServiceRules("s", limit=1))
    await queue.offer("low", "bob", band=3)
    assert await queue.claim_new("new") is not None
    assert await queue.positions("low") == [1]


async def test_a_new_step_is_charged_like_any_other(queue: QueueHarness) -> None:
    """The same steps of the same users, claimed as new ones of `s` and from the queue of `t`."""
    await queue.open(ServiceRules("s", limit=2), ServiceRules("t", limit=2))
    for number, (user, seconds) in enumerate([("ann", 2.0), ("bob", 1.0), ("ann", 3.0), ("ann", 1.0), ("bob", 4.0)]):
        new = await queue.claim_new(f"s{number}", user, cost=2.0, weight=2.0)
        await queue.offer(f"t{number}", user, "t", cost=2.0, weight=2.0)
        queued = await queue.take("t")
        assert new is not None
        await queue.end(new, after=seconds)
        await queue.end(queued)
        queue.clock.advance(0.5)
    for service in ("s", "t"):
        await queue.offer_all([f"{service} of ann", f"{service} of ann again"], "ann", service)
        await queue.offer(f"{service} of bob", "bob", service)
    tags = {service: [await queue.tag(user, service) for user in ("ann", "bob")] for service in ("s", "t")}
    assert tags["s"] == tags["t"]
    assert None not in tags["s"]


@pytest.mark.parametrize("limits", [{"paused": True}, {"user_limit": 1}, {"rate": Rate(requests=1, per=64.0)}])
async def test_a_new_step_keeps_to_pauses_limits_of_users_and_rates(
    queue: QueueHarness, limits: dict[str, object]
) -> None:
    await queue.open(ServiceRules("s", limit=9, **limits))  # type: ignore[arg-type]
    first = await queue.claim_new("a")
    assert (first is None) == ("paused" in limits)
    assert await queue.claim_new("b") is None
    assert (await queue.claim_new("c", "bob") is None) == ("user_limit" not in limits)
    await nothing_waits(queue, "a", "b", "c")
    await queue.change("s", paused=False, user_limit=None, rate=None)
    assert await queue.claim_new("b") is not None


async def test_a_new_step_keeps_to_the_limit_of_its_group(queue: QueueHarness) -> None:
    await queue.open(ServiceRules("s", limit=9), groups={"acme": GroupRules(limit=1)})
    assert await queue.claim_new("a", group="acme") is not None
    assert await queue.claim_new("b", "bob", group="acme") is None
    assert await queue.claim_new("c", "bob") is not None
    await nothing_waits(queue, "a", "b", "c")


async def test_a_hold_that_is_over_frees_its_slot_for_a_new_step(queue: QueueHarness) -> None:
    await queue.open(ServiceRules("s", limit=1))
    await queue.hold("gone", 10.0)
    assert await queue.claim_new("a") is None
    queue.clock.advance(10.5)
    assert await queue.claim_new("a") is not None


async def test_a_new_step_that_is_known_wakes_workers_for_a_hold_that_is_over(queue: QueueHarness) -> None:
    await queue.open(ServiceRules("s", limit=1))
    await queue.hold("gone", 10.0)
    await queue.offer("a")
    queue.wakeups()
    queue.clock.advance(10.5)
    assert await queue.claim_new("a") is None
    assert queue.wakeups() == [{"s"}]
    assert await queue.claimed() == ["a"]


async def test_a_closed_scope_grants_no_new_step(queue: QueueHarness) -> None:
    await queue.open(ServiceRules("s", limit=1))
    await queue.dispatcher.close_scope("service:s", epoch=2)
    assert await queue.claim_new("a") is None


async def test_the_lease_of_a_new_step_expires_and_is_taken_back(queue: QueueHarness) -> None:
    """As if its process had died before the commit."""
    await queue.open(ServiceRules("s", limit=1))
    lease = await queue.claim_new("a")
    assert lease is not None
    queue.clock.advance(60.0)
    assert [each.name for each in await queue.dispatcher.expired()] == [lease.name]
    assert await queue.claim_new("b") is None
    await queue.dispatcher.release([Release(lease.name, "s", scope=lease.scope)])
    assert await queue.claim_new("b") is not None


async def test_a_new_step_does_not_hide_what_its_worker_claims_for_in_pools(queue: QueueHarness) -> None:
    """The services `a` and `b` share one slot, and another worker serves `b`."""
    pooled = [ServiceRules(name, limit=5, pool="p") for name in ("a", "b")]
    await queue.open(ServiceRules("s", limit=5), *pooled, pools={"p": 1})
    first, second = Claim("w", 5, frozenset({"a", "s"})), Claim("v", 5, frozenset({"b"}))
    await queue.dispatcher.exchange(first)
    await queue.offer("b1", service="b")
    (lease,) = await queue.dispatcher.exchange(second)
    await queue.offer("a1", service="a")
    await queue.offer("b2", service="b")
    assert await queue.claim_new("new") is not None
    assert await queue.dispatcher.exchange(second, [Release(lease.name, "b")]) == [], "it is the turn of a"
    assert [each.job_id for each in await queue.dispatcher.exchange(first)] == ["a1"]


@pytest.mark.parametrize("rules", [{"pool": "p"}, {"regions": {"eu": 1}}, {"order": Order.FIFO}])
async def test_new_steps_of_pools_regions_and_fifo_lanes_are_left_to_claims(
    queue: QueueHarness, rules: dict[str, object]
) -> None:
    await queue.open(ServiceRules("s", limit=1, **rules), pools={"p": 1})  # type: ignore[arg-type]
    assert await queue.claim_new("new") is None


async def shown(queue: QueueHarness) -> ServiceSnapshot:
    """Without what each engine numbers for itself."""
    seen = await queue.see()
    users = [replace(user, arrival=min(1, user.arrival)) for user in seen.users]
    return replace(seen, leases=(), users=tuple(sorted(users, key=lambda user: (user.user_id, user.band))))


async def test_new_steps_are_granted_and_charged_alike_by_both_dispatchers() -> None:
    """Both grant a step that is alone without queueing it."""
    queues = [QueueHarness(await ENGINES[name](clock), clock) for name in ENGINES for clock in [FakeClock()]]
    pairs: list[tuple[Lease, ...]] = []
    draw = random.Random(1)
    for queue in queues:
        await queue.open(ServiceRules("s", limit=6, user_limit=3, retries_first=True, cost_unit="tokens"))
    for number in range(400):
        user, what, pick, after = draw.choice("abcdefgh"), draw.random(), draw.random(), draw.randrange(96) / 64
        step = {"band": draw.randrange(1, 4), "rank": draw.randrange(3), "weight": draw.choice([1.0, 2.0])}
        step["cost"] = draw.choice([None, None, 3.0])
        for queue in queues:
            queue.clock.advance(after)
        if what < 0.5:
            got = tuple([await queue.claim_new(f"job {number}", user, **step) for queue in queues])
        elif what < 0.55:
            for queue in queues:
                await queue.offer(f"job {number}", user, **step)
            got = ()
        elif what < 0.65:
            got = tuple([(await queue.claim(1) or [None])[0] for queue in queues])  # type: ignore[list-item]
        else:
            for queue, lease in zip(queues, pairs.pop(int(pick * len(pairs))) if pairs else (), strict=False):
                await queue.end(lease)
            got = ()
        assert [lease is None for lease in got] in ([], [True, True], [False, False])
        pairs += [got] if got and got[0] else []  # type: ignore[list-item]
        memory, redis = [await shown(queue) for queue in queues]
        assert memory == redis
    for queue in queues:
        await queue.dispatcher.close()


class Failing(ClaimNew):
    async def _claim(
        self, scope: str, worker: str, offers: Sequence[Offer], releases: Sequence[Release]
    ) -> tuple[list[Lease | None], bool]:
        raise ValueError("a reply that cannot be decoded")


async def test_new_steps_take_the_usual_way_if_their_claim_fails() -> None:
    claim_new = Failing(SimpleNamespace(_scopes=SimpleNamespace(of=str)))  # type: ignore[arg-type]
    offers = [Offer(f"job {n}", 1, "s", "ann", 2, 0, 0, 0) for n in range(MOST + 1)]
    async with asyncio.timeout(10):
        assert set(await asyncio.gather(*[claimed_new(claim_new, offer) for offer in offers])) == {None}
