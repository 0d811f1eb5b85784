"""New jobs as the parameters of the statement `submit`: for each column one value that all jobs share, or one each.

The jobs of a bulk differ in little more than their ids, users and inputs. What they have in common is sent and read
once, not a thousand times. And texts go as one text, with something between them that none of them has: of a list,
asyncpg looks at each element several times.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

from fairlead.domain.transitions import Submit
from fairlead.errors import InvalidInput
from fairlead.store.postgres.encode import Array, array
from fairlead.store.rows import SPEC_FIELDS, STATUS_CODES, micros, spec_of

Column = tuple[Array, Any]
"""The values, in the order of the jobs, or the one that they share. The other of the two is None."""

_spec = attrgetter(*SPEC_FIELDS)
_SEPARATORS = [chr(code) for code in range(1, 0xD800)]
"""Control characters first: no JSON has one, and hardly a name."""


def parameters(submits: Sequence[Submit]) -> list[Any]:
    """In the order of the fragment `submitted`: what is between texts, the ids, then of each column the values, then of
    each column what is shared."""
    jobs = [submit.job for submit in submits]
    ids = [job.id for job in jobs]
    users = [job.user_id for job in jobs]
    features = [job.feature_name for job in jobs]
    specs = [spec_of(jobs[0])] * len(jobs) if _alike([_spec(job) for job in jobs]) else [spec_of(job) for job in jobs]
    inputs = [submit.input_json for submit in submits]
    between = _between(ids, users, features, specs, inputs)
    values, shared = zip(
        _texts(users, between),
        _texts(features, between),
        _numbers([job.status for job in jobs], STATUS_CODES.__getitem__),
        _numbers([job.priority for job in jobs], attrgetter("band")),
        _numbers([job.created_at for job in jobs], micros),
        _numbers([job.queued_at for job in jobs], micros),
        _numbers([job.waiting_since for job in jobs], micros),
        _numbers([job.scheduled_at for job in jobs], micros),
        _numbers([job.timer_at for job in jobs], micros),
        _numbers([job.deadline_at for job in jobs], micros),
        _texts(specs, between),
        _texts(inputs, between),
        _maybe_texts([submit.metadata_json for submit in submits]),
        _maybe_texts([submit.idempotency_key for submit in submits]),
        _maybe_texts([job.turn for job in jobs]),
        strict=True,
    )
    return [between, between.join(ids), *values, *shared]


def check_names(submits: Sequence[Submit]) -> None:
    """PostgreSQL has no NUL in a text, and would say so in its own words."""
    for submit in submits:
        job = submit.job
        if "\0" in job.user_id or "\0" in job.id or "\0" in job.feature_name or "\0" in (submit.idempotency_key or ""):
            raise InvalidInput("a name must not contain the character NUL")


def _alike(values: Sequence[Any]) -> bool:
    return values.count(values[0]) == len(values)


def _between(*columns: list[str]) -> str:
    texts = ["".join(column) for column in columns]
    return next(each for each in _SEPARATORS if not any(each in text for text in texts))


def _texts(values: list[str], between: str) -> Column:
    return (None, values[0]) if _alike(values) else (between.join(values), None)


def _maybe_texts(values: list[str | None]) -> Column:
    return (None, values[0]) if _alike(values) else (array(values), None)


def _numbers(values: list[Any], number_of: Callable[[Any], int | None]) -> Column:
    return (None, number_of(values[0])) if _alike(values) else (array([number_of(value) for value in values]), None)
