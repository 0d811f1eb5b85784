"""Files in the store: uploads, uses by jobs, equal bytes, and what the sweep removes."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from fairlead.domain import transitions
from fairlead.domain.files import File
from fairlead.domain.job import StepResult
from fairlead.domain.transitions import Delete
from fairlead.store.files import (
    CompleteFile,
    CreateFile,
    CreatePart,
    DeleteFile,
    FilesMissing,
    FinishPart,
    ForgetArtifacts,
    Part,
    RenewFile,
    SweepFiles,
)
from fairlead.store.port import Done, Prune, Refused
from tests.contract.stores import START_OF_TIME, StoreHarness

ODD = 'Zoë "O\'Neill" \\ 雪 ]}.png'
LEASE = 60.0


def file(number: int, **fields: Any) -> File:
    fields = {"name": ODD, "content_type": "image/png", "purpose": "upload", "created_at": START_OF_TIME, **fields}
    user_id = fields.pop("user_id", "ann")
    return File(f"file-{number:032x}", user_id, f"{number:032x}", **fields)


async def uploaded(harness: StoreHarness, number: int, sha256: str = "aa", **fields: Any) -> File:
    """A complete file. Its bytes have the name `sha256`."""
    new = file(number, **fields)
    await harness.one(CreateFile(new, harness.clock.now + LEASE))
    done = replace(new, ready=True, size=5, sha256=sha256)
    sweep_at = harness.clock.now + LEASE if new.job_id else new.expires_at
    outcome = await harness.one(CompleteFile(done, sweep_at))
    return replace(done, artifact_id=outcome.value)


async def swept(harness: StoreHarness) -> list[str]:
    """The artifacts that are doomed after a sweep."""
    outcome = await harness.one(SweepFiles(harness.clock.now, 100))
    return list(outcome.value[1])


async def step_done(harness: StoreHarness, job: Any, *files: str, late: bool = False) -> Any:
    result = StepResult(job.id, 0, "draw", 0, "{}", "{}", harness.clock.now, job.lease, files)
    move = transitions.step_done(job, result, now=harness.clock.now, waits={})
    return await harness.one(replace(move, run=move.run + 7) if late else move)


async def test_a_file_is_complete_only_after_its_bytes_are(harness: StoreHarness) -> None:
    new = file(1, expires_at=START_OF_TIME + 100)
    await harness.one(CreateFile(new, START_OF_TIME + LEASE))
    assert await harness.store.get_files([new.id, "file-none"]) == {new.id: new}
    assert await harness.store.list_files("ann", limit=10) == []
    done = replace(new, name="b.png", purpose="batch", size=5, sha256="aa")
    assert await harness.one(CompleteFile(done, None)) == Done(new.artifact_id)
    stored = (await harness.store.get_files([new.id]))[new.id]
    assert stored == replace(done, ready=True)
    assert isinstance(await harness.one(CompleteFile(done, None)), Refused)
    assert isinstance(await harness.one(RenewFile(new.id, 5.0)), Refused)
    totals = await harness.store.file_totals()
    assert (totals.files, totals.uploading, totals.doomed, totals.size) == (1, 0, 0, 5)


async def test_files_are_listed_by_user_and_purpose_newest_first(harness: StoreHarness) -> None:
    for number in (1, 2, 3):
        await uploaded(harness, number, purpose="batch" if number == 2 else "upload")
    await uploaded(harness, 4, user_id="bob")
    await uploaded(harness, 5, job_id="job-of-ann")
    listed = await harness.store.list_files("ann", limit=2)
    assert [each.id[-1] for each in listed] == ["3", "2"]
    assert [each.id[-1] for each in await harness.store.list_files("ann", before=listed[-1].id, limit=2)] == ["1"]
    assert [each.id[-1] for each in await harness.store.list_files(None, purpose="upload", limit=9)] == list("431")


async def test_the_uploads_of_a_user_are_summed_up(harness: StoreHarness) -> None:
    assert await harness.store.uploaded_bytes("ann") == 0
    first = await uploaded(harness, 1)
    await uploaded(harness, 2)
    await uploaded(harness, 3, user_id="bob")
    await uploaded(harness, 4, job_id="job-of-ann")
    await uploaded(harness, 5, purpose="batch_output")
    await harness.one(CreateFile(file(6), START_OF_TIME + LEASE))
    assert await harness.store.uploaded_bytes("ann") == 2 * (first.size or 0) > 0
    await harness.one(DeleteFile(first.id))
    assert await harness.store.uploaded_bytes("ann") == first.size


async def test_equal_bytes_of_a_user_are_kept_once(harness: StoreHarness) -> None:
    first, second = await uploaded(harness, 1), await uploaded(harness, 2)
    other = await uploaded(harness, 3, user_id="bob")
    assert first.artifact_id == second.artifact_id != other.artifact_id
    assert await swept(harness) == [file(2).artifact_id]
    assert await harness.one(DeleteFile(first.id)) == Done(True)
    assert first.artifact_id not in await swept(harness)
    assert await harness.one(DeleteFile(second.id)) == Done(True)
    assert first.artifact_id in await swept(harness)
    assert (await uploaded(harness, 4)).artifact_id == file(4).artifact_id  # not the doomed one
    assert isinstance(await harness.one(DeleteFile(first.id)), Refused)


async def test_uploads_at_the_same_time_keep_equal_bytes_once(harness: StoreHarness) -> None:
    async with harness.another() as store:
        other = StoreHarness(store, harness.clock, harness.another)
        files = await asyncio.gather(*(uploaded((harness, other)[n % 2], n) for n in range(8)))
    assert len({each.artifact_id for each in files}) == 1


async def test_an_upload_that_is_not_renewed_is_swept_with_its_parts(harness: StoreHarness) -> None:
    await harness.one(CreateFile(file(1), START_OF_TIME + LEASE))
    assert await harness.one(CreatePart(file(1).id, "p" * 32, START_OF_TIME + LEASE)) == Done()
    harness.clock.forward(LEASE - 1)
    assert await swept(harness) == []
    assert await harness.one(RenewFile(file(1).id, harness.clock.now + LEASE)) == Done()
    harness.clock.forward(LEASE - 1)
    assert await swept(harness) == []
    harness.clock.forward(2)
    doomed = await swept(harness)
    assert sorted(doomed) == sorted([file(1).artifact_id, "p" * 32])
    assert isinstance(await harness.one(CompleteFile(replace(file(1), size=1, sha256="a"), None)), Refused)
    assert await harness.store.known_artifacts([*doomed, "x"]) == set(doomed)
    await harness.one(ForgetArtifacts(tuple(doomed)))
    assert await harness.store.known_artifacts(doomed) == set()


async def test_parts_follow_each_other_and_are_doomed_at_the_end(harness: StoreHarness) -> None:
    new = file(1)
    await harness.one(CreateFile(new, START_OF_TIME + LEASE))
    for part in ("a" * 32, "b" * 32, "c" * 32):
        assert await harness.one(CreatePart(new.id, part, START_OF_TIME + LEASE)) == Done()
    assert await harness.one(FinishPart(new.id, "a" * 32, 0, 10)) == Done()
    assert isinstance(await harness.one(FinishPart(new.id, "b" * 32, 0, 10)), Refused)
    assert isinstance(await harness.one(FinishPart(new.id, "b" * 32, 11, 10)), Refused)
    assert await harness.one(FinishPart(new.id, "b" * 32, 10, 3)) == Done()
    assert await harness.store.file_parts(new.id) == [Part("a" * 32, 0, 10), Part("b" * 32, 10, 3)]
    await harness.one(CompleteFile(replace(new, size=13, sha256="aa"), None))
    assert await swept(harness) == ["a" * 32, "b" * 32, "c" * 32]
    assert isinstance(await harness.one(CreatePart(new.id, "d" * 32, 0.0)), Refused)


async def test_a_job_keeps_the_files_of_its_input_and_result(harness: StoreHarness) -> None:
    given = await uploaded(harness, 1, "given", expires_at=START_OF_TIME + 1)
    made = await uploaded(harness, 2, "made", job_id="maker")
    job = await harness.started(await harness.submitted(files=(given.id,)))
    assert await step_done(harness, job, made.id, late=True) != Done()
    assert await harness.store.file_uses(job.id) == [given]
    await step_done(harness, job, made.id, given.id)
    assert await harness.store.file_uses(job.id) == [given, made]
    harness.clock.forward(1000)
    assert await swept(harness) == []
    assert await harness.one(DeleteFile(given.id)) == Done(False)
    await harness.one(Delete(job.id))
    assert sorted(await swept(harness)) == sorted([given.artifact_id, made.artifact_id])
    assert await harness.store.get_files([given.id, made.id]) == {}


async def test_a_file_without_an_expiry_outlives_the_jobs_that_use_it(harness: StoreHarness) -> None:
    given = await uploaded(harness, 1)
    job = await harness.started(await harness.submitted(files=(given.id,)))
    await harness.submitted(files=(given.id,))
    await harness.one(harness.done(job))
    harness.clock.forward(1000)
    await harness.one(Prune(harness.clock.now, harness.clock.now, 10))
    assert await swept(harness) == []
    assert given.id in await harness.store.get_files([given.id])


async def test_nothing_is_stored_that_names_a_missing_file(harness: StoreHarness) -> None:
    await harness.one(CreateFile(file(1), START_OF_TIME + LEASE))
    for missing in (file(1).id, file(9).id):
        with pytest.raises(FilesMissing):
            await harness.one(harness.submit("with-missing", files=(missing,)))
    assert await harness.store.get_jobs(["with-missing"]) == {}
    job = await harness.running()
    with pytest.raises(FilesMissing):
        await step_done(harness, job, file(9).id)
    assert (await harness.job(job.id)).run == job.run
    assert (await harness.store.file_totals()).files == 1


async def test_a_replayed_submit_uses_no_files(harness: StoreHarness) -> None:
    given = await uploaded(harness, 1)
    first = harness.submit(files=(given.id,), idempotency_key="k", body_hash="h")
    again = harness.submit(files=(given.id,), idempotency_key="k", body_hash="h")
    await harness.one(first)
    assert (await harness.one(again)).replayed
    assert await harness.store.file_uses(again.job.id) == []


async def test_the_secret_is_the_same_for_all_processes(harness: StoreHarness) -> None:
    secret = await harness.store.secret("files")
    assert len(secret) == 64
    async with harness.another() as store:
        assert await store.secret("files") == secret
