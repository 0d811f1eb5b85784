"""Batches of one kind, each a single statement and by itself a transaction: one round trip, where a commit of several
kinds takes five or more. On an idle system a job's way from submit to start is mostly round trips.

Nobody knows such a transaction's number before it is committed. So if the reply to one is lost, `recall` finds out by
the rows what became of it: a job has the id, or the lease, or the result that this very batch gave it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import asyncpg

from fairlead.domain.job import JobStatus
from fairlead.domain.transitions import Move, Start, Submit
from fairlead.store.port import Accepted, Committed, LineChange, Outcome, Relayed, Started, Transition
from fairlead.store.postgres import encode
from fairlead.store.postgres.commit import DONE, MOVED_ON, NOT_STARTED
from fairlead.store.postgres.newcomers import check_names, insertion
from fairlead.store.postgres.queries import WRITES
from fairlead.store.rows import job_of, numbered
from fairlead.store.units import job_id_of

Read = Callable[[list[Any]], Committed]
Plan = tuple[str, Sequence[Any], Read]
"""A statement, its parameters, and what its rows mean."""


def plan_of(batch: Sequence[Transition], *, origin: str, now: int | None, scopes: set[str]) -> Plan | None:
    """None: this batch is none of those. `scopes` are those whose rows are there, to this process's knowledge."""
    kinds = set(map(type, batch))
    if len(kinds) > 1:
        return None
    kind = kinds.pop()
    if kind is Submit:
        return _submits(batch, origin, now)  # type: ignore[arg-type]
    if kind is Start:
        return _starts(batch, now, scopes)  # type: ignore[arg-type]
    if kind is Move:
        return _completions(batch)  # type: ignore[arg-type]
    if kind is Relayed:
        return _relayed(batch)  # type: ignore[arg-type]
    return None


def _submits(submits: Sequence[Submit], origin: str, now: int | None) -> Plan | None:
    """Of those that nothing can turn away."""
    if any(submit.idempotency_key is not None or submit.max_waiting > 0 for submit in submits):
        return None
    check_names(submits)
    jobs = insertion(submits, origin=origin, now=now)

    def read(rows: list[Any]) -> Committed:
        outcomes: list[Outcome] = []
        changes = []
        for submit, (seq, outbox_id) in zip(submits, jobs.numbers(rows), strict=True):
            outcomes.append(Accepted(submit.job.id, seq))
            if outbox_id is not None:
                changes.append(LineChange(outbox_id, submit.job.id, numbered(submit.job, seq)))
        return Committed(outcomes, changes)

    return jobs.sql, jobs.parameters, read


def _starts(starts: Sequence[Start], now: int | None, scopes: set[str]) -> Plan | None:
    if not all(start.scope in scopes for start in starts):
        return None
    order = _by_job([start.job_id for start in starts])
    sorted_starts = [starts[place] for place in order]

    def read(rows: list[Any]) -> Committed:
        outcomes: list[Outcome] = [NOT_STARTED] * len(starts)
        for row in rows:
            outcomes[order[row[0] - 1]] = Started(job_of(row[3:]), row[1], row[2])
        return Committed(outcomes, [])

    columns = encode.start_columns(sorted_starts)
    epochs = encode.array([encode.epoch_of(start.lease) for start in sorted_starts])
    scopes_given = [start.scope for start in sorted_starts]
    return WRITES["start_express"], [*columns, now, scopes_given, epochs], read


def _completions(moves: Sequence[Move]) -> Plan | None:
    if not all(map(encode.completes, moves)):
        return None
    order = _by_job([move.job_id for move in moves])

    def read(rows: list[Any]) -> Committed:
        outcomes: list[Outcome] = [MOVED_ON] * len(moves)
        for (n,) in rows:
            outcomes[order[n - 1]] = DONE
        return Committed(outcomes, [])

    return WRITES["complete"], encode.complete_columns(moves[place] for place in order), read


def _relayed(relayed: Sequence[Relayed]) -> Plan:
    ids = encode.array(sorted(id_ for one in relayed for id_ in one.outbox_ids))
    return WRITES["relayed_express"], [ids], lambda rows: Committed([DONE] * len(relayed), [])


def _by_job(job_ids: Sequence[str]) -> list[int]:
    """Rows are locked in the order of the arrays: by job id, in every process."""
    return sorted(range(len(job_ids)), key=job_ids.__getitem__)


# ---------------------------------------------------------------- after a lost reply


async def recall(
    connection: asyncpg.Connection, batch: Sequence[Transition]
) -> tuple[list[tuple[Transition, Outcome]], list[LineChange]]:
    """Those of the batch that were applied, with their outcomes, and the outbox rows that are left of them. The
    transaction itself must be over."""
    ids = [job_id for job_id in map(job_id_of, batch) if job_id is not None]
    rows = {row[len(_BESIDE) + 1]: row for row in await connection.fetch(WRITES["recalled"], ids)}
    applied: list[tuple[Transition, Outcome]] = []
    changes = []
    for one in batch:
        row = rows.get(job_id_of(one) or "")
        if row is None:
            continue
        outbox_id, about, input_json, context_json, *columns = row
        job = job_of(columns)
        if isinstance(one, Submit):
            applied.append((one, Accepted(job.id, job.seq)))
            if outbox_id is not None:
                changes.append(LineChange(outbox_id, job.id, job))
        elif isinstance(one, Start):
            if job.status is JobStatus.RUNNING and job.lease == one.lease and job.run == one.run + 1:
                applied.append((one, Started(job, input_json, context_json)))
        elif isinstance(one, Move) and about == encode.about_of(one):
            applied.append((one, DONE))
    return applied, changes


_BESIDE = ("outbox_id", "result_about", "input", "context")
"""The columns of `recalled` before the job's own."""
