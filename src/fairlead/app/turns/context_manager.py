"""`async with app.turn(...)`: waits in the queue, holds the slot while the block runs, and frees it at the end."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import Any

from fairlead.app.turns.turns import Turns
from fairlead.app.turns.validation import result_json
from fairlead.app.turns.waiting import OnPosition
from fairlead.domain.job import Job, JobStatus
from fairlead.domain.retry import RESOURCE_EXHAUSTED
from fairlead.domain.turns import TurnView
from fairlead.engine.turns.waiters import Waiter
from fairlead.errors import TurnEnded, TurnError, TurnLost, TurnTimeout, Unavailable


@dataclass(frozen=True, slots=True)
class TurnOptions:
    """The arguments of `Fairlead.turn`."""

    service: str
    user_id: object = None
    priority: str | None = None
    metadata: Mapping[str, Any] | None = None
    cost: float | None = None
    deadline: datetime | str | float | None = None
    wait_timeout: float | None = None


class Turn:
    """A slot that the caller holds until it leaves the block. The value assigned to `result` is stored like the result
    of a step, and the one assigned to `usage` is what the work has used, for example `{"tokens_out": 120}`. `region` is
    the region of the slot, if the service has regions. `lost` is set when the caller no longer holds the slot; the
    caller should then stop working."""

    def __init__(self, job: Job, lost: asyncio.Event, most: int) -> None:
        self.id = job.id
        self.service = job.service
        self.user_id = job.user_id
        self.region = job.call_region
        self.lost = lost
        self.usage: Mapping[str, Any] | None = None
        self._most = most
        self._result: Any = None

    @property
    def result(self) -> Any:
        return self._result

    @result.setter
    def result(self, value: Any) -> None:
        result_json(value, self._most)  # raises here rather than at the end of the block
        self._result = value

    def __repr__(self) -> str:
        return f"Turn({self.id!r}, {self.service!r})"


class TurnBlock:
    """The block of `async with app.turn(...)`. `cancels`: when the slot is lost, the task that runs the block is
    cancelled."""

    def __init__(
        self, turns: Turns, options: TurnOptions, on_position: OnPosition | None, *, cancels: bool = True
    ) -> None:
        self._turns = turns
        self._options = options
        self._on_position = on_position
        self._cancels = cancels
        self._cancelled = False
        self._task: asyncio.Task[Any] | None = None
        self._turn: Turn | None = None
        self._waiter: Waiter | None = None

    async def __aenter__(self) -> Turn:
        options = self._options
        opened = await self._turns.open(
            options.service,
            options.user_id,
            priority=options.priority,
            metadata=options.metadata,
            cost=options.cost,
            deadline=options.deadline,
            wait_timeout=options.wait_timeout,
        )
        self._turns.enter_block(opened.turn_id)
        try:
            view = await self._turns.wait(opened.turn_id, on_position=self._on_position)
            if view.status is not JobStatus.RUNNING:
                raise ended(view)
            waiter = self._waiter = self._turns.held(view.turn_id)
        except BaseException:
            try:
                await _to_its_end(self._turns.cancel_own(opened.turn_id))
            finally:
                self._turns.leave_block(opened.turn_id)
            raise
        if self._cancels:
            self._task = asyncio.current_task()
            waiter.cancel_block = self._lost
        self._turn = Turn(waiter.job, waiter.lost, self._turns.max_result)
        return self._turn

    def _lost(self) -> None:
        if self._task is not None:
            self._cancelled = self._task.cancel()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._turn is not None
        turn, task, self._task = self._turn, self._task, None
        try:
            await self._end(turn, task, error)
        finally:
            self._turns.leave_block(turn.id)

    async def _end(self, turn: Turn, task: asyncio.Task[Any] | None, error: BaseException | None) -> None:
        assert self._waiter is not None
        if turn.lost.is_set():
            if self._cancelled and task is not None:
                task.uncancel()
            await _to_its_end(self._turns.left(turn.id))
            if error is None or isinstance(error, asyncio.CancelledError):
                raise TurnLost(
                    f"the slot of {turn.service} was lost: {self._waiter.why_lost}", turn_id=turn.id
                ) from None
            return
        if error is None:
            await _to_its_end(self._turns.finish(turn.id, turn.result, usage=turn.usage))
        elif isinstance(error, Exception):
            await _to_its_end(self._fail(turn, error))
        else:
            await _to_its_end(self._turns.cancel_own(turn.id))

    async def _fail(self, turn: Turn, error: Exception) -> None:
        """Record that the block failed with this error. If that cannot be recorded, the error itself still propagates
        to the caller, with a note."""
        text = f"{type(error).__name__}: {error}"
        try:
            await self._turns.fail(turn.id, text, usage=turn.usage)
        except TurnError as lost:
            error.add_note(f"the turn {turn.id} was lost as well: {lost}")
        except Unavailable as unavailable:
            error.add_note(f"the end of the turn {turn.id} could not be recorded: {unavailable}")


def ended(view: TurnView) -> TurnError:
    """Make the error for a turn that ended before its caller got a slot."""
    error = view.error or {}
    text = str(error.get("message", f"the turn is {view.status}"))
    kind = TurnTimeout if error.get("code") == RESOURCE_EXHAUSTED else TurnEnded
    return kind(text, turn_id=view.turn_id, error=error)


async def _to_its_end(ending: Coroutine[Any, Any, Any]) -> None:
    """Await `ending` to its end, even if the caller is cancelled meanwhile. If `ending` were interrupted, the slot
    would stay taken until its lease expires."""
    task = asyncio.get_running_loop().create_task(ending)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        if not task.done():
            await asyncio.wait([task])
        raise
