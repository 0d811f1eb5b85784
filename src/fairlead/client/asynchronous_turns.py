"""The methods of `AsyncClient` for turns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping
from typing import Any, TypeVar

from fairlead.client import calls, turn_calls
from fairlead.client.async_turn import AsyncOnPosition, AsyncTurn
from fairlead.client.calls import ApiCall
from fairlead.client.stream import Stream
from fairlead.client.turn_calls import TurnState

T = TypeVar("T")


class AsyncTurnCalls(ABC):
    """The methods for turns, as a mixin of `AsyncClient`."""

    _patience: float

    @abstractmethod
    async def _do(self, call: ApiCall[T], patience: float | None = None) -> T: ...

    @abstractmethod
    def read_events(self, stream: Stream) -> AsyncIterator[dict[str, Any]]: ...

    def turn(
        self,
        service: str,
        user_id: str | int | None = None,
        *,
        on_position: AsyncOnPosition | None = None,
        wait_timeout: float | None = None,
        priority: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> AsyncTurn:
        """Wait for a slot of the service, and hold it for the length of the `with` block. `on_position` is called with
        the position in the queue whenever it changes. Raises TurnTimeout after `wait_timeout` seconds of waiting, and
        TurnEnded if the turn ends in another way before it gets the slot. When the slot is lost, `lost` is set, and the
        block raises TurnLost at its end: an asynchronous block is cancelled at once, while the code of a synchronous
        block has to stop by itself."""
        request = turn_calls.request_of(service, user_id, wait_timeout, priority, metadata)
        return AsyncTurn(self, request, on_position)

    async def get_turn(self, turn_id: str) -> TurnState:
        """Return the state of a turn. This request does not count as a sign of life of the turn's caller, and does not
        take the slot."""
        return await self._do(turn_calls.get_turn(turn_id))

    async def cancel_turn(self, turn_id: str) -> TurnState:
        """Cancel a turn, usually the turn of another caller. The caller that holds the slot is notified, and has time
        to stop."""
        await self._do(calls.cancel(turn_id))
        return await self.get_turn(turn_id)
