"""The bodies of webhooks: Fairlead's own, and those that clients of OpenAI, Replicate and fal know.

A shape is a function from a delivery and what it is about to a JSON object. The status of the job comes from the
delivery, because the job may have moved on since the event; its input and result come from the job as it is now, and
are absent if it was deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from fairlead.domain import openai_responses
from fairlead.domain.batch import BatchState
from fairlead.domain.events import iso
from fairlead.domain.files import MARK, STORED, with_files
from fairlead.domain.job import JobRecord, JobStatus
from fairlead.domain.replicate import PREFIX, Mark, Prediction, error_text, status_of, version_of, with_urls
from fairlead.domain.webhooks import (
    BATCH_ENDED,
    BUDGET_THRESHOLD,
    CANCELLED,
    COMPLETED,
    ENDPOINT_DISABLED,
    FAILED,
    STARTED,
    Delivery,
    Shape,
)

FAL_URL = "url"
"""The key in the metadata of a job of the fal front that has the address of the gateway."""
MAX_RESULT = 16384
"""A result above this many characters is left out of Fairlead's own body; the receiver reads the job."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What a delivery is about: a job or a batch. Both are None if it was deleted."""

    record: JobRecord | None = None
    batch: BatchState | None = None
    tickets: Mapping[str, str] = field(default_factory=dict)
    """For each file that the job names: the ticket that reads it."""

    @property
    def result_json(self) -> str | None:
        """The result of the last step."""
        if self.record is None or not self.record.results:
            return None
        return max(self.record.results, key=lambda result: (result.step, result.round)).data_json

    def link_of(self, file_id: str) -> str:
        """The path that reads a file, at the gateway."""
        ticket = self.tickets.get(file_id)
        return f"/files/{file_id}?ticket={ticket}" if ticket else f"/files/{file_id}"


def body_of(delivery: Delivery, subject: Subject) -> str:
    """The body of a delivery, as JSON text."""
    return orjson.dumps(_SHAPES[delivery.shape](delivery, subject)).decode()


def fairlead(delivery: Delivery, subject: Subject) -> dict[str, Any]:
    return {"type": delivery.event, "timestamp": iso(delivery.created_at), "data": _data(delivery, subject)}


def _data(delivery: Delivery, subject: Subject) -> Mapping[str, Any]:
    about = delivery.about
    if delivery.event in (ENDPOINT_DISABLED, BUDGET_THRESHOLD):
        return about
    if delivery.event == BATCH_ENDED:
        return _batch(delivery, subject.batch)
    data: dict[str, Any] = {
        "job_id": delivery.job_id,
        "user_id": delivery.user_id,
        "status": about.get("status"),
        "error": about.get("error"),
        "retryable": about.get("retryable"),
        "finished_at": iso(about.get("finished_at")),
        "url": f"/api/v1/jobs/{delivery.job_id}",
    }
    if subject.record is not None:
        job = subject.record.job
        data |= {"feature_name": job.feature_name, "metadata": subject.record.metadata}
        data |= {"created_at": iso(job.created_at), "started_at": iso(job.started_at)}
    if delivery.event == COMPLETED:
        result = subject.result_json
        small = result is not None and len(result) <= MAX_RESULT
        data |= {"result": orjson.Fragment(result) if result is not None and small else None}
        data |= {} if small else {"result_omitted": True}
    return data


def _batch(delivery: Delivery, batch: BatchState | None) -> dict[str, Any]:
    data: dict[str, Any] = {
        "batch_id": delivery.batch_id,
        "user_id": delivery.user_id,
        "counts": batch_counts(delivery),
        "finished_at": iso(delivery.about.get("finished_at")),
        "url": f"/api/v1/batches/{delivery.batch_id}",
    }
    if (status := delivery.about.get("status")) is not None:  # a file batch
        data |= {"status": status, "url": f"/v1/batches/{delivery.batch_id}"}
    if batch is not None:
        metadata = batch.batch.metadata_json
        data |= {"name": batch.batch.name, "total": batch.batch.total, "created_at": iso(batch.batch.created_at)}
        data |= {"metadata": None if metadata is None else orjson.loads(metadata)}
    return data


_STATUSES = tuple(
    JobStatus(name) for name in ("SCHEDULED", "PENDING", "RETRYING", "RUNNING", "COMPLETED", "FAILED", "CANCELLED")
)
"""The statuses by their number in the database."""
STATUS_NUMBERS = {status: number for number, status in enumerate(_STATUSES)}


def batch_counts(delivery: Delivery) -> dict[str, int]:
    """The number of items by status when the batch ended."""
    return {_STATUSES[status].value: count for status, count in delivery.about.get("counts") or ()}


def subject_id(delivery: Delivery) -> str | None:
    """The id under which the client of a front knows the job or batch."""
    return delivery.about.get("subject") or delivery.job_id or delivery.batch_id


_OPENAI = {COMPLETED: "response.completed", FAILED: "response.failed", CANCELLED: "response.cancelled"}


def openai(delivery: Delivery, subject: Subject) -> dict[str, Any]:
    """An event of OpenAI: it names the response or batch, which the receiver then reads."""
    kind = _OPENAI.get(delivery.event, delivery.event)
    if delivery.event == COMPLETED:
        kind = f"response.{openai_responses.status_of(subject.result_json)}"
    if delivery.event == BATCH_ENDED:
        counts = batch_counts(delivery)
        cancelled = counts.get("CANCELLED", 0) == sum(counts.values()) > 0
        status = delivery.about.get("status") or ("cancelled" if cancelled else "completed")
        kind = f"batch.{status}"
    return {
        "id": delivery.id,
        "object": "event",
        "created_at": int(delivery.created_at),
        "type": kind,
        "data": {"id": _openai_id(delivery)},
    }


def _openai_id(delivery: Delivery) -> str | None:
    if delivery.job_id is not None and not delivery.about.get("subject"):
        return openai_responses.response_id(delivery.job_id)
    return subject_id(delivery)


_REPLICATE = {
    STARTED: JobStatus.RUNNING,
    COMPLETED: JobStatus.COMPLETED,
    FAILED: JobStatus.FAILED,
    CANCELLED: JobStatus.CANCELLED,
}


def replicate(delivery: Delivery, subject: Subject) -> dict[str, Any]:
    """A prediction of Replicate."""
    record, error = subject.record, delivery.about.get("error")
    job = None if record is None else record.job
    mark = Mark.of(None if record is None else record.metadata)
    base = mark.url or PREFIX
    feature = "" if job is None else job.feature_name

    def shown(value_json: str | None) -> Any:
        if value_json is None or value_json.startswith(STORED):
            return None  # it is too large; the receiver reads the prediction
        return with_urls(orjson.loads(value_json), lambda name: f"{base.removesuffix(PREFIX)}{subject.link_of(name)}")

    return Prediction(
        id=subject_id(delivery) or "",
        model=mark.model or feature,
        version=mark.version or version_of(feature),
        status=status_of(_REPLICATE.get(delivery.event, JobStatus.PENDING), error, started=delivery.event == STARTED),
        base=base,
        input=None if record is None else shown(record.input_json),
        output=shown(subject.result_json) if delivery.event == COMPLETED else None,
        error=error_text(error) if delivery.event == FAILED else None,
        created_at=delivery.created_at if job is None else job.created_at,
        started_at=None if job is None else job.started_at,
        completed_at=delivery.about.get("finished_at"),
    ).as_dict()


def fal(delivery: Delivery, subject: Subject) -> dict[str, Any]:
    """The body that fal sends: the result itself, or an error."""
    request_id, result = subject_id(delivery), subject.result_json
    body: dict[str, Any] = {"request_id": request_id, "gateway_request_id": request_id}
    if delivery.event == COMPLETED:
        if result is not None and result.startswith(STORED):
            return body | {"status": "OK", "payload": None, "payload_error": "the result is too large; read it"}
        metadata = None if subject.record is None else subject.record.metadata
        base = (metadata or {}).get(FAL_URL, "")
        return body | {
            "status": "OK",
            "payload": _with_fal_files(result, lambda name: f"{base}{subject.link_of(name)}"),
        }
    error = delivery.about.get("error") or {"message": "the request was cancelled"}
    text = str(error.get("message", "the request failed"))
    return body | {"status": "ERROR", "error": text, "payload": {"detail": text}}


def _with_fal_files(result: str | None, url_of: Callable[[str], str]) -> Any:
    if result is None or MARK not in result:
        return None if result is None else orjson.Fragment(result)
    return with_files(orjson.loads(result), lambda reference: fal_file(reference, url_of(reference["$file"])))


def fal_file(reference: Mapping[str, Any], url: str) -> dict[str, Any]:
    """A file as fal's clients know it."""
    return {
        "url": url,
        "content_type": reference.get("content_type"),
        "file_name": reference.get("name"),
        "file_size": reference.get("size"),
    }


_SHAPES: Mapping[Shape, Callable[[Delivery, Subject], dict[str, Any]]] = {
    Shape.FAIRLEAD: fairlead,
    Shape.OPENAI: openai,
    Shape.REPLICATE: replicate,
    Shape.FAL: fal,
}
