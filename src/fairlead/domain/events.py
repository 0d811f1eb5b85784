"""Types and format of the job events that clients receive over WebSockets, SSE or `app.watch`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, overload

WAITING = "WAITING"
POSITION = "POSITION"
STEP_START = "STEP_START"
STEP_COMPLETE = "STEP_COMPLETE"
PROGRESS = "PROGRESS"
JOB_PROMOTED = "JOB_PROMOTED"
JOB_RETRYING = "JOB_RETRYING"
JOB_FAILED = "JOB_FAILED"
JOB_CANCELLED = "JOB_CANCELLED"
JOB_COMPLETE = "JOB_COMPLETE"
SNAPSHOT = "SNAPSHOT"
OUTPUT = "OUTPUT"
OUTPUT_RESTART = "OUTPUT_RESTART"

TERMINAL = frozenset({JOB_FAILED, JOB_CANCELLED, JOB_COMPLETE})

ENDED = "ENDED"
"""Internal event: the job ended in another process. Receivers read its final state from the database."""
MISSED = "MISSED"
"""Internal event: events may have been lost. Receivers read the current state from the database."""


_OUTSIDE_TYPE = re.compile(r"[A-Za-z][\w.:-]{0,63}", re.ASCII)
_OWN_TYPE = re.compile(
    r"(JOB|STEP|BATCH|TURN)_.*|BATCH|WAITING|POSITION|PROGRESS|SNAPSHOT|OUTPUT(_RESTART)?|HEARTBEAT|ERROR|ENDED|MISSED"
    r"|watch|unwatch|refuse"
)
"""The event types of Fairlead itself, for jobs, batches and turns. Other programs must not publish them: a forged end
event, for example, would close the streams of a running job."""


@dataclass(frozen=True, slots=True)
class Event:
    type: str
    job_id: str
    at: float
    message: str
    details: Mapping[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        return {
            "type": self.type,
            "job_id": self.job_id,
            "at": iso(self.at),
            "message": self.message,
            **self.details,
        }

    @classmethod
    def of_dict(cls, body: dict[str, Any]) -> Event:
        details = {key: value for key, value in body.items() if key not in ("type", "job_id", "at", "message")}
        at = datetime.fromisoformat(body["at"]).timestamp()
        return cls(body["type"], body["job_id"], at, body["message"], details)


def of_outsider(body: Any, job_id: str, now: float) -> Event:
    """Read an event from a message that another program published on the job's channel. Adds `job_id`, `at` and
    `message` if they are missing. Raises ValueError if the message is not a valid event, or if its type is one of
    Fairlead's own."""
    if not isinstance(body, dict):
        raise ValueError("it is not a JSON object")
    kind = body.get("type")
    if not isinstance(kind, str) or not _OUTSIDE_TYPE.fullmatch(kind):
        raise ValueError("its type must be 1 to 64 letters, digits and _.:-, beginning with a letter")
    if _OWN_TYPE.fullmatch(kind):
        raise ValueError(f"the type {kind} is reserved for Fairlead")
    event = {"job_id": job_id, "at": iso(now), "message": "", **body}
    if event["job_id"] != job_id:
        raise ValueError("its job_id belongs to another job")
    if not isinstance(event["at"], str) or not isinstance(event["message"], str):
        raise ValueError("at and message must be text")
    return Event.of_dict(event)


def iso(moment: float | datetime | None) -> str | None:
    """Format a time as ISO 8601 in UTC, to the millisecond."""
    if moment is None:
        return None
    at = moment if isinstance(moment, datetime) else utc(moment)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


@overload
def utc(moment: float) -> datetime: ...
@overload
def utc(moment: float | None) -> datetime | None: ...
def utc(moment: float | None) -> datetime | None:
    """Convert a stored time, in seconds since 1970, to a datetime in UTC."""
    return None if moment is None else datetime.fromtimestamp(moment, UTC)


def step_fields(service: str, index: int, total: int) -> dict[str, Any]:
    """The fields of an event that concerns one step. `step` counts from 1, for people; `step_index` counts from 0."""
    return {"service": service, "step": index + 1, "step_index": index, "total": total}
