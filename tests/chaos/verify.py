"""Verifies the guarantees after a round, from PostgreSQL, Redis and the services' own counts."""

from __future__ import annotations

import json
import re
import time
from collections import Counter, defaultdict
from typing import Any

from tests.chaos.cluster import Cluster
from tests.chaos.load import Expected, Load
from tests.chaos.progress_watch import Watch
from tests.chaos.waiting import until, until_true

STILL_S = 45.0
COMPLETED, FAILED, CANCELLED = 4, 5, 6

JOBS = """
SELECT j.id, j.status::int, j.ended::int, j.run, j.step, j.lease, j.user_id, j.idempotency_key, j.result_about,
       j.result_data, j.seq FROM fairlead.job AS j
"""
STUCK = """
SELECT id, status, step, run, attempt, lease, worker, timer_at, error FROM fairlead.job WHERE ended IS NULL LIMIT 20
"""


async def all_ended(cluster: Cluster, load: Load, watch: Watch) -> None:
    """Wait until all jobs have ended. Fails only if nothing changes for `STILL_S`, since the machine may be slow."""
    watch.changed_at = time.monotonic()

    async def ended() -> bool:
        await watch.look()
        if time.monotonic() - watch.changed_at > STILL_S:
            stuck = [dict(row) for row in await cluster.database.rows(STUCK)]
            raise AssertionError(f"{watch.open} jobs do not end: {stuck}")
        return watch.open == 0 and watch.ended >= len(load.accepted)

    await until("all jobs end", ended, patience=600, every=0.1)


async def everything(cluster: Cluster, load: Load) -> dict[str, Any]:
    """Raise AssertionError with all violations, or return counts for the log."""
    assert not load.complaints, load.complaints
    await nothing_left(cluster)
    wrong = await jobs_are_right(cluster, load) + await services_are_right(cluster, load) + logs_are_right(cluster)
    assert not wrong, "\n".join(wrong[:50])
    seen = await cluster.services.seen()
    return {
        "jobs": len(load.accepted),
        "ended": dict(sorted((await cluster.database.statuses()).items())),
        "calls": sum(seen.calls.values()),
        "again": sum(count - 1 for count in seen.calls.values()),
        "most in flight": {name: seen.maximum(name) for name in seen.services},
        "responses": dict(load.responses),
    }


async def nothing_left(cluster: Cluster) -> None:
    """No outbox row and no overdue hold; in Redis no lease, no hold and no waiting entry."""
    database, redis = cluster.database, cluster.redis
    assert redis is not None

    async def outbox_is_empty() -> bool:
        return int(await database.value("SELECT count(*) FROM fairlead.outbox")) == 0

    async def holds_are_over() -> bool:
        return int(await database.value("SELECT count(*) FROM fairlead.hold")) == 0

    await until("the outbox is empty", outbox_is_empty)
    await until("the holds end", holds_are_over)
    for name in ("leases", "holds", "entries"):
        await until_true(f"there are no {name} in Redis", lambda name=name: redis.sizes(name) == 0)  # type: ignore[misc]


async def jobs_are_right(cluster: Cluster, load: Load) -> list[str]:
    rows = {row["id"]: row for row in await cluster.database.rows(JOBS)}
    records = defaultdict(list)
    for row in await cluster.database.rows("SELECT * FROM witness.records ORDER BY id"):
        records[row["job_id"]].append(row)
    results = defaultdict(list)
    sql = "SELECT j.id, r.step, r.round, r.data FROM fairlead.step_result AS r JOIN fairlead.job AS j USING (seq)"
    for row in await cluster.database.rows(sql):
        results[row["id"]].append(row)
    # All clients waited for all responses, so the stored jobs are the accepted ones.
    wrong = [f"accepted but not stored: {job_id}" for job_id in load.accepted.keys() - rows.keys()]
    wrong += [f"stored but never submitted: {dict(rows[job_id])}" for job_id in rows.keys() - load.accepted.keys()]
    for job_id in load.accepted.keys() & rows.keys():
        row, expected = rows[job_id], load.accepted[job_id]
        for problem in (
            *_ended_once(row, records[job_id]),
            *_as_expected(row, expected),
            *_results(row, expected, results),
        ):
            wrong.append(f"job {job_id}: {problem}; {dict(row)}")
    keys = Counter((row["user_id"], row["idempotency_key"]) for row in rows.values())
    wrong += [f"{count} jobs of the key {key}" for key, count in keys.items() if count > 1]
    wrong += [f"a key that was never sent: {key}" for key in keys if not _sent(load, *key)]
    return wrong


def _sent(load: Load, user: str, key: str | None) -> bool:
    """The jobs of a bulk have its key with their index."""
    return key is not None and ((user, key) in load.keys or (user, key.rpartition("#")[0]) in load.keys)


def _ended_once(row: Any, records: list[Any]) -> list[str]:
    wrong = [f"{each['what']}: {dict(each)}" for each in records if each["what"] != "ended"]
    ends = [each for each in records if each["what"] == "ended"]
    if len(ends) != 1:
        wrong.append(f"it ended {len(ends)} times")
    if row["ended"] is None or row["ended"] != row["status"]:
        wrong.append("it has not ended")
    if row["lease"] is not None:
        wrong.append("it ended and has a lease")
    return wrong


def _as_expected(row: Any, expected: Expected) -> list[str]:
    allowed = {FAILED if expected.poison else COMPLETED}
    if expected.cancel_requested:
        allowed.add(CANCELLED)
    if expected.cancel_granted:
        allowed = {CANCELLED}
    return [] if row["status"] in allowed else [f"it should be one of {allowed}"]


def _results(row: Any, expected: Expected, results: dict[str, list[Any]]) -> list[str]:
    """One result per completed step, all of the first round, and each from its own call."""
    wrong = []
    stored = [(each["step"], each["round"], each["data"]) for each in results[row["id"]]]
    if row["result_data"] is not None:
        about = json.loads(row["result_about"])
        stored.append((about[0], about[2], row["result_data"]))
    done = len(expected.steps) if row["status"] == COMPLETED else row["step"]
    if sorted((step, round_) for step, round_, _ in stored) != [(step, 0) for step in range(done)]:
        wrong.append(f"it has done {done} steps and has these results: {sorted(stored)}")
    for step, round_, data in stored:
        if json.loads(data)["key"] != f"{row['id']}:{step}:{round_}":
            wrong.append(f"step {step} has the result of another call: {data}")
    return wrong


async def services_are_right(cluster: Cluster, load: Load) -> list[str]:
    seen = await cluster.services.seen()
    wrong = []
    for name, limit in cluster.shape.limits.items():
        if seen.maximum(name) > limit:
            wrong.append(f"{name} has a limit of {limit} and saw {seen.maximum(name)} calls at once")
        if seen.services[name]["in_flight"]:
            wrong.append(f"{name} is still computing, though all jobs have ended")
    jobs_called = {key.partition(":")[0] for key in seen.calls}
    wrong += [f"a call for a job that was never submitted: {job_id}" for job_id in jobs_called - load.accepted.keys()]
    return wrong


def logs_are_right(cluster: Cluster) -> list[str]:
    """Killed or unavailable components are logged as warnings; an error in a log is unexpected."""
    wrong = []
    for process in cluster.processes.values():
        lines = process.log.read_text(errors="replace").splitlines()
        for number, line in enumerate(lines):
            if re.search(r" (ERROR|CRITICAL) |^Traceback ", line):
                excerpt = "\n    ".join(lines[number : number + 60])
                wrong.append(f"{process.name} logged an error:\n    {excerpt}")
                break
    return wrong
