"""File batches in the store: their input file is kept, changes are fenced, and their end needs complete files."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fairlead.domain.file_batch import FileBatch, FileBatchStatus, LineError
from fairlead.domain.webhooks import Endpoint
from fairlead.store.file_batches import ChangeFileBatch, CreateFileBatch, PruneFileBatches
from fairlead.store.files import CompleteFile, CreateFile, DeleteFile
from fairlead.store.port import Done, Refused
from fairlead.store.webhooks import DeliveryFilter, SaveEndpoint
from tests.contract.store.test_store_files import LEASE, file, swept, uploaded
from tests.contract.stores import START_OF_TIME, StoreHarness

ODD = 'Zoë "O\'Neill" \\ 雪 ]}'


def batch(number: int, input_file_id: str, **fields: Any) -> FileBatch:
    user_id = fields.pop("user_id", "ann")
    head = (f"batch_{number:032x}", user_id, "/v1/embeddings", input_file_id, "24h")
    return FileBatch(*head, START_OF_TIME, START_OF_TIME + 86400, metadata={"note": ODD}, **fields)


async def created(harness: StoreHarness, number: int, **fields: Any) -> FileBatch:
    new = batch(number, (await uploaded(harness, number, expires_at=START_OF_TIME + 5)).id, **fields)
    assert await harness.one(CreateFileBatch(new)) == Done()
    return new


async def test_a_batch_needs_a_complete_file_and_keeps_it(harness: StoreHarness) -> None:
    await harness.one(CreateFile(file(1), START_OF_TIME + LEASE))
    assert isinstance(await harness.one(CreateFileBatch(batch(1, file(1).id))), Refused)
    assert await harness.store.get_file_batch(batch(1, "").id) is None
    new = await created(harness, 2)
    assert await harness.store.get_file_batch(new.id) == new
    harness.clock.now += 3 * LEASE  # past the end of both files
    assert await swept(harness) == [file(1).artifact_id]
    assert await harness.one(DeleteFile(new.input_file_id)) == Done(False)


async def test_a_key_of_a_user_has_one_batch(harness: StoreHarness) -> None:
    first = await created(harness, 1, request_key=ODD)
    await created(harness, 2, request_key=ODD, user_id="bob")
    await created(harness, 3)
    again = batch(4, (await uploaded(harness, 4)).id, request_key=ODD)
    assert isinstance(await harness.one(CreateFileBatch(again)), Refused)
    assert await harness.store.get_file_batch(again.id) is None
    assert await harness.store.file_batch_of_key("ann", ODD) == first
    assert await harness.store.file_batch_of_key("ann", "other") is None
    assert await harness.one(DeleteFile(again.input_file_id)) == Done(True)
    ended = first.moved(FileBatchStatus.FAILED, START_OF_TIME, ended_at=START_OF_TIME)
    await harness.one(ChangeFileBatch(ended, release=True))
    await harness.one(PruneFileBatches(START_OF_TIME + 1, 10))
    await created(harness, 5, request_key=ODD)


async def test_only_the_writer_that_read_the_last_version_changes_a_batch(harness: StoreHarness) -> None:
    new = await created(harness, 1)
    running = new.moved(FileBatchStatus.IN_PROGRESS, START_OF_TIME + 1, total=3)
    assert await harness.one(ChangeFileBatch(running)) == Done()
    assert isinstance(await harness.one(ChangeFileBatch(new.moved(FileBatchStatus.CANCELLING, 1.0))), Refused)
    assert await harness.store.get_file_batch(new.id) == replace(running, version=1)


async def test_a_batch_ends_with_the_commit_that_completes_its_files(harness: StoreHarness) -> None:
    new = await created(harness, 1)
    hook = Endpoint("ep_1", "http://example.com/", "ann", ("batch.ended",), START_OF_TIME, secrets=(("s", None),))
    await harness.one(SaveEndpoint(hook, create=True))
    out = file(7, size=5, sha256="bb")
    await harness.one(CreateFile(out, START_OF_TIME + LEASE))
    ended = new.moved(FileBatchStatus.COMPLETED, START_OF_TIME + 2, ended_at=START_OF_TIME + 2, output_file_id=out.id)
    about = {"status": "completed", "counts": [[4, 3]], "finished_at": START_OF_TIME + 2}
    change = ChangeFileBatch(ended, release=True, about=about)
    assert isinstance(await harness.one(change), Refused)
    assert await harness.one(DeleteFile(new.input_file_id)) == Done(False)
    outcomes = await harness.commit(CompleteFile(out, None), change)
    assert outcomes == [Done(out.artifact_id), Done()]
    assert await harness.store.get_file_batch(new.id) == replace(ended, version=1)
    assert await harness.store.open_file_batches(10) == []
    deliveries = await harness.store.deliveries(DeliveryFilter("ann"), before=None, limit=10)
    assert [(each.event, each.batch_id, each.about) for each in deliveries] == [("batch.ended", new.id, about)]
    harness.clock.now += LEASE  # the input file has expired, and nothing uses it any more
    assert len(await swept(harness)) == 1


async def test_batches_are_listed_newest_first_and_pruned_after_their_end(harness: StoreHarness) -> None:
    first, second = await created(harness, 1), await created(harness, 2, user_id="bob")
    third = await created(harness, 3)
    store = harness.store
    assert [each.id for each in await store.list_file_batches(None, before=None, limit=2)] == [third.id, second.id]
    assert [each.id for each in await store.list_file_batches("ann", before=third.id, limit=9)] == [first.id]
    assert [each.id for each in await store.open_file_batches(2)] == [first.id, second.id]
    errors = (LineError("invalid_json_line", ODD, 1), LineError("x", "y", None, "url"))
    failed = second.moved(FileBatchStatus.FAILED, START_OF_TIME, ended_at=START_OF_TIME, errors=errors)
    await harness.one(ChangeFileBatch(failed, release=True))
    assert await store.get_file_batch(second.id) == replace(failed, version=1)
    assert await harness.one(PruneFileBatches(START_OF_TIME, 10)) == Done(0)
    assert await harness.one(PruneFileBatches(START_OF_TIME + 1, 10)) == Done(1)
    assert [each.id for each in await store.list_file_batches(None, before=None, limit=9)] == [third.id, first.id]


async def test_files_are_listed_in_both_orders(harness: StoreHarness) -> None:
    ids = [(await uploaded(harness, number, sha256=str(number))).id for number in range(4)]
    listed = await harness.store.oldest_files("ann", purpose=None, after=ids[0], limit=2)
    assert [each.id for each in listed] == ids[1:3]
    listed = await harness.store.oldest_files(None, purpose="upload", after=None, limit=2)
    assert [each.id for each in listed] == ids[:2]
    assert [each.id for each in await harness.store.list_files("ann", before=ids[3], limit=2)] == ids[2:0:-1]
