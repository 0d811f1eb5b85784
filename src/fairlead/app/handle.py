"""Receipts and handles of submitted jobs and batches."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from fairlead.artifacts.values import is_stored, load_value
from fairlead.domain.batch import BatchView, ItemView
from fairlead.domain.fast_dataclass import fast_dataclass
from fairlead.domain.job import JobStatus, Priority
from fairlead.domain.output import Chunk, End, Position, Restart
from fairlead.domain.views import JobView, RetriedJob, Why, result_of

if TYPE_CHECKING:
    from fairlead.app.budget_gate import BudgetState
    from fairlead.app.fairlead import Fairlead


@fast_dataclass
class Receipt:
    """Confirms that a job was accepted and is committed. `replayed`: the idempotency key was used before, so this is
    the earlier job and no job was added."""

    job_id: str
    priority: Priority
    status: JobStatus
    replayed: bool
    scheduled_at: datetime | None
    budget: BudgetState | None = None
    """The budget of which the smallest share is left; None if no budget concerns the job."""


class JobHandle:
    """A submitted job."""

    def __init__(self, app: Fairlead, job_id: str) -> None:
        self._app = app
        self.id = job_id

    async def result(self, timeout: float | None = None) -> Any:
        """Wait for the job, and return the data of its last step. Raises JobFailed or JobCancelled, and ResultTimeout
        after `timeout` seconds."""
        result = result_of(await self._app.wait(self.id, timeout), timeout)
        return await load_value(self._app.files, self.id, result) if is_stored(result) else result

    async def get(self) -> JobView:
        return await self._app.get(self.id)

    async def why(self) -> Why:
        """Explain why the job waits, or what it is doing."""
        return await self._app.why(self.id)

    async def cancel(self) -> JobView:
        return await self._app.cancel(self.id)

    async def resume(self) -> JobView:
        return await self._app.resume(self.id)

    async def retry(self, *, from_start: bool = False) -> RetriedJob:
        """Put the failed job back in the queue, at the step that failed or from the start."""
        return await self._app.retry(self.id, from_start=from_start)

    async def retry_step(self, step: int) -> JobView:
        """Run one step of the ended job again."""
        return await self._app.retry_step(self.id, step)

    def events(self) -> AsyncIterator[dict[str, Any] | None]:
        return self._app.watch(self.id)

    async def stream(self, after: Position | str | None = None) -> AsyncGenerator[Chunk | Restart, None]:
        """Iterate over the output of the job while it runs: each `Chunk` that its steps emit, and a `Restart` when the
        chunks of a step are void because it runs again. Ends with the job. Raises JobFailed or JobCancelled."""
        async with aclosing(self._app.output(self.id, after)) as output:
            async for each in output:
                if isinstance(each, End):
                    result_of(each.job, None)
                elif each is not None:
                    yield each

    def __repr__(self) -> str:
        return f"JobHandle({self.id!r})"


@dataclass(frozen=True, slots=True)
class BatchReceipt:
    """Confirms that a batch was accepted and all its jobs are committed. `replayed`: the idempotency key was used
    before, so this is the earlier batch."""

    batch_id: str
    total: int
    replayed: bool


class BatchHandle:
    """A submitted batch."""

    def __init__(self, app: Fairlead, batch_id: str) -> None:
        self._app = app
        self.id = batch_id

    async def get(self) -> BatchView:
        return await self._app.get_batch(self.id)

    async def wait(self, timeout: float | None = None) -> BatchView:
        """Wait until every item has ended, and return the batch. Returns its current state after `timeout` seconds."""
        return await self._app.wait_batch(self.id, timeout)

    def results(self) -> AsyncIterator[ItemView]:
        """Iterate over all items in their order, with results."""
        return self._app.batch_results(self.id)

    def events(self) -> AsyncIterator[dict[str, Any] | None]:
        return self._app.watch_batch(self.id)

    async def cancel(self) -> int:
        """Cancel every item that has not ended. Returns how many items were cancelled."""
        return await self._app.cancel_batch(self.id)

    async def resume(self) -> int:
        """Put every FAILED item that is marked retryable back in the queue. Returns how many items were put back."""
        return await self._app.resume_batch(self.id)

    async def retry_failed(self, *, from_start: bool = False) -> int:
        """Put every FAILED item back in the queue. Returns how many items were put back."""
        return await self._app.retry_batch(self.id, from_start=from_start)

    async def retry(self, item: str | int) -> ItemView:
        """Put one FAILED item back in the queue. The item is given by its custom_id or its number."""
        return await self._app.retry_item(self.id, item)

    def __repr__(self) -> str:
        return f"BatchHandle({self.id!r})"
