"""The contract of every dispatcher: rates, what they count, and the rests that upstreams ask for."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from heapq import heappop, heappush

import pytest

from fairlead.dispatch.port import Claim, Lease, Release
from fairlead.dispatch.rates import Rest, Sent, Spent
from fairlead.domain.groups import GroupRules
from fairlead.domain.rates import Rate
from fairlead.domain.rules import Order, ServiceRules
from tests.contract.dispatchers import QueueHarness, open_pool

TWO = Rate(requests=2, per=64.0)
WIDTH = 0.64
"""A hundredth of `per`: the end of a grant is rounded up to a multiple of it."""
MARGIN = 1.0


async def release(queue: QueueHarness, lease: Lease, **values: object) -> None:
    await queue.dispatcher.release([Release(lease.name, lease.service, **values)])  # type: ignore[arg-type]


async def end_all(queue: QueueHarness, leases: list[Lease]) -> None:
    for lease in leases:
        await release(queue, lease)


async def used(queue: QueueHarness, kind: str = "service") -> tuple[int, float]:
    (use,) = [use for use in (await queue.see()).rates if use.kind == kind]
    return use.requests, use.units


async def test_a_rate_allows_its_requests_at_once_and_the_next_after_the_window(queue: QueueHarness) -> None:
    await queue.open(ServiceRules("s", limit=9, rate=TWO))
    await queue.offer_all("abcde")
    leases = await queue.claim(9)
    assert [lease.job_id for lease in leases] == ["a", "b"]
    await end_all(queue, leases)
    queue.clock.advance(63.9)
    assert await queue.claimed(9) == []
    queue.clock.advance(0.1 + WIDTH)
    assert await queue.claimed(9) == ["c", "d"]


async def test_a_grant_counts_until_it_was_sent_and_the_window_is_over(queue: QueueHarness) -> None:
    """Both were granted at 0; the second is sent 30 s later, which only its release says."""
    await queue.open(ServiceRules("s", limit=9, rate=TWO))
    await queue.offer_all("abcd")
    first, second = await queue.claim(9)
    await queue.dispatcher.sent([Sent(first.name, "s", 0.5)])
    queue.clock.advance(30.0)
    await release(queue, second)
    queue.clock.advance(34.0 + 0.5 + MARGIN + WIDTH)
    assert await queue.claimed(9) == ["c"]
    queue.clock.advance(28.0)
    assert await queue.claimed(9) == []
    queue.clock.advance(2.0)
    assert await queue.claimed(9) == ["d"]


async def test_a_call_that_runs_longer_than_the_window_counts_until_it_is_known_when_it_was_sent(
    queue: QueueHarness,
) -> None:
    await queue.open(ServiceRules("s", limit=9, rate=Rate(requests=1, per=64.0)))
    await queue.offer_all("abc")
    lease = await queue.take()
    queue.clock.advance(200.0)
    assert await queue.claimed() == []
    await queue.dispatcher.sent([Sent(lease.name, "s", 1.0)])
    assert await queue.claimed() == ["b"], "it was sent 199 s ago"
    await release(queue, lease)
    assert await queue.claimed() == []


async def test_a_release_that_says_when_the_call_was_sent_frees_the_rate_earlier(queue: QueueHarness) -> None:
    await queue.open(ServiceRules("s", limit=9, rate=Rate(requests=1, per=64.0)))
    await queue.offer_all("ab")
    lease = await queue.take()
    queue.clock.advance(40.0)
    await release(queue, lease, sent=1.0)
    queue.clock.advance(24.0 + 1.0 + MARGIN + WIDTH)
    assert await queue.claimed() == ["b"]


@pytest.mark.parametrize("of", ["rate", "user_rate"])
async def test_a_window_of_many_calls_forgets_each_of_them_in_time(queue: QueueHarness, of: str) -> None:
    await queue.open(ServiceRules("s", limit=99, **{of: Rate(requests=30, per=64.0)}))  # type: ignore[arg-type]
    await queue.offer_all([f"job-{number}" for number in range(60)])
    for _ in range(30):
        await release(queue, await queue.take())
        queue.clock.advance(1.0)
    queue.clock.advance(34.0)
    assert await queue.claimed(9) == []
    queue.clock.advance(WIDTH + 0.05)
    for number in range(30, 60):
        await queue.dispatcher.end_holds()
        assert await queue.claimed(9) == [f"job-{number}"]
        queue.clock.advance(1.0)


async def test_calls_that_end_in_another_order_than_they_were_sent_leave_the_window_as_they_were_sent(
    queue: QueueHarness,
) -> None:
    await queue.open(ServiceRules("s", limit=99, rate=Rate(requests=99, units=99.0, per=64.0)))
    await queue.offer_all([f"job-{number}" for number in range(30)], cost=2.0)
    leases = await queue.claim(30)
    queue.clock.advance(40.0)
    for number, lease in enumerate(leases):
        await release(queue, lease, sent=float(7 * number % 30), used=1.0)
    assert await used(queue) == (30, 30.0)
    queue.clock.advance(25.0 + WIDTH + 0.05)
    for left in reversed(range(30)):
        assert await used(queue) == (left, left)
        queue.clock.advance(1.0)


async def test_units_of_calls_that_were_sent_long_ago_are_settled(queue: QueueHarness) -> None:
    await queue.open(ServiceRules("s", limit=99, rate=Rate(units=99.0, per=64.0)))
    await queue.offer_all([f"job-{number}" for number in range(30)], cost=2.0)
    leases = await queue.claim(30)
    for lease in leases:
        queue.clock.advance(1.0)
        await queue.dispatcher.sent([Sent(lease.name, "s", 60.0)])
    assert await used(queue) == (30, 60.0)
    for count, lease in enumerate(leases, start=1):
        await release(queue, lease, used=0.5)
        assert await used(queue) == (30, 60.0 - 1.5 * count)


async def test_what_was_never_called_does_not_count(queue: QueueHarness) -> None:
    await queue.open(ServiceRules("s", limit=9, rate=Rate(requests=1, per=64.0)))
    await queue.offer_all("ab")
    await release(queue, await queue.take(), refund=True)
    assert await queue.claimed() == ["b"]


@pytest.mark.parametrize("order", Order)
async def test_units_are_reserved_at_the_claim_and_settled_at_the_end(queue: QueueHarness, order: Order) -> None:
    await queue.open(ServiceRules("s", limit=9, rate=Rate(units=100.0, per=64.0), order=order))
    await queue.offer_all("abcd", cost=40.0)
    first, second = await queue.claim(9)
    assert await used(queue) == (2, 80.0)
    await release(queue, first, used=15.0)
    assert await used(queue) == (2, 55.0)
    (third,) = await queue.claim(9)
    await release(queue, second, used=50.0, failed=False)
    await release(queue, third)
    assert await used(queue) == (3, 105.0), "the estimate stays where nothing was reported"
    assert await queue.claimed(9) == []


async def test_units_of_a_call_that_was_reported_as_sent_are_settled_too(queue: QueueHarness) -> None:
    await queue.open(ServiceRules("s", limit=9, rate=Rate(units=100.0, per=64.0)))
    await queue.offer("a", cost=90.0)
    lease = await queue.take()
    queue.clock.advance(8.0)
    await queue.dispatcher.sent([Sent(lease.name, "s", 0.25)])
    await release(queue, lease, used=10.0)
    assert await used(queue) == (1, 10.0)


async def test_a_rate_that_is_used_up_exactly_is_full_until_its_window_ends(queue: QueueHarness) -> None:
    await queue.open(ServiceRules("s", limit=9, rate=Rate(units=100.0, per=64.0)))
    await queue.offer("a", cost=100.0)
    await queue.offer("b")
    await release(queue, await queue.take())
    (use,) = (await queue.see()).rates
    assert use.full
    assert use.until == pytest.approx(queue.clock.now + 64.0, abs=WIDTH)
    assert await queue.claimed() == []
    queue.clock.advance(64.0 + WIDTH)
    assert await queue.claimed() == ["b"]
    (use,) = (await queue.see()).rates
    assert not use.full


async def test_a_step_that_does_not_fit_waits_and_no_smaller_one_goes_before_it(queue: QueueHarness) -> None:
    await queue.open(ServiceRules("s", limit=9, rate=Rate(units=100.0, per=64.0)))
    await queue.offer("a", cost=60.0)
    await queue.offer("large", cost=50.0)
    await queue.offer("small", "bob", cost=1.0, band=3)
    assert await queue.claimed(9) == ["a"]
    assert await queue.claimed(9) == []


@pytest.mark.parametrize("pool", [None, "gpu"])
@pytest.mark.parametrize("filters", [{"bands": frozenset({3})}, {"regions": frozenset({"us"})}])
async def test_a_worker_that_cannot_run_the_step_that_does_not_fit_gets_no_smaller_one(
    queue: QueueHarness, pool: str | None, filters: dict[str, frozenset[object]]
) -> None:
    regions = {"eu": 9, "us": 9} if "regions" in filters else {}
    rules = ServiceRules("s", limit=9, rate=Rate(units=100.0, per=64.0), regions=regions, pool=pool)
    await queue.open(rules, pools={"gpu": 9})
    await queue.offer_all("ab", cost=30.0)
    await queue.offer("large", cost=50.0, region="eu")
    await queue.offer_all(["small", "smaller"], "bob", cost=1.0, band=3)
    first, _ = await queue.claim(2)
    claim = Claim("w", 9, frozenset("s"), **filters)  # type: ignore[arg-type]
    assert await queue.dispatcher.exchange(claim) == []
    assert await queue.dispatcher.exchange(claim, [Release(first.name, "s", used=30.0)]) == []


async def test_a_step_larger_than_the_window_goes_alone(queue: QueueHarness) -> None:
    await queue.open(ServiceRules("s", limit=9, rate=Rate(units=100.0, per=64.0)))
    await queue.offer("a", cost=1.0)
    await queue.offer("huge", cost=500.0)
    await queue.offer("b", cost=1.0)
    lease = await queue.take()
    assert await queue.claimed(9) == []
    await release(queue, lease)
    queue.clock.advance(64.0 + WIDTH)
    (huge,) = await queue.claim(9)
    assert huge.job_id == "huge"
    await release(queue, huge)
    queue.clock.advance(64.0 + WIDTH)
    assert await queue.claimed(9) == ["b"]


@pytest.mark.parametrize("order", Order)
async def test_a_user_at_the_user_rate_blocks_no_one(queue: QueueHarness, order: Order) -> None:
    await queue.open(ServiceRules("s", limit=9, user_rate=TWO, order=order))
    await queue.offer_all(["a0", "a1", "a2", "a3"], "ann")
    await queue.offer_all(["b0", "b1"], "bob")
    leases = await queue.claim(9)
    assert sorted(lease.job_id for lease in leases) == ["a0", "a1", "b0", "b1"]
    user = await queue.user("ann", band=1 if order is Order.FIFO else 2)
    assert user is not None
    assert user.parked
    await end_all(queue, leases)
    queue.clock.advance(63.0)
    assert await queue.claimed(9) == []
    queue.clock.advance(1.0 + WIDTH)
    assert await queue.claimed(9) == ["a2", "a3"]


async def test_a_parked_user_gets_another_chance_when_a_call_is_refunded(queue: QueueHarness) -> None:
    await queue.open(ServiceRules("s", limit=9, user_rate=Rate(requests=1, per=64.0)))
    await queue.offer_all("ab")
    lease = await queue.take()
    assert await queue.claimed() == []
    queue.wakeups()
    await release(queue, lease, refund=True)
    assert queue.wakeups() == [{"s"}]
    assert await queue.claimed() == ["b"]


async def test_a_changed_user_rate_applies_at_once(queue: QueueHarness) -> None:
    await queue.open(ServiceRules("s", limit=9, user_rate=Rate(requests=1, per=64.0)))
    await queue.offer_all("abcd")
    await end_all(queue, await queue.claim(9))
    await queue.change("s", user_rate=Rate(requests=3, per=64.0))
    assert await queue.claimed(9) == ["b", "c"]
    await queue.change("s", user_rate=None)
    assert await queue.claimed(9) == ["d"]


async def test_a_changed_rate_keeps_what_was_counted(queue: QueueHarness) -> None:
    await queue.open(ServiceRules("s", limit=9, rate=TWO))
    await queue.offer_all("abcdefgh")
    await end_all(queue, await queue.claim(9))
    await queue.change("s", rate=Rate(requests=3, per=128.0))
    (third,) = await queue.claim(9)
    await release(queue, third)
    queue.clock.advance(64.0 + 1.28)
    assert await queue.claimed(9) == [], "the window is longer now"
    queue.clock.advance(64.0)
    assert await queue.claimed(9) == ["d", "e", "f"]
    await queue.change("s", rate=None)
    assert await queue.claimed(9) == ["g", "h"]


async def test_a_region_at_its_rate_is_skipped(queue: QueueHarness) -> None:
    rules = ServiceRules("s", limit=9, regions={"eu": 9, "us": 9}, region_rates={"eu": Rate(requests=1, per=64.0)})
    await queue.open(rules)
    await queue.offer_all("ab", region="eu")
    await queue.offer_all("cd", "bob")
    granted = {lease.job_id: lease.region for lease in await queue.claim(9)}
    assert granted == {"a": "eu", "c": "us", "d": "us"}


async def test_the_rate_of_a_pool_holds_for_all_its_services(queue: QueueHarness) -> None:
    queue.pool_rates = {"gpu": TWO}
    await open_pool(queue, 9, "s", "t")
    await queue.offer_all("ab", service="s")
    await queue.offer_all("cd", service="t")
    leases = await queue.claim(9)
    assert sorted(lease.service for lease in leases) == ["s", "t"]
    assert await used(queue, "pool") == (2, 0.0)
    await end_all(queue, leases)
    queue.clock.advance(64.0 + WIDTH)
    assert sorted(lease.service for lease in await queue.claim(9)) == ["s", "t"]


@pytest.mark.parametrize("reserved", [4.0, 9.0], ids=["some-units-left", "no-units-left"])
@pytest.mark.parametrize("offered", ["before", "after"])
async def test_units_of_a_pool_that_one_service_frees_are_for_the_others(
    queue: QueueHarness, offered: str, reserved: float
) -> None:
    """The worker of t does not serve s: it has to be woken, and its claim must see that t's step fits again."""
    queue.pool_rates = {"gpu": Rate(units=6.0, per=64.0)}
    await open_pool(queue, 9, "s", "t")
    if offered == "before":
        await queue.offer("b", service="t", cost=3.0)
    await queue.offer("a", cost=reserved)
    lease = await queue.take("s")
    if offered == "after":
        await queue.offer("b", service="t", cost=3.0)
    assert await queue.claimed(1, "t", worker="other") == []
    queue.wakeups()
    await queue.end(lease, refund=True)
    assert queue.wakeups() == [{"t"}]
    assert await queue.claimed(1, "t", worker="other") == ["b"]


async def test_a_claim_gets_the_units_of_a_pool_that_its_releases_free(queue: QueueHarness) -> None:
    queue.pool_rates = {"gpu": Rate(units=6.0, per=64.0)}
    await open_pool(queue, 9, "s", "t")
    await queue.offer("a", cost=4.0)
    lease = await queue.take("s")
    await queue.offer("b", service="t", cost=3.0)
    releases = [Release(lease.name, "s", used=2.0)]
    (granted,) = await queue.dispatcher.exchange(Claim("w", 1, frozenset({"t"})), releases)
    assert granted.job_id == "b"


async def test_a_changed_rate_of_a_pool_applies_from_the_next_grant_on(queue: QueueHarness) -> None:
    await open_pool(queue, 9, "s", "t")
    for service in "st":
        await queue.offer_all([f"{service}{n}" for n in range(4)], service=service)
    await end_all(queue, await queue.claim(2))
    queue.pool_rates = {"gpu": TWO}
    await queue.configure()
    assert len(await queue.claim(9)) == 2, "a rate that was set counts from now on"
    queue.pool_rates = {"gpu": Rate(requests=3, per=64.0)}
    queue.wakeups()
    await queue.configure()
    assert queue.wakeups() != []
    assert len(await queue.claim(9)) == 1
    queue.pool_rates = {}
    await queue.configure()
    assert len(await queue.claim(9)) == 3, "all that is left"


async def test_a_changed_rate_of_a_region_applies_from_the_next_grant_on(queue: QueueHarness) -> None:
    await queue.open(ServiceRules("s", limit=9, regions={"eu": 9}))
    await queue.offer_all("abcdefg", region="eu")
    await end_all(queue, await queue.claim(1))
    await queue.change("s", region_rates={"eu": Rate(requests=1, per=64.0)})
    assert await queue.claimed(9) == ["b"]
    await queue.change("s", region_rates={"eu": TWO})
    assert await queue.claimed(9) == ["c"]
    await queue.change("s", region_rates={})
    assert await queue.claimed(9) == ["d", "e", "f", "g"]


LONGER = Rate(requests=5, units=100.0, per=256.0)


@pytest.mark.parametrize("of", ["service", "user", "region", "pool", "plan", "group"])
async def test_no_longer_window_sees_more_than_the_rate(queue: QueueHarness, of: str) -> None:
    """A window that becomes longer takes a rebuild, which restores the calls of the whole window."""
    regions = {"regions": {"eu": 9}} if of == "region" else {}
    await rated(queue, of, TWO, ServiceRules("s", limit=9, pool="gpu", **regions), epoch=1)  # type: ignore[arg-type]
    calls: list[float] = []

    async def call_for(seconds: float) -> None:
        until = queue.clock.now + seconds
        while queue.clock.now < until:
            await queue.offer(f"j{queue.seq}", cost=20.0, plan="free", group="acme")
            for lease in await queue.claim(9):
                calls.append(queue.clock.now)
                await release(queue, lease, used=20.0)
            queue.clock.advance(8.0)

    await call_for(256.0)
    before = len(calls)
    assert before > LONGER.requests, "more than the new rate allows in its window"
    changed_at = queue.clock.now
    await rated(queue, of, LONGER, queue.rules["s"], epoch=2, calls=calls)
    await call_for(1024.0)
    assert len(calls) - before >= 3 * LONGER.requests
    assert min(calls[before:]) > changed_at
    for at in calls[before:]:
        assert sum(at - 256.0 < other <= at for other in calls) <= LONGER.requests


async def rated(
    queue: QueueHarness, of: str, rate: Rate, rules: ServiceRules, *, epoch: int, calls: Sequence[float] = ()
) -> None:
    """Build the scope with this rate, and with these calls from the usage ledger."""
    own = {"service": "rate", "user": "user_rate"}
    if of in own:
        rules = replace(rules, **{own[of]: rate})  # type: ignore[arg-type]
    elif of == "region":
        rules = replace(rules, region_rates={"eu": rate})
    queue.pool_rates = {"gpu": rate} if of == "pool" else {}
    queue.plan_rates = {"free": rate} if of == "plan" else {}
    await queue.configure(rules, pools={"gpu": 9}, groups={"acme": GroupRules(rate=rate if of == "group" else None)})
    await queue.dispatcher.close_scope("pool:gpu", epoch)
    region = "eu" if rules.regions else None
    spent = [Spent("s", region, "ann", at, 20.0, "free", "acme") for at in calls]
    await queue.dispatcher.restore_spent("pool:gpu", epoch, spent)
    await queue.dispatcher.open_scope("pool:gpu", epoch)


async def test_a_worker_is_woken_when_the_rate_allows_the_next_call(queue: QueueHarness) -> None:
    await queue.open(ServiceRules("s", limit=9, rate=TWO))
    await queue.offer_all("abcd")
    await end_all(queue, await queue.claim(9))
    await queue.claim(9)
    queue.wakeups()
    queue.clock.advance(63.0)
    await queue.dispatcher.end_holds()
    assert queue.wakeups() == []
    queue.clock.advance(1.0 + WIDTH)
    await queue.dispatcher.end_holds()
    assert queue.wakeups() == [{"s"}]


@pytest.mark.parametrize("rules", [{"rate": Rate(requests=1, per=1.0)}, {"user_rate": Rate(requests=1, per=1.0)}])
async def test_a_timer_wakes_a_worker(queue: QueueHarness, rules: dict[str, Rate]) -> None:
    """The test's clock stands still, except for the jump that lets the window end."""
    await queue.open(ServiceRules("s", limit=9, **rules))  # type: ignore[arg-type]
    await queue.offer_all("ab")
    await end_all(queue, await queue.claim(9))
    woken = asyncio.Event()
    queue.dispatcher.on_wake(lambda _: woken.set())
    await queue.claim(9)
    queue.clock.advance(1.02)
    async with asyncio.timeout(20):
        await woken.wait()


async def test_an_upstream_that_refuses_rests_for_all_workers(queue: QueueHarness) -> None:
    await queue.open(ServiceRules("s", limit=9))
    await queue.offer_all("ab")
    await queue.dispatcher.rest([Rest("s", None, 30.0)])
    await queue.dispatcher.rest([Rest("s", None, 10.0)])
    assert await queue.claimed(9, worker="v") == []
    (use,) = (await queue.see()).rates
    assert use.rate is None
    assert use.resting_until == queue.clock.now + 30.0
    queue.clock.advance(30.0)
    assert await queue.claimed(9) == ["a", "b"]


async def test_a_region_that_refuses_rests_alone(queue: QueueHarness) -> None:
    await queue.open(ServiceRules("s", limit=9, regions={"eu": 9, "us": 9}))
    await queue.offer("a", region="eu")
    await queue.offer("b")
    await queue.dispatcher.rest([Rest("s", "eu", 30.0)])
    assert await queue.claimed(9) == ["b"]
    queue.clock.advance(30.0)
    assert await queue.claimed(9) == ["a"]


async def test_what_the_upstream_has_left_is_counted(queue: QueueHarness) -> None:
    await queue.open(ServiceRules("s", limit=9, rate=Rate(requests=5, units=100.0, per=64.0)))
    await queue.offer_all("abcdef", cost=1.0)
    lease = await queue.take()
    await queue.dispatcher.rest([Rest("s", None, 20.0, requests=2)])
    assert (await used(queue))[0] == 3
    assert await queue.claimed(9) == ["b", "c"]
    await queue.dispatcher.rest([Rest("s", None, 20.0, requests=9, units=400.0)])
    assert (await used(queue))[0] == 5, "only less is believed"
    await release(queue, lease)
    queue.clock.advance(20.0 + WIDTH)
    assert await queue.claimed(9) == ["d", "e"]


async def test_a_rebuild_counts_what_ran_and_what_was_called_before(queue: QueueHarness) -> None:
    rules = ServiceRules("s", limit=9, rate=Rate(requests=3, units=100.0, per=64.0), user_rate=TWO)
    await queue.open(rules)
    await queue.offer_all("abc")
    (lease,) = [each for each in await queue.claim(2) if each.job_id == "a"]
    lease.cost = 7.0
    await queue.dispatcher.close_scope("service:s", 2)
    await queue.dispatcher.restore("service:s", 2, [lease], [])
    spent = Spent("s", None, "ann", queue.clock.now - 4.0, 3.0)
    assert await queue.dispatcher.restore_spent("service:s", 2, [spent])
    assert not await queue.dispatcher.restore_spent("service:s", 1, [spent])
    await queue.offer_all(["a2", "a3"], "ann")
    await queue.offer_all(["b2", "b3"], "bob")
    await queue.dispatcher.open_scope("service:s", 2)
    assert await used(queue) == (2, 10.0)
    assert await queue.claimed(9) == ["b2"], "ann has had two"
    queue.clock.advance(60.0 + WIDTH)
    assert await queue.claimed(9) == ["a2"]


async def test_renewals_keep_what_a_lease_counts_in(queue: QueueHarness) -> None:
    await queue.open(ServiceRules("s", limit=9, rate=TWO))
    await queue.offer_all("abc")
    first, second = await queue.claim(9)
    queue.dispatcher.renew("w", [first.name, second.name])
    await queue.dispatcher.expire([second])
    for lease in (first, second):
        await release(queue, lease, refund=True)
    assert await used(queue) == (0, 0.0)


async def test_one_exchange_releases_and_claims_within_the_rate(queue: QueueHarness) -> None:
    await queue.open(ServiceRules("s", limit=1, rate=TWO), ServiceRules("t", limit=9))
    await queue.offer_all("abc")
    lease = await queue.take("s")
    claim = Claim("w", 5, frozenset({"s", "t"}))
    (second,) = await queue.dispatcher.exchange(claim, [Release(lease.name, "s")])
    assert await queue.dispatcher.exchange(claim, [Release(second.name, "s")]) == []


@pytest.mark.parametrize("of", ["rate", "user_rate"])
async def test_an_exchange_that_ends_a_call_sent_longer_ago_than_the_window_claims_the_next(
    queue: QueueHarness, of: str
) -> None:
    await queue.open(ServiceRules("s", limit=9, **{of: Rate(requests=1, per=64.0)}))  # type: ignore[arg-type]
    await queue.offer_all("ab")
    lease = await queue.take()
    queue.clock.advance(64.0 + 0.5 + MARGIN + WIDTH)
    claim = Claim("w", 1, frozenset("s"))
    (following,) = await queue.dispatcher.exchange(claim, [Release(lease.name, "s", sent=0.5)])
    assert following.job_id == "b"


@pytest.mark.parametrize(("took", "seconds"), [(200.0, 5.0), (800.0, 20.0), (4000.0, 5.0)])
async def test_estimated_waits_for_tokens_come_true_whatever_part_of_the_reserved_is_used(
    queue: QueueHarness, took: float, seconds: float
) -> None:
    """Calls reserve 4,000 of 40,000 tokens and use 5, 20 or 100 % of that. Ten start at once and the others wait."""
    await queue.open(ServiceRules("s", limit=50, order=Order.FIFO, rate=Rate(None, 40_000.0, 60.0), cost_unit="tokens"))
    running: list[tuple[float, int, Lease]] = []
    started: dict[str, float] = {}

    async def go_on() -> None:
        queue.clock.advance(1.0)
        ended = []
        while running and running[0][0] <= queue.clock.now:
            ended.append(Release(heappop(running)[2].name, "s", used=took, sent=0.0))
        for lease in await queue.dispatcher.exchange(Claim("w", 50, frozenset({"s"})), ended):
            queue.seq += 1
            started[lease.job_id] = queue.clock.now
            heappush(running, (queue.clock.now + seconds, queue.seq, lease))

    await queue.offer_all(["first", "second"], cost=4000.0)
    await go_on()
    while running:
        await go_on()
    queue.clock.advance(90.0)
    jobs = [f"job {number}" for number in range(60)]
    await queue.offer_all(jobs, cost=4000.0)
    await go_on()
    places, asked_at = await queue.dispatcher.positions(jobs), queue.clock.now
    assert len(places) == 50, "ten have started"
    while len(started) < 62:
        await go_on()
    ratios = [(place.plain_wait + seconds) / (started[job] - asked_at + seconds) for job, place in places.items()]
    assert all(0.5 <= ratio <= 2.0 for ratio in ratios), ratios


async def test_what_a_long_call_uses_beyond_its_reservation_counts_beside_later_calls(queue: QueueHarness) -> None:
    await queue.open(ServiceRules("s", limit=9, user_rate=Rate(units=10.0, per=64.0)))
    await queue.offer_all("ab", cost=3.0)
    first = await queue.take()
    await queue.dispatcher.sent([Sent(first.name, "s", 0.0)])
    await queue.end(await queue.take(), refund=True)
    queue.clock.advance(64.0 + MARGIN + WIDTH)
    await queue.offer_all("c", cost=3.0)
    assert await queue.claimed() == ["c"], "the first call is no longer counted"
    await release(queue, first, used=9.0)
    await queue.offer_all("d", cost=2.0)
    assert await queue.claimed() == [], "three and six of ten"
