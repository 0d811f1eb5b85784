"""Turns: slots for callers that do the work themselves. A turn is stored like a job with one step, and has an owner:
the process that serves its caller.

The id of a turn is a UUID of version 8, the id of a job a UUID of version 7; both begin with the time. Given a lease, a
worker can therefore tell without a database query whether to execute a step or to pass the slot to a caller.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

from fairlead.domain import retry
from fairlead.domain.calls import HOLDER_DIED as HOLDER_DIED
from fairlead.domain.events import iso, utc
from fairlead.domain.fair_share import QueuePosition
from fairlead.domain.job import Job, JobRecord, JobStatus, Priority
from fairlead.domain.processes import process_of, worker_name
from fairlead.domain.transition_types import Move
from fairlead.domain.views import EstimatedWait
from fairlead.errors import WrongState

VERSION, AT, LENGTH = "8", 14, 36

NOT_TAKEN = "NOT_TAKEN"
WAITER_GONE = "WAITER_GONE"

ACCEPT_WITHIN = 2.0
"""Seconds that a caller has to accept an offered slot before the next caller gets it."""


UNHEARD_AFTER = 10.0
"""A caller over HTTP that waits and sends nothing for this many seconds counts as absent."""

WAIT_UNTIL = "wait_until"
"""Key in the error of a turn that is set aside: the `timer_at` that the turn had in the queue."""

OUTSIDE = "outside"
"""Suffix of the owner of a turn whose caller is outside that process: it calls over HTTP, survives the process, and may
continue through another one."""


def turn_id(uuid7: str) -> str:
    return f"{uuid7[:AT]}{VERSION}{uuid7[AT + 1 :]}"


def is_turn(job_id: str) -> bool:
    return len(job_id) == LENGTH and job_id[AT] == VERSION


def owner(process: str, *, outside: bool) -> str:
    """The text that names the owner of a turn: the process that serves the caller, with a suffix if the caller is
    outside that process."""
    return worker_name(process, OUTSIDE if outside else "")


def is_outside(owner: str) -> bool:
    return owner.endswith(f"/{OUTSIDE}")


def owner_at(process: str, job: Job) -> str:
    """The owner to store when `process` adopts this turn from another process."""
    return owner(process, outside=is_outside(job.turn or ""))


def set_aside(job: Job, error: Mapping[str, Any], *, now: float, grace: float) -> Move:
    """Take a waiting turn whose caller is absent out of the queue, and keep its place for `grace` seconds. If the
    caller does not return by then, the turn fails with `error`."""
    if job.status is not JobStatus.PENDING:
        raise WrongState(f"the turn is not waiting: it is {job.status}", details={"status": job.status.value})
    return Move(
        job.id,
        job.run,
        "set_aside",
        JobStatus.SCHEDULED,
        step=job.step,
        attempt=job.attempt,
        round=job.round,
        tells_line=True,
        timer_at=now + grace if job.timer_at is None else min(now + grace, job.timer_at),
        waiting_since=job.waiting_since,
        error={**error, WAIT_UNTIL: job.timer_at},
    )


def take_up(job: Job) -> Move:
    """Return a turn that was set aside to its place in the queue, because its caller is back."""
    if not job.is_set_aside:
        raise WrongState(f"the turn is not set aside: it is {job.status}", details={"status": job.status.value})
    return Move(
        job.id,
        job.run,
        "take_up",
        JobStatus.PENDING,
        step=job.step,
        attempt=job.attempt,
        round=job.round,
        tells_line=True,
        timer_at=(job.error or {}).get(WAIT_UNTIL),
        waiting_since=job.waiting_since,
    )


def grace_over(job: Job, now: float) -> dict[str, Any]:
    """The error of a turn that was set aside and whose caller did not return in time: the error passed to `set_aside`,
    or that of a wait timeout if the turn has also waited too long."""
    error = dict(job.error or {})
    wait_until = error.pop(WAIT_UNTIL, None)
    return error if wait_until is None or wait_until > now else waited_too_long(job)


def not_taken(job: Job) -> dict[str, Any]:
    text = f"the slot of {job.service} was offered but not accepted within {ACCEPT_WITHIN:g} s"
    return {"code": NOT_TAKEN, "message": text}


def waiter_gone(job: Job) -> dict[str, Any]:
    return {
        "code": WAITER_GONE,
        "message": f"the process {process_of(job.turn or '')}, which served the caller, is gone",
    }


def holder_died(job: Job) -> dict[str, Any]:
    return {
        "code": HOLDER_DIED,
        "message": f"the process {process_of(job.turn or '')}, which served the caller, died or lost its lease",
    }


def unheard(job: Job, why: str) -> dict[str, Any]:
    """The error of a turn whose caller over HTTP has stopped sending requests. `why` is its message."""
    return {"code": WAITER_GONE if job.status is JobStatus.PENDING else HOLDER_DIED, "message": why}


def waited_too_long(job: Job) -> dict[str, Any]:
    text = f"no slot of {job.service} was free within the wait_timeout"
    return {"code": retry.RESOURCE_EXHAUSTED, "message": text}


def overran(job: Job, timeout: float) -> dict[str, Any]:
    return {"code": retry.TIMEOUT, "message": f"the slot of {job.service} was kept longer than its {timeout:g} s"}


def failed_by_caller(message: str) -> dict[str, Any]:
    """The failure that the caller of the turn reported."""
    return retry.Failure(retry.EXCEPTION, message, retryable=False).as_error()


def require_no_turn(job: Job, verb: str) -> None:
    """Raise WrongState if the job is a turn."""
    if job.turn is not None:
        raise WrongState(
            f"cannot {verb} a turn: its caller, who does the work, is gone; take a new turn",
            details={"status": job.status.value, "turn": True},
        )


@dataclass(frozen=True, slots=True)
class TurnView:
    """A turn as callers see it. A PENDING turn waits at `position`; the caller of a RUNNING turn has the slot.

    `process` is the process that serves the caller. The slot is lost if the caller does not renew it for `lease_ttl`
    seconds. `input`, `metadata` and `result` are None in lists. `kept_until` is set while the caller of a PENDING turn
    is absent: the turn is not in the queue, and its place is kept until that time.
    """

    turn_id: str
    service: str
    user_id: str
    status: JobStatus
    priority: Priority
    process: str
    position: int | None
    estimated_wait: EstimatedWait | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    lease_ttl: float
    timeout: float
    error: dict[str, Any] | None = None
    result: Any = None
    input: Any = None
    metadata: dict[str, Any] | None = None
    kept_until: datetime | None = None

    @property
    def request_id(self) -> str:
        return self.turn_id

    @property
    def model(self) -> str:
        return self.service

    @property
    def prompt(self) -> Any:
        """The `prompt` that the caller passed to `add_request`."""
        return (self.input or {}).get("prompt")

    def as_dict(self) -> dict[str, Any]:
        """This turn as the JSON object that the gateway returns, with times in ISO 8601."""
        shown = {field.name: getattr(self, field.name) for field in fields(TurnView)}
        for name in ("created_at", "started_at", "finished_at", "kept_until"):
            shown[name] = iso(shown[name])
        if (wait := self.estimated_wait) is not None:
            shown["estimated_wait"] = {"low": round(wait.low, 3), "high": round(wait.high, 3)}
        return shown


def turn_view_of(
    job: Job, position: QueuePosition | None, *, lease_ttl: float, timeout: float, **extra: Any
) -> TurnView:
    waiting = position if job.status is JobStatus.PENDING else None
    absent = job.is_set_aside
    return TurnView(
        turn_id=job.id,
        service=job.service,
        user_id=job.user_id,
        status=JobStatus.PENDING if absent else job.status,
        priority=job.priority,
        process=process_of(job.turn or ""),
        position=waiting.position if waiting else None,
        estimated_wait=EstimatedWait.of(waiting) if waiting else None,
        created_at=utc(job.created_at),
        started_at=utc(job.started_at),
        finished_at=utc(job.finished_at),
        lease_ttl=lease_ttl,
        timeout=timeout,
        error=dict(job.error) if job.error and not absent else None,
        kept_until=utc(job.timer_at) if absent else None,
        **extra,
    )


def turn_view_of_record(
    record: JobRecord, position: QueuePosition | None, *, lease_ttl: float, timeout: float
) -> TurnView:
    return turn_view_of(
        record.job,
        position,
        lease_ttl=lease_ttl,
        timeout=timeout,
        result=record.result,
        input=record.input_data,
        metadata=record.metadata,
    )
