"""Holds and restored leases carry times by the database's clock, which may differ from the dispatcher's."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from fairlead.dispatch.port import Lease, Release
from fairlead.domain.job import Hold
from fairlead.domain.rules import ServiceRules
from tests.contract.dispatchers import ENGINES, FakeClock, QueueHarness

HOUR = 3600.0


@pytest.fixture(params=[-HOUR, HOUR], ids=["behind", "ahead"])
def database(request: pytest.FixtureRequest) -> FakeClock:
    """An hour behind the dispatcher's clock, or ahead of it."""
    return FakeClock(10 * HOUR + request.param)


@pytest.fixture(params=sorted(ENGINES))
async def queue(request: pytest.FixtureRequest, database: FakeClock) -> AsyncIterator[QueueHarness]:
    clock = FakeClock(10 * HOUR)
    queue = QueueHarness(await ENGINES[request.param](clock, database), clock)
    yield queue
    await queue.dispatcher.close()


async def test_a_hold_lasts_for_its_remaining_time_by_the_databases_clock(
    queue: QueueHarness, database: FakeClock
) -> None:
    await queue.open(ServiceRules("s", limit=1))
    await queue.offer("a")
    await queue.dispatcher.hold([Hold("gone", "s", None, database.now + 60, "h"), Hold("x", "s", None, database.now)])
    assert [hold.until for hold in (await queue.see()).holds] == [database.now + 60]
    queue.clock.advance(59)
    database.advance(59)
    assert await queue.dispatcher.end_holds() == 0
    assert await queue.claimed(9) == []
    queue.clock.advance(1)
    database.advance(1)
    assert await queue.claimed(9) == ["a"]


async def test_setting_the_databases_clock_neither_shortens_nor_extends_a_hold(
    queue: QueueHarness, database: FakeClock
) -> None:
    await queue.open(ServiceRules("s", limit=1))
    await queue.dispatcher.hold([Hold("gone", "s", None, database.now + 60, "h")])
    database.advance(HOUR)
    assert await queue.dispatcher.end_holds() == 0
    database.advance(-2 * HOUR)
    queue.clock.advance(60)
    assert await queue.dispatcher.end_holds() == 1


async def test_restored_holds_and_leases_last_as_long_as_they_should(queue: QueueHarness, database: FakeClock) -> None:
    await queue.open(ServiceRules("s", limit=2, lease_ttl=15))
    await queue.dispatcher.close_scope("service:s", 2)
    lease = Lease("1:1", "runs", 0, 1, "s", "ann", "w", granted_at=database.now - 30, expires_at=0.0)
    hold = Hold("gone", "s", None, database.now + 60, "h")
    await queue.dispatcher.restore("service:s", 2, [lease], [hold, replace(hold, id="over", until=database.now)])
    await queue.dispatcher.open_scope("service:s", 2)
    (restored,) = (await queue.see()).leases
    assert (restored.granted_at, restored.expires_at) == (database.now - 30, database.now + 15)
    await queue.offer("a")
    assert await queue.claimed(9) == [], "one slot is on lease, the other held"
    queue.clock.advance(60)
    assert await queue.dispatcher.end_holds() == 1


async def test_leases_and_rests_are_shown_by_the_databases_clock(queue: QueueHarness, database: FakeClock) -> None:
    rules = ServiceRules("s", limit=1, lease_ttl=15, regions={"us": 1}, breaker_failures=1, breaker_rest=20)
    await queue.open(rules)
    await queue.offer_all("ab")
    (lease,) = await queue.claim(1)
    (shown,) = (await queue.see()).leases
    assert (shown.granted_at, shown.expires_at) == (database.now, database.now + 15)
    await queue.dispatcher.release([Release(lease.name, "s", failed=True)])
    (region,) = (await queue.see()).regions
    assert region.resting_until == database.now + 20
    queue.clock.advance(16)
    database.advance(16)
    assert await queue.claimed(9) == [], "it rests by our own clock"
