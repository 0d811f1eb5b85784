"""`AsyncTurn`: waits for a slot, and holds it until the `async with` block ends. A task renews the slot meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import time
from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from fairlead.client import turn_calls
from fairlead.client.calls import ApiCall
from fairlead.client.turn_calls import TurnState
from fairlead.client.turn_stream import OpenTurn, TurnStream, described, ended, lost, outlives, pause
from fairlead.errors import FairleadError, NotFound, TurnError, WrongState

if TYPE_CHECKING:
    from fairlead.client.asynchronous_turns import AsyncTurnCalls

AsyncOnPosition = Callable[[int], Awaitable[None] | None]


class AsyncTurn(OpenTurn):
    """A turn: waits in the queue, then holds the slot, which a task renews. `result` is stored like the result of a
    job, and `usage` is what the work has used, for example `{"tokens_out": 120}`. `lost` is set when the slot has
    been lost."""

    def __init__(self, client: AsyncTurnCalls, wanted: Mapping[str, Any], on_position: AsyncOnPosition | None) -> None:
        super().__init__()
        self._client = client
        self._request = wanted
        self._on_position = on_position
        self._renewing: asyncio.Task[None] | None = None
        self._block: asyncio.Task[Any] | None = None
        self.lost = asyncio.Event()

    async def __aenter__(self) -> AsyncTurn:
        self._state = await self._client._do(turn_calls.open_turn(self._request))
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
        async with contextlib.aclosing(self._client.read_events(stream)) as events:  # type: ignore[type-var]
            async for event in events:
                await self._report_position(stream.position_in(event))
                if stream.ended:
                    break
        self._state = stream.state
        if not stream.state.held:
            raise ended(stream.state)
        self.position = None

    async def _report_position(self, position: int | None) -> None:
        if position is None or position == self.position:
            return
        self.position = position
        result = self._on_position(position) if self._on_position is not None else None
        if inspect.isawaitable(result):
            await result

    async def _renew(self) -> None:
        """Renew the slot periodically, until it is lost. The slot also counts as lost when no gateway has been
        reachable for so long that the lease must have expired."""
        until = time.monotonic() + outlives(self._opened)
        while time.monotonic() < until:
            await asyncio.sleep(pause(self._opened))
            renewed_at = time.monotonic()
            try:
                state = await self._client._do(turn_calls.renew_turn(self.id), max(0.0, until - renewed_at))
            except (NotFound, WrongState):
                break
            except FairleadError:
                continue
            if not state.held:
                break
            until = renewed_at + outlives(state)
        self.lost.set()
        if self._block is not None:
            self._block.cancel()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._renewing is not None
        if self.lost.is_set():
            if self._block is not None:
                self._block.uncancel()  # whether or not the block suppressed the cancellation
            raise lost(self.id) from error
        self._renewing.cancel()
        await asyncio.gather(self._renewing, return_exceptions=True)
        if error is None:
            await self._finish()
        elif isinstance(error, asyncio.CancelledError):
            await self._leave(turn_calls.cancel_turn(self.id))
        else:
            await self._leave(turn_calls.finish_turn(self.id, error=described(error), usage=self.usage))

    async def _finish(self) -> None:
        try:
            await self._client._do(turn_calls.finish_turn(self.id, self.result, usage=self.usage))
        except (NotFound, WrongState) as error:
            self.lost.set()
            raise lost(self.id) from error

    async def _leave(self, call: ApiCall[TurnState]) -> None:
        """Send the last request of the turn, and ignore its errors. An exception from the block matters more, and the
        gateway notices by itself that the caller no longer sends requests."""
        with contextlib.suppress(FairleadError):
            await asyncio.shield(self._client._do(call, 0.0))
