"""Requests that are accepted and started in one commit, because a slot is free (`engine/prompt_worker.py`)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import openai
import pytest

from fairlead.dispatch.memory import MemoryDispatcher
from fairlead.dispatch.memory.claim_new import claim_new
from fairlead.dispatch.port import Claim, Offer, Release
from fairlead.domain.job import JobStatus
from fairlead.domain.rules import Rules, ServiceRules
from fairlead.domain.transitions import Start, Submit
from fairlead.errors import InvalidInput, Unavailable
from fairlead.store.port import Committed, Transition
from fairlead.store.sqlite.store import SqliteStore
from tests.integration.openai_site import HELLO, Front, open_front


class Commits:
    """The kinds of transitions of each commit with a submit or a start. The next submit fails with `fails`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.kinds: list[list[type]] = []
        self.fails: Exception | None = None
        commit = SqliteStore.commit

        async def committing(store: SqliteStore, batch: Sequence[Transition], **options: Any) -> Committed:
            kinds = [type(one) for one in batch if isinstance(one, Submit | Start)]
            if kinds:
                self.kinds.append(kinds)
            if self.fails is not None and Submit in kinds:
                error, self.fails = self.fails, None
                raise error
            return await commit(store, batch, **options)

        monkeypatch.setattr(SqliteStore, "commit", committing)


@pytest.fixture
def commits(monkeypatch: pytest.MonkeyPatch) -> Commits:
    return Commits(monkeypatch)


async def ask(front: Front, **options: Any) -> str:
    async with front.client() as client:
        raw = await client.chat.completions.with_raw_response.create(model="llama", messages=HELLO, **options)
        return str(raw.headers["x-fairlead-job"])


async def test_a_request_with_a_free_slot_is_accepted_and_started_in_one_commit(
    tmp_path: Path, commits: Commits
) -> None:
    async with open_front(tmp_path) as front:
        await ask(front)  # the queue is built
        commits.kinds.clear()
        job = await front.app.get(await ask(front))
    assert commits.kinds == [[Submit, Start]]
    assert (job.status, job.attempts) == (JobStatus.COMPLETED, [])
    assert job.started_at is not None
    assert len(front.upstream.calls) == 2


async def test_a_request_without_a_free_slot_waits_and_is_started_later(tmp_path: Path, commits: Commits) -> None:
    async with open_front(tmp_path, service={"limit": 1}) as front:
        await ask(front)  # the queue is built
        commits.kinds.clear()
        front.upstream.gate.clear()
        first = asyncio.create_task(ask(front))
        while len(front.upstream.calls) < 2:
            await asyncio.sleep(0.001)
        second = asyncio.create_task(ask(front))
        while len(commits.kinds) < 2:
            await asyncio.sleep(0.001)
        front.upstream.gate.set()
        assert await first != await second
    assert commits.kinds == [[Submit, Start], [Submit], [Start]]
    assert front.upstream.most == 1


async def test_a_commit_that_fails_sends_nothing_and_frees_the_slot(tmp_path: Path, commits: Commits) -> None:
    async with open_front(tmp_path, service={"limit": 1}) as front:
        commits.fails = Unavailable("the disk is full")
        with pytest.raises(openai.InternalServerError) as refused:
            await ask(front)
        assert refused.value.status_code == 503
        assert front.upstream.calls == []
        await ask(front)
        assert (await front.app.list_jobs()).data[0].status is JobStatus.COMPLETED
    assert len(front.upstream.calls) == 1


async def test_a_submit_that_is_refused_frees_the_slot_at_once(tmp_path: Path, commits: Commits) -> None:
    async with open_front(tmp_path, service={"limit": 1}) as front:
        await ask(front)  # the queue is built
        commits.kinds.clear()
        commits.fails = InvalidInput("a file is missing")
        with pytest.raises(openai.APIStatusError) as refused:
            await ask(front)
        assert refused.value.status_code == InvalidInput.status
        [idle] = await front.app._runtime.node.shards["main"].dispatcher.snapshot()
        assert idle.leases == ()
        await ask(front)
    assert commits.kinds == [[Submit, Start], [Submit, Start]]
    assert len(front.upstream.calls) == 2


# ---------------------------------------------------------------- the dispatcher


def offer(job_id: str, service: str = "s") -> Offer:
    return Offer(job_id, 2**62, service, "ann", 2, 1, 0, 0)


async def opened(limit: int, *others: ServiceRules, **pools: int) -> MemoryDispatcher:
    dispatcher = MemoryDispatcher(lambda: 1000.0)
    rules = {each.service: each for each in (ServiceRules("s", limit=limit), *others)}
    await dispatcher.configure(Rules(rules, pools))
    for scope in {each.scope for each in rules.values()}:
        await dispatcher.close_scope(scope, epoch=1)
        await dispatcher.open_scope(scope, epoch=1)
    return dispatcher


async def test_a_new_step_is_claimed_within_the_limit_and_leaves_no_trace_otherwise() -> None:
    dispatcher = await opened(1)
    lease = claim_new(dispatcher, offer("a"), "w")
    assert lease is not None
    assert claim_new(dispatcher, offer("b"), "w") is None
    assert await dispatcher.positions(["b"]) == {}
    assert await dispatcher.offer([offer("a")]) == 0  # its outbox row, which is relayed after the commit
    await dispatcher.release([Release(lease.name, "s")])
    assert claim_new(dispatcher, offer("b"), "w") is not None


async def test_a_new_step_does_not_overtake_the_step_that_is_next() -> None:
    dispatcher = await opened(1)
    await dispatcher.offer([offer("first")])
    assert claim_new(dispatcher, offer("new"), "w") is None
    (lease,) = await dispatcher.exchange(Claim("w", 5, frozenset({"s"})))
    assert lease.job_id == "first"


async def test_a_new_step_does_not_hide_what_its_worker_claims_for_in_pools() -> None:
    """The services `a` and `b` share one slot, and another worker serves `b`."""
    pooled = [ServiceRules(name, limit=5, pool="p") for name in ("a", "b")]
    dispatcher = await opened(5, *pooled, p=1)
    first, second = Claim("w", 5, frozenset({"a", "s"})), Claim("v", 5, frozenset({"b"}))
    await dispatcher.exchange(first)
    await dispatcher.offer([offer("b1", "b")])
    (lease,) = await dispatcher.exchange(second)
    await dispatcher.offer([offer("a1", "a"), offer("b2", "b")])
    assert claim_new(dispatcher, offer("new"), "w") is not None
    assert await dispatcher.exchange(second, [Release(lease.name, "b")]) == [], "it is the turn of a"
    assert [each.job_id for each in await dispatcher.exchange(first)] == ["a1"]


@pytest.mark.parametrize(
    "service", [ServiceRules("t", limit=1, pool="p"), ServiceRules("t", limit=1, regions={"eu": 1})]
)
async def test_new_steps_of_pools_and_regions_are_left_to_claims(service: ServiceRules) -> None:
    dispatcher = await opened(1, service, p=0)
    assert claim_new(dispatcher, offer("new", "t"), "w") is None
