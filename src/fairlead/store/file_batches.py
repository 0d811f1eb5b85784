"""Writes and reads of file batches, shared by both engines (docs/adr/0041)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import orjson

from fairlead.domain.file_batch import FileBatch


@dataclass(frozen=True, slots=True, eq=False)
class CreateFileBatch:
    """Store a file batch, and that it uses its input file. Refused if that file does not exist or is not complete, or
    if the user has a batch with the same `request_key`."""

    batch: FileBatch


@dataclass(frozen=True, slots=True, eq=False)
class ChangeFileBatch:
    """Replace a file batch, and raise its version. Refused if it no longer has the version of `batch`, or if one of its
    output files is not complete. With `release`, it no longer uses its input file. `about` is what the webhooks of its
    user receive as `batch.ended`; None if it has not ended."""

    batch: FileBatch
    release: bool = False
    about: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class PruneFileBatches:
    """Delete file batches that ended before this time, at most `limit`. Returns how many."""

    ended_before: float
    limit: int


KINDS: tuple[type, ...] = (CreateFileBatch, ChangeFileBatch, PruneFileBatches)
"""The writes of file batches, in the order in which a commit applies them, after the writes of files."""


class FileBatchReads(Protocol):
    async def get_file_batch(self, batch_id: str) -> FileBatch | None: ...

    async def file_batch_of_key(self, user_id: str, key: str) -> FileBatch | None:
        """The batch of this user that was created with this idempotency key."""
        ...

    async def list_file_batches(self, user_id: str | None, *, before: str | None, limit: int) -> list[FileBatch]:
        """The file batches, newest first. `before` is the last id of the previous page."""
        ...

    async def open_file_batches(self, limit: int) -> list[FileBatch]:
        """The file batches that the leader has to work on, oldest first."""
        ...


def created_row(create: CreateFileBatch) -> tuple[Any, ...]:
    """The values of a new row, and the input file: id, user, created_at, data, key, file."""
    batch = create.batch
    at = round(batch.created_at * 1e6)
    return batch.id, batch.user_id, at, batch.data_json(), batch.request_key, batch.input_file_id


def changed_row(change: ChangeFileBatch) -> tuple[Any, ...]:
    """The values of a changed row: id, version, ended_at, data, and its output files."""
    batch = change.batch
    ended_at = None if batch.ended_at is None else round(batch.ended_at * 1e6)
    return batch.id, batch.version, ended_at, batch.data_json(), batch.output_files


def about_json(change: ChangeFileBatch) -> str | None:
    return None if change.about is None else orjson.dumps(change.about).decode()
