"""Slots that the Redis dispatcher releases with the next new steps (`dispatch/redis/claim_new.py`)."""

from __future__ import annotations

import asyncio

import pytest

from fairlead.dispatch.port import Lease, Offer, Release
from fairlead.dispatch.redis import RedisDispatcher
from fairlead.dispatch.redis import claim_new as claims
from fairlead.dispatch.redis.claim_new import ClaimNew
from fairlead.domain.rules import ServiceRules
from fairlead.errors import Unavailable
from tests.contract.dispatchers import QueueHarness, claimed_new

pytestmark = pytest.mark.parametrize("queue", ["redis"], indirect=True)


@pytest.fixture(autouse=True)
def on_a_slow_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a claim has found out holds for the rest of the test."""
    monkeypatch.setattr(claims, "IDLE_S", 3600.0)


async def release_with_new(opened: QueueHarness, **limits: int) -> tuple[ClaimNew, Lease, list[Release]]:
    """A lease of a new step, and the list of the releases that are made at once."""
    assert isinstance(opened.dispatcher, RedisDispatcher)
    await opened.open(ServiceRules("s", limit=limits.get("limit", 2)))
    claim_new = ClaimNew(opened.dispatcher, rest=0.0)
    lease = await claimed_new(claim_new, new_step("a"))
    assert lease is not None
    return claim_new, lease, []


def new_step(job: str) -> Offer:
    return Offer(job, 1, "s", "ann", 2, 0, 0, 0)


def release_of(lease: Lease) -> Release:
    return Release(lease.name, "s", scope=lease.scope)


async def test_a_slot_is_released_with_the_next_new_step(queue: QueueHarness) -> None:
    claim_new, lease, at_once = await release_with_new(queue)
    claim_new.release(release_of(lease), "w", at_once.append)
    second = await claimed_new(claim_new, new_step("b"))
    assert [each.name for each in (await queue.see()).leases] == [second and second.name]
    assert (at_once, claim_new._timers) == ([], {})


async def test_a_slot_is_released_at_once_if_all_are_taken_or_a_step_waits(queue: QueueHarness) -> None:
    claim_new, lease, at_once = await release_with_new(queue, limit=1)
    claim_new.release(release_of(lease), "w", at_once.append)
    assert at_once == [release_of(lease)]


async def test_a_slot_is_released_soon_although_no_new_step_arrives(queue: QueueHarness) -> None:
    claim_new, lease, _ = await release_with_new(queue)
    released: asyncio.Future[Release] = asyncio.get_running_loop().create_future()
    claim_new.release(release_of(lease), "w", released.set_result)
    assert not released.done()
    async with asyncio.timeout(60):
        assert await released == release_of(lease)


async def test_a_slot_whose_release_fails_with_new_steps_is_released_at_once(
    queue: QueueHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim_new, lease, at_once = await release_with_new(queue)

    async def run(*_: object) -> None:
        raise Unavailable("no reply")

    claim_new.release(release_of(lease), "w", at_once.append)
    with monkeypatch.context() as failing:
        failing.setattr(claim_new._scopes, "run", run)
        assert await claimed_new(claim_new, new_step("b")) is None
    assert at_once == [release_of(lease)]


async def test_a_slot_of_a_service_that_moved_into_a_pool_is_released_with_new_steps(queue: QueueHarness) -> None:
    """The scope of the pool grants no new step, and still releases what it is sent."""
    assert isinstance(queue.dispatcher, RedisDispatcher)
    await queue.open(ServiceRules("s", limit=2, pool="p"), pools={"p": 2})
    await queue.offer("queued")
    lease = await queue.take()
    claim_new = ClaimNew(queue.dispatcher, rest=0.0)
    claim_new._idle_until["s"] = float("inf")
    claim_new.release(release_of(lease), "w", lambda release: None)
    assert await claimed_new(claim_new, new_step("b")) is None
    assert (await queue.see()).leases == ()


async def test_a_slot_is_released_at_once_if_a_step_was_refused(queue: QueueHarness) -> None:
    """The step queues, and may need this slot although others are free: that of its user."""
    claim_new, lease, at_once = await release_with_new(queue)
    await queue.change("s", user_limit=1)
    assert await claimed_new(claim_new, new_step("b")) is None
    claim_new.release(release_of(lease), "w", at_once.append)
    assert at_once == [release_of(lease)]


async def test_a_slot_is_released_at_once_by_a_flush(queue: QueueHarness) -> None:
    claim_new, lease, at_once = await release_with_new(queue)
    claim_new.release(release_of(lease), "w", at_once.append)
    await claim_new.flush()
    assert at_once == [release_of(lease)]
