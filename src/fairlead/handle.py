"""What a caller holds of a submitted job: its receipt, and a handle to wait for it and act on it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fairlead.domain.job import JobStatus, Priority
from fairlead.domain.records import record
from fairlead.errors import JobCancelled, JobFailed, ResultTimeout
from fairlead.runtime.batch_view import BatchView, ItemView
from fairlead.runtime.view import JobView
from fairlead.runtime.why import Why

if TYPE_CHECKING:
    from fairlead.app import Fairlead
    from fairlead.batching import Batching


@record
class Receipt:
    """A job that is accepted: committed, and never forgotten from here on."""

    job_id: str
    priority: Priority
    status: JobStatus
    replayed: bool
    scheduled_at: float | None


class JobHandle:
    """A submitted job."""

    def __init__(self, app: Fairlead, job_id: str) -> None:
        self._app = app
        self.id = job_id

    async def result(self, timeout: float | None = None) -> Any:
        """The last step's data. Raises JobFailed, JobCancelled, or ResultTimeout after `timeout` seconds."""
        return result_of(await self._app.wait(self.id, timeout), timeout)

    async def get(self) -> JobView:
        return await self._app.get(self.id)

    async def why(self) -> Why:
        """What holds it now, in words."""
        return await self._app.why(self.id)

    async def cancel(self) -> JobView:
        return await self._app.cancel(self.id)

    async def resume(self) -> JobView:
        return await self._app.resume(self.id)

    async def retry_step(self, step: int) -> JobView:
        """Run one step of it again, once it has ended."""
        return await self._app.retry_step(self.id, step)

    def events(self) -> AsyncIterator[dict[str, Any] | None]:
        return self._app.watch(self.id)

    def __repr__(self) -> str:
        return f"JobHandle({self.id!r})"


@dataclass(frozen=True, slots=True)
class BatchReceipt:
    """A batch that is accepted: all of its jobs are committed. `replayed`: the key was seen before."""

    batch_id: str
    total: int
    replayed: bool


class BatchHandle:
    """A submitted batch."""

    def __init__(self, app: Batching, batch_id: str) -> None:
        self._app = app
        self.id = batch_id

    async def get(self) -> BatchView:
        return await self._app.get_batch(self.id)

    async def wait(self, timeout: float | None = None) -> BatchView:
        """The batch when every item has ended, or as it is after `timeout` seconds."""
        return await self._app.wait_batch(self.id, timeout)

    def results(self) -> AsyncIterator[ItemView]:
        """Every item with its result, in their order."""
        return self._app.batch_results(self.id)

    def events(self) -> AsyncIterator[dict[str, Any] | None]:
        return self._app.watch_batch(self.id)

    async def cancel(self) -> int:
        """Every item that has not ended; returns how many."""
        return await self._app.cancel_batch(self.id)

    async def resume(self) -> int:
        """Every failed item that is marked retryable; returns how many."""
        return await self._app.resume_batch(self.id)

    async def retry(self, item: str | int) -> ItemView:
        """One failed item, by its custom_id or its number."""
        return await self._app.retry_item(self.id, item)

    def __repr__(self) -> str:
        return f"BatchHandle({self.id!r})"


def result_of(job: JobView, timeout: float | None) -> Any:
    """The last step's data, or the error that says why there is none."""
    match job.status:
        case JobStatus.COMPLETED:
            return job.result
        case JobStatus.FAILED:
            error = job.error or {}
            text = f"job {job.job_id} failed: {error.get('message', 'no reason is known')}"
            raise JobFailed(text, job_id=job.job_id, error=error, retryable=bool(job.retryable))
        case JobStatus.CANCELLED:
            raise JobCancelled(f"job {job.job_id} was cancelled", job_id=job.job_id)
        case unfinished:
            raise ResultTimeout(f"job {job.job_id} is {unfinished} after {timeout:g} s", job_id=job.job_id)
