"""The calls about turns, without sending anything; see `calls.py`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx2

from fairlead.client.calls import Call, json_of, with_body
from fairlead.client.shapes import moment, wait_of
from fairlead.domain.job import JobStatus, Priority
from fairlead.runtime.operations import check_id
from fairlead.runtime.view import EstimatedWait

TURNS = "/api/v1/turns"


@dataclass(frozen=True, slots=True)
class TurnState:
    """A turn as the gateway shows it: PENDING is in line, RUNNING has the slot. `heartbeat` is how long a waiting
    caller may be silent, `lease_ttl` how long one that has the slot may be."""

    turn_id: str
    service: str
    user_id: str
    status: JobStatus
    priority: Priority
    position: int | None
    estimated_wait: EstimatedWait | None
    created_at: float | None
    started_at: float | None
    finished_at: float | None
    error: dict[str, Any] | None
    result: Any
    metadata: dict[str, Any] | None
    heartbeat: float
    lease_ttl: float

    @property
    def held(self) -> bool:
        return self.status is JobStatus.RUNNING


def wanted(
    service: str,
    user_id: str | int | None,
    wait_timeout: float | None,
    priority: str | None,
    metadata: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Only what was given: what is not is the gateway's to decide. User ids are text, also of those who count them."""
    said = {
        "service": service,
        "user_id": None if user_id is None else str(user_id),
        "wait_timeout": wait_timeout,
        "priority": priority,
        "metadata": metadata,
    }
    return {name: value for name, value in said.items() if value is not None}


def open_turn(wanted: Mapping[str, Any]) -> Call[TurnState]:
    """Sent again with the same key if the answer is lost: a caller stands in line once."""
    return Call("POST", TURNS, _turn, body=json_of(wanted), headers=with_body(None))


def get_turn(turn_id: str, wait: int | None = None) -> Call[TurnState]:
    """With `wait` as its caller: who only looks must not be taken for it."""
    headers = {} if wait is None else {"Prefer": f"wait={wait}"}
    return Call("GET", path_of(turn_id), _turn, headers=headers)


def renew_turn(turn_id: str) -> Call[TurnState]:
    return Call("POST", f"{path_of(turn_id)}/renew", _turn)


def finish_turn(turn_id: str, result: Any = None, error: str | None = None) -> Call[TurnState]:
    """`error` instead of a result: it failed."""
    body = {"result": result} if error is None else {"error": error}
    late = JobStatus.COMPLETED if error is None else JobStatus.FAILED
    return Call(
        "POST",
        f"{path_of(turn_id)}/finish",
        _turn,
        body=json_of(body),
        headers={"Content-Type": "application/json"},
        if_late=late,
        instead=get_turn(turn_id),
    )


def cancel_turn(turn_id: str) -> Call[TurnState]:
    path = f"{path_of(turn_id)}/cancel"
    return Call("POST", path, _turn, if_late=JobStatus.CANCELLED, instead=get_turn(turn_id))


def events_of(turn_id: str) -> str:
    return f"{path_of(turn_id)}/events"


def path_of(turn_id: str) -> str:
    return f"{TURNS}/{check_id(turn_id)}"


def state_of(said: Mapping[str, Any]) -> TurnState:
    return TurnState(
        turn_id=said["turn_id"],
        service=said["service"],
        user_id=said["user_id"],
        status=JobStatus(said["status"]),
        priority=Priority(said["priority"]),
        position=said.get("position"),
        estimated_wait=wait_of(said.get("estimated_wait")),
        created_at=moment(said.get("created_at")),
        started_at=moment(said.get("started_at")),
        finished_at=moment(said.get("finished_at")),
        error=said.get("error"),
        result=said.get("result"),
        metadata=said.get("metadata"),
        heartbeat=float(said["heartbeat"]),
        lease_ttl=float(said["lease_ttl"]),
    )


def _turn(response: httpx2.Response) -> TurnState:
    return state_of(response.json())
