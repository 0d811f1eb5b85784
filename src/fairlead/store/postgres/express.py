"""The batches that an idle system makes, each of one kind: submits that nothing can turn away, or starts.

They are a single statement, which also says the transaction's number: three round trips instead of four or five, and on
an idle system a job's way from submit to start is mostly round trips.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fairlead.domain.transitions import Start, Submit
from fairlead.store.port import Accepted, Committed, LineChange, Outcome, Started, Transition
from fairlead.store.postgres import encode
from fairlead.store.postgres.commit import NOT_STARTED
from fairlead.store.postgres.queries import WRITES
from fairlead.store.postgres.rows import job_from
from fairlead.store.postgres.submit import check_names, job_row
from fairlead.store.rows import numbered

BEGIN = WRITES["begin_express"]

Read = Callable[[list[Any]], Committed]
Plan = tuple[str, Sequence[Any], Read]
"""A statement, its parameters, and what its rows mean. The first column of each is the transaction's number."""


def plan_of(batch: Sequence[Transition], *, origin: str, now: int | None, scopes: set[str]) -> Plan | None:
    """None: this batch is none of those. `scopes` are those whose rows are there, to this process's knowledge."""
    kinds = set(map(type, batch))
    if kinds == {Submit}:
        return _submits(batch, origin, now)  # type: ignore[arg-type]
    if kinds == {Start}:
        return _starts(batch, now, scopes)  # type: ignore[arg-type]
    return None


def _submits(submits: Sequence[Submit], origin: str, now: int | None) -> Plan | None:
    if any(submit.idempotency_key is not None or submit.max_waiting > 0 for submit in submits):
        return None
    check_names(submits)

    def read(rows: list[Any]) -> Committed:
        outcomes: list[Outcome] = []
        changes = []
        # Numbers were given in the order of the arrays; the rows may come in another one.
        for submit, (seq, outbox_id) in zip(submits, sorted((row[1], row[2]) for row in rows), strict=True):
            outcomes.append(Accepted(submit.job.id, seq))
            if outbox_id is not None:
                changes.append(LineChange(outbox_id, submit.job.id, numbered(submit.job, seq)))
        return Committed(outcomes, changes)

    return WRITES["submit_express"], [*encode.columns(map(job_row, submits)), origin, now], read


def _starts(starts: Sequence[Start], now: int | None, scopes: set[str]) -> Plan | None:
    if not all(start.scope in scopes for start in starts):
        return None
    # Rows are locked in the order of the arrays: by job id, in every process.
    order = sorted(range(len(starts)), key=lambda place: starts[place].job_id)
    sorted_starts = [starts[place] for place in order]

    def read(rows: list[Any]) -> Committed:
        outcomes: list[Outcome] = [NOT_STARTED] * len(starts)
        for _, n, input_json, context_json, *job in rows:
            outcomes[order[n - 1]] = Started(job_from(job), input_json, context_json)
        return Committed(outcomes, [])

    columns = encode.start_columns(sorted_starts)
    epochs = encode.array([encode.epoch_of(start.lease) for start in sorted_starts])
    scopes_given = [start.scope for start in sorted_starts]
    return WRITES["start_express"], [*columns, now, scopes_given, epochs], read
