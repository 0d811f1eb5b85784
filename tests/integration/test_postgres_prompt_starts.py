"""Jobs that PostgreSQL accepts and starts in one statement: lost replies and rebuilds."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from fairlead.store.group_commit import GroupCommit
from fairlead.store.port import Accepted, Outcome, Refused, Started
from fairlead.store.postgres.queries import WRITES
from tests.integration.lost_replies import lose_reply
from tests.integration.test_postgres_store import RecordingRelay, blocked, job, opened, raw, start


async def written(group_commit: GroupCommit, job_id: str, lease: str) -> Sequence[Outcome | Exception]:
    outcomes: asyncio.Future[Sequence[Outcome | Exception]] = asyncio.get_running_loop().create_future()
    group_commit.write_chain(job(job_id, idempotency_key=job_id), start(job_id, lease), outcomes.set_result)
    return await outcomes


@pytest.mark.parametrize("happened", [True, False])
async def test_a_lost_reply_to_a_submit_that_starts_its_job_is_hidden(
    emptied_database: str, monkeypatch: pytest.MonkeyPatch, happened: bool
) -> None:
    async with opened(emptied_database) as store:
        relay = RecordingRelay()
        group_commit = GroupCommit(store, relay)
        group_commit.start()
        await written(group_commit, "j1", "0:1")  # the scope is known
        lose_reply(monkeypatch, happened=happened, times=1)
        accepted, started = await written(group_commit, "j2", "0:2")
        assert isinstance(accepted, Accepted)
        assert isinstance(started, Started)
        assert (started.job.seq, started.job.lease, started.job.run) == (accepted.seq, "0:2", 1)
        assert (await store.get_jobs(["j2"]))["j2"].lease == "0:2"
        assert relay.job_ids == []
        await group_commit.close()


async def test_a_submit_that_starts_its_job_waits_for_a_rebuild_and_only_queues_the_job(emptied_database: str) -> None:
    async with opened(emptied_database) as store:
        await store.commit([job("j1"), start("j1")])
        async with raw(emptied_database) as rebuilding:
            async with rebuilding.transaction():
                await rebuilding.fetch(WRITES["raise_epoch"], "service:draw", "")
                committing = asyncio.ensure_future(store.commit([job("j2", idempotency_key="k2"), start("j2")]))
                await blocked(emptied_database)
            committed = await committing
        assert [type(outcome) for outcome in committed.outcomes] == [Accepted, Refused]
        assert [change.job_id for change in committed.changes] == ["j2"]
