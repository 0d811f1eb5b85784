"""The statements that store submitted jobs, independent of how they are sent to the server.

A generator yields each statement and receives its rows. Three runners share it: the transaction of a commit
(`commit.py`), a single statement that is its own transaction (`single_statement.py`), and the connection of a caller
with any driver, asynchronous or not (`caller_transaction.py`).

The jobs of a bulk submission differ in little more than id, user and input. Each column is sent either as one shared
value or as one value per job, and jobs that enter the same lane share an outbox row. Text columns are sent as one
string with a separator, because asyncpg inspects every element of a list several times.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from fairlead.domain.transitions import Start, Submit
from fairlead.errors import IdempotencyMismatch, InvalidInput, TooManyWaiting
from fairlead.store.commits import UNDONE
from fairlead.store.files import check_found, use_columns
from fairlead.store.port import LATE_AFTER, Accepted, OutboxEntry, Outcome, Refused
from fairlead.store.postgres.encode import Array, array, started_columns
from fairlead.store.postgres.queries import WRITES
from fairlead.store.rows import PENDING, RUNNING, SPEC_FIELDS, STATUS_CODES, micros, numbered, spec_of

Column = tuple[Array, Any]
"""The values in the order of the jobs, and the value that all jobs share. One of the two is None."""

JOBS_PER_ROW = 1000
"""The maximum number of jobs per outbox row. A manager relays all jobs of a row in one call."""

_spec = attrgetter(*SPEC_FIELDS)
_SEPARATORS = [chr(code) for code in range(1, 32) if chr(code) not in "\t\n\r"]
"""Control characters, which JSON never contains and names hardly ever do."""


@dataclass(frozen=True, slots=True)
class Insertion:
    """A statement that inserts jobs. `together` is true if all jobs enter the same lane. The statement then returns
    rows of another format."""

    sql: str
    parameters: Sequence[Any]
    together: bool

    def numbers(self, rows: Sequence[Any]) -> list[tuple[int, int | None, bool]]:
        """Read the reply: the seq, the outbox id and the `late` flag (see `OutboxEntry`) of each job, in order."""
        if not self.together:
            # Seqs are assigned in the order of the jobs, but rows may be returned in another order.
            return sorted(map(tuple, rows))
        ((seqs, outbox_ids, late),) = rows
        return [(seq, outbox_ids[n // JOBS_PER_ROW], late) for n, seq in enumerate(seqs)]


def insertion(
    submits: Sequence[Submit],
    *,
    origin: str,
    now: int | None,
    keyed: bool = False,
    starts: Sequence[Start] | None = None,
) -> Insertion:
    """Build the statement that inserts these jobs. `now` is the time stored with the outbox rows; None means the time
    of the server. With `keyed`, the statement also claims their idempotency keys; with `starts`, one for each job, it
    also starts the jobs."""
    jobs = [submit.job for submit in submits]
    ids = [job.id for job in jobs]
    users = [job.user_id for job in jobs]
    features = [job.feature_name for job in jobs]
    specs = [spec_of(jobs[0])] * len(jobs) if _alike([_spec(job) for job in jobs]) else [spec_of(job) for job in jobs]
    inputs = [submit.input_json for submit in submits]
    separator = _separator(ids, users, features)
    status = _numbers([job.status for job in jobs], STATUS_CODES.__getitem__) if starts is None else (None, RUNNING)
    priority = _numbers([job.priority for job in jobs], attrgetter("band"))
    spec = _texts(specs, separator)
    values, shared = zip(
        _texts(users, separator),
        _texts(features, separator),
        status,
        priority,
        _numbers([job.created_at for job in jobs], micros),
        _numbers([job.queued_at for job in jobs], micros),
        _numbers([job.waiting_since for job in jobs], micros),
        _numbers([job.scheduled_at for job in jobs], micros),
        _numbers([job.timer_at if starts is None else job.deadline_at for job in jobs], micros),
        _numbers([job.deadline_at for job in jobs], micros),
        spec,
        _texts(inputs, separator),
        _maybe_texts([submit.metadata_json for submit in submits]),
        _maybe_texts([submit.idempotency_key for submit in submits]),
        _maybe_texts([job.turn for job in jobs]),
        strict=True,
    )
    ordered = sorted({submit.job.service for submit in submits if submit.ordered}) or None
    parameters = [separator, _joined(ids, separator), *values, *shared, origin, now, ordered, micros(LATE_AFTER)]
    if starts is not None:
        return Insertion(
            WRITES["submit_started"], [*parameters, *_claimed(submits), *started_columns(starts)], together=False
        )
    if keyed:
        return Insertion(WRITES["submit_keyed"], [*parameters, *_claimed(submits)], together=False)
    if len(jobs) > 1 and status == (None, PENDING) and priority[0] is None and spec[0] is None:
        return Insertion(WRITES["submit_together"], [*parameters, JOBS_PER_ROW], together=True)
    return Insertion(WRITES["submit"], parameters, together=False)


def _claimed(submits: Sequence[Submit]) -> Iterable[list[str | None]]:
    """The columns of `new_keys`. The keys are sorted, because other processes may wait for them."""
    keys = sorted((s.job.user_id, s.idempotency_key or "", s.body_hash, s.job.id) for s in submits)
    return map(list, zip(*keys, strict=True))


def check_names(submits: Sequence[Submit]) -> None:
    """Refuse NUL, which PostgreSQL cannot store in text."""
    for submit in submits:
        job = submit.job
        if "\0" in job.user_id or "\0" in job.id or "\0" in job.feature_name or "\0" in (submit.idempotency_key or ""):
            raise InvalidInput("a name must not contain the character NUL")


def _alike(values: Sequence[Any]) -> bool:
    return values.count(values[0]) == len(values)


def _separator(*names: list[str]) -> str:
    text = "".join(["".join(column) for column in names])
    for each in _SEPARATORS:
        if each not in text:
            return each
    raise InvalidInput("the names contain every control character")


def _texts(values: list[str], separator: str) -> Column:
    return (None, values[0]) if _alike(values) else (_joined(values, separator), None)


def _joined(values: list[str], separator: str) -> str:
    text = separator.join(values)
    if text.count(separator) != len(values) - 1:
        raise InvalidInput("an input contains a control character and is not valid JSON")
    return text


def _maybe_texts(values: list[str | None]) -> Column:
    return (None, values[0]) if _alike(values) else (array(values), None)


def _numbers(values: list[Any], number_of: Callable[[Any], int | None]) -> Column:
    return (None, number_of(values[0])) if _alike(values) else (array([number_of(value) for value in values]), None)


Statement = tuple[str, Sequence[Any]]
"""SQL and its parameters."""
Statements = Generator[Statement, list[Any], "Submitted"]


@dataclass(frozen=True, slots=True)
class Submitted:
    """The result of a submission: one outcome per submit, in order, and the outbox rows (`changes`). With `undone`, the
    transaction must be rolled back."""

    outcomes: Sequence[Outcome | Exception]
    changes: list[OutboxEntry]
    undone: bool = False


def needs_admission(submits: Sequence[Submit]) -> bool:
    """Whether one of these submits can be refused. If none can, a single INSERT stores all jobs."""
    return any(submit.idempotency_key is not None or submit.max_waiting > 0 for submit in submits)


def new_keys(
    submits: Sequence[Submit], *, origin: str, now: int | None, starts: Sequence[Start] | None = None
) -> Insertion | None:
    """The statement that stores these jobs and claims their idempotency keys, if nothing else decides whether they are
    accepted. With `starts`, it also starts the jobs. It returns no rows if a key is known, or a lease is outdated."""
    names = {(submit.job.user_id, submit.idempotency_key) for submit in submits if submit.idempotency_key is not None}
    if len(names) < len(submits) or any(submit.max_waiting > 0 for submit in submits):
        return None
    check_names(submits)
    return insertion(submits, origin=origin, now=now, keyed=True, starts=starts)


def accepted(
    submits: Sequence[Submit], numbers: Sequence[tuple[int, int | None, bool]]
) -> tuple[list[Outcome], list[OutboxEntry]]:
    """The outcomes of jobs that were inserted, and their outbox rows. `numbers` are those of `Insertion.numbers`."""
    outcomes: list[Outcome] = []
    changes: list[OutboxEntry] = []
    for submit, (seq, outbox_id, late) in zip(submits, numbers, strict=True):
        outcomes.append(Accepted(submit.job.id, seq))
        if outbox_id is not None:
            changes.append(OutboxEntry(outbox_id, submit.job.id, numbered(submit.job, seq), late))
    return outcomes, changes


def submitting(submits: Sequence[Submit], *, origin: str, now: int | None, all_or_nothing: bool = False) -> Statements:
    """Yield the statements that store these jobs, and receive their rows. `now` is the time stored with the outbox
    rows; None means the time of the server."""
    check_names(submits)
    outcomes: list[Outcome | Exception | None] = [None] * len(submits)
    admission = needs_admission(submits)
    if admission:
        yield from _admitting(submits, outcomes)
        if all_or_nothing and any(isinstance(outcome, Exception) for outcome in outcomes):
            return Submitted([UNDONE if outcome is None else outcome for outcome in outcomes], [], undone=True)
    new = [index for index, outcome in enumerate(outcomes) if outcome is None]
    changes: list[OutboxEntry] = []
    if new:
        stored = [submits[index] for index in new]
        jobs = insertion(stored, origin=origin, now=now)
        rows = yield jobs.sql, jobs.parameters
        inserted, changes = accepted(stored, jobs.numbers(rows))
        for index, outcome in zip(new, inserted, strict=True):
            outcomes[index] = outcome
        uses = [(submit.job.id, file_id) for submit in stored for file_id in submit.files]
        if uses:
            check_found((yield WRITES["use_files"], use_columns(uses)), uses)
    if admission:
        _answer_repeats(submits, outcomes)
    return Submitted([UNDONE if outcome is None else outcome for outcome in outcomes], changes)


async def run(statements: Statements, fetch: Callable[[str, Sequence[Any]], Awaitable[list[Any]]]) -> Submitted:
    try:
        sql, parameters = next(statements)
        while True:
            sql, parameters = statements.send(await fetch(sql, parameters))
    except StopIteration as end:
        submitted: Submitted = end.value
        return submitted


class _Repeat(Refused):
    """A placeholder for the outcome of a submit that repeats an earlier submit of the same batch. It is replaced once
    the seq of the earlier job is known."""

    __slots__ = ()


def _admitting(
    submits: Sequence[Submit], outcomes: list[Outcome | Exception | None]
) -> Generator[Statement, list[Any], None]:
    """Decide which submits are refused or replayed, and set their outcomes in `outcomes`. The others keep the outcome
    None, and their idempotency keys are claimed."""
    capped = sorted({submit.job.user_id for submit in submits if submit.max_waiting > 0})
    waiting: dict[str, int] = {}
    if capped:
        yield WRITES["lock_users"], [capped]
        waiting = {user: count for user, count in (yield WRITES["waiting_of_users"], [capped])}  # noqa: C416
    keyed = sorted({(s.job.user_id, s.idempotency_key) for s in submits if s.idempotency_key is not None})
    known: dict[tuple[str, str], Any] = {}
    if keyed:
        for user, key, *rest in (yield WRITES["known_keys"], [list(column) for column in zip(*keyed, strict=True)]):
            known[user, key] = rest
    claims: dict[tuple[str, str], int] = {}
    for index, submit in enumerate(submits):
        outcomes[index] = _refusal(submit, known, claims, submits, waiting)
        if outcomes[index] is None:
            if submit.idempotency_key is not None:
                claims[submit.job.user_id, submit.idempotency_key] = index
            if submit.job.user_id in waiting:
                waiting[submit.job.user_id] += 1
    if claims:
        yield from _claiming(submits, outcomes, claims)


def _claiming(
    submits: Sequence[Submit], outcomes: list[Outcome | Exception | None], claims: dict[tuple[str, str], int]
) -> Generator[Statement, list[Any], None]:
    """Claim the idempotency keys in the database. `claims` maps each (user, key) to the index of its submit. If another
    process has claimed a key in the meantime, the submit gets the job of that process as its outcome, or an error if
    the requests differ."""
    keys = sorted(claims)
    values = [
        (user, key, submits[claims[user, key]].body_hash, submits[claims[user, key]].job.id) for user, key in keys
    ]
    rows = yield WRITES["claim_keys"], [list(column) for column in zip(*values, strict=True)]
    lost = sorted(set(keys).difference(map(tuple, rows)))
    if lost:
        for user, key, *known in (yield WRITES["known_keys"], [list(column) for column in zip(*lost, strict=True)]):
            index = claims[user, key]
            outcomes[index] = _seen_before(submits[index], *known)


def _refusal(
    submit: Submit,
    known: dict[tuple[str, str], Any],
    claims: dict[tuple[str, str], int],
    submits: Sequence[Submit],
    waiting: dict[str, int],
) -> Outcome | Exception | None:
    """The outcome of a submit that must not be stored, or None if it may be stored. The idempotency key is checked
    before the user's limit of waiting jobs, so that a repeated submit succeeds even if the limit is reached."""
    if submit.idempotency_key is not None:
        name = (submit.job.user_id, submit.idempotency_key)
        if name in known:
            return _seen_before(submit, *known[name])
        if name in claims:
            first = submits[claims[name]]
            return _Repeat("") if first.body_hash == submit.body_hash else _mismatch(submit)
    if submit.max_waiting > 0 and waiting[submit.job.user_id] >= submit.max_waiting:
        return TooManyWaiting(f"this user already has {submit.max_waiting} jobs waiting, which is the limit")
    return None


def _seen_before(submit: Submit, body_hash: str | None, job_id: str, seq: int | None) -> Outcome | Exception:
    """The outcome of a submit whose idempotency key was used before: the earlier job if the request is the same, else
    an error."""
    return Accepted(job_id, seq or 0, replayed=True) if body_hash == submit.body_hash else _mismatch(submit)


def _mismatch(submit: Submit) -> Exception:
    return IdempotencyMismatch(
        "this Idempotency-Key was used with another body", details={"key": submit.idempotency_key}
    )


def _answer_repeats(submits: Sequence[Submit], outcomes: list[Outcome | Exception | None]) -> None:
    """Set the outcomes of submits that repeat an earlier submit of the same batch: each gets a copy of the earlier
    outcome."""
    first: dict[tuple[str, str], Outcome | Exception | None] = {}
    for index, submit in enumerate(submits):
        if submit.idempotency_key is None:
            continue
        name = (submit.job.user_id, submit.idempotency_key)
        outcome = outcomes[index]
        if not isinstance(outcome, _Repeat):
            if not isinstance(outcome, Exception):
                first.setdefault(name, outcome)
            continue
        original = first.get(name)
        if isinstance(original, Accepted):
            outcomes[index] = Accepted(original.job_id, original.seq, replayed=True)
        else:
            outcomes[index] = _mismatch(submit)
