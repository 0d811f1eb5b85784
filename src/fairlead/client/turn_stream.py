"""Reads the events of a waiting turn, and computes when its slot must be renewed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fairlead.client.stream import Stream
from fairlead.client.turn_calls import TurnState, events_of, state_of
from fairlead.domain.events import POSITION, SNAPSHOT
from fairlead.domain.job import JobStatus
from fairlead.domain.retry import RESOURCE_EXHAUSTED
from fairlead.errors import FairleadError, TurnEnded, TurnError, TurnLost, TurnTimeout

LONGEST_ERROR = 1000
RENEWALS = 3
"""How many renewals are attempted before the slot would expire."""
RENEW_EVERY = 1.0
"""Longest interval between two renewals, in seconds. A caller learns from a renewal that its slot was revoked, and has
three seconds to stop."""


class TurnStream(Stream):
    """The event stream of a waiting turn. It ends when the turn no longer waits; `state` then has the outcome."""

    def __init__(self, opened: TurnState, patience: float) -> None:
        super().__init__(events_of(opened.turn_id), patience)
        self.state = opened

    def position_in(self, event: dict[str, Any]) -> int | None:
        """Return the position in the queue that an event contains, or None if it contains none."""
        if event["type"] == SNAPSHOT:
            return self.state.position
        return int(event["position"]) if event["type"] == POSITION else None

    def _is_last(self, event: dict[str, Any]) -> bool:
        if "turn" in event:
            self.state = state_of(event["turn"])
        return self.state.status is not JobStatus.PENDING


def pause(state: TurnState) -> float:
    """Return the seconds between two renewals of the slot."""
    return min(RENEW_EVERY, state.lease_ttl / RENEWALS)


def outlives(state: TurnState) -> float:
    """Return for how many seconds after a renewal the caller certainly still has the slot, even if the gateway fails
    before it has renewed the lease in the dispatcher."""
    return state.lease_ttl * (1 - 1 / RENEWALS)


def ended(state: TurnState) -> TurnError:
    """Return the exception for a turn that ended before it held the slot."""
    error = state.error or {}
    kind = TurnTimeout if error.get("code") == RESOURCE_EXHAUSTED else TurnEnded
    return kind(str(error.get("message", f"the turn is {state.status}")), turn_id=state.turn_id, error=error)


def lost(turn_id: str) -> TurnLost:
    return TurnLost("the slot was lost before the block ended", turn_id=turn_id)


def described(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:LONGEST_ERROR]


class OpenTurn:
    """The attributes that a turn has inside its `with` block."""

    def __init__(self) -> None:
        self._state: TurnState | None = None
        self.position: int | None = None
        self.result: Any = None
        self.usage: Mapping[str, Any] | None = None

    @property
    def id(self) -> str:
        return self._opened.turn_id

    @property
    def service(self) -> str:
        return self._opened.service

    @property
    def user_id(self) -> str:
        return self._opened.user_id

    @property
    def _opened(self) -> TurnState:
        if self._state is None:
            raise FairleadError("the turn starts with its `with` block")
        return self._state
