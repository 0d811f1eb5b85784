"""Between rows of PostgreSQL and nouns of the domain. What the engines share is in `store/rows.py`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from fairlead.domain.batch import BatchItem
from fairlead.domain.job import Attempt, Hold, JobRecord, StepResult
from fairlead.store.port import LineChange
from fairlead.store.rows import job_of, seconds

JOB_COLUMNS = 32  # in the fragment `job_columns`


def change_from(row: Sequence[Any]) -> LineChange:
    """A row of the outbox: its id, the job's id, and the job's columns, all NULL when it is gone."""
    outbox_id, job_id, *job = row
    return LineChange(outbox_id, job_id, None if job[0] is None else job_of(job))


def item_from(row: Sequence[Any]) -> BatchItem:
    """An item of a batch: its number, custom_id and job's id, and the job's columns, all NULL when it is gone."""
    number, custom_id, job_id, *job = row
    return BatchItem(number, custom_id, job_id, None if job[0] is None else job_of(job))


def hold_from(row: Sequence[Any]) -> Hold:
    job_id, service, region, until, id_, band = row
    return Hold(job_id, service, region, until / 1e6, id_, band)


def record_from(row: Sequence[Any]) -> JobRecord:
    """Reads what the query `get` answers: the job's row, and what is kept beside it."""
    job = job_of(row[:JOB_COLUMNS])
    input_json, metadata_json, results, attempts, about, data, metrics = row[JOB_COLUMNS:]
    rows = [] if results is None else orjson.loads(results)
    if data is not None:
        step, service, round_, finished_at, lease = orjson.loads(about)
        rows.append((step, service, round_, data, metrics, finished_at, lease))
        rows.sort(key=lambda row: (row[0], row[2]))
    return JobRecord(
        job,
        input_json,
        metadata_json,
        tuple(
            StepResult(job.id, step, service, round_, data, metrics, finished_at / 1e6, lease)
            for step, service, round_, data, metrics, finished_at, lease in rows
        ),
        tuple(
            Attempt(job.id, step, service, round_, attempt, error, seconds(started_at), ended_at / 1e6, worker, region)
            for step, service, round_, attempt, error, started_at, ended_at, worker, region in (
                () if attempts is None else orjson.loads(attempts)
            )
        ),
    )
