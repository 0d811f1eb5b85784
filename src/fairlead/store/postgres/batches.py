"""Applying what makes, settles and prunes batches."""

from __future__ import annotations

from typing import Any

from fairlead.store.batches import NOT_SETTLED, head_row, item_rows, key_taken
from fairlead.store.port import CreateBatch, Done, Outcome, PruneBatches, SettleBatch
from fairlead.store.postgres.moves import Ask
from fairlead.store.rows import micros


async def apply(transition: Any, ask: Ask, now: int) -> Outcome:
    """Within an open transaction. Raises KeyTaken, and then the transaction must be rolled back."""
    match transition:
        case CreateBatch():
            if not await ask("create_batch", *head_row(transition)):
                raise key_taken()
            if rows := item_rows(transition):
                await ask("add_items", *(list(column) for column in zip(*rows, strict=True)))
            return Done()
        case SettleBatch(batch_id, moment):
            await ask("lock_batch", batch_id)
            return Done() if await ask("settle_batch", batch_id, micros(moment)) else NOT_SETTLED
        case PruneBatches(finished_before, limit):
            return Done(len(await ask("prune_batches", micros(finished_before), limit)))
        case _:
            raise TypeError(f"no transition of a batch: {transition!r}")
