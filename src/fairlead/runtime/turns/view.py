"""A turn as its caller sees it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from fairlead.domain.job import Job, JobRecord, JobStatus, Priority
from fairlead.domain.order import Place
from fairlead.domain.processes import process_of
from fairlead.runtime.events import iso
from fairlead.runtime.view import EstimatedWait


@dataclass(frozen=True, slots=True)
class TurnView:
    """PENDING: it waits, at `position`. RUNNING: its caller has the slot. `process` is where that caller is; the slot
    is another's if it is not renewed for `lease_ttl` seconds. `input`, `metadata` and `result` are there where the
    whole turn was read."""

    turn_id: str
    service: str
    user_id: str
    status: JobStatus
    priority: Priority
    process: str
    position: int | None
    estimated_wait: EstimatedWait | None
    created_at: float
    started_at: float | None
    finished_at: float | None
    lease_ttl: float
    timeout: float
    error: dict[str, Any] | None = None
    result: Any = None
    input: Any = None
    metadata: dict[str, Any] | None = None

    @property
    def request_id(self) -> str:
        return self.turn_id

    @property
    def model(self) -> str:
        return self.service

    @property
    def prompt(self) -> Any:
        """As `add_request` was given it."""
        return (self.input or {}).get("prompt")

    def as_dict(self) -> dict[str, Any]:
        """Times in ISO 8601."""
        shown = {field.name: getattr(self, field.name) for field in fields(TurnView)}
        for name in ("created_at", "started_at", "finished_at"):
            shown[name] = iso(shown[name])
        if (wait := self.estimated_wait) is not None:
            shown["estimated_wait"] = {"low": round(wait.low, 3), "high": round(wait.high, 3)}
        return shown


def of_turn(job: Job, place: Place | None, *, lease_ttl: float, timeout: float, **beside: Any) -> TurnView:
    waiting = place if job.status is JobStatus.PENDING else None
    return TurnView(
        turn_id=job.id,
        service=job.service,
        user_id=job.user_id,
        status=job.status,
        priority=job.priority,
        process=process_of(job.turn or ""),
        position=waiting.position if waiting else None,
        estimated_wait=EstimatedWait.of(waiting) if waiting else None,
        created_at=job.created_at,
        started_at=job.started_at,
        finished_at=job.finished_at,
        lease_ttl=lease_ttl,
        timeout=timeout,
        error=dict(job.error) if job.error else None,
        **beside,
    )


def of_record(record: JobRecord, place: Place | None, *, lease_ttl: float, timeout: float) -> TurnView:
    return of_turn(
        record.job,
        place,
        lease_ttl=lease_ttl,
        timeout=timeout,
        result=record.result,
        input=record.input_data,
        metadata=record.metadata,
    )
