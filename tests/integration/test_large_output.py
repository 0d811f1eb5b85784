"""A single emitted chunk that is larger than the threshold of the object store: readers get it whole, and the row of
the job names a file."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from fairlead import Call, Config, Fairlead, JobFailed, NotFound
from fairlead.config import Settings
from fairlead.domain import files
from fairlead.domain.output import Chunk, End
from fairlead.engine.roles import Roles

LARGE = "0123456789" * 500_000


def make_app(folder: Path, engines: dict[str, str]) -> Fairlead:
    app = Fairlead(Settings(Config.model_validate({"artifacts": {"url": str(folder / "files")}})), **engines)

    @app.service("tell", limit=1)
    async def tell(call: Call) -> AsyncIterator[str]:
        yield "begin "
        yield LARGE
        yield " end"

    return app


async def text_of(app: Fairlead, job_id: str) -> tuple[str, list[bool]]:
    """The output of a job, and for each chunk whether it came from the result."""
    got: list[Any] = [each async for each in app.output(job_id)]
    assert isinstance(got[-1], End)
    chunks = [each for each in got if isinstance(each, Chunk)]
    texts = [await app.jobs.whole_result(job_id, chunk.data) for chunk in chunks]
    return "".join(texts), [chunk.whole for chunk in chunks]


async def test_a_large_chunk_reaches_readers_and_its_result_the_object_store(
    tmp_path: Path, engines: dict[str, str]
) -> None:
    whole = f"begin {LARGE} end"
    app, other = make_app(tmp_path, engines), make_app(tmp_path, engines)
    async with app.running():
        job = await app.submit("tell", {}, user_id="ada")
        assert await text_of(app, job.id) == (whole, [False] * 3)
        assert await job.result(timeout=30) == whole
        record = await app._runtime.store.get(job.id)
        assert record is not None
        stored = files.stored_id(record.results[0].data_json)
        assert stored is not None
        assert len(record.results[0].data_json) < 200
        assert (await app.files.get_complete(stored)).size == len(whole) + 2
        if "redis_url" in engines:
            async with other.running(Roles(worker=False, manager=False)):
                assert await text_of(other, job.id) == (whole, [False] * 3)
        await app._runtime.output_log.delete([job.id])
        assert await text_of(app, job.id) == (whole, [True])
        await app.delete(job.id)
        while await app.files.sweep(100):
            pass
        left = [key async for page in app.files.objects.pages() for key, _ in page]
        assert len(left) == 1, "readers may still read the chunk, for ten minutes"
        with pytest.raises(NotFound):
            await app.files.get_complete(stored)


async def test_a_chunk_or_a_result_that_no_file_may_have_fails_the_step_at_once(
    tmp_path: Path, engines: dict[str, str]
) -> None:
    artifacts = {"url": str(tmp_path / "files"), "threshold": 65_536, "max_file": 300_000}
    app = Fairlead(Settings(Config.model_validate({"artifacts": artifacts})), **engines)
    unending = asyncio.Event()

    @app.service(limit=1)
    async def emits(call: Call) -> None:
        call.emit("€" * 100_000)  # over 300,000 bytes of JSON
        await unending.wait()

    @app.service(limit=1)
    async def returns(call: Call) -> str:
        return "€" * 100_000

    async with app.running():
        for service in ("emits", "returns"):
            job = await app.submit(service, {}, user_id="ada")
            with pytest.raises(JobFailed, match=r"300002 bytes, and artifacts\.max_file allows 300000") as caught:
                await job.result(timeout=30)
            assert caught.value.error["code"] == "BAD_RESULT"
            assert len((await job.get()).attempts) == 1
