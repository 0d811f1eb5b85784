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
        cost: float | None = None,
    ) -> AsyncTurn:
        """Return a turn for a `with` block: it waits for a slot of the service, and holds the slot until the block
        ends. `on_position` is called with the position in the queue whenever it changes. `cost` is what the work is
        expected to cost, in the unit of the service. Raises TurnTimeout after `wait_timeout` seconds of waiting, and
        TurnEnded if the turn ends in another way before it gets the slot. If the slot is lost, `lost` is set. An
        asynchronous block is then cancelled at once; the code in a synchronous block has to stop by itself. Either way,
        TurnLost is raised at the end of the block."""
        request = turn_calls.request_of(service, user_id, wait_timeout, priority, metadata, cost)
        return AsyncTurn(self, request, on_position)

    async def get_turn(self, turn_id: str) -> TurnState:
        """Return the state of a turn. Unlike a request of the turn's caller, this request neither keeps the turn alive
        nor takes the slot."""
        return await self._do(turn_calls.get_turn(turn_id))

    async def cancel_turn(self, turn_id: str) -> TurnState:
        """Cancel a turn, usually the turn of another caller. The caller that holds the slot is notified, and has time
        to stop."""
        await self._do(calls.cancel(turn_id))
        return await self.get_turn(turn_id)
