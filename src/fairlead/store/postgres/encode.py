"""Encodes transitions as parameters of the statements in `apply.sql`: one array per column."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import orjson

from fairlead.domain.calls import CallEnd
from fairlead.domain.job import Attempt, Hold, JobStatus, StepResult
from fairlead.domain.prices import Prices
from fairlead.domain.transitions import Adopt, Move, Prioritise, Progress, Start
from fairlead.store.rows import STATUS_CODES, json_text, micros
from fairlead.store.usage import NOT_REPORTED, OUTCOME_CODES, reported_row

Array = list[Any] | str | None
Columns = list[Array]

_NO_CALL = (None,) * 15


def columns(rows: Iterable[Sequence[Any]]) -> Columns:
    return [array(column) for column in zip(*rows, strict=True)]


def array(values: Sequence[Any]) -> Array:
    """Encode the values of one column in the form that asyncpg sends fastest.

    If all values are NULL, the parameter is NULL: `unnest` pads a missing array with NULLs. Numbers are sent as one
    text, `{1,NULL,3}`, which the statement casts, because for a list asyncpg inspects every element several times and
    asks the server for the type of the elements.
    """
    if not values:
        return None
    kind = type(values[0])
    if values[0] is None:
        if values.count(None) == len(values):
            return None
        kind = next(type(value) for value in values if value is not None)
    if kind is str:
        return list(values)
    return f"{{{','.join(map(str, values)).replace('None', 'NULL')}}}"


def epoch_of(lease: str) -> int:
    """The epoch of a lease named `epoch:counter`, or -1 for any other name."""
    epoch = lease.partition(":")[0]
    return int(epoch) if epoch.isdecimal() else -1


def start_columns(starts: Iterable[Start]) -> Columns:
    return columns((s.job_id, s.step, s.run, s.lease, s.worker, micros(s.timeout), s.region) for s in starts)


def started_columns(starts: Iterable[Start]) -> Columns:
    """The columns of `submit_started`."""
    return columns((s.lease, s.worker, micros(s.timeout), s.scope, epoch_of(s.lease)) for s in starts)


def completes(move: Move) -> bool:
    """Whether the statement `complete` can apply this move. That statement only ends the job and stores the result in
    the job's row."""
    return (
        move.status is JobStatus.COMPLETED
        and move.result is not None
        and not move.tells_line
        and not move.attempt
        and move.finished_at == move.last_progress_at
        and move.failed is None
        and move.hold is None
        and move.timer_at is None
        and move.waiting_since is None
        and move.retryable is None
        and move.error is None
        and move.queued_at is None
        and move.priority is None
        and move.promoted_at is None
        and move.spilled_at is None
        and move.goes_back is None
    )


def complete_columns(moves: Iterable[Move], prices: Prices) -> Columns:
    return columns(
        (
            move.job_id,
            move.run,
            move.step,
            move.round,
            micros(move.finished_at),
            about_of(move),
            result.data_json,
            result.metrics_json,
            *call_values(move.call, prices),
        )
        for move in moves
        if (result := move.result) is not None
    )


def call_values(call: CallEnd | None, prices: Prices) -> tuple[Any, ...]:
    """The columns of a ledger row that both statements pass: waited, slot, outcome, step, attempt, service, region, and
    those of `reported_row`."""
    if call is None:
        return _NO_CALL
    job = call.job
    began, ended = micros(job.call_started_at) or 0, micros(call.ended_at) or 0
    return (
        max(0, began - (micros(job.waiting_since) or began)),
        max(0, ended - began),
        OUTCOME_CODES[call.outcome],
        job.step,
        job.attempt,
        job.service,
        job.call_region,
        *(reported_row(call, prices) or NOT_REPORTED),
    )


def ledger_columns(moves: Iterable[Move], prices: Prices) -> Columns | None:
    """The parameters of the statement `ledger`; None if no move ends a call."""
    calls = [(move, move.call) for move in moves if move.call is not None]
    if not calls:
        return None
    return columns(
        (
            micros(call.ended_at),
            move.job_id,
            move.run,
            call.job.user_id,
            call.job.feature_name,
            *call_values(call, prices),
        )
        for move, call in calls
    )


def about_of(move: Move) -> str | None:
    """The value of the column `result_about`: which step and round the result belongs to, and which lease produced
    it."""
    if (result := move.result) is None:
        return None
    facts = (result.step, result.service, result.round, micros(result.finished_at), result.lease)
    return orjson.dumps(facts).decode()


def move_columns(moves: Iterable[Move]) -> Columns:
    return columns(
        (
            move.job_id,
            move.run,
            STATUS_CODES[move.status],
            move.step,
            move.attempt,
            move.round,
            micros(move.timer_at),
            micros(move.waiting_since),
            micros(move.finished_at),
            move.retryable,
            json_text(move.error),
            micros(move.queued_at),
            None if move.priority is None else move.priority.band,
            micros(move.promoted_at),
            micros(move.last_progress_at),
            micros(move.spilled_at),
            json_text(move.goes_back),
        )
        for move in moves
    )


def result_columns(results: Iterable[tuple[int, StepResult]]) -> Columns:
    return columns(
        (seq, r.step, r.round, r.service, r.data_json, r.metrics_json, micros(r.finished_at), r.lease)
        for seq, r in results
    )


def attempt_columns(attempts: Iterable[tuple[int, int, Attempt]]) -> Columns:
    return columns(
        (
            seq,
            run,
            a.step,
            a.service,
            a.round,
            a.attempt,
            json_text(a.error),
            micros(a.started_at),
            micros(a.ended_at),
            a.worker,
            a.region,
        )
        for seq, run, a in attempts
    )


def hold_columns(holds: Iterable[tuple[int, Hold]]) -> Columns:
    """The columns of the holds. A hold without an id gets an id made from its job and call."""
    return columns(
        (h.id or f"{h.job_id}:{run}", h.job_id, h.service, h.region, micros(h.until), h.band) for run, h in holds
    )


def progress_columns(reports: Iterable[Progress]) -> Columns:
    return columns((one.job_id, one.run, json_text(one.progress)) for one in reports)


def adopt_columns(adoptions: Iterable[Adopt]) -> Columns:
    return columns((one.job_id, one.run, one.process) for one in adoptions)


def prioritise_columns(wishes: Iterable[Prioritise]) -> Columns:
    return columns((w.job_id, w.run, w.priority.band, micros(w.queued_at), micros(w.promoted_at)) for w in wishes)
