"""`AsyncClient`: submits, follows and manages jobs on a running gateway."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, TypeVar, Unpack

import httpx2
import orjson

from fairlead.client import calls
from fairlead.client.asynchronous_batches import AsyncBatchCalls
from fairlead.client.asynchronous_files import AsyncFileCalls
from fairlead.client.asynchronous_turns import AsyncTurnCalls
from fairlead.client.calls import LONGEST_WAIT, ApiCall, parsed
from fairlead.client.errors import NoConnection, of_response
from fairlead.client.file_calls import content_path
from fairlead.client.patience import Patience
from fairlead.client.settings import GatewayAddress
from fairlead.client.shapes import Inference, JobPage, Submitted, inference_of_job
from fairlead.client.stream import MAX_EVENT, OutputEvents, Stream, output_of
from fairlead.domain.job import JobStatus
from fairlead.domain.output import Chunk, Position, Restart
from fairlead.domain.submission import ANONYMOUS, Submission, WebhookOptions
from fairlead.domain.views import JobView, RetriedJob, Why, result_of
from fairlead.version import __version__

T = TypeVar("T")


class AsyncClient(AsyncBatchCalls, AsyncFileCalls, AsyncTurnCalls):
    """A client of a running gateway. `url` and `key` default to FAIRLEAD_URL and FAIRLEAD_API_KEY. A call that fails
    temporarily is retried for up to `patience` seconds."""

    def __init__(self, url: str | None = None, key: str | None = None, *, patience: float = 30.0) -> None:
        self._address = GatewayAddress.of(url, key)
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
        **webhook: Unpack[WebhookOptions],
    ) -> AsyncJob:
        """Submit a job. When this returns, the job is committed to the gateway's database. `webhook_url` receives the
        `webhook_events` of the job, by default its end."""
        submission = Submission(
            feature_name, input_data, user_id, priority, scheduled_at, delay, deadline, cost, metadata, region,
            allowed_regions, **webhook,
        )  # fmt: skip
        return AsyncJob(self, await self._do(calls.submit(submission, idempotency_key)))

    async def submit_many(
        self, submissions: Sequence[Submission], *, idempotency_key: str | None = None
    ) -> list[AsyncJob]:
        """Submit several jobs at once. Either all of them are accepted, or none."""
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
        """Call a model (a service or a pipeline) and wait for its result. Raises JobFailed or JobCancelled, or
        ResultTimeout after `timeout` seconds. After a ResultTimeout the job continues; its id is in the error's
        `job_id`."""
        options = {"input_data": input_data, "user_id": user_id, "priority": priority, "region": region}
        until = time.monotonic() + timeout
        outcome = await self._do(calls.infer(model, options, timeout, idempotency_key))
        if isinstance(outcome, Inference):
            return outcome
        job = await self.wait(outcome.job_id, max(0.0, until - time.monotonic()))
        result_of(job, timeout)
        return inference_of_job(job)

    # ------------------------------------------------------------ reading

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
        service: str | None = None,
        error_code: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> JobPage:
        """Return one page of jobs, newest first. `since` and `until` (ISO 8601) filter by the time of submission, and
        `service` by the service of the current step. `error_code` selects FAILED jobs with this error, or jobs of
        another `status` if one is given."""
        filters = {"user_id": user_id, "status": status, "feature_name": feature_name, "since": since, "until": until}
        filters |= {"service": service, "error_code": error_code}
        return await self._do(calls.list_jobs(**filters, limit=limit, cursor=cursor))

    async def why(self, job_id: str) -> Why:
        """Explain why the job is not running: in words (`summary`) and for programs (`reasons`)."""
        return await self._do(calls.why(job_id))

    async def wait(self, job_id: str, timeout: float | None = None) -> JobView:
        """Wait until the job has ended or `timeout` seconds have passed, and return the job."""
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            left = LONGEST_WAIT if until is None else max(0.0, until - time.monotonic())
            # Retry until the timeout: an unreachable gateway may be back in time.
            patience = self._patience if until is None else left
            job = await self._do(calls.get(job_id, min(LONGEST_WAIT, round(left))), patience)
            if job.status.finished or (until is not None and time.monotonic() >= until):
                return job
            if left < 1:  # too short for the gateway to wait
                await asyncio.sleep(min(0.1, left))

    async def watch(self, job_id: str) -> AsyncIterator[dict[str, Any]]:
        """Yield a snapshot of the job, and then its events until it ends. If the connection is lost, the client
        reconnects, and yields a new snapshot first."""
        async for event in self.read_events(Stream(calls.events_of(job_id), self._patience)):
            yield event

    async def stream(self, job: str | AsyncJob, after: Position | str | None = None) -> AsyncIterator[Chunk | Restart]:
        """Yield the output of the job while it runs: each `Chunk` that its steps emit, from the start or after a
        position, and a `Restart` when the chunks of a step are void because it runs again. Ends with the job. Raises
        JobFailed or JobCancelled. If the stream is interrupted, it is continued."""
        job_id = job if isinstance(job, str) else job.id
        async for event in self.read_events(OutputEvents(calls.path_of(job_id), after, self._patience)):
            output = output_of(event)
            if output is not None:
                yield output
            elif event.get("status") not in (None, JobStatus.COMPLETED):
                result_of(await self.get(job_id), None)

    # ------------------------------------------------------------ changing

    async def cancel(self, job_id: str) -> JobView:
        return await self._do(calls.cancel(job_id))

    async def resume(self, job_id: str) -> JobView:
        """Resume a FAILED job that is marked retryable, at the step that failed."""
        return await self._do(calls.resume(job_id))

    async def retry(self, job_id: str, *, from_start: bool = False) -> RetriedJob:
        """Queue any FAILED job again with fresh attempts, at the step that failed or from the start. The returned job
        has a `warning` if the error was permanent."""
        return await self._do(calls.retry(job_id, from_start=from_start))

    async def retry_step(self, job_id: str, step: int) -> JobView:
        """Run one step of a finished job again. Steps are counted from 0. The earlier result of the step stays in the
        job's `history`."""
        return await self._do(calls.retry_step(job_id, step))

    async def delete(self, job_id: str) -> None:
        """Delete a finished job permanently."""
        await self._do(calls.delete(job_id))

    # ------------------------------------------------------------ sending

    @property
    def url(self) -> str:
        """The gateway's URL, without credentials."""
        return self._address.shown

    async def usage(
        self, group_by: str | Sequence[str] = (), **asked: Unpack[calls.UsageOptions]
    ) -> Sequence[dict[str, Any]]:
        """Who used what: one row for each `interval` (`hour`, `day`, `month`, or one in `total`) and for each value of
        `group_by` (`user`, `plan`, `group`, `feature`, `service`, `model`, `region`, `outcome`). The same names select
        calls: `user="ada"`; a `group` includes its teams. Without `start`, the last 30 days."""
        params = calls.usage_params(group_by, asked)
        rows: list[dict[str, Any]] = []
        cursor = None
        while True:
            page = await self._do(calls.usage(params, cursor))
            rows += page["data"]
            cursor = page["next_cursor"]
            if cursor is None:
                return rows

    async def budgets(self, *, user_id: str | None = None, budget: str | None = None) -> Sequence[dict[str, Any]]:
        """The budgets with what is left of them in the current window: amount, used, reserved, remaining, whether it is
        spent, and how many jobs wait for the next window. With `user_id`, those that concern this user. A user's key
        sees those of its user."""
        return await self._do(calls.budgets(user_id, budget))

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        json: Any = None,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """Send a request for which the client has no method, for example to an admin route, and return the JSON of the
        response."""
        return await self._do(calls.raw(method, path, json, content, params=params, headers=headers))

    async def download(self, file: str | Mapping[str, Any]) -> AsyncIterator[bytes]:
        """Stream the content of a file, or the body of a large response, chunk by chunk. `file` is the id of a file, a
        reference, or a path of the gateway."""
        try:
            async with self._http.stream("GET", content_path(file), follow_redirects=True) as response:
                if response.status_code >= 300:
                    await response.aread()
                    raise of_response(response)
                async for piece in response.aiter_bytes():
                    yield piece
        except httpx2.TransportError as lost:
            raise NoConnection(f"{self.url} cannot be reached: {lost or type(lost).__name__}") from None

    async def _do(self, call: ApiCall[T], patience: float | None = None) -> T:
        attempts = Patience(call, self._patience if patience is None else patience)
        while True:
            try:
                response = await self._http.request(
                    call.method, call.path, params=call.params, content=call.body, headers=call.headers
                )
            except httpx2.TransportError as lost:
                error, pause = attempts.of_failure(lost, self._address.shown)
            else:
                if response.status_code < 300:
                    return parsed(call, response)
                error, pause = attempts.of_refusal(response)
                if call.instead is not None and attempts.already_done(error):
                    return await self._do(call.instead)
            if pause is None:
                raise error from None
            await asyncio.sleep(pause)

    async def read_events(self, stream: Stream) -> AsyncIterator[dict[str, Any]]:
        """Yield the events of a stream until its last event, and reconnect when the connection is lost."""
        while not stream.ended:
            try:
                async with self._http.sse(stream.path, max_event_size=MAX_EVENT) as source:
                    if source.response.status_code != 200:
                        await source.response.aread()
                        await asyncio.sleep(stream.refused(source.response))
                        continue
                    async for event in source:
                        if event.data:
                            yield stream.parse(event.data)
                pause = stream.broke_off(None, self._address.shown)
            except (httpx2.TransportError, httpx2.SSEError) as error:
                pause = stream.broke_off(error, self._address.shown)
            await asyncio.sleep(pause)


class AsyncJob:
    """A submitted job. `receipt` is the gateway's response to the submit."""

    def __init__(self, client: AsyncClient, receipt: Submitted) -> None:
        self._client = client
        self.receipt = receipt
        self.id = receipt.job_id

    async def result(self, timeout: float | None = None) -> Any:
        """Wait for the job to complete, and return the data of its last step. Raises JobFailed or JobCancelled, or
        ResultTimeout after `timeout` seconds."""
        result = result_of(await self._client.wait(self.id, timeout), timeout)
        if isinstance(result, dict) and result.keys() == {"$stored", "size", "sha256"}:  # too large for the response
            return orjson.loads(await self._client.read_file(content_path(result)))
        return result

    async def get(self) -> JobView:
        return await self._client.get(self.id)

    def watch(self) -> AsyncIterator[dict[str, Any]]:
        return self._client.watch(self.id)

    def stream(self, after: Position | str | None = None) -> AsyncIterator[Chunk | Restart]:
        return self._client.stream(self.id, after)

    async def why(self) -> Why:
        return await self._client.why(self.id)

    async def cancel(self) -> JobView:
        return await self._client.cancel(self.id)

    async def resume(self) -> JobView:
        return await self._client.resume(self.id)

    async def retry(self, *, from_start: bool = False) -> RetriedJob:
        return await self._client.retry(self.id, from_start=from_start)

    async def retry_step(self, step: int) -> JobView:
        return await self._client.retry_step(self.id, step)

    def __repr__(self) -> str:
        return f"AsyncJob({self.id!r})"
