"""What every dispatcher does with a region that fails, and which region it prefers."""

from __future__ import annotations

from fairlead.dispatch.port import Lease, RegionSnapshot
from fairlead.domain.limits import ServiceRules
from tests.contract.dispatchers import Line

RULES = ServiceRules("s", limit=9, regions={"eu": 2, "us": 2}, retries_first=True, breaker_failures=2, breaker_rest=8.0)


async def opened(line: Line, rules: ServiceRules = RULES) -> None:
    await line.open(rules)


async def call(line: Line, region: str) -> Lease:
    """A call in this region begins."""
    await line.offer(f"job {line.seq}", region=region)
    (lease,) = await line.claim(1, regions=frozenset({region}))
    assert lease.region == region
    return lease


async def fail(line: Line, region: str, times: int = 1) -> None:
    for _ in range(times):
        await line.end(await call(line, region), after=1.0, failed=True)


async def region(line: Line, name: str) -> RegionSnapshot:
    return next(each for each in (await line.see()).regions if each.region == name)


async def test_a_region_that_keeps_failing_rests_and_others_take_the_work(line: Line) -> None:
    await opened(line)
    await fail(line, "us", 2)
    assert (await region(line, "us")).resting_until == line.clock.now + 8
    await line.offer_all("abc")
    await line.offer("bound", region="us")
    assert [(lease.job_id, lease.region) for lease in await line.claim(9)] == [("a", "eu"), ("b", "eu")]
    assert (await line.dispatcher.places(["bound"]))["bound"].free == 0


async def test_a_success_in_between_begins_the_count_anew(line: Line) -> None:
    await opened(line)
    await fail(line, "us")
    await line.end(await call(line, "us"), failed=False)
    await fail(line, "us")
    seen = await region(line, "us")
    assert (seen.failures, seen.resting_until, seen.probing) == (1, None, False)


async def test_an_end_of_which_nobody_can_tell_is_no_failure(line: Line) -> None:
    await opened(line)
    for refund in (False, True, False):
        await line.end(await call(line, "us"), refund=refund, failed=True if refund else None)
    assert (await region(line, "us")).failures == 0


async def test_after_its_rest_exactly_one_call_probes_a_region(line: Line) -> None:
    await opened(line)
    await fail(line, "us", 2)
    await line.offer_all("abc", region="us")
    line.clock.advance(8 - 1 / 64)
    assert await line.claimed(9) == []
    line.clock.advance(1 / 64)
    (probe,) = await line.claim(9)
    assert (await region(line, "us")).probing
    assert await line.claimed(9) == []
    await line.end(probe, failed=False)
    assert (await region(line, "us")).resting_until is None
    assert await line.claimed(9) == ["b", "c"]


async def test_a_region_whose_probe_fails_rests_twice_as_long_up_to_ten_times(line: Line) -> None:
    await opened(line)
    await fail(line, "us", 2)
    for rest in (16, 32, 64, 80, 80):
        until = (await region(line, "us")).resting_until
        assert until is not None
        line.clock.advance(until - line.clock.now)
        await fail(line, "us")
        assert (await region(line, "us")).resting_until == line.clock.now + rest
    line.clock.advance(80)
    await line.end(await call(line, "us"), failed=False)
    await fail(line, "us", 2)
    assert (await region(line, "us")).resting_until == line.clock.now + 8


async def test_calls_that_began_before_the_rest_say_nothing_new(line: Line) -> None:
    await opened(line, ServiceRules("s", limit=9, regions={"us": 4}, breaker_failures=2, breaker_rest=8.0))
    late = [await call(line, "us"), await call(line, "us")]
    await fail(line, "us", 2)
    until = (await region(line, "us")).resting_until
    await line.end(late[0], after=1.0, failed=True)
    await line.end(late[1], after=1.0, failed=False)
    assert (await region(line, "us")).resting_until == until


async def test_another_call_probes_when_nobody_can_tell_how_the_first_one_ended(line: Line) -> None:
    await opened(line)
    await fail(line, "us", 2)
    await line.offer_all("ab", region="us")
    line.clock.advance(8)
    await line.end(await line.take())
    assert await line.claimed(9) == ["b"]


async def test_a_lane_turns_runnable_when_the_rest_is_over(line: Line) -> None:
    await opened(line)
    await fail(line, "us", 2)
    await line.offer("a", region="us")
    line.woken()
    line.clock.advance(8)
    assert await line.claimed(9) == ["a"]


async def test_without_a_breaker_no_region_rests(line: Line) -> None:
    await opened(line, ServiceRules("s", limit=9, regions={"us": 1}))
    await fail(line, "us", 9)
    assert await line.offer("a")
    assert await line.claimed() == ["a"]


async def test_a_breaker_that_is_taken_away_ends_the_rest(line: Line) -> None:
    await opened(line)
    await fail(line, "us", 2)
    await line.offer_all("ab", region="us")
    await line.change("s", breaker_failures=0)
    assert await line.claimed(9) == ["a", "b"]


async def test_other_changes_of_the_rules_end_no_rest(line: Line) -> None:
    await opened(line)
    await fail(line, "us", 2)
    await line.offer("a", region="us")
    await line.change("s", limit=4)
    assert await line.claimed(9) == []


async def test_a_rebuilt_line_knows_of_no_rest(line: Line) -> None:
    await opened(line)
    await fail(line, "us", 2)
    await line.dispatcher.close_scope("service:s", 2)
    await line.dispatcher.open_scope("service:s", 2)
    await fail(line, "us", 2)
    assert (await region(line, "us")).resting_until == line.clock.now + 8


# ---------------------------------------------------------------- which region


async def test_unbound_work_prefers_the_faster_region(line: Line) -> None:
    await opened(line)
    await line.end(await call(line, "eu"), after=4.0, failed=False)
    await line.end(await call(line, "us"), after=1.0, failed=False)
    await line.offer_all("abc")
    assert [lease.region for lease in await line.claim(9)] == ["us", "us", "eu"]
    assert [(await region(line, name)).latency for name in ("eu", "us")] == [4.0, 1.0]


async def test_unbound_work_prefers_a_healthy_region_to_a_fast_one(line: Line) -> None:
    await opened(line)
    await line.end(await call(line, "eu"), after=4.0, failed=False)
    await line.end(await call(line, "us"), after=1.0, failed=False)
    await fail(line, "us")
    await line.offer_all("abc")
    assert [lease.region for lease in await line.claim(9)] == ["eu", "eu", "us"]


async def test_a_region_that_failed_once_is_avoided_no_longer_than_a_rest(line: Line) -> None:
    await opened(line)
    await line.end(await call(line, "eu"), after=4.0, failed=False)
    await line.end(await call(line, "us"), after=1.0, failed=False)
    await fail(line, "us")
    await line.offer_all("ab")
    line.clock.advance(8 - 1 / 64)
    assert (await line.take()).region == "eu"
    line.clock.advance(1 / 64)
    assert (await line.take()).region == "us"


async def test_a_success_ends_the_avoiding_at_once(line: Line) -> None:
    await opened(line)
    await line.end(await call(line, "eu"), after=4.0, failed=False)
    await fail(line, "us")
    await line.end(await call(line, "us"), after=1.0, failed=False)
    await line.offer("a")
    assert (await line.take()).region == "us"


async def test_the_first_call_after_a_rest_probes_the_region_though_others_have_slots(line: Line) -> None:
    await opened(line)
    await line.end(await call(line, "eu"), after=1.0, failed=False)
    await fail(line, "us", 2)
    line.clock.advance(8)
    await line.offer_all("abc")
    assert [lease.region for lease in await line.claim(2)] == ["us", "eu"]
    assert (await region(line, "us")).probing


async def test_a_retry_probes_a_region_only_when_no_other_has_a_slot(line: Line) -> None:
    await opened(line)
    await fail(line, "us", 2)
    line.clock.advance(8)
    await line.offer_all("abc", rank=0)
    assert [lease.region for lease in await line.claim(9)] == ["eu", "eu", "us"]


async def test_how_fast_a_region_fails_says_nothing_of_how_fast_it_is(line: Line) -> None:
    await opened(line)
    await line.end(await call(line, "us"), after=4.0, failed=False)
    await fail(line, "us")
    assert (await region(line, "us")).latency == 4.0


async def test_a_region_shows_who_waits_for_it(line: Line) -> None:
    await opened(line, ServiceRules("s", limit=0, regions={"eu": 1, "us": 2}, retries_first=True))
    await line.offer_all("ab", region="us")
    await line.offer("c", region="eu+us")
    await line.offer("d", region="us", rank=0)
    await line.offer_all("efg")
    await line.offer("h", rank=0)
    seen = await line.see()
    assert [(each.region, each.limit, each.waiting, each.retrying) for each in seen.regions] == [
        ("eu", 1, 1, 0),
        ("us", 2, 3, 1),
    ]
    assert seen.unbound == (3, 1)
