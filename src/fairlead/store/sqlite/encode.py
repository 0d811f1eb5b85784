"""Encodes transitions as rows of the view `batch` in `apply.sql`: one row per kind, with a JSON array as body."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any

import orjson

from fairlead.domain.job import Attempt, Hold
from fairlead.domain.prices import NO_PRICES, Prices
from fairlead.domain.transitions import Adopt, Delete, Move, Prioritise, Progress, Start, Submit
from fairlead.errors import InvalidInput
from fairlead.store.port import (
    LATE_AFTER,
    Adapt,
    DeclareServices,
    EndHolds,
    Override,
    OverrideRates,
    Prune,
    RaiseEpoch,
    Relayed,
)
from fairlead.store.rows import STATUS_CODES, begins_round, json_text, micros, micros_by, spec_of
from fairlead.store.rules import adapted_row, declaration_of, rate_rows
from fairlead.store.usage import OUTCOME_CODES, reported_row

Row = tuple[str, str | int | None]
"""A row of the view `batch`: (kind, body)."""

_NO_CALL = (None, None, None, None)
_NO_STARTS: Mapping[str, tuple[int, Start]] = {}


# Rules and epochs have one row each: they are rare, and each must see the effect of the previous one.


def epoch_rows(raises: Sequence[RaiseEpoch]) -> list[Row]:
    return [("epoch", json_body((one.scope, one.server, one.version))) for one in raises]


def declare_rows(declarations: Sequence[DeclareServices]) -> list[Row]:
    return [("declare", json_body((declaration_of(one), one.based_on, sorted(one.moved)))) for one in declarations]


def override_rows(overrides: Sequence[Override]) -> list[Row]:
    return [("override", json_body((one.service, one.limit, one.paused, one.lift_limit))) for one in overrides]


def override_rate_rows(overrides: Sequence[OverrideRates]) -> list[Row]:
    return [("rates", json_body((one.based_on, sorted(one.moved), rate_rows(one)))) for one in overrides]


def adapt_rows(adapts: Sequence[Adapt]) -> list[Row]:
    return [("adapt", json_body(adapted_row(one))) for one in adapts]


def submit_rows(
    submits: Sequence[Submit], *, all_or_nothing: bool = False, starts: Mapping[str, tuple[int, Start]] = _NO_STARTS
) -> list[Row]:
    """The rows that insert jobs: first the checks, then the jobs, then their inputs, metadata and idempotency keys.
    `starts` are the numbered starts of these jobs, by job."""
    checks = [
        (n, submit.job.id, submit.job.user_id, submit.idempotency_key, submit.body_hash, submit.max_waiting)
        for n, submit in enumerate(submits)
        if all_or_nothing or submit.idempotency_key is not None or submit.max_waiting > 0
    ]
    notes = [
        (n, submit.job.id, submit.metadata_json, submit.idempotency_key)
        for n, submit in enumerate(submits)
        if submit.metadata_json is not None or submit.idempotency_key is not None
    ]
    rows: list[Row] = []
    if any(submit.ordered for submit in submits):
        rows.append(("late", micros(LATE_AFTER)))
    if checks:
        limited = all_or_nothing or any(submit.max_waiting > 0 for submit in submits)
        rows.append(("admit" if limited else "claim", body := json_body(checks)))
        if all_or_nothing:
            rows.append(("all_or_nothing", body))
    kind = "submit_started" if starts else "submit"
    rows.append((kind, json_body([_job_row(submit, starts.get(submit.job.id)) for submit in submits])))
    rows.append(("input", json_body([submit.input_json for submit in submits])))
    if notes:
        rows.append(("note", json_body(notes)))
    return rows


def _job_row(submit: Submit, started: tuple[int, Start] | None) -> tuple[Any, ...]:
    job = submit.job
    # A NUL ends a text in SQLite's JSON, so two users that differ only after it would become one.
    if "\0" in job.user_id or "\0" in job.id or "\0" in job.feature_name or "\0" in (submit.idempotency_key or ""):
        raise InvalidInput("a name must not contain the character NUL")
    row = (
        job.id,
        job.user_id,
        job.feature_name,
        STATUS_CODES[job.status],
        job.priority.band,
        micros(job.created_at),
        micros(job.queued_at),
        micros(job.waiting_since),
        micros(job.scheduled_at),
        micros(job.timer_at),
        micros(job.deadline_at),
        spec_of(job),
        job.turn,
    )
    if started is None:
        return row
    n, start = started
    lease = start.lease
    return *row, n, start.scope, _epoch_of(lease), lease, start.worker, micros(start.timeout), start.region


def start_rows(starts: Sequence[Start], submitted: Container[str] = ()) -> list[Row]:
    """The row that starts waiting jobs. The jobs in `submitted` are inserted as started jobs (see `submit_rows`)."""
    rows = [None if start.job_id in submitted else _start_row(start) for start in starts]
    return [("start", json_body(rows))] if any(rows) else []


def _start_row(start: Start) -> tuple[Any, ...]:
    return (
        start.job_id,
        start.step,
        start.run,
        _epoch_of(start.lease),
        start.scope,
        start.lease,
        start.worker,
        micros(start.timeout),
        start.region,
    )


def _epoch_of(lease: str) -> int:
    """The epoch of a lease named `epoch:counter`, or -1 for any other name."""
    epoch = lease.partition(":")[0]
    return int(epoch) if epoch.isdecimal() else -1


def move_rows(moves: Sequence[Move], prices: Prices = NO_PRICES) -> list[Row]:
    """The rows that apply moves: first the changes of the jobs with their rows of the usage ledger, then the new
    results, attempts and holds."""
    rows: list[Row] = [("move", json_body([_moved_row(move, prices) for move in moves]))]
    results = [(n, move.result) for n, move in enumerate(moves) if move.result is not None]
    failed = [(n, move.failed) for n, move in enumerate(moves) if move.failed is not None]
    holds = [(n, move.hold) for n, move in enumerate(moves) if move.hold is not None]
    if results:
        rows.append(("piece", json_body([text for _, r in results for text in (r.data_json, r.metrics_json)])))
        rows.append(
            (
                "result",
                json_body([(n, r.step, r.round, r.service, micros(r.finished_at), r.lease) for n, r in results]),
            )
        )
    if reviving := [move.job_id for move in moves if begins_round(move)]:
        rows.append(("reopen", json_body(reviving)))
    if failed:
        rows.append(("failed", json_body([_attempt_row(n, attempt) for n, attempt in failed])))
    if holds:
        rows.append(("hold", json_body([_hold_row(n, hold) for n, hold in holds])))
    return rows


def _hold_row(n: int, hold: Hold) -> tuple[Any, ...]:
    return n, hold.id or None, hold.job_id, hold.service, hold.region, micros(hold.until), hold.band


def _attempt_row(n: int, attempt: Attempt) -> tuple[Any, ...]:
    return (
        n,
        attempt.step,
        attempt.service,
        attempt.round,
        attempt.attempt,
        json_text(attempt.error),
        micros(attempt.started_at),
        micros(attempt.ended_at),
        attempt.worker,
        attempt.region,
    )


def _call_values(move: Move, prices: Prices) -> tuple[Any, ...]:
    """The last elements of a move: outcome, time, service and reported values of the call that it ends."""
    if (call := move.call) is None:
        return _NO_CALL
    return OUTCOME_CODES[call.outcome], micros(call.ended_at), call.job.service, reported_row(call, prices)


def _moved_row(move: Move, prices: Prices) -> tuple[Any, ...]:
    return (
        move.job_id,
        move.run,
        STATUS_CODES[move.status],
        move.step,
        move.attempt,
        move.round,
        move.tells_line,
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
        *_call_values(move, prices),
    )


def progress_rows(reports: Sequence[Progress]) -> list[Row]:
    return [("progress", json_body([(one.job_id, one.run, json_text(one.progress)) for one in reports]))]


def prioritise_rows(wishes: Sequence[Prioritise]) -> list[Row]:
    rows = [(w.job_id, w.run, w.priority.band, micros(w.queued_at), micros(w.promoted_at)) for w in wishes]
    return [("prioritise", json_body(rows))]


def adopt_rows(adoptions: Sequence[Adopt]) -> list[Row]:
    return [("adopt", json_body([(one.job_id, one.run, one.process) for one in adoptions]))]


def delete_rows(deletes: Sequence[Delete]) -> list[Row]:
    return [("delete", json_body([delete.job_id for delete in deletes]))]


def relayed_rows(relayed: Sequence[Relayed]) -> list[Row]:
    return [("relayed", json_body([outbox_id for one in relayed for outbox_id in one.outbox_ids]))]


def end_holds_rows(ends: Sequence[EndHolds]) -> list[Row]:
    return [("end_holds", micros_by(one.now)) for one in ends]


def prune_rows(prunes: Sequence[Prune]) -> list[Row]:
    return [("prune", json_body((micros(one.finished_before), micros(one.failed_before), one.limit))) for one in prunes]


def json_body(value: Any) -> str:
    return orjson.dumps(value).decode()
