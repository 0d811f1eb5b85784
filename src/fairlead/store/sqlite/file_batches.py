"""File batches in SQLite: encodes their writes as rows of the view `batch` (see `file_batches.sql`), and reads them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
from fairlead.store.records import NOT_CREATED, OTHER_VERSION
from fairlead.store.rows import micros
from fairlead.store.sqlite.encode import Row, json_body


def file_batch_rows(transitions: Sequence[Any]) -> list[Row]:
    return [_row(transition) for transition in transitions]


def _row(transition: Any) -> Row:
    match transition:
        case CreateFileBatch():
            return "create_file_batch", json_body(created_row(transition))
        case ChangeFileBatch(release=release):
            body = (*changed_row(transition), release, about_json(transition))
            return "change_file_batch", json_body(body)
        case PruneFileBatches(ended_before, limit):
            return "prune_file_batches", json_body((micros(ended_before), limit))
        case _:
            raise TypeError(f"not a write of file batches: {transition!r}")


OUTCOMES: dict[type, tuple[str, Callable[[Any], Outcome]]] = {
    CreateFileBatch: ("create_file_batch", lambda changed: Done() if changed else NOT_CREATED),
    ChangeFileBatch: ("change_file_batch", lambda changed: Done() if changed else OTHER_VERSION),
    PruneFileBatches: ("prune_file_batches", Done),
}


class SqliteFileBatchReads:
    """The reads of file batches; `Reads` inherits them."""

    async def _rows(self, name: str, *parameters: Any) -> list[Any]:
        raise NotImplementedError

    async def get_file_batch(self, batch_id: str) -> FileBatch | None:
        found = [file_batch_of(row) for row in await self._rows("get_file_batch", batch_id)]
        return found[0] if found else None

    async def file_batch_of_key(self, user_id: str, key: str) -> FileBatch | None:
        found = [file_batch_of(row) for row in await self._rows("file_batch_of_key", user_id, key)]
        return found[0] if found else None

    async def list_file_batches(self, user_id: str | None, *, before: str | None, limit: int) -> list[FileBatch]:
        name = "list_file_batches" if user_id is None else "list_file_batches_of_user"
        users = () if user_id is None else (user_id,)
        return [file_batch_of(row) for row in await self._rows(name, *users, before, before, limit)]

    async def open_file_batches(self, limit: int) -> list[FileBatch]:
        return [file_batch_of(row) for row in await self._rows("open_file_batches", limit)]
