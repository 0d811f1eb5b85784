"""New jobs as a statement that inserts them, and what its rows say.

The jobs of a bulk differ in little more than their ids, users and inputs. For each column one value goes to the server
that all jobs share, or one each; and those that enter one lane together share a row of the outbox. Texts go as one
text, with something between them that none of them has: of a list, asyncpg looks at each element several times.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from fairlead.domain.transitions import Submit
from fairlead.errors import InvalidInput
from fairlead.store.postgres.encode import Array, array
from fairlead.store.postgres.queries import WRITES
from fairlead.store.rows import PENDING, SPEC_FIELDS, STATUS_CODES, micros, spec_of

Column = tuple[Array, Any]
"""The values, in the order of the jobs, or the one that they share. The other of the two is None."""

SHARE_A_ROW = 1000
"""Jobs that one row of the outbox tells of at most: a manager brings them to the line in one call."""

_spec = attrgetter(*SPEC_FIELDS)
_SEPARATORS = [chr(code) for code in range(1, 32) if chr(code) not in "\t\n\r"]
"""No JSON has one of these, and hardly a name."""


@dataclass(frozen=True, slots=True)
class Insertion:
    """`together`: all of the jobs enter one lane."""

    sql: str
    parameters: Sequence[Any]
    together: bool

    def numbers(self, rows: Sequence[Any]) -> list[tuple[int, int | None]]:
        """Of each job its seq and the outbox row that tells of it, in the order of the jobs."""
        if not self.together:
            # They were given in the order of the jobs; the rows may come in another one.
            return sorted(map(tuple, rows))
        ((seqs, outbox_ids),) = rows
        return [(seq, outbox_ids[n // SHARE_A_ROW]) for n, seq in enumerate(seqs)]


def insertion(submits: Sequence[Submit], *, origin: str, now: int | None) -> Insertion:
    """`now` is what the outbox rows are stamped with; None leaves it to the server."""
    jobs = [submit.job for submit in submits]
    ids = [job.id for job in jobs]
    users = [job.user_id for job in jobs]
    features = [job.feature_name for job in jobs]
    specs = [spec_of(jobs[0])] * len(jobs) if _alike([_spec(job) for job in jobs]) else [spec_of(job) for job in jobs]
    inputs = [submit.input_json for submit in submits]
    between = _between(ids, users, features)
    status = _numbers([job.status for job in jobs], STATUS_CODES.__getitem__)
    priority = _numbers([job.priority for job in jobs], attrgetter("band"))
    spec = _texts(specs, between)
    values, shared = zip(
        _texts(users, between),
        _texts(features, between),
        status,
        priority,
        _numbers([job.created_at for job in jobs], micros),
        _numbers([job.queued_at for job in jobs], micros),
        _numbers([job.waiting_since for job in jobs], micros),
        _numbers([job.scheduled_at for job in jobs], micros),
        _numbers([job.timer_at for job in jobs], micros),
        _numbers([job.deadline_at for job in jobs], micros),
        spec,
        _texts(inputs, between),
        _maybe_texts([submit.metadata_json for submit in submits]),
        _maybe_texts([submit.idempotency_key for submit in submits]),
        _maybe_texts([job.turn for job in jobs]),
        strict=True,
    )
    given = [between, _joined(ids, between), *values, *shared, origin, now]
    if len(jobs) > 1 and status == (None, PENDING) and priority[0] is None and spec[0] is None:
        return Insertion(WRITES["submit_together"], [*given, SHARE_A_ROW], together=True)
    return Insertion(WRITES["submit"], given, together=False)


def check_names(submits: Sequence[Submit]) -> None:
    """PostgreSQL has no NUL in a text, and would say so in its own words."""
    for submit in submits:
        job = submit.job
        if "\0" in job.user_id or "\0" in job.id or "\0" in job.feature_name or "\0" in (submit.idempotency_key or ""):
            raise InvalidInput("a name must not contain the character NUL")


def _alike(values: Sequence[Any]) -> bool:
    return values.count(values[0]) == len(values)


def _between(*names: list[str]) -> str:
    said = "".join(["".join(column) for column in names])
    for each in _SEPARATORS:
        if each not in said:
            return each
    raise InvalidInput("names have every control character there is")


def _texts(values: list[str], between: str) -> Column:
    return (None, values[0]) if _alike(values) else (_joined(values, between), None)


def _joined(values: list[str], between: str) -> str:
    text = between.join(values)
    if text.count(between) != len(values) - 1:
        raise InvalidInput("a text that is no JSON cannot be stored as such")
    return text


def _maybe_texts(values: list[str | None]) -> Column:
    return (None, values[0]) if _alike(values) else (array(values), None)


def _numbers(values: list[Any], number_of: Callable[[Any], int | None]) -> Column:
    return (None, number_of(values[0])) if _alike(values) else (array([number_of(value) for value in values]), None)
