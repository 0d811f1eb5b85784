"""Batches as rows, and what refuses a transition of theirs: the same in both engines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from fairlead.domain.batch import Batch, BatchState
from fairlead.errors import InvalidInput
from fairlead.store.port import CreateBatch, KeyTaken, PruneBatches, Refused, SettleBatch
from fairlead.store.rows import STATUSES, micros, seconds

KINDS: tuple[type, ...] = (CreateBatch, SettleBatch, PruneBatches)
"""In the order in which they are applied within a commit, after all moves."""

NOT_SETTLED = Refused("the batch has open items, or was settled before, or is not there")


def head_row(create: CreateBatch) -> tuple[Any, ...]:
    """The row of the batch itself."""
    batch = create.batch
    if any("\0" in text for text in (batch.id, batch.user_id, batch.name or "", create.idempotency_key or "")):
        raise InvalidInput("a name must not contain the character NUL")
    return (
        batch.id,
        batch.user_id,
        batch.name,
        batch.metadata_json,
        micros(batch.created_at),
        batch.total,
        create.idempotency_key,
        create.body_hash,
    )


def item_rows(create: CreateBatch) -> list[tuple[str, int, str, str | None]]:
    if any("\0" in (item.custom_id or "") for item in create.items):
        raise InvalidInput("a name must not contain the character NUL")
    return [(create.batch.id, item.number, item.job_id, item.custom_id) for item in create.items]


def state_of(row: Sequence[Any]) -> BatchState:
    """Reads the fragment `batch_row`."""
    id_, user_id, name, metadata, created_at, total, finished_at, counts = row
    found = orjson.loads(counts) if isinstance(counts, str) else counts or ()
    return BatchState(
        Batch(id_, user_id, total, created_at / 1e6, name, metadata),
        {STATUSES[status]: count for status, count in found},
        seconds(finished_at),
    )


def key_taken() -> KeyTaken:
    return KeyTaken("this Idempotency-Key has made a batch in this very moment", pointer="/Idempotency-Key")


def number_of(name: str) -> int | None:
    """An item's number, if the name can be one."""
    return int(name) if name.isascii() and name.isdecimal() and name == str(int(name[:9])) else None
