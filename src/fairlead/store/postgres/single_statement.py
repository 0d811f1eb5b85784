"""Commits a batch by a single statement, without an explicit transaction, if the batch has one kind of transition.

A single statement takes one round trip, a transaction five or more. On an idle system, most of the time from submit to
start is spent on round trips.

The transaction id of such a commit is not known before it commits. If the reply is lost, `recall` finds out from the
rows of the jobs whether the batch was applied: they then have the id, the lease or the result that the batch gave them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any

import asyncpg

from fairlead.domain.budgets import Budgets
from fairlead.domain.job import JobStatus
from fairlead.domain.prices import Prices
from fairlead.domain.transitions import Move, Start, Submit
from fairlead.store.commits import DONE, MOVED_ON, NOT_STARTED
from fairlead.store.port import Accepted, Committed, OutboxEntry, Outcome, Relayed, Started, Transition
from fairlead.store.postgres import encode
from fairlead.store.postgres.queries import WRITES
from fairlead.store.postgres.submit import accepted, needs_admission, new_keys, submitting
from fairlead.store.rows import job_of, running
from fairlead.store.write_units import job_id_of

Read = Callable[[list[Any]], Committed | None]
Plan = tuple[str, Sequence[Any], Read]
"""A statement, its parameters, and the function that reads its rows. It returns None if the statement changed nothing
and the batch needs a transaction."""


def plan_of(
    batch: Sequence[Transition],
    *,
    origin: str,
    now: int | None,
    scopes: set[str],
    prices: Prices,
    budgets: Budgets,
) -> Plan | None:
    """The statement that commits this batch, or None if the batch needs a transaction. `scopes` are the scopes known to
    have a row in the epoch table; starts in other scopes need a transaction, and so do calls that a budget concerns."""
    kinds = set(map(type, batch))
    if budgets and any(_may_be_charged(one, budgets) for one in batch):
        return None
    if kinds == {Submit, Start}:
        return _started_submits(batch, origin, now, scopes)
    if len(kinds) > 1:
        return None
    kind = kinds.pop()
    if kind is Submit:
        return _submits(batch, origin, now)  # type: ignore[arg-type]
    if kind is Start:
        return _starts(batch, now, scopes)  # type: ignore[arg-type]
    if kind is Move:
        return _completions(batch, prices)  # type: ignore[arg-type]
    if kind is Relayed:
        return _relayed(batch)  # type: ignore[arg-type]
    return None


def _submits(submits: Sequence[Submit], origin: str, now: int | None) -> Plan | None:
    if any(submit.files for submit in submits):
        return None
    if needs_admission(submits):
        return _keyed_submits(submits, origin, now)
    statements = submitting(submits, origin=origin, now=now)
    sql, parameters = next(statements)

    def read(rows: list[Any]) -> Committed:
        try:
            statements.send(rows)
        except StopIteration as end:
            return Committed(end.value.outcomes, end.value.changes)
        raise AssertionError("without admission there is one statement")

    return sql, parameters, read


def _keyed_submits(submits: Sequence[Submit], origin: str, now: int | None) -> Plan | None:
    jobs = new_keys(submits, origin=origin, now=now)
    if jobs is None:
        return None

    def read(rows: list[Any]) -> Committed | None:
        return Committed(*accepted(submits, jobs.numbers(rows))) if rows else None

    return jobs.sql, jobs.parameters, read


def _started_submits(batch: Sequence[Transition], origin: str, now: int | None, scopes: set[str]) -> Plan | None:
    """The statement for jobs that are started by the commit that accepts them: each is followed by its start."""
    submits: Sequence[Any] = batch[::2]
    starts: Sequence[Any] = batch[1::2]
    for submit, start in zip_longest(submits, starts):
        if type(submit) is not Submit or type(start) is not Start or submit.job.id != start.job_id:
            return None
        if submit.files or start.region is not None or start.scope not in scopes:
            return None
    jobs = new_keys(submits, origin=origin, now=now, starts=starts)
    if jobs is None:
        return None

    def read(rows: list[Any]) -> Committed | None:
        if not rows:
            return None
        numbers = {job_id: (seq, at) for job_id, seq, at in rows}
        outcomes: list[Outcome] = []
        for submit, start in zip(submits, starts, strict=True):
            seq, at = numbers[start.job_id]
            started = Started(running(submit.job, start, seq, at), submit.input_json, "{}")
            outcomes += (Accepted(start.job_id, seq), started)
        return Committed(outcomes, [])

    return jobs.sql, jobs.parameters, read


def _starts(starts: Sequence[Start], now: int | None, scopes: set[str]) -> Plan | None:
    if not all(start.scope in scopes for start in starts):
        return None
    order = _by_job([start.job_id for start in starts])
    sorted_starts = [starts[index] for index in order]

    def read(rows: list[Any]) -> Committed:
        outcomes: list[Outcome] = [NOT_STARTED] * len(starts)
        for row in rows:
            outcomes[order[row[0] - 1]] = Started(job_of(row[3:]), row[1], row[2])
        return Committed(outcomes, [])

    columns = encode.start_columns(sorted_starts)
    epochs = encode.array([encode.epoch_of(start.lease) for start in sorted_starts])
    lease_scopes = [start.scope for start in sorted_starts]
    return WRITES["start_single"], [*columns, now, lease_scopes, epochs], read


def _may_be_charged(transition: Transition, budgets: Budgets) -> bool:
    if isinstance(transition, Start):
        return budgets.may_concern(transition.user_id, transition.service)
    if not isinstance(transition, Move) or transition.call is None:
        return False
    return budgets.may_concern(transition.call.job.user_id, transition.call.job.service)


def _writes_more(move: Move) -> bool:
    """Whether the move writes rows besides its job's: uses of files, or deliveries of webhooks."""
    return move.webhook is not None or (move.result is not None and bool(move.result.files))


def _completions(moves: Sequence[Move], prices: Prices) -> Plan | None:
    if not all(map(encode.completes, moves)) or any(map(_writes_more, moves)):
        return None
    order = _by_job([move.job_id for move in moves])

    def read(rows: list[Any]) -> Committed:
        outcomes: list[Outcome] = [MOVED_ON] * len(moves)
        for (n,) in rows:
            outcomes[order[n - 1]] = DONE
        return Committed(outcomes, [])

    return WRITES["complete"], encode.complete_columns([moves[index] for index in order], prices), read


def _relayed(relayed: Sequence[Relayed]) -> Plan:
    ids = encode.array(sorted(id_ for one in relayed for id_ in one.outbox_ids))
    return WRITES["relayed_single"], [ids], lambda rows: Committed([DONE] * len(relayed), [])


def _by_job(job_ids: Sequence[str]) -> list[int]:
    """The positions of the jobs, sorted by job id. Rows are locked in the order of the arrays, so every process must
    sort them in the same way."""
    return sorted(range(len(job_ids)), key=job_ids.__getitem__)


async def recall(
    connection: asyncpg.Connection, batch: Sequence[Transition]
) -> tuple[list[tuple[Transition, Outcome]], list[OutboxEntry]]:
    """Find out what a commit whose reply was lost has done. Returns the transitions that were applied, with their
    outcomes, and the outbox rows of the batch that still exist. The transaction must have ended."""
    ids = [job_id for job_id in map(job_id_of, batch) if job_id is not None]
    rows = {row[len(_LEADING_COLUMNS) + 1]: row for row in await connection.fetch(WRITES["recalled"], ids)}
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
                changes.append(OutboxEntry(outbox_id, job.id, job, one.ordered))
        elif isinstance(one, Start):
            if job.status is JobStatus.RUNNING and job.lease == one.lease and job.run == one.run + 1:
                applied.append((one, Started(job, input_json, context_json)))
        elif isinstance(one, Move) and about == encode.about_of(one):
            applied.append((one, DONE))
    return applied, changes


_LEADING_COLUMNS = ("outbox_id", "result_about", "input", "context")
"""The columns of `recalled` before those of the job."""
