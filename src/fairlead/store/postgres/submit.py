"""Submitting, without a word about how the server is reached.

A generator yields each statement it wants to run and is sent the rows; so the store's own connection and a caller's
(`enlist.py`), of whichever driver and synchronous or not, run the very same statements.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

from fairlead.domain.transitions import Submit
from fairlead.errors import IdempotencyMismatch, TooManyWaiting
from fairlead.store.port import Accepted, LineChange, Outcome, Refused
from fairlead.store.postgres.newcomers import check_names, insertion
from fairlead.store.postgres.queries import WRITES
from fairlead.store.rows import numbered

UNDONE = Refused("another one of the same bulk was turned away")

Ask = tuple[str, Sequence[Any]]
"""A statement and its parameters."""
Talk = Generator[Ask, list[Any], "Submitted"]


@dataclass(frozen=True, slots=True)
class Submitted:
    """One outcome per submit, in their order. `undone`: nothing may be stored, the transaction is to be rolled back."""

    outcomes: Sequence[Outcome | Exception]
    changes: list[LineChange]
    undone: bool = False


def submitting(submits: Sequence[Submit], *, origin: str, now: int | None, all_or_nothing: bool = False) -> Talk:
    """`now` is what the outbox rows are stamped with; None leaves it to the server."""
    check_names(submits)
    outcomes: list[Outcome | Exception | None] = [None] * len(submits)
    if any(submit.idempotency_key is not None or submit.max_waiting > 0 for submit in submits):
        yield from _admitting(submits, outcomes)
        if all_or_nothing and any(isinstance(outcome, Exception) for outcome in outcomes):
            return Submitted([UNDONE if outcome is None else outcome for outcome in outcomes], [], undone=True)
    accepted = [place for place, outcome in enumerate(outcomes) if outcome is None]
    changes: list[LineChange] = []
    if accepted:
        jobs = insertion([submits[place] for place in accepted], origin=origin, now=now)
        rows = yield jobs.sql, jobs.parameters
        for place, (seq, outbox_id) in zip(accepted, jobs.numbers(rows), strict=True):
            job = submits[place].job
            outcomes[place] = Accepted(job.id, seq)
            if outbox_id is not None:
                changes.append(LineChange(outbox_id, job.id, numbered(job, seq)))
    _answer_repeats(submits, outcomes)
    return Submitted([UNDONE if outcome is None else outcome for outcome in outcomes], changes)


# ---------------------------------------------------------------- who is turned away


class _Repeat(Refused):
    """Of a submit earlier in this batch, whose number is not known yet."""

    __slots__ = ()


def _admitting(
    submits: Sequence[Submit], outcomes: list[Outcome | Exception | None]
) -> Generator[Ask, list[Any], None]:
    """Gives those that are turned away their outcome, and claims the keys of the others."""
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
    for place, submit in enumerate(submits):
        outcomes[place] = _verdict(submit, known, claims, submits, waiting)
        if outcomes[place] is None:
            if submit.idempotency_key is not None:
                claims[submit.job.user_id, submit.idempotency_key] = place
            if submit.job.user_id in waiting:
                waiting[submit.job.user_id] += 1
    if claims:
        yield from _claiming(submits, outcomes, claims)


def _claiming(
    submits: Sequence[Submit], outcomes: list[Outcome | Exception | None], claims: dict[tuple[str, str], int]
) -> Generator[Ask, list[Any], None]:
    """Of a key that another process claimed in this very moment, its job is the answer."""
    wanted = sorted(claims)
    given = [
        (user, key, submits[claims[user, key]].body_hash, submits[claims[user, key]].job.id) for user, key in wanted
    ]
    rows = yield WRITES["claim_keys"], [list(column) for column in zip(*given, strict=True)]
    lost = sorted(set(wanted).difference(map(tuple, rows)))
    if lost:
        for user, key, *known in (yield WRITES["known_keys"], [list(column) for column in zip(*lost, strict=True)]):
            place = claims[user, key]
            outcomes[place] = _seen_before(submits[place], *known)


def _verdict(
    submit: Submit,
    known: dict[tuple[str, str], Any],
    claims: dict[tuple[str, str], int],
    submits: Sequence[Submit],
    waiting: dict[str, int],
) -> Outcome | Exception | None:
    """None: it may go in. Its key is asked first, so that a repeat is answered even when its user is at the cap."""
    if submit.idempotency_key is not None:
        name = (submit.job.user_id, submit.idempotency_key)
        if name in known:
            return _seen_before(submit, *known[name])
        if name in claims:
            first = submits[claims[name]]
            return _Repeat("") if first.body_hash == submit.body_hash else _mismatch(submit)
    if submit.max_waiting > 0 and waiting[submit.job.user_id] >= submit.max_waiting:
        return TooManyWaiting(f"this user has {submit.max_waiting} jobs waiting already, which is the limit")
    return None


def _seen_before(submit: Submit, body_hash: str | None, job_id: str, seq: int | None) -> Outcome | Exception:
    """The same body is answered with the job that it made, another one is a mistake."""
    return Accepted(job_id, seq or 0, replayed=True) if body_hash == submit.body_hash else _mismatch(submit)


def _mismatch(submit: Submit) -> Exception:
    return IdempotencyMismatch(
        "this Idempotency-Key was used with another body", details={"key": submit.idempotency_key}
    )


def _answer_repeats(submits: Sequence[Submit], outcomes: list[Outcome | Exception | None]) -> None:
    """Those that repeat an earlier one of the batch get its answer, now that there is one."""
    first: dict[tuple[str, str], Outcome | Exception | None] = {}
    for place, submit in enumerate(submits):
        if submit.idempotency_key is None:
            continue
        name = (submit.job.user_id, submit.idempotency_key)
        outcome = outcomes[place]
        if not isinstance(outcome, _Repeat):
            if not isinstance(outcome, Exception):
                first.setdefault(name, outcome)
            continue
        original = first.get(name)
        if isinstance(original, Accepted):
            outcomes[place] = Accepted(original.job_id, original.seq, replayed=True)
        else:
            outcomes[place] = _mismatch(submit)
