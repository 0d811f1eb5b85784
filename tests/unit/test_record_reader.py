"""Jobs that many callers request at the same time are read together, and never earlier than they were requested.
Callers of a commit do not disturb each other."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import pytest
from tests.unit.test_group_commit import FakeStore, running_group_commit, touch

from fairlead.domain.job import JobRecord
from fairlead.errors import Unavailable
from fairlead.store import group_commit
from fairlead.store.group_commit import RecordReader
from fairlead.store.port import Done


class _Store:
    """Reads that end when they are released."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []
        self.changed = asyncio.Event()
        self.release = asyncio.Semaphore(0)
        self.error: Exception | None = None

    async def read(self, job_ids: Sequence[str]) -> dict[str, JobRecord]:
        self.asked.append(list(job_ids))
        self.changed.set()
        await self.release.acquire()
        if self.error is not None:
            raise self.error
        return {job_id: cast(JobRecord, f"record of {job_id}") for job_id in job_ids if job_id != "absent"}

    async def until_asked(self, times: int) -> None:
        while len(self.asked) < times:
            self.changed.clear()
            await self.changed.wait()


def _started(reader: RecordReader, *job_ids: str) -> list[asyncio.Future[Any]]:
    return [asyncio.ensure_future(reader.get(job_id)) for job_id in job_ids]


async def test_what_is_requested_during_a_read_is_read_together_afterwards() -> None:
    store = _Store()
    reader = RecordReader(store.read)
    first = _started(reader, "a")
    await store.until_asked(1)
    later = _started(reader, "a", "b", "absent")
    store.release.release()
    assert await asyncio.gather(*first) == ["record of a"]
    store.release.release()
    assert await asyncio.gather(*later) == ["record of a", "record of b", None]
    assert store.asked == [["a"], ["a", "b", "absent"]]


async def test_a_read_has_a_size_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_commit, "MOST_RECORDS", 2)
    store = _Store()
    store.release = asyncio.Semaphore(2)
    await asyncio.gather(*_started(RecordReader(store.read), "a", "b", "c"))
    assert store.asked == [["a", "b"], ["c"]]


async def test_a_failed_read_fails_its_callers_and_no_later_ones() -> None:
    store = _Store()
    store.release, store.error = asyncio.Semaphore(2), Unavailable("no database")
    reader = RecordReader(store.read)
    failed = await asyncio.gather(*_started(reader, "a", "b"), return_exceptions=True)
    assert [type(each) for each in failed] == [Unavailable, Unavailable]
    store.error = None
    assert await asyncio.gather(*_started(reader, "c")) == ["record of c"]


async def test_a_caller_that_is_cancelled_does_not_disturb_the_others() -> None:
    store = _Store()
    reader = RecordReader(store.read)
    gone, stays = _started(reader, "a", "b")
    await store.until_asked(1)
    gone.cancel()
    store.release.release()
    assert await stays == "record of b"


async def test_a_caller_that_fails_after_its_commit_does_not_disturb_the_others() -> None:
    def fails(outcomes: Sequence[Any]) -> None:
        raise ValueError("a caller's own error")

    store = FakeStore()
    written: asyncio.Future[Sequence[Any]] = asyncio.get_running_loop().create_future()
    async with running_group_commit(store) as writes:
        writes.write_each_then([touch("a")], fails)
        writes.write_each_then([touch("b"), touch("c")], written.set_result)
        assert await written == [Done(touch("b")), Done(touch("c"))]
        assert await writes.write(touch("d")) == Done(touch("d"))
    assert [len(batch) for batch in store.batches] == [3, 1]
