"""The methods of `AsyncClient` for batches."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any, TypeVar

import httpx2

from fairlead.client import batch_calls
from fairlead.client.batch_calls import BatchPage, BatchSubmitted
from fairlead.client.calls import LONGEST_WAIT, ApiCall
from fairlead.client.results import BatchResults
from fairlead.client.settings import GatewayAddress
from fairlead.domain.batch import BatchView, ItemView

T = TypeVar("T")


class AsyncBatchCalls(ABC):
    """The methods for batches, as a mixin of `AsyncClient`."""

    _address: GatewayAddress
    _patience: float
    _http: httpx2.AsyncClient

    @abstractmethod
    async def _do(self, call: ApiCall[T], patience: float | None = None) -> T: ...

    async def submit_batch(
        self,
        items: Iterable[Mapping[str, Any]],
        *,
        user_id: str | None = None,
        name: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        idempotency_key: str | None = None,
        **defaults: Any,
    ) -> AsyncBatch:
        """Submit many jobs as one batch. Either all of them are accepted, or none; when this returns, they are
        committed. `defaults` (feature_name, priority and so on) apply to items that do not set these fields."""
        fields = {"user_id": user_id, "name": name, "metadata": metadata, **defaults}
        receipt: BatchSubmitted = await self._do(batch_calls.submit_batch(items, idempotency_key, **fields))
        return AsyncBatch(self, receipt.batch_id)

    def batch(self, batch_id: str) -> AsyncBatch:
        """Return a handle to an existing batch, without a request."""
        return AsyncBatch(self, batch_id)

    async def get_batch(self, batch_id: str) -> BatchView:
        return await self._do(batch_calls.get_batch(batch_id))

    async def list_batches(
        self, *, user_id: str | None = None, limit: int = 50, cursor: str | None = None
    ) -> BatchPage:
        """Return one page of batches, newest first."""
        return await self._do(batch_calls.list_batches(user_id=user_id, limit=limit, cursor=cursor))

    async def wait_batch(self, batch_id: str, timeout: float | None = None) -> BatchView:
        """Wait until every item has ended or `timeout` seconds have passed, and return the batch."""
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            left = LONGEST_WAIT if until is None else max(0.0, until - time.monotonic())
            # Retry until the timeout: an unreachable gateway may be back in time.
            patience = self._patience if until is None else left
            batch = await self._do(batch_calls.get_batch(batch_id, min(LONGEST_WAIT, round(left))), patience)
            if batch.finished or (until is not None and time.monotonic() >= until):
                return batch
            if left < 1:  # too short for the gateway to wait
                await asyncio.sleep(min(0.1, left))

    async def batch_results(self, batch_id: str) -> AsyncIterator[ItemView]:
        """Yield the items of a batch with their results, in the order of the batch, while the response arrives."""
        results = BatchResults(batch_id, self._patience)
        while True:
            try:
                async with self._http.stream("GET", results.path) as response:
                    if response.status_code == 200:
                        results.begin()
                        async for piece in response.aiter_bytes():
                            for item in results.read(piece):
                                yield item
                        return
                    await response.aread()
                    pause = results.refused(response)
            except httpx2.TransportError as error:
                pause = results.broke_off(error, self._address.shown)
            await asyncio.sleep(pause)

    async def cancel_batch(self, batch_id: str) -> int:
        """Cancel every item that has not ended, and return the number of these items."""
        return await self._do(batch_calls.cancel_batch(batch_id))

    async def resume_batch(self, batch_id: str) -> int:
        """Resume every failed item that is marked retryable, and return the number of these items."""
        return await self._do(batch_calls.resume_batch(batch_id))

    async def retry_batch(self, batch_id: str, *, from_start: bool = False) -> int:
        """Retry every failed item, even if it is not marked retryable, and return the number of these items."""
        return await self._do(batch_calls.retry_batch(batch_id, from_start=from_start))

    async def retry_item(self, batch_id: str, item: str | int) -> ItemView:
        """Retry one failed item. `item` is its custom_id, or its number in the batch."""
        return await self._do(batch_calls.retry_item(batch_id, item))


class AsyncBatch:
    """A submitted batch."""

    def __init__(self, client: AsyncBatchCalls, batch_id: str) -> None:
        self._client = client
        self.id = batch_id

    async def get(self) -> BatchView:
        return await self._client.get_batch(self.id)

    async def wait(self, timeout: float | None = None) -> BatchView:
        """Wait until every item has ended or `timeout` seconds have passed, and return the batch."""
        return await self._client.wait_batch(self.id, timeout)

    def results(self) -> AsyncIterator[ItemView]:
        """Yield the items of the batch with their results, in the order of the batch."""
        return self._client.batch_results(self.id)

    async def cancel(self) -> int:
        return await self._client.cancel_batch(self.id)

    async def resume(self) -> int:
        return await self._client.resume_batch(self.id)

    async def retry_failed(self, *, from_start: bool = False) -> int:
        return await self._client.retry_batch(self.id, from_start=from_start)

    async def retry(self, item: str | int) -> ItemView:
        return await self._client.retry_item(self.id, item)

    def __repr__(self) -> str:
        return f"AsyncBatch({self.id!r})"
