"""The methods of `Fairlead` for turns (docs/turns.md)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from fairlead.app.turns.context_manager import TurnBlock, TurnOptions
from fairlead.app.turns.requests import TurnRequests
from fairlead.app.turns.turns import Turns
from fairlead.app.turns.validation import SLOTS
from fairlead.app.turns.waiting import OnPosition
from fairlead.domain.turns import TurnView

if TYPE_CHECKING:
    from fairlead.app.sync import SyncFairlead, SyncTurnBlock


class TurnMethods(ABC):
    turn_requests: TurnRequests

    @property
    @abstractmethod
    def turns(self) -> Turns: ...

    @property
    @abstractmethod
    def sync(self) -> SyncFairlead: ...

    def turn(
        self,
        service: str,
        user_id: object = None,
        *,
        on_position: OnPosition | None = None,
        wait_timeout: float | None = None,
        priority: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        cost: float | None = None,
        deadline: datetime | str | float | None = None,
    ) -> TurnBlock:
        """Wait in the service's queue, and hold one of its slots while the block runs: `async with app.turn("flux",
        user_id=42) as turn:`. `on_position` is called with each new queue position, at most once a second; it may be a
        coroutine function. Raises TurnTimeout after `wait_timeout` seconds in the queue, TurnEnded if the turn was
        cancelled, and TurnLost if the slot was taken away, which also cancels the block."""
        options = TurnOptions(service, user_id, priority, metadata, cost, deadline, wait_timeout)
        return TurnBlock(self.turns, options, on_position)

    def slot(self, service: str, *, wait_timeout: float | None = None) -> TurnBlock:
        """A turn without a user, for use as a plain concurrency limiter. It waits in the same queue as turns and jobs
        of users."""
        return TurnBlock(self.turns, TurnOptions(service, SLOTS, wait_timeout=wait_timeout), None)

    def turn_sync(
        self,
        service: str,
        user_id: object = None,
        *,
        on_position: OnPosition | None = None,
        wait_timeout: float | None = None,
        priority: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        cost: float | None = None,
        deadline: datetime | str | float | None = None,
    ) -> SyncTurnBlock:
        """Like `turn`, for threads: `with app.turn_sync("flux", user_id=42) as turn:`. `on_position`, a plain function,
        is called in this thread while it waits. A thread that has lost its slot cannot be stopped: check
        `turn.lost.is_set()` now and then. If the slot was lost, leaving the block raises TurnLost."""
        options = TurnOptions(service, user_id, priority, metadata, cost, deadline, wait_timeout)
        return self.sync.turn_block(options, on_position)

    def slot_sync(self, service: str, *, wait_timeout: float | None = None) -> SyncTurnBlock:
        """Like `slot`, for threads."""
        return self.sync.turn_block(TurnOptions(service, SLOTS, wait_timeout=wait_timeout), None)

    # ------------------------------------------------------------ requests: ImageQueue's names for turns

    async def add_request(self, model: str, prompt: Any, user_id: object, request_id: str | None = None) -> str:
        """Put a request in the queue of the service `model`, and return its id. The request waits until it is started.
        With `request_id`, an id that an earlier call returned, this process takes over that request instead, which
        keeps its place in the queue. Raises NotFound, also for a request of another user, and WrongState if that
        request has ended."""
        return await self.turn_requests.add(model, prompt, user_id, request_id)

    async def get_next_pending(self, model: str) -> TurnView | None:
        """The first request in the queue, or None. By the time you start it, another request may be first."""
        return await self.turn_requests.next_pending(model)

    async def try_start_processing(self, request_id: str, model: str) -> bool:
        """Start the request if it is first in the queue and a slot is free, in one atomic step. Returns False if the
        request has to wait, has been started already, or does not exist."""
        return await self.turn_requests.try_start(request_id, model)

    async def get_queue_position(self, request_id: str, model: str) -> int | None:
        """The request's position in the queue; 1 is next. None if the request does not wait, or if it is set aside
        because its caller is absent."""
        return await self.turn_requests.position(request_id, model)

    async def wait_for_turn(self, request_id: str, model: str, on_position: OnPosition | None = None) -> None:
        """Wait until the request is started. Raises TurnEnded or TurnTimeout if the request ends before that, and
        TurnLost if another process has started it."""
        await self.turn_requests.wait(request_id, model, on_position)

    async def mark_completed(self, request_id: str, image_path: Any = None) -> None:
        """Complete the request and free its slot. Does nothing if the request has ended or does not exist."""
        await self.turn_requests.complete(request_id, image_path)

    async def mark_failed(self, request_id: str, error_message: str) -> None:
        """Fail the request and free its slot or its place in the queue. Does nothing if it has ended or does not
        exist."""
        await self.turn_requests.fail(request_id, error_message)

    async def cleanup_request(self, request_id: str) -> None:
        """Delete the request, whatever its state."""
        await self.turn_requests.remove(request_id)
