"""Webhooks in the store: deliveries are written by the commit that causes their event, and claimed fairly and in
order."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fairlead.domain import transitions
from fairlead.domain.batch import Batch, BatchItem
from fairlead.domain.job import Job
from fairlead.domain.webhooks import (
    BATCH_ENDED,
    CANCELLED,
    COMPLETED,
    ENDPOINT_DISABLED,
    ENDPOINTS_ONLY,
    ENDS,
    FAILED,
    STARTED,
    Delivery,
    DeliveryState,
    Endpoint,
    JobWebhook,
)
from fairlead.store.port import CreateBatch, Done, Refused, SettleBatch
from fairlead.store.webhooks import (
    ClaimDeliveries,
    Claimed,
    DeclareEndpoints,
    DeleteEndpoint,
    DeliveryFilter,
    DisableEndpoint,
    PruneDeliveries,
    RecordAttempt,
    RecordEvent,
    Replay,
    SaveEndpoint,
)
from tests.contract.stores import StoreHarness

URL = "https://example.com/hooks?a=1"
OWN = JobWebhook(URL)
SECRET = "whsec_" + "A" * 43 + "="
EVERYTHING = DeliveryFilter()


async def endpoint(harness: StoreHarness, id_: str, user_id: str | None = None, **changed: Any) -> Endpoint:
    new = Endpoint(id_, f"https://{id_}.example", user_id, ENDS, harness.clock.now, secrets=((SECRET, None),))
    outcome = await harness.one(SaveEndpoint(replace(new, **changed)))
    assert isinstance(outcome, Done)
    assert isinstance(outcome.value, Endpoint)
    return outcome.value


async def deliveries(harness: StoreHarness, where: DeliveryFilter = EVERYTHING) -> list[Delivery]:
    """Oldest first."""
    return (await harness.store.deliveries(where, before=None, limit=1000))[::-1]


async def claim(harness: StoreHarness, limit: int = 100, each: int = 100, **fields: Any) -> list[Claimed]:
    now = harness.clock.now
    outcome = await harness.one(ClaimDeliveries(now, now + 30, limit, each, **fields))
    return list(outcome.value)


def attempt(delivery: Delivery, state: DeliveryState, next_at: float | None = None, **fields: Any) -> RecordAttempt:
    return RecordAttempt(
        delivery.id, delivery.attempts, state, next_at, [*delivery.log, {"status": 500}], delivery.created_at, **fields
    )


async def test_the_end_of_a_job_writes_its_delivery_and_another_job_none(harness: StoreHarness) -> None:
    await harness.completed()
    done = await harness.completed(webhook=OWN)
    failed = await harness.failed(webhook=OWN)
    cancelled = await harness.cancelled(webhook=OWN)
    assert done.webhook == OWN
    found = await deliveries(harness)
    # `failed` of the harness builds its move without the webhook.
    assert [(each.event, each.job_id) for each in found] == [(COMPLETED, done.id), (CANCELLED, cancelled.id)]
    first = found[0]
    assert first.id == f"msg_{done.id}_{done.run}"
    assert (first.user_id, first.receiver, first.url) == ("ann", "https://example.com", URL)
    assert (first.state, first.attempts, first.next_at) == (DeliveryState.PENDING, 0, harness.clock.now)
    assert first.about["status"] == "COMPLETED"
    assert not await deliveries(harness, DeliveryFilter(job_id=failed.id))


async def test_a_refused_move_writes_no_delivery(harness: StoreHarness) -> None:
    job = await harness.running(webhook=OWN)
    cancel = transitions.cancel(job, now=harness.clock.now)
    assert await harness.one(cancel) == Done()
    assert isinstance(await harness.one(harness.done(job)), Refused)
    assert [each.event for each in await deliveries(harness)] == [CANCELLED]


async def test_only_wanted_events_are_written(harness: StoreHarness) -> None:
    await harness.completed(webhook=replace(OWN, events=(FAILED,)))
    assert await deliveries(harness) == []


async def test_the_start_is_recorded_only_while_the_job_runs(harness: StoreHarness) -> None:
    job = await harness.running(webhook=replace(OWN, events=(STARTED, COMPLETED)))
    assert job.webhook is not None
    started = RecordEvent(job.id, job.run, STARTED, job.webhook, {"status": "RUNNING"})
    assert await harness.one(started) == Done()
    await harness.one(harness.done(job))
    await harness.one(replace(started, run=job.run))
    assert [each.event for each in await deliveries(harness)] == [STARTED, COMPLETED]


async def test_endpoints_of_the_user_and_of_all_users_get_a_delivery_each(harness: StoreHarness) -> None:
    await endpoint(harness, "own", "ann")
    await endpoint(harness, "other", "bob")
    await endpoint(harness, "all")
    await endpoint(harness, "failures", events=(FAILED,))
    await endpoint(harness, "off", disabled_at=harness.clock.now)
    assert await harness.store.webhook_users() == {"ann", "bob", None}
    job = await harness.completed(webhook=replace(OWN, endpoints=True))
    await harness.completed()
    found = {each.endpoint_id: each for each in await deliveries(harness)}
    assert found.keys() == {None, "own", "all"}
    assert found["own"].id == f"msg_{job.id}_{job.run}_own"
    assert (found["own"].receiver, found["own"].url) == ("own", None)
    assert found["own"].about["status"] == "COMPLETED"


async def test_a_claim_takes_receivers_in_turn_and_leaves_busy_ones(harness: StoreHarness) -> None:
    for host in ("a", "b", "c"):
        for _ in range(3):
            await harness.completed(webhook=JobWebhook(f"https://{host}.example/x"))
    every = frozenset({"https://a.example", "https://b.example", "https://c.example"})
    first = await claim(harness, limit=4, each=2, trusted=every)
    assert [each.delivery.receiver[8] for each in first] == ["a", "a", "b", "b"]
    busy = frozenset({"https://c.example"})
    assert await claim(harness, busy=busy, probes=0) == []
    assert [each.delivery.receiver[8] for each in await claim(harness, busy=busy)] == ["a", "b"]
    after = await claim(harness, limit=2, trusted=every, after="https://b.example")
    assert [each.delivery.receiver[8] for each in after] == ["c", "c"]
    assert [each.delivery.receiver[8] for each in await claim(harness)] == ["c"]
    assert await claim(harness) == []
    harness.clock.forward(31)
    assert len(await claim(harness, trusted=every)) == 9


async def test_deliveries_of_one_job_are_taken_in_order(harness: StoreHarness) -> None:
    job = await harness.running(webhook=replace(OWN, events=(STARTED, COMPLETED)))
    assert job.webhook is not None
    await harness.one(RecordEvent(job.id, job.run, STARTED, job.webhook, {}))
    await harness.one(harness.done(job))
    (first,) = await claim(harness)
    assert first.delivery.event == STARTED
    retry = harness.clock.now + 300
    assert await harness.one(attempt(first.delivery, DeliveryState.PENDING, retry, body="{}")) == Done()
    harness.clock.forward(31)
    assert await claim(harness) == []
    assert await harness.store.next_delivery() == retry
    harness.clock.forward(270)
    (again,) = await claim(harness)
    assert (again.delivery.id, again.delivery.attempts, again.delivery.body) == (first.delivery.id, 1, "{}")
    assert await harness.one(attempt(again.delivery, DeliveryState.DELIVERED)) == Done()
    (second,) = await claim(harness)
    assert second.delivery.event == COMPLETED


async def test_an_attempt_counts_once(harness: StoreHarness) -> None:
    await harness.completed(webhook=OWN)
    (taken,) = await claim(harness)
    assert await harness.one(attempt(taken.delivery, DeliveryState.PENDING, harness.clock.now + 5)) == Done()
    assert isinstance(await harness.one(attempt(taken.delivery, DeliveryState.DELIVERED)), Refused)
    (stored,) = await deliveries(harness)
    assert (stored.state, stored.attempts, list(stored.log)) == (DeliveryState.PENDING, 1, [{"status": 500}])


async def test_a_claim_has_the_endpoint_or_the_secret_of_the_user(harness: StoreHarness) -> None:
    kept = Endpoint("user:ann", None, "ann", (), harness.clock.now, secrets=((SECRET, None),))
    assert (await harness.one(SaveEndpoint(kept, create=True))).value == kept
    other = replace(kept, secrets=(("whsec_other", None),))
    assert (await harness.one(SaveEndpoint(other, create=True))).value == kept
    await endpoint(harness, "own", "ann")
    await harness.completed(webhook=replace(OWN, endpoints=True))
    found = {each.delivery.endpoint_id: each.endpoint for each in await claim(harness)}
    assert found[None] == kept
    own = found["own"]
    assert own is not None
    assert (own.url, own.secrets) == ("https://own.example", ((SECRET, None),))
    assert [each.id for each in await harness.store.endpoints()] == ["own"]


async def test_an_endpoint_is_failing_from_its_first_failure_to_its_next_success(harness: StoreHarness) -> None:
    await endpoint(harness, "own", "ann")
    await harness.completed(webhook=ENDPOINTS_ONLY)
    (taken,) = await claim(harness)
    began = harness.clock.now
    failure = attempt(taken.delivery, DeliveryState.PENDING, began, endpoint_id="own")
    await harness.one(failure)
    (failing,) = await harness.store.endpoints("ann")
    assert failing.failing_since == began
    harness.clock.forward(40)
    await harness.one(replace(failure, attempts=1, now=harness.clock.now))
    assert (await harness.store.endpoints("ann"))[0].failing_since == began
    await harness.one(replace(failure, attempts=2, state=DeliveryState.DELIVERED, next_at=None))
    assert (await harness.store.endpoints("ann"))[0].failing_since is None


async def test_disabling_fails_what_waits_and_tells_the_system_s_endpoints(harness: StoreHarness) -> None:
    await endpoint(harness, "own", "ann")
    await endpoint(harness, "ops", events=(ENDPOINT_DISABLED,))
    await harness.completed(webhook=ENDPOINTS_ONLY)
    disable = DisableEndpoint("own", "410 Gone", "e1")
    assert await harness.one(disable) == Done()
    assert isinstance(await harness.one(disable), Refused)
    found = {each.endpoint_id: each for each in await deliveries(harness)}
    assert found["own"].state is DeliveryState.FAILED
    assert (found["ops"].event, found["ops"].about["endpoint_id"]) == (ENDPOINT_DISABLED, "own")
    assert (await harness.store.endpoints("ann"))[0].disabled_reason == "410 Gone"
    assert await harness.store.webhook_users() == {None}
    await harness.completed(webhook=ENDPOINTS_ONLY)
    assert len(await deliveries(harness)) == 2


async def test_what_was_sent_can_be_sent_again_under_its_id(harness: StoreHarness) -> None:
    await endpoint(harness, "own", "ann")
    for _ in range(3):
        await harness.completed(webhook=ENDPOINTS_ONLY)
        harness.clock.forward(10)
    for taken in await claim(harness, trusted=frozenset({"own"})):
        await harness.one(attempt(taken.delivery, DeliveryState.FAILED, endpoint_id="own"))
    first, second, third = await deliveries(harness)
    assert await harness.store.next_delivery() is None
    since = Replay(DeliveryFilter(since=second.created_at, until=third.created_at), harness.clock.now, 10)
    assert await harness.one(since) == Done(1)
    (again,) = await claim(harness)
    assert (again.delivery.id, again.delivery.attempts, len(again.delivery.log)) == (second.id, 0, 1)
    ids = DeliveryFilter(user_id="ann", ids=(first.id, second.id))
    assert await harness.one(Replay(ids, harness.clock.now, 10)) == Done(1)
    assert await harness.one(Replay(replace(ids, user_id="bob"), harness.clock.now, 10)) == Done(0)
    assert await harness.one(DeleteEndpoint("own")) == Done()
    assert await harness.one(Replay(EVERYTHING, harness.clock.now, 10)) == Done(0)
    assert isinstance(await harness.one(DeleteEndpoint("own")), Refused)


async def test_ended_deliveries_are_pruned_and_listed_by_page(harness: StoreHarness) -> None:
    for _ in range(3):
        await harness.completed(webhook=OWN)
    newest, middle, oldest = await harness.store.deliveries(EVERYTHING, before=None, limit=3)
    assert await harness.store.deliveries(EVERYTHING, before=newest.id, limit=1) == [middle]
    await harness.one(attempt(oldest, DeliveryState.DELIVERED))
    assert await harness.store.count_deliveries() == {DeliveryState.PENDING: 2, DeliveryState.DELIVERED: 1}
    harness.clock.forward(10)
    assert await harness.one(PruneDeliveries(harness.clock.now, 10)) == Done(1)
    assert [each.id for each in await deliveries(harness)] == [middle.id, newest.id]


async def test_the_end_of_a_batch_is_delivered_once_for_each_end(harness: StoreHarness) -> None:
    await endpoint(harness, "own", "ann", events=(BATCH_ENDED,))
    submits = [harness.submit(f"b1-{n}") for n in range(2)]
    items = tuple(BatchItem(n, None, submit.job.id) for n, submit in enumerate(submits))
    webhook = JobWebhook(URL, (BATCH_ENDED,))
    batch = Batch("b1", "ann", 2, harness.clock.now, webhook=webhook)
    await harness.commit(*submits, CreateBatch(batch, items))
    jobs: list[Job] = [await harness.job(submit.job.id) for submit in submits]
    for job in jobs:
        assert isinstance(await harness.one(SettleBatch("b1", harness.clock.now)), Refused)
        assert await deliveries(harness) == []
        await harness.one(transitions.cancel(job, now=harness.clock.now))
    assert await harness.one(SettleBatch("b1", harness.clock.now)) == Done()
    await harness.one(SettleBatch("b1", harness.clock.now))
    found = {each.endpoint_id: each for each in await deliveries(harness)}
    assert found.keys() == {None, "own"}
    assert {each.batch_id for each in found.values()} == {"b1"}
    assert found[None].url == URL
    assert found[None].about["counts"] == found["own"].about["counts"] == [[6, 2]]


async def test_the_configuration_replaces_its_own_endpoints_only(harness: StoreHarness) -> None:
    await endpoint(harness, "stored", "ann")
    both = [
        Endpoint(f"config_{name}", f"https://{name}.example", None, ENDS, name=name, secrets=((SECRET, None),))
        for name in ("one", "two")
    ]
    await harness.one(DeclareEndpoints(tuple(both)))
    await harness.one(DisableEndpoint("config_one", "410", "e1"))
    await harness.one(DeclareEndpoints((replace(both[0], events=(FAILED,)),)))
    found = {each.id: each for each in await harness.store.endpoints()}
    assert found.keys() == {"stored", "config_one"}
    assert found["config_one"].events == (FAILED,)
    assert found["config_one"].disabled_reason == "410"
    await harness.one(DeclareEndpoints((replace(both[0], url="https://new.example"),)))
    (changed,) = await harness.store.endpoints(ids=["config_one"])
    assert (changed.url, changed.disabled_at) == ("https://new.example", None)


@pytest.mark.parametrize("name", ["a\0b"])
async def test_nul_is_refused(harness: StoreHarness, name: str) -> None:
    with pytest.raises(Exception, match="NUL"):
        await harness.one(SaveEndpoint(Endpoint(name, URL)))
