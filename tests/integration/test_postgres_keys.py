"""Idempotency keys on PostgreSQL: submits with new keys are one statement."""

from __future__ import annotations

import os
import time

import pytest

from fairlead.domain.job import Job
from fairlead.domain.transitions import Submit, submit
from fairlead.store.port import Accepted, JobFilter
from fairlead.store.postgres import PostgresStore
from tests import poolers


def keyed(*numbers: int) -> list[Submit]:
    """One job for each key. The ids of the jobs differ between batches of different sizes."""
    jobs = [Job(f"j{number}-{len(numbers)}", "f", "ann", ("draw",)) for number in numbers]
    keys = [f"k{number}" for number in numbers]
    return [
        submit(job, "{}", now=time.time(), waits={}, idempotency_key=key, body_hash="h")
        for job, key in zip(jobs, keys, strict=True)
    ]


@pytest.mark.skipif(bool(os.environ.get(poolers.CHOICE)), reason="behind a pooler every commit is a transaction")
async def test_a_batch_of_new_keys_is_one_statement_and_one_with_a_known_key_a_transaction(
    emptied_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = PostgresStore(emptied_database)
    await store.open()
    try:
        with monkeypatch.context() as without_transactions:
            without_transactions.setattr(PostgresStore, "_transact", None)
            assert len((await store.commit(keyed(1, 2))).changes) == 2
        outcomes = (await store.commit(keyed(2, 3, 4))).outcomes
        replayed = [(one.job_id, one.replayed) for one in outcomes if isinstance(one, Accepted)]
        assert replayed == [("j2-2", True), ("j3-3", False), ("j4-3", False)]
        assert await store.count(JobFilter()) == 4
    finally:
        await store.close()
