"""What a caller hears of its turn while it waits."""

from __future__ import annotations

from typing import Any

from fairlead.client.stream import Stream
from fairlead.client.turn_calls import TurnState, events_of, state_of
from fairlead.domain.job import JobStatus
from fairlead.domain.retry import RESOURCE_EXHAUSTED
from fairlead.errors import TurnEnded, TurnError, TurnLost, TurnTimeout
from fairlead.runtime.events import POSITION, SNAPSHOT

LONGEST_ERROR = 1000
RENEWALS = 3
"""In the time that a slot outlives its holder's last word."""
RENEW_EVERY = 1.0
"""Seconds at most: whose slot is taken away hears it with the next renewal, and has three to leave it."""


class TurnStream(Stream):
    """Ends when the wait is over, one way or the other; `state` says which."""

    def __init__(self, opened: TurnState, patience: float) -> None:
        super().__init__(events_of(opened.turn_id), patience)
        self.state = opened

    def position_in(self, event: dict[str, Any]) -> int | None:
        """The place in line that this event tells of."""
        if event["type"] == SNAPSHOT:
            return self.state.position
        return int(event["position"]) if event["type"] == POSITION else None

    def _is_last(self, event: dict[str, Any]) -> bool:
        if "turn" in event:
            self.state = state_of(event["turn"])
        return self.state.status is not JobStatus.PENDING


def pause(state: TurnState) -> float:
    """Seconds between two renewals."""
    return min(RENEW_EVERY, state.lease_ttl / RENEWALS)


def outlives(state: TurnState) -> float:
    """Seconds that the slot is surely ours after a renewal, whatever becomes of the gateway: it renews the lease itself
    as often as we must, and may have been about to."""
    return state.lease_ttl * (1 - 1 / RENEWALS)


def ended(state: TurnState) -> TurnError:
    """Why its caller never had the slot."""
    error = state.error or {}
    kind = TurnTimeout if error.get("code") == RESOURCE_EXHAUSTED else TurnEnded
    return kind(str(error.get("message", f"the turn is {state.status}")), turn_id=state.turn_id, error=error)


def lost(turn_id: str) -> TurnLost:
    return TurnLost("the slot was lost before the block ended", turn_id=turn_id)


def described(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:LONGEST_ERROR]
