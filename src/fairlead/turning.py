"""Turns as `Fairlead` offers them: slots for callers that do the work themselves (docs/turns.md)."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from fairlead.domain.config import Config
from fairlead.domain.job import Job, JobStatus
from fairlead.errors import InvalidInput, NotFound, UnknownFeature
from fairlead.runtime.operations import Operations, check_id
from fairlead.runtime.turns.block import TurnBlock, Wanted, ended
from fairlead.runtime.turns.checks import SLOTS
from fairlead.runtime.turns.telling import OnPosition
from fairlead.runtime.turns.turns import Turns
from fairlead.runtime.turns.view import TurnView
from fairlead.store.journal import Journal
from fairlead.store.port import Store

if TYPE_CHECKING:
    from fairlead.sync import SyncFairlead
    from fairlead.sync_turns import SyncTurnBlock


class Turning(ABC):
    """A part of `Fairlead`, which opens and closes what is used here."""

    config: Config
    _turns: Turns
    _operations: Operations
    _loop: asyncio.AbstractEventLoop | None

    @abstractmethod
    def _opened(self) -> tuple[Store, Journal]: ...

    @property
    @abstractmethod
    def sync(self) -> SyncFairlead: ...

    @property
    def turns(self) -> Turns:
        """Turns call by call, for callers that are no block of code."""
        self._opened()
        return self._turns

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
        """`async with app.turn("flux", user_id=42) as turn:` waits in the service's line, and has one of its slots
        while the block runs. `on_position` is told where it stands, when that changes, at most once a second; it may be
        a coroutine function. Raises TurnTimeout after `wait_timeout` seconds in line, TurnEnded if somebody cancelled
        it, TurnLost if the slot was taken back (the block is then cancelled)."""
        wanted = Wanted(service, user_id, priority, metadata, cost, deadline, wait_timeout)
        return self._block(wanted, on_position)

    def slot(self, service: str, *, wait_timeout: float | None = None) -> TurnBlock:
        """A plain limiter: a turn without a user. It waits in the same line, and overtakes nobody."""
        return self._block(Wanted(service, SLOTS, wait_timeout=wait_timeout), None)

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
        """`with app.turn_sync("flux", user_id=42) as turn:` for threads. `on_position`, a plain function, is called in
        this thread while it waits. Nothing can stop a thread that has lost its slot: look at `turn.lost.is_set()` now
        and then; leaving the block raises TurnLost."""
        wanted = Wanted(service, user_id, priority, metadata, cost, deadline, wait_timeout)
        return self._sync_block(wanted, on_position)

    def slot_sync(self, service: str, *, wait_timeout: float | None = None) -> SyncTurnBlock:
        """`slot` for threads."""
        return self._sync_block(Wanted(service, SLOTS, wait_timeout=wait_timeout), None)

    def _block(self, wanted: Wanted, on_position: OnPosition | None, *, cancels: bool = True) -> TurnBlock:
        return TurnBlock(self.turns, wanted, on_position, max_result=self.config.worker.max_result, cancels=cancels)

    def _sync_block(self, wanted: Wanted, on_position: OnPosition | None) -> SyncTurnBlock:
        from fairlead.sync_turns import SyncTurnBlock

        return SyncTurnBlock(
            lambda: self._loop or self.sync.loop(),
            lambda tell: self._block(wanted, tell, cancels=False),
            on_position,
        )

    # ------------------------------------------------------------ requests, call by call: ImageQueue's names

    async def add_request(self, model: str, prompt: Any, user_id: object) -> str:
        """Put a request in the line of the service `model`, and return its id. It waits until it is started."""
        return (await self.turns.open(model, user_id, input={"prompt": prompt})).turn_id

    async def get_next_pending(self, model: str) -> TurnView | None:
        """The first request in line. To look at: between this and a start, another may be first."""
        self._known(model)
        first = await self.turns.first(model)
        return None if first is None else await self._turns.get(first)

    async def try_start_processing(self, request_id: str, model: str) -> bool:
        """Start it, if it is the first in line and a slot is free: one atomic step. False: it must wait, is started
        already, or is not there."""
        if await self._is_request(request_id, model):
            return await self._turns.start_if_first(request_id)
        return False

    async def get_queue_position(self, request_id: str, model: str) -> int | None:
        """1 is next; None if it does not wait. Those that have been started are not counted."""
        return await self._turns.position(request_id) if await self._is_request(request_id, model) else None

    async def wait_for_turn(self, request_id: str, model: str, on_position: OnPosition | None = None) -> None:
        """Return when the request is started. Raises TurnEnded or TurnTimeout if it never will be."""
        if not await self._is_request(request_id, model):
            raise NotFound(f"{model} has no request {request_id}")
        view = await self._turns.wait(request_id, on_position=on_position)
        if view.status is not JobStatus.RUNNING:
            raise ended(view)

    async def mark_completed(self, request_id: str, image_path: Any = None) -> None:
        """Its work is done: the slot goes to the next. Of one that has ended, or is not there, nothing changes."""
        if (job := await self._request(request_id)) is not None and not job.status.finished:
            await self._turns.finish(request_id, {"image_path": image_path})

    async def mark_failed(self, request_id: str, error_message: str) -> None:
        """Its work failed, or will never be done: the slot, or its place in line, goes to the next."""
        if (job := await self._request(request_id)) is not None and not job.status.finished:
            await self._turns.fail(request_id, error_message)

    async def cleanup_request(self, request_id: str) -> None:
        """Remove it for good, whatever its state."""
        if (job := await self._request(request_id)) is None:
            return
        if not job.status.finished:
            await self._turns.withdraw(request_id)
        await self._operations.delete(request_id)

    async def _request(self, request_id: str) -> Job | None:
        self._opened()
        try:
            return await self._turns.find(check_id(request_id, "request"))
        except InvalidInput:
            return None  # no id of ours, so there is none

    async def _is_request(self, request_id: str, model: str) -> bool:
        self._known(model)
        job = await self._request(request_id)
        return job is not None and job.service == model

    def _known(self, model: str) -> None:
        if model not in self.config.services:
            raise UnknownFeature(f"no service is called {model!r}", pointer="/model")
