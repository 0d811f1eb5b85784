"""Batches as `Fairlead` offers them: many jobs submitted as one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any

from fairlead.domain.config import Config
from fairlead.domain.job import Job
from fairlead.errors import IdempotencyMismatch, RequestError
from fairlead.handle import BatchHandle, BatchReceipt
from fairlead.runtime.batch_submission import BatchSubmission, CheckedBatch, check_batch
from fairlead.runtime.batch_view import BatchView, ItemStatus, ItemView
from fairlead.runtime.batch_watch import BatchWatch
from fairlead.runtime.batches import Batches
from fairlead.runtime.clock import Clock
from fairlead.runtime.paging import Page
from fairlead.runtime.priority import Priorities
from fairlead.store.journal import Journal
from fairlead.store.port import KeyTaken, Store


class Batching(ABC):
    """A part of `Fairlead`, which opens and closes what is used here."""

    config: Config
    _clock: Clock
    _priorities: Priorities
    _batches: Batches
    _batch_watch: BatchWatch

    @abstractmethod
    def _opened(self) -> tuple[Store, Journal]: ...

    @abstractmethod
    def _welcome(self, jobs: Sequence[Job], now: float) -> None: ...

    # ------------------------------------------------------------ submitting

    async def submit_batch(
        self,
        items: Iterable[Mapping[str, Any]],
        *,
        user_id: str = "anonymous",
        name: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        idempotency_key: str | None = None,
        **defaults: Any,
    ) -> BatchHandle:
        """Accept many jobs as one batch: all or none. Each item has the fields of a job and perhaps a `custom_id`;
        `defaults` (feature_name, priority, ...) count for those that do not say otherwise."""
        wanted = BatchSubmission(list(items), user_id, name, metadata, defaults)
        receipt = await self.accept_batch(wanted, idempotency_key=idempotency_key)
        return BatchHandle(self, receipt.batch_id)

    async def accept_batch(
        self, wanted: BatchSubmission, *, idempotency_key: str | None = None, lowers_only: bool = False
    ) -> BatchReceipt:
        """All or nothing, in one commit. `lowers_only` is that of `accept`."""
        _, journal = self._opened()
        now = self._clock.now()
        checked = await check_batch(wanted, self.config, now=now, idempotency_key=idempotency_key)
        replayed = await self._replayed(checked)
        if replayed is not None:
            return replayed
        submits = checked.submits
        if self._priorities.needed or lowers_only:
            submits = await self._priorities.settle(submits, lowers_only=lowers_only)
        try:
            await journal.write_all([*submits, checked.create])
        except KeyTaken:
            replayed = await self._replayed(checked)
            if replayed is None:
                raise
            return replayed
        except RequestError as error:
            index = error.details.pop("index", None)
            error.pointer = error.pointer if index is None else f"/items/{index}{error.pointer or ''}"
            raise
        self._welcome([submit.job for submit in submits], now)
        return BatchReceipt(checked.create.batch.id, len(submits), replayed=False)

    async def _replayed(self, checked: CheckedBatch) -> BatchReceipt | None:
        """The batch that this key made before."""
        store, _ = self._opened()
        create = checked.create
        if create.idempotency_key is None:
            return None
        known = await store.batch_of_key(create.batch.user_id, create.idempotency_key)
        if known is None:
            return None
        batch_id, body_hash = known
        if body_hash != create.body_hash:
            raise IdempotencyMismatch(
                "this Idempotency-Key was used with another body", details={"key": create.idempotency_key}
            )
        return BatchReceipt(batch_id, create.batch.total, replayed=True)

    def batch(self, batch_id: str) -> BatchHandle:
        """A handle to a batch that was submitted before, here or elsewhere."""
        return BatchHandle(self, batch_id)

    # ------------------------------------------------------------ looking

    async def get_batch(self, batch_id: str) -> BatchView:
        """Its counts by status, its progress, and when it ended if it has."""
        self._opened()
        return await self._batches.get(batch_id)

    async def owner_of_batch(self, batch_id: str) -> str | None:
        """Whose batch it is. None: there is no such batch."""
        self._opened()
        return await self._batches.owner_of(batch_id)

    async def list_batches(
        self, *, user_id: str | None = None, limit: int = 50, cursor: str | None = None
    ) -> Page[BatchView]:
        """Newest first."""
        self._opened()
        return await self._batches.page(user_id, limit, cursor)

    async def batch_items(
        self, batch_id: str, *, status: ItemStatus | None = None, limit: int = 50, cursor: str | None = None
    ) -> Page[ItemView]:
        """In their order, without their results. `REMOVED` are those whose job is there no more."""
        self._opened()
        return await self._batches.items(batch_id, status, limit, cursor)

    async def batch_results(self, batch_id: str) -> AsyncIterator[ItemView]:
        """Every item with its result, in their order, each as it is when it is reached."""
        self._opened()
        async for item in self._batches.results(batch_id):
            yield item

    async def wait_batch(self, batch_id: str, timeout: float | None = None) -> BatchView:
        """The batch when every item has ended, or as it is after `timeout` seconds."""
        self._opened()
        return await self._batch_watch.wait(batch_id, timeout)

    async def watch_batch(self, batch_id: str, *, heartbeat: float = 15.0) -> AsyncIterator[dict[str, Any] | None]:
        """The batch as it is, then its progress, until every item has ended. None after `heartbeat` seconds without
        news."""
        self._opened()
        async for event in self._batch_watch.follow(batch_id, heartbeat):
            yield event

    # ------------------------------------------------------------ acting; with `who`, an operator, it is in the audit

    async def cancel_batch(self, batch_id: str, *, who: str | None = None) -> int:
        """Cancel every item that has not ended; returns how many."""
        self._opened()
        return await self._batches.cancel(batch_id, who=who)

    async def resume_batch(self, batch_id: str, *, who: str | None = None) -> int:
        """Take up every FAILED item that is marked retryable; returns how many."""
        self._opened()
        return await self._batches.resume(batch_id, self.config.server.max_waiting_per_user, who=who)

    async def retry_item(self, batch_id: str, item: str | int, *, who: str | None = None) -> ItemView:
        """Take up one FAILED item, by its custom_id or its number, at the step that failed: one that is not retryable
        too."""
        self._opened()
        return await self._batches.retry(batch_id, str(item), self.config.server.max_waiting_per_user, who=who)
