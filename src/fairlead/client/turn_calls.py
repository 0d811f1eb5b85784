"""Builds the requests for turns and parses their responses; see `calls.py`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import httpx2

from fairlead.client.calls import ApiCall, json_of, with_body
from fairlead.client.shapes import moment, wait_of
from fairlead.domain.job import JobStatus, Priority
from fairlead.domain.validation import check_id
from fairlead.domain.views import EstimatedWait

TURNS = "/api/v1/turns"


@dataclass(frozen=True, slots=True)
class TurnState:
    """A turn as the gateway returns it. A PENDING turn waits, a RUNNING turn holds the slot. The caller of a waiting
    turn must contact the gateway every `heartbeat` seconds; the caller that holds the slot, every `lease_ttl`
    seconds."""

    turn_id: str
    service: str
    user_id: str
    status: JobStatus
    priority: Priority
    position: int | None
    estimated_wait: EstimatedWait | None
    created_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    error: dict[str, Any] | None
    result: Any
    metadata: dict[str, Any] | None
    heartbeat: float
    lease_ttl: float

    @property
    def held(self) -> bool:
        return self.status is JobStatus.RUNNING


def request_of(
    service: str,
    user_id: str | int | None,
    wait_timeout: float | None,
    priority: str | None,
    metadata: Mapping[str, Any] | None,
    cost: float | None,
) -> dict[str, Any]:
    """Return the body of a request for a turn, with the fields that are set. The gateway uses its defaults for the
    others. A user id is sent as a string, even if it is a number."""
    fields = {
        "service": service,
        "user_id": None if user_id is None else str(user_id),
        "wait_timeout": wait_timeout,
        "priority": priority,
        "metadata": metadata,
        "cost": cost,
    }
    return {name: value for name, value in fields.items() if value is not None}


def open_turn(request: Mapping[str, Any]) -> ApiCall[TurnState]:
    """Build the request that opens a turn. If the response is lost, the request is repeated with the same idempotency
    key, so no second turn is created."""
    return ApiCall("POST", TURNS, _turn, body=json_of(request), headers=with_body(None))


def get_turn(turn_id: str, wait: int | None = None) -> ApiCall[TurnState]:
    """Build the request that reads a turn. With `wait`, the gateway answers as soon as the turn has its slot or has
    ended, or after this many seconds; the request then also counts as a heartbeat of the turn's caller."""
    headers = {} if wait is None else {"Prefer": f"wait={wait}"}
    return ApiCall("GET", path_of(turn_id), _turn, headers=headers)


def renew_turn(turn_id: str) -> ApiCall[TurnState]:
    return ApiCall("POST", f"{path_of(turn_id)}/renew", _turn)


def finish_turn(
    turn_id: str, result: Any = None, error: str | None = None, usage: Mapping[str, Any] | None = None
) -> ApiCall[TurnState]:
    """Build the request that ends a turn: as failed if `error` is given, otherwise with `result`."""
    body: dict[str, Any] = {"result": result} if error is None else {"error": error}
    if usage is not None:
        body["usage"] = usage
    late = JobStatus.COMPLETED if error is None else JobStatus.FAILED
    return ApiCall(
        "POST",
        f"{path_of(turn_id)}/finish",
        _turn,
        body=json_of(body),
        headers={"Content-Type": "application/json"},
        if_late=late,
        instead=get_turn(turn_id),
    )


def cancel_turn(turn_id: str) -> ApiCall[TurnState]:
    path = f"{path_of(turn_id)}/cancel"
    return ApiCall("POST", path, _turn, if_late=JobStatus.CANCELLED, instead=get_turn(turn_id))


def events_of(turn_id: str) -> str:
    return f"{path_of(turn_id)}/events"


def path_of(turn_id: str) -> str:
    return f"{TURNS}/{check_id(turn_id)}"


def state_of(body: Mapping[str, Any]) -> TurnState:
    return TurnState(
        turn_id=body["turn_id"],
        service=body["service"],
        user_id=body["user_id"],
        status=JobStatus(body["status"]),
        priority=Priority(body["priority"]),
        position=body.get("position"),
        estimated_wait=wait_of(body.get("estimated_wait")),
        created_at=moment(body.get("created_at")),
        started_at=moment(body.get("started_at")),
        finished_at=moment(body.get("finished_at")),
        error=body.get("error"),
        result=body.get("result"),
        metadata=body.get("metadata"),
        heartbeat=float(body["heartbeat"]),
        lease_ttl=float(body["lease_ttl"]),
    )


def _turn(response: httpx2.Response) -> TurnState:
    return state_of(response.json())
