"""Batches of jobs as rows of the view `batch` (see `batches.sql`), and what the answers mean."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import orjson

from fairlead.store.batches import NOT_SETTLED, head_row, item_rows
from fairlead.store.port import CreateBatch, Done, Outcome, PruneBatches, SettleBatch
from fairlead.store.rows import micros
from fairlead.store.sqlite.encode import Row


def batch_rows(transitions: Sequence[Any]) -> list[Row]:
    return [row for transition in transitions for row in _rows(transition)]


def _rows(transition: Any) -> list[Row]:
    match transition:
        case CreateBatch(items=items):
            head = (*head_row(transition), items[0].job_id)
            return [("job_batch", _body(head)), ("batch_item", _body(item_rows(transition)))]
        case SettleBatch(batch_id, now):
            return [("settle", _body((batch_id, micros(now))))]
        case PruneBatches(finished_before, limit):
            return [("prune_batches", _body((micros(finished_before), limit)))]
        case _:
            raise TypeError(f"no transition of a batch: {transition!r}")


def _body(value: Any) -> str:
    return orjson.dumps(value).decode()


OUTCOMES: dict[type, tuple[str, Callable[[Any], Outcome]]] = {
    SettleBatch: ("settle", lambda changed: Done() if changed else NOT_SETTLED),
    PruneBatches: ("prune_batches", Done),
}
"""By kind, the name of its answer and the outcome that it stands for. The others are always done."""
