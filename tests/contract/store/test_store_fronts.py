"""The readers of the jobs that fronts submit."""

from __future__ import annotations

from fairlead.store.port import ChangeReader, Done, Refused
from tests.contract.stores import StoreHarness


async def test_the_newest_key_of_a_fingerprint_is_found(harness: StoreHarness) -> None:
    await harness.submitted(idempotency_key="openai:aa:1", body_hash="b@p1/r1")
    newest = await harness.submitted(idempotency_key="openai:aa:2", body_hash="b@p1/r2")
    await harness.submitted(idempotency_key="openai:ab:9", body_hash="b@p1/r3")
    await harness.submitted(idempotency_key="openai:aa:3", body_hash="b@p1/r4", user_id="bob")
    assert await harness.store.newest_submit("ann", "openai:aa:") == ("openai:aa:2", newest.id, "b@p1/r2")
    assert await harness.store.newest_submit("ann", "openai:a:") is None
    assert await harness.store.newest_submit("eve", "openai:aa:") is None


async def test_a_reader_is_replaced_only_by_one_who_has_seen_it(harness: StoreHarness) -> None:
    job = await harness.submitted(idempotency_key="openai:aa:1", body_hash="b@p1/r1")
    assert isinstance(await harness.one(ChangeReader("ann", "openai:aa:1", "b@p1/r1", "b@p2/r2")), Done)
    assert isinstance(await harness.one(ChangeReader("ann", "openai:aa:1", "b@p1/r1", "b@p3/r3")), Refused)
    assert isinstance(await harness.one(ChangeReader("ann", "openai:aa:2", "b@p2/r2", "b@p3/r3")), Refused)
    assert await harness.store.newest_submit("ann", "openai:aa:") == ("openai:aa:1", job.id, "b@p2/r2")


async def test_only_open_jobs_of_fronts_have_readers(harness: StoreHarness) -> None:
    waiting = await harness.submitted(idempotency_key="openai:aa:1", body_hash="b@p1/r1")
    running = await harness.running(idempotency_key="openai:aa:2", body_hash="b@p1/r2", user_id="bob")
    await harness.completed(idempotency_key="openai:aa:3", body_hash="b@p1/r3")
    await harness.submitted(idempotency_key="mine", body_hash="b@p1/r4")
    await harness.submitted(idempotency_key="openai:mine", body_hash="a hash")
    await harness.submitted()
    found = await harness.store.front_readers(10)
    assert sorted(found) == sorted([(waiting.id, "b@p1/r1"), (running.id, "b@p1/r2")])
    assert len(await harness.store.front_readers(1)) == 1
