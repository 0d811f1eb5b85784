"""`async with app.turn(...)`: waits in line, holds the slot while the block runs, and gives it to the next."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import Any

from fairlead.domain.job import Job, JobStatus
from fairlead.domain.retry import RESOURCE_EXHAUSTED
from fairlead.errors import TurnEnded, TurnError, TurnLost, TurnTimeout
from fairlead.runtime.turns.checks import result_json
from fairlead.runtime.turns.telling import OnPosition
from fairlead.runtime.turns.turns import Turns
from fairlead.runtime.turns.view import TurnView


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a caller asks for."""

    service: str
    user_id: object = None
    priority: str | None = None
    metadata: Mapping[str, Any] | None = None
    cost: float | None = None
    deadline: datetime | str | float | None = None
    wait_timeout: float | None = None


class Turn:
    """A slot that is this caller's until it leaves the block. What is assigned to `result` is kept, like a step's.
    `region` is where the slot is, of a service with regions. `lost` is set when the slot is not this caller's any more:
    whoever still computes then should stop."""

    def __init__(self, job: Job, lost: asyncio.Event, most: int) -> None:
        self.id = job.id
        self.service = job.service
        self.user_id = job.user_id
        self.region = job.call_region
        self.lost = lost
        self._most = most
        self._result: Any = None

    @property
    def result(self) -> Any:
        return self._result

    @result.setter
    def result(self, value: Any) -> None:
        result_json(value, self._most)  # a mistake is told where it is made
        self._result = value

    def __repr__(self) -> str:
        return f"Turn({self.id!r}, {self.service!r})"


class TurnBlock:
    """`cancels`: losing the slot cancels the task that runs the block."""

    def __init__(
        self,
        turns: Turns,
        wanted: Wanted,
        on_position: OnPosition | None,
        *,
        max_result: int,
        cancels: bool = True,
    ) -> None:
        self._turns = turns
        self._wanted = wanted
        self._on_position = on_position
        self._max_result = max_result
        self._cancels = cancels
        self._cancelled = False
        self._task: asyncio.Task[Any] | None = None
        self._turn: Turn | None = None
        self._why: Callable[[], str] = str

    async def __aenter__(self) -> Turn:
        wanted = self._wanted
        opened = await self._turns.open(
            wanted.service,
            wanted.user_id,
            priority=wanted.priority,
            metadata=wanted.metadata,
            cost=wanted.cost,
            deadline=wanted.deadline,
            wait_timeout=wanted.wait_timeout,
        )
        try:
            view = await self._turns.wait(opened.turn_id, on_position=self._on_position)
            if view.status is not JobStatus.RUNNING:
                raise ended(view)
            ticket = self._turns.held(view.turn_id)
        except BaseException:
            await _to_its_end(self._turns.cancel_own(opened.turn_id))
            raise
        ticket.in_block = True
        if self._cancels:
            self._task = asyncio.current_task()
            ticket.on_lost = self._lost
        self._why = lambda: ticket.why_lost
        self._turn = Turn(ticket.job, ticket.lost, self._max_result)
        return self._turn

    def _lost(self) -> None:
        if self._task is not None:
            self._cancelled = self._task.cancel()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._turn is not None
        turn, task, self._task = self._turn, self._task, None
        if turn.lost.is_set():
            if self._cancelled and task is not None:
                task.uncancel()
            await _to_its_end(self._turns.left(turn.id))
            if kind is None or kind is asyncio.CancelledError:
                raise TurnLost(f"the slot of {turn.service} was lost: {self._why()}", turn_id=turn.id) from None
            return
        if error is None:
            await _to_its_end(self._turns.finish(turn.id, turn.result))
        elif isinstance(error, Exception):
            await _to_its_end(self._fail(turn, error))
        else:
            await _to_its_end(self._turns.cancel_own(turn.id))

    async def _fail(self, turn: Turn, error: Exception) -> None:
        """The caller's own error goes on, whatever becomes of the record."""
        text = f"{type(error).__name__}: {error}"
        try:
            await self._turns.fail(turn.id, text)
        except TurnError as lost:
            error.add_note(f"and the turn {turn.id} was lost: {lost}")


def ended(view: TurnView) -> TurnError:
    """Why its caller never had the slot."""
    error = view.error or {}
    text = str(error.get("message", f"the turn is {view.status}"))
    kind = TurnTimeout if error.get("code") == RESOURCE_EXHAUSTED else TurnEnded
    return kind(text, turn_id=view.turn_id, error=error)


async def _to_its_end(ending: Coroutine[Any, Any, Any]) -> None:
    """Also when the caller is cancelled meanwhile: the slot must not wait for its lease to expire."""
    task = asyncio.get_running_loop().create_task(ending)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        if not task.done():
            await asyncio.wait([task])
        raise
