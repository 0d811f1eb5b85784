"""Submits with idempotency keys: one statement if the keys are new, a transaction if one of them is known."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from fairlead.store.group_commit import GroupCommit
from fairlead.store.port import Accepted
from fairlead.store.postgres import PostgresStore
from tests.integration.test_postgres_store import job, lose_reply, opened


@pytest.fixture
async def store(emptied_database: str) -> AsyncIterator[PostgresStore]:
    async with opened(emptied_database) as store:
        yield store


async def test_submits_with_new_idempotency_keys_need_no_transaction(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.commit([job("j0")])
    began = []
    execute = asyncpg.Connection.execute

    async def executed(self: Any, query: str, *args: Any, **options: Any) -> Any:
        began.append(query)
        return await execute(self, query, *args, **options)

    monkeypatch.setattr(asyncpg.Connection, "execute", executed)
    keyed = [job(f"j{n}", idempotency_key=f"k{n}", body_hash=f"h{n}") for n in (2, 1)]
    committed = await store.commit([*keyed, job("j3")])
    assert began == []
    assert [outcome.job_id for outcome in committed.outcomes if isinstance(outcome, Accepted)] == ["j2", "j1", "j3"]
    assert sorted(change.job_id for change in committed.changes) == ["j1", "j2", "j3"]
    assert await store.newest_submit("ann", "k") == ("k2", "j2", "h2")

    again = await store.commit([job("j4", idempotency_key="k4"), job("j5", idempotency_key="k1", body_hash="h1")])
    assert [(each.job_id, each.replayed) for each in again.outcomes if isinstance(each, Accepted)] == [
        ("j4", False),
        ("j1", True),
    ]
    assert set(await store.get_jobs(["j4", "j5"])) == {"j4"}


@pytest.mark.parametrize("happened", [True, False])
async def test_the_lost_reply_to_a_submit_with_a_key_is_hidden(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch, happened: bool
) -> None:
    group_commit = GroupCommit(store)
    group_commit.start()
    lose_reply(monkeypatch, happened=happened, times=1)
    accepted = await group_commit.write(job("j1", idempotency_key="k", body_hash="h"))
    assert isinstance(accepted, Accepted)
    assert (accepted.job_id, accepted.replayed) == ("j1", False)
    assert await store.newest_submit("ann", "k") == ("k", "j1", "h")
    await group_commit.close()
