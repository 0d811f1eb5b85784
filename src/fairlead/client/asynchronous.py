"""`AsyncClient`: the calls of `Client`, to await."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, TypeVar

import httpx2

from fairlead.client import calls
from fairlead.client.asynchronous_batches import AsyncBatchCalls
from fairlead.client.asynchronous_turns import AsyncTurnCalls
from fairlead.client.calls import LONGEST_WAIT, Call, answer_of
from fairlead.client.patience import Patience
from fairlead.client.settings import Address
from fairlead.client.shapes import Inference, JobPage, Submitted, inference_of_job
from fairlead.client.stream import MAX_EVENT, Stream
from fairlead.domain.job import JobStatus
from fairlead.handle import result_of
from fairlead.runtime.submission import ANONYMOUS, Submission
from fairlead.runtime.view import JobView
from fairlead.runtime.why import Why
from fairlead.version import __version__

T = TypeVar("T")


class AsyncClient(AsyncBatchCalls, AsyncTurnCalls):
    """`url` and `key` are those of FAIRLEAD_URL and FAIRLEAD_API_KEY unless given. `patience`: for how many seconds a
    call that failed for a passing reason is tried again."""

    def __init__(self, url: str | None = None, key: str | None = None, *, patience: float = 30.0) -> None:
        self._address = Address.of(url, key)
        self._patience = patience
        self._http = httpx2.AsyncClient(**self._address.options(__version__))

    async def close(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # ------------------------------------------------------------ submitting

    async def submit(
        self,
        feature_name: str,
        input_data: Mapping[str, Any] | None = None,
        *,
        user_id: str = ANONYMOUS,
        priority: str | None = None,
        scheduled_at: datetime | str | None = None,
        delay: float | None = None,
        deadline: datetime | str | float | None = None,
        cost: float | None = None,
        metadata: Mapping[str, Any] | None = None,
        region: str | None = None,
        allowed_regions: Sequence[str] | None = None,
        idempotency_key: str | None = None,
    ) -> AsyncJob:
        """When this returns, the job is committed."""
        wanted = Submission(
            feature_name, input_data, user_id, priority, scheduled_at, delay, deadline, cost, metadata, region,
            allowed_regions,
        )  # fmt: skip
        return AsyncJob(self, await self._do(calls.submit(wanted, idempotency_key)))

    async def submit_many(
        self, submissions: Sequence[Submission], *, idempotency_key: str | None = None
    ) -> list[AsyncJob]:
        """All or none."""
        return [AsyncJob(self, one) for one in await self._do(calls.submit_many(submissions, idempotency_key))]

    async def infer(
        self,
        model: str,
        input_data: Mapping[str, Any] | None = None,
        *,
        user_id: str | None = None,
        priority: str | None = None,
        region: str | None = None,
        timeout: float = 30.0,
        idempotency_key: str | None = None,
    ) -> Inference:
        """Call a model (a service or a pipeline) and wait for its result. Raises JobFailed, JobCancelled, or
        ResultTimeout after `timeout` seconds: the job goes on, and `job_id` says which it is."""
        wanted = {"input_data": input_data, "user_id": user_id, "priority": priority, "region": region}
        until = time.monotonic() + timeout
        found = await self._do(calls.infer(model, wanted, timeout, idempotency_key))
        if isinstance(found, Inference):
            return found
        job = await self.wait(found.job_id, max(0.0, until - time.monotonic()))
        result_of(job, timeout)
        return inference_of_job(job)

    # ------------------------------------------------------------ looking

    async def get(self, job_id: str) -> JobView:
        return await self._do(calls.get(job_id))

    async def list(
        self,
        *,
        user_id: str | None = None,
        status: JobStatus | str | None = None,
        feature_name: str | None = None,
        since: str | None = None,
        until: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> JobPage:
        """One page, newest first. `since` and `until` (ISO 8601) are about when they were accepted."""
        filters = {"user_id": user_id, "status": status, "feature_name": feature_name, "since": since, "until": until}
        return await self._do(calls.list_jobs(**filters, limit=limit, cursor=cursor))

    async def why(self, job_id: str) -> Why:
        """What holds the job now, in words (`summary`) and for programs (`reasons`)."""
        return await self._do(calls.why(job_id))

    async def wait(self, job_id: str, timeout: float | None = None) -> JobView:
        """The job when it has ended, or as it is after `timeout` seconds."""
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            left = LONGEST_WAIT if until is None else max(0.0, until - time.monotonic())
            # A gateway that is away may be back in time.
            patience = self._patience if until is None else left
            job = await self._do(calls.get(job_id, min(LONGEST_WAIT, round(left))), patience)
            if job.status.finished or (until is not None and time.monotonic() >= until):
                return job
            if left < 1:  # too short for the gateway to wait
                await asyncio.sleep(min(0.1, left))

    async def watch(self, job_id: str) -> AsyncIterator[dict[str, Any]]:
        """A snapshot, then what happens, until the job ends. A stream that breaks off is taken up again, with a new
        snapshot."""
        async for event in self._heard(Stream(calls.events_of(job_id), self._patience)):
            yield event

    # ------------------------------------------------------------ acting

    async def cancel(self, job_id: str) -> JobView:
        return await self._do(calls.cancel(job_id))

    async def resume(self, job_id: str) -> JobView:
        """Take up a FAILED job that is marked retryable, at the step that failed."""
        return await self._do(calls.resume(job_id))

    async def retry_step(self, job_id: str, step: int) -> JobView:
        """Run one step of a finished job again, counted from 0; the earlier result stays in its `history`."""
        return await self._do(calls.retry_step(job_id, step))

    async def delete(self, job_id: str) -> None:
        """Remove a finished job for good."""
        await self._do(calls.delete(job_id))

    # ------------------------------------------------------------ sending

    async def _do(self, call: Call[T], patience: float | None = None) -> T:
        tries = Patience(call, self._patience if patience is None else patience)
        while True:
            try:
                response = await self._http.request(
                    call.method, call.path, params=call.params, content=call.body, headers=call.headers
                )
            except httpx2.TransportError as lost:
                error, pause = tries.of_failure(lost, self._address.shown)
            else:
                if response.status_code < 300:
                    return answer_of(call, response)
                error, pause = tries.of_answer(response)
                if call.instead is not None and tries.was_ours(error):
                    return await self._do(call.instead)
            if pause is None:
                raise error from None
            await asyncio.sleep(pause)

    async def _heard(self, stream: Stream) -> AsyncIterator[dict[str, Any]]:
        while not stream.ended:
            try:
                async with self._http.sse(stream.path, max_event_size=MAX_EVENT) as source:
                    if source.response.status_code != 200:
                        await source.response.aread()
                        await asyncio.sleep(stream.refused(source.response))
                        continue
                    async for event in source:
                        if event.data:
                            yield stream.heard(event.data)
                pause = stream.broke_off(None, self._address.shown)
            except (httpx2.TransportError, httpx2.SSEError) as error:
                pause = stream.broke_off(error, self._address.shown)
            await asyncio.sleep(pause)


class AsyncJob:
    """A submitted job. `receipt` is what the gateway said as it took it in."""

    def __init__(self, client: AsyncClient, receipt: Submitted) -> None:
        self._client = client
        self.receipt = receipt
        self.id = receipt.job_id

    async def result(self, timeout: float | None = None) -> Any:
        """The last step's data. Raises JobFailed, JobCancelled, or ResultTimeout after `timeout` seconds."""
        return result_of(await self._client.wait(self.id, timeout), timeout)

    async def get(self) -> JobView:
        return await self._client.get(self.id)

    def watch(self) -> AsyncIterator[dict[str, Any]]:
        return self._client.watch(self.id)

    async def why(self) -> Why:
        return await self._client.why(self.id)

    async def cancel(self) -> JobView:
        return await self._client.cancel(self.id)

    async def resume(self) -> JobView:
        return await self._client.resume(self.id)

    async def retry_step(self, step: int) -> JobView:
        return await self._client.retry_step(self.id, step)

    def __repr__(self) -> str:
        return f"AsyncJob({self.id!r})"
