"""Turns for threads: the line is an event loop's, in another thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from queue import SimpleQueue
from types import TracebackType
from typing import Any

from fairlead.errors import FairleadError
from fairlead.runtime.turns.block import Turn, TurnBlock
from fairlead.runtime.turns.telling import OnPosition

_DONE = None


class SyncTurnBlock:
    """`loop` gives the event loop that the app lives on; `make` a block whose waiter is told its position."""

    def __init__(
        self,
        loop: Callable[[], asyncio.AbstractEventLoop],
        make: Callable[[OnPosition | None], TurnBlock],
        on_position: OnPosition | None,
    ) -> None:
        self._loop = loop
        self._make = make
        self._on_position = on_position
        self._block: TurnBlock | None = None

    def __enter__(self) -> Turn:
        loop = self._other_loop()
        positions: SimpleQueue[int | None] = SimpleQueue()
        block = self._block = self._make(None if self._on_position is None else positions.put)
        entering = asyncio.run_coroutine_threadsafe(block.__aenter__(), loop)
        entering.add_done_callback(lambda _: positions.put(_DONE))
        try:
            while (position := positions.get()) is not _DONE:
                if self._on_position is not None:
                    self._on_position(position)
        except BaseException:
            # The thread was interrupted, or its `on_position` failed: it waits no more.
            if not entering.cancel():
                _run(block.__aexit__(asyncio.CancelledError, asyncio.CancelledError(), None), loop)
            raise
        return entering.result()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._block is not None
        _run(self._block.__aexit__(kind, error, trace), self._loop())

    def _other_loop(self) -> asyncio.AbstractEventLoop:
        loop = self._loop()
        try:
            here = asyncio.get_running_loop()
        except RuntimeError:
            return loop
        if here is loop:
            raise FairleadError("this thread runs the app's event loop: use `async with app.turn(...)` here")
        return loop


def _run(coroutine: Coroutine[Any, Any, Any], loop: asyncio.AbstractEventLoop) -> None:
    asyncio.run_coroutine_threadsafe(coroutine, loop).result()
