"""Writes and reads of file batches in PostgreSQL."""

from __future__ import annotations

from typing import Any

from fairlead.domain.file_batch import FileBatch, file_batch_of
from fairlead.store.file_batches import (
    ChangeFileBatch,
    CreateFileBatch,
    PruneFileBatches,
    about_json,
    changed_row,
    created_row,
)
from fairlead.store.port import Done, Outcome
from fairlead.store.postgres.moves import Ask
from fairlead.store.postgres.queries import READS
from fairlead.store.records import NOT_CREATED, OTHER_VERSION
from fairlead.store.rows import micros


async def apply(transition: Any, ask: Ask, now: int) -> Outcome:
    """Apply one write of file batches within an open transaction."""
    match transition:
        case CreateFileBatch(batch):
            *row, _ = created_row(transition)
            if not await ask("create_file_batch", *row):
                return NOT_CREATED
            ((found,),) = await ask("use_files", [batch.id], [batch.input_file_id])
            if not found:
                await ask("withdraw_file_batch", batch.id)
                return NOT_CREATED
        case ChangeFileBatch(batch):
            if not await ask("change_file_batch", *changed_row(transition)):
                return OTHER_VERSION
            if transition.release:
                await ask("release_files", [batch.id], now)
            if transition.about is not None:
                await ask("record_file_batch_event", batch.id, now, about_json(transition))
        case PruneFileBatches(ended_before, limit):
            return Done(len(await ask("prune_file_batches", micros(ended_before), limit)))
        case _:
            raise TypeError(f"not a write of file batches: {transition!r}")
    return Done()


class PostgresFileBatchReads:
    """The reads of file batches; `Reads` inherits them."""

    async def _ask(self, sql: str, *parameters: Any) -> list[Any]:
        raise NotImplementedError

    async def get_file_batch(self, batch_id: str) -> FileBatch | None:
        rows = await self._ask(READS["get_file_batch"], batch_id)
        return file_batch_of(rows[0]) if rows else None

    async def file_batch_of_key(self, user_id: str, key: str) -> FileBatch | None:
        rows = await self._ask(READS["file_batch_of_key"], user_id, key)
        return file_batch_of(rows[0]) if rows else None

    async def list_file_batches(self, user_id: str | None, *, before: str | None, limit: int) -> list[FileBatch]:
        return [file_batch_of(row) for row in await self._ask(READS["list_file_batches"], user_id, before, limit)]

    async def open_file_batches(self, limit: int) -> list[FileBatch]:
        return [file_batch_of(row) for row in await self._ask(READS["open_file_batches"], limit)]
