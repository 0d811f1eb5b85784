"""Requests that are accepted and started in one commit, because a slot is free (`engine/prompt_worker.py`)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import openai
import pytest
import redis

from fairlead.domain import transitions
from fairlead.domain.job import JobStatus
from fairlead.domain.transitions import Start, Submit
from fairlead.errors import InvalidInput, Unavailable
from fairlead.store.port import Committed, Transition
from fairlead.store.postgres.store import PostgresStore
from fairlead.store.sqlite.store import SqliteStore
from tests.integration.openai_site import HELLO, Front, open_front


class Commits:
    """The kinds of transitions of each commit with a submit or a start. The next submit fails with `fails`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, store: type[Any]) -> None:
        self.kinds: list[list[type]] = []
        self.fails: Exception | None = None
        commit = store.commit

        async def committing(store: Any, batch: Sequence[Transition], **options: Any) -> Committed:
            kinds = [type(one) for one in batch if isinstance(one, Submit | Start)]
            if kinds:
                self.kinds.append(kinds)
            if self.fails is not None and Submit in kinds:
                error, self.fails = self.fails, None
                raise error
            return await commit(store, batch, **options)

        monkeypatch.setattr(store, "commit", committing)

    async def until_prompt(self, front: Front) -> None:
        """Send requests until one is started at once: the queue is built."""
        while self.kinds[-1:] != [[Submit, Start]]:
            await ask(front)
        self.kinds.clear()
        front.upstream.calls.clear()


@pytest.fixture
def commits(monkeypatch: pytest.MonkeyPatch, engines: dict[str, str]) -> Commits:
    return Commits(monkeypatch, PostgresStore if "redis_url" in engines else SqliteStore)


async def ask(front: Front, **options: Any) -> str:
    async with front.client() as client:
        raw = await client.chat.completions.with_raw_response.create(model="llama", messages=HELLO, **options)
        return str(raw.headers["x-fairlead-job"])


async def test_a_request_with_a_free_slot_is_accepted_and_started_in_one_commit(
    tmp_path: Path, commits: Commits, engines: dict[str, str]
) -> None:
    async with open_front(tmp_path, engines=engines) as front:
        await commits.until_prompt(front)
        job = await front.app.get(await ask(front))
        outbox = await front.app._runtime.store.outbox(older_than=1e12, limit=9)
    assert job.job_id not in [entry.job_id for entry in outbox]
    assert commits.kinds == [[Submit, Start]]
    assert (job.status, job.attempts) == (JobStatus.COMPLETED, [])
    assert job.started_at is not None
    assert len(front.upstream.calls) == 1


async def test_a_request_without_a_free_slot_waits_and_is_started_later(
    tmp_path: Path, commits: Commits, engines: dict[str, str]
) -> None:
    async with open_front(tmp_path, service={"limit": 1}, engines=engines) as front:
        await commits.until_prompt(front)
        front.upstream.gate.clear()
        first = asyncio.create_task(ask(front))
        while not front.upstream.calls:
            await asyncio.sleep(0.001)
        second = asyncio.create_task(ask(front))
        while len(commits.kinds) < 2:
            await asyncio.sleep(0.001)
        front.upstream.gate.set()
        assert await first != await second
    assert commits.kinds == [[Submit, Start], [Submit], [Start]]
    assert front.upstream.most == 1


async def test_a_commit_that_fails_sends_nothing_and_frees_the_slot(
    tmp_path: Path, commits: Commits, engines: dict[str, str]
) -> None:
    async with open_front(tmp_path, service={"limit": 1}, engines=engines) as front:
        await commits.until_prompt(front)
        commits.fails = Unavailable("the disk is full")
        with pytest.raises(openai.InternalServerError) as refused:
            await ask(front)
        assert refused.value.status_code == 503
        assert front.upstream.calls == []
        await ask(front)
        assert (await front.app.list_jobs()).data[0].status is JobStatus.COMPLETED
    assert len(front.upstream.calls) == 1


async def test_a_submit_that_is_refused_frees_the_slot_at_once(
    tmp_path: Path, commits: Commits, engines: dict[str, str]
) -> None:
    async with open_front(tmp_path, service={"limit": 1}, engines=engines) as front:
        await commits.until_prompt(front)
        commits.fails = InvalidInput("a file is missing")
        with pytest.raises(openai.APIStatusError) as refused:
            await ask(front)
        assert refused.value.status_code == InvalidInput.status
        async with asyncio.timeout(5):  # the lease would last longer
            await ask(front)
        assert (await front.app._runtime.node.shards["main"].dispatcher.snapshot())[0].leases == ()
    assert commits.kinds[0] == [Submit, Start]
    assert len(front.upstream.calls) == 1


async def test_a_caller_whose_start_has_not_begun_is_refused_when_the_worker_closes(
    tmp_path: Path, commits: Commits, engines: dict[str, str]
) -> None:
    async with open_front(tmp_path, engines=engines) as front:
        await commits.until_prompt(front)
        job_id = await ask(front)
        [worker] = front.app._runtime.node.workers
        record = await front.app._runtime.store.get(job_id)
        job = replace(record.job, id=str(uuid4()), status=JobStatus.PENDING, run=0, attempt=0)
        # It has asked for a slot, and has got no further.
        submitting = worker.submit(transitions.submit(job, "{}", now=job.created_at, waits={}))
        await worker.close()
        async with asyncio.timeout(5):
            with pytest.raises(Unavailable):
                await submitting


@pytest.mark.parametrize("engines", ["distributed"], indirect=True)
async def test_a_process_that_stops_releases_the_slots_of_ended_calls(
    tmp_path: Path, commits: Commits, engines: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with redis.Redis.from_url(engines["redis_url"]) as server:
        others = set(server.keys("*leases"))
        async with open_front(tmp_path, engines=engines) as front:
            await commits.until_prompt(front)
            await ask(front)
            node, ended = front.app._runtime.node, asyncio.Event()
            [worker] = node.workers
            release = worker._leases.release

            def released(*args: Any, **options: Any) -> None:
                release(*args, **options)
                ended.set()

            monkeypatch.setattr(worker._leases, "release", released)
            asking = asyncio.create_task(ask(front))
            await ended.wait()
            await node.stop()
            await asking
            assert set(server.keys("*leases")) <= others
