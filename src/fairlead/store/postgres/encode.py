"""Transitions as the arrays that the statements of `apply.sql` take: one array per column."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import orjson

from fairlead.domain.job import Attempt, Hold, JobStatus, StepResult
from fairlead.domain.transitions import Adopt, Move, Prioritise, Progress, Start
from fairlead.store.rows import STATUS_CODES, json_text, micros

Array = list[Any] | str | None
Columns = list[Array]


def columns(rows: Iterable[Sequence[Any]]) -> Columns:
    return [array(column) for column in zip(*rows, strict=True)]


def array(values: Sequence[Any]) -> Array:
    """As a parameter of the kind that costs least.

    Where all is NULL there is no array at all: `unnest` fills it up. Numbers go as text, `{1,NULL,3}`, and the
    statement casts them: asyncpg looks at each element of a list several times, and asks the server about its type.
    """
    kind = next((type(value) for value in values if value is not None), None)
    if kind is None:
        return None
    if kind is str:
        return list(values)
    return f"{{{','.join(map(str, values)).replace('None', 'NULL')}}}"


def epoch_of(lease: str) -> int:
    """Leases are named `epoch:counter`; one that is not belongs to no epoch."""
    epoch = lease.partition(":")[0]
    return int(epoch) if epoch.isdecimal() else -1


def start_columns(starts: Iterable[Start]) -> Columns:
    return columns((s.job_id, s.step, s.run, s.lease, s.worker, micros(s.timeout), s.region) for s in starts)


def completes(move: Move) -> bool:
    """Its result can go into the job's row, by the statement `complete`: nothing else is to be written."""
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


def complete_columns(moves: Iterable[Move]) -> Columns:
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
        )
        for move in moves
        if (result := move.result) is not None
    )


def about_of(move: Move) -> str | None:
    """Beside the result in the job's row: which step's it is, and whose lease brought it."""
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
    """A hold without a name gets that of the call it stands for."""
    return columns(
        (h.id or f"{h.job_id}:{run}", h.job_id, h.service, h.region, micros(h.until), h.band) for run, h in holds
    )


def progress_columns(reports: Iterable[Progress]) -> Columns:
    return columns((one.job_id, one.run, json_text(one.progress)) for one in reports)


def adopt_columns(adoptions: Iterable[Adopt]) -> Columns:
    return columns((one.job_id, one.run, one.process) for one in adoptions)


def prioritise_columns(wishes: Iterable[Prioritise]) -> Columns:
    return columns((w.job_id, w.run, w.priority.band, micros(w.queued_at), micros(w.promoted_at)) for w in wishes)
