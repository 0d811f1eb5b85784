"""What `AsyncClient` does with turns."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from types import TracebackType
from typing import Any, TypeVar

from fairlead.client import calls, turn_calls
from fairlead.client.calls import Call
from fairlead.client.stream import Stream
from fairlead.client.turn_calls import TurnState
from fairlead.client.turn_stream import TurnStream, described, ended, lost, outlives, pause
from fairlead.errors import FairleadError, NotFound, TurnError, WrongState

T = TypeVar("T")
OnPosition = Callable[[int], Awaitable[None] | None]


class AsyncTurnCalls(ABC):
    """A part of `AsyncClient`."""

    _patience: float

    @abstractmethod
    async def _do(self, call: Call[T], patience: float | None = None) -> T: ...

    @abstractmethod
    def _heard(self, stream: Stream) -> AsyncIterator[dict[str, Any]]: ...

    def turn(
        self,
        service: str,
        user_id: str | int | None = None,
        *,
        on_position: OnPosition | None = None,
        wait_timeout: float | None = None,
        priority: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> AsyncTurn:
        """Wait in line for a slot of the service, and have it for the length of the block. `on_position` is told the
        place in line when it changes. Raises TurnTimeout after `wait_timeout`
        seconds in line, TurnEnded if the wait ended otherwise; TurnLost if the slot was taken
        away: the block is cancelled then."""
        wanted = turn_calls.wanted(service, user_id, wait_timeout, priority, metadata)
        return AsyncTurn(self, wanted, on_position)

    async def get_turn(self, turn_id: str) -> TurnState:
        """Only to look: neither keeps its place nor takes the slot."""
        return await self._do(turn_calls.get_turn(turn_id))

    async def cancel_turn(self, turn_id: str) -> TurnState:
        """Somebody else's, as a rule: a holder hears that its slot is lost, and has a moment to leave it."""
        await self._do(calls.cancel(turn_id))
        return await self.get_turn(turn_id)


class AsyncTurn:
    """A turn, from the place in line to the slot. What `result` is set to is kept like a job's. `lost` is set when the
    slot is no longer ours."""

    def __init__(self, client: AsyncTurnCalls, wanted: Mapping[str, Any], on_position: OnPosition | None) -> None:
        self._client = client
        self._wanted = wanted
        self._on_position = on_position
        self._state: TurnState | None = None
        self._renewing: asyncio.Task[None] | None = None
        self._block: asyncio.Task[Any] | None = None
        self.position: int | None = None
        self.result: Any = None
        self.lost = asyncio.Event()

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
            raise FairleadError("the turn begins with its `async with`")
        return self._state

    async def __aenter__(self) -> AsyncTurn:
        self._state = await self._client._do(turn_calls.open_turn(self._wanted))
        try:
            await self._wait()
        except BaseException as error:
            if not isinstance(error, TurnError):
                await self._leave(turn_calls.cancel_turn(self.id))
            raise
        self._block = asyncio.current_task()
        self._renewing = asyncio.create_task(self._renew(), name=f"renew turn {self.id}")
        return self

    async def _wait(self) -> None:
        stream = TurnStream(self._opened, self._client._patience)
        async with contextlib.aclosing(self._client._heard(stream)) as events:  # type: ignore[type-var]
            async for event in events:
                await self._tell(stream.position_in(event))
                if stream.ended:
                    break
        self._state = stream.state
        if not stream.state.held:
            raise ended(stream.state)
        self.position = None

    async def _tell(self, position: int | None) -> None:
        if position is None or position == self.position:
            return
        self.position = position
        said = self._on_position(position) if self._on_position is not None else None
        if inspect.isawaitable(said):
            await said

    async def _renew(self) -> None:
        """Until it is lost, or nobody could be asked for so long that it must be."""
        until = time.monotonic() + outlives(self._opened)
        while time.monotonic() < until:
            await asyncio.sleep(pause(self._opened))
            asked = time.monotonic()
            try:
                state = await self._client._do(turn_calls.renew_turn(self.id), max(0.0, until - asked))
            except (NotFound, WrongState):
                break
            except FairleadError:
                continue
            if not state.held:
                break
            until = asked + outlives(state)
        self.lost.set()
        if self._block is not None:
            self._block.cancel()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._renewing is not None
        if self.lost.is_set():
            if self._block is not None:
                self._block.uncancel()  # whether the block let it through or not
            raise lost(self.id) from error
        self._renewing.cancel()
        await asyncio.gather(self._renewing, return_exceptions=True)
        if error is None:
            await self._finish()
        elif isinstance(error, asyncio.CancelledError):
            await self._leave(turn_calls.cancel_turn(self.id))
        else:
            await self._leave(turn_calls.finish_turn(self.id, error=described(error)))

    async def _finish(self) -> None:
        try:
            await self._client._do(turn_calls.finish_turn(self.id, self.result))
        except (NotFound, WrongState) as error:
            self.lost.set()
            raise lost(self.id) from error

    async def _leave(self, call: Call[TurnState]) -> None:
        """Whatever comes of it: the block's own error counts, and a caller that says nothing is missed soon enough."""
        with contextlib.suppress(FairleadError):
            await asyncio.shield(self._client._do(call, 0.0))
