"""Transitions as the rows of the view `batch` that `apply.sql` describes: one row per kind, its body a JSON array."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from fairlead.domain.job import Attempt, Hold
from fairlead.domain.transitions import Adopt, Delete, Move, Prioritise, Progress, Start, Submit
from fairlead.errors import InvalidInput
from fairlead.store.port import Adapt, DeclareServices, EndHolds, Override, Prune, RaiseEpoch, Relayed
from fairlead.store.rows import STATUS_CODES, begins_round, json_text, micros, spec_of
from fairlead.store.settings import adapted_row, declaration_of

Row = tuple[str, str | int | None]
"""(kind, body)"""


# Of the rules and epochs each is a row of its own: they are rare, and each must see what the one before it did.


def epoch_rows(raises: Sequence[RaiseEpoch]) -> list[Row]:
    return [("epoch", _body((one.scope, one.server))) for one in raises]


def declare_rows(declarations: Sequence[DeclareServices]) -> list[Row]:
    return [("declare", declaration_of(one)) for one in declarations]


def override_rows(overrides: Sequence[Override]) -> list[Row]:
    return [("override", _body((one.service, one.limit, one.paused, one.lift_limit))) for one in overrides]


def adapt_rows(adapts: Sequence[Adapt]) -> list[Row]:
    return [("adapt", _body(adapted_row(one))) for one in adapts]


def submit_rows(submits: Sequence[Submit], *, all_or_nothing: bool = False) -> list[Row]:
    """The checks, then the jobs, then what is kept beside them."""
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
    if checks:
        rows.append(("admit", body := _body(checks)))
        if all_or_nothing:
            rows.append(("all_or_nothing", body))
    rows.append(("submit", _body([_job_row(submit) for submit in submits])))
    rows.append(("input", _body([submit.input_json for submit in submits])))
    if notes:
        rows.append(("note", _body(notes)))
    return rows


def _job_row(submit: Submit) -> tuple[Any, ...]:
    job = submit.job
    # SQLite's JSON ends a text at a NUL, and two users who differ only behind it would become one.
    if "\0" in job.user_id or "\0" in job.id or "\0" in job.feature_name or "\0" in (submit.idempotency_key or ""):
        raise InvalidInput("a name must not contain the character NUL")
    return (
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


def start_rows(starts: Sequence[Start]) -> list[Row]:
    return [
        (
            "start",
            _body(
                [
                    (
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
                    for start in starts
                ]
            ),
        )
    ]


def _epoch_of(lease: str) -> int:
    """Leases are named `epoch:counter`; one that is not belongs to no epoch."""
    epoch = lease.partition(":")[0]
    return int(epoch) if epoch.isdecimal() else -1


def move_rows(moves: Sequence[Move]) -> list[Row]:
    """The jobs' rows, then what some of the moves insert beside them."""
    rows: list[Row] = [("move", _body([_moved_row(move) for move in moves]))]
    results = [(n, move.result) for n, move in enumerate(moves) if move.result is not None]
    failed = [(n, move.failed) for n, move in enumerate(moves) if move.failed is not None]
    holds = [(n, move.hold) for n, move in enumerate(moves) if move.hold is not None]
    if results:
        rows.append(("piece", _body([text for _, r in results for text in (r.data_json, r.metrics_json)])))
        rows.append(
            (
                "result",
                _body([(n, r.step, r.round, r.service, micros(r.finished_at), r.lease) for n, r in results]),
            )
        )
    if reviving := [move.job_id for move in moves if begins_round(move)]:
        rows.append(("reopen", _body(reviving)))
    if failed:
        rows.append(("failed", _body([_attempt_row(n, attempt) for n, attempt in failed])))
    if holds:
        rows.append(("hold", _body([_hold_row(n, hold) for n, hold in holds])))
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


def _moved_row(move: Move) -> tuple[Any, ...]:
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
    )


def progress_rows(reports: Sequence[Progress]) -> list[Row]:
    return [("progress", _body([(one.job_id, one.run, json_text(one.progress)) for one in reports]))]


def prioritise_rows(wishes: Sequence[Prioritise]) -> list[Row]:
    rows = [(w.job_id, w.run, w.priority.band, micros(w.queued_at), micros(w.promoted_at)) for w in wishes]
    return [("prioritise", _body(rows))]


def adopt_rows(adoptions: Sequence[Adopt]) -> list[Row]:
    return [("adopt", _body([(one.job_id, one.run, one.process) for one in adoptions]))]


def delete_rows(deletes: Sequence[Delete]) -> list[Row]:
    return [("delete", _body([delete.job_id for delete in deletes]))]


def relayed_rows(relayed: Sequence[Relayed]) -> list[Row]:
    return [("relayed", _body([outbox_id for one in relayed for outbox_id in one.outbox_ids]))]


def end_holds_rows(ends: Sequence[EndHolds]) -> list[Row]:
    return [("end_holds", micros(one.now)) for one in ends]


def prune_rows(prunes: Sequence[Prune]) -> list[Row]:
    return [("prune", _body((micros(one.finished_before), micros(one.failed_before), one.limit))) for one in prunes]


def _body(value: Any) -> str:
    return orjson.dumps(value).decode()
