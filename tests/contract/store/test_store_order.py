"""Whether earlier jobs of a FIFO service are still on their way to the queue, as a commit reports it."""

from __future__ import annotations

from fairlead.store.port import LATE_AFTER, Relayed
from tests.contract.stores import StoreHarness


async def late(harness: StoreHarness, count: int = 1, **fields: bool) -> set[bool]:
    await harness.commit(*(harness.submit(**{"ordered": True, **fields}) for _ in range(count)))
    assert len(harness.changes) == count
    return {change.late for change in harness.changes}


async def test_a_row_that_its_process_is_relaying_is_not_late_at_first(harness: StoreHarness) -> None:
    harness.store.relays()
    await harness.one(harness.submit())
    harness.clock.forward(LATE_AFTER)
    assert await late(harness) == {False}
    assert await late(harness, 3) == {False}


async def test_a_row_that_is_still_there_after_a_while_is_late(harness: StoreHarness) -> None:
    harness.store.relays()
    await harness.one(harness.submit())
    (earlier,) = harness.changes
    harness.clock.forward(LATE_AFTER + 0.001)
    assert await late(harness) == {True}
    assert await late(harness, 3) == {True}
    assert await late(harness, idempotency_key="k", body_hash="1") == {True}
    ids = {change.outbox_id for change in await harness.store.outbox(older_than=harness.clock.now + 1, limit=99)}
    assert earlier.outbox_id in ids
    await harness.one(Relayed(tuple(ids)))
    assert await late(harness) == {False}


async def test_a_row_of_a_process_that_does_not_relay_is_late_at_once(harness: StoreHarness) -> None:
    await harness.one(harness.submit())
    async with harness.another() as relaying:
        relaying.relays()
        committed = await relaying.commit([harness.submit(ordered=True)])
        assert [change.late for change in committed.changes] == [True]


async def test_only_submits_to_fifo_services_check_for_late_rows(harness: StoreHarness) -> None:
    harness.store.relays()
    await harness.one(harness.submit())
    harness.clock.forward(LATE_AFTER + 1.0)
    assert await late(harness, ordered=False) == {False}
