"""Applies the writes of operators (keys, tickets, audit, processes, rebuild requests) and of batches."""

from __future__ import annotations

from typing import Any

from fairlead.store.commits import DONE
from fairlead.store.port import (
    Audit,
    AuditOutcome,
    ChangeReader,
    CreateBatch,
    CreateKey,
    DeregisterProcess,
    Done,
    Erase,
    IssueTicket,
    Outcome,
    PruneBatches,
    PruneRecords,
    Refused,
    RegisterProcess,
    RequestDrain,
    RequestRebuild,
    RevokeKey,
    SettleBatch,
    UseTicket,
)
from fairlead.store.postgres.moves import Ask
from fairlead.store.records import (
    ERASED_INPUT,
    ERASED_MESSAGE,
    KEY_TAKEN,
    NEVER_BUILT,
    NO_AUDIT,
    NO_KEY,
    NO_PROCESS,
    NO_TICKET,
    NOT_SETTLED,
    OTHER_READER,
    audit_row,
    head_row,
    item_rows,
    key_row,
    key_taken,
    process_row,
    ticket_row,
)
from fairlead.store.rows import json_text, micros


async def apply_operator(transition: Any, ask: Ask, now: int) -> Outcome:
    """Apply one write of an operator within an open transaction."""
    match transition:
        case RequestRebuild(scope):
            return _done(await ask("request_rebuild", scope), NEVER_BUILT)
        case CreateKey(key):
            return _done(await ask("create_key", *key_row(key)), KEY_TAKEN)
        case RevokeKey(key_id, moment):
            return _done(await ask("revoke_key", key_id, micros(moment)), NO_KEY)
        case IssueTicket():
            await ask("issue_ticket", *ticket_row(transition), now)
        case UseTicket(hash_, moment):
            rows = await ask("use_ticket", hash_, micros(moment))
            return Done(rows[0][0]) if rows else NO_TICKET
        case Audit(record):
            await ask("audit_action", *audit_row(record))
        case AuditOutcome(audit_id, outcome):
            return _done(await ask("audit_outcome", audit_id, json_text(outcome)), NO_AUDIT)
        case ChangeReader(user_id, key, was, reader):
            return _done(await ask("change_reader", user_id, key, was, reader), OTHER_READER)
        case Erase(job_ids):
            erased = [row[0] for row in await ask("erase", list(job_ids), ERASED_INPUT, ERASED_MESSAGE)]
            if erased:
                await ask("release_files", erased, now)
            return Done(len(erased))
        case RegisterProcess(record):
            ((drain_asked,),) = await ask("register", *process_row(record), now)
            return Done(drain_asked)
        case DeregisterProcess(name):
            await ask("deregister", name)
        case RequestDrain(name, on):
            return _done(await ask("ask_drain", name, on), NO_PROCESS)
        case PruneRecords():
            await ask("prune_processes", micros(transition.seen_before))
            return Done(len(await ask("prune_audit", micros(transition.audit_before), transition.limit)))
    return DONE


def _done(rows: list[Any], refused: Refused) -> Outcome:
    return DONE if rows else refused


async def apply_batch(transition: Any, ask: Ask, now: int) -> Outcome:
    """Apply one write of a batch of jobs within an open transaction. If it raises KeyTaken, the transaction must be
    rolled back."""
    match transition:
        case CreateBatch():
            if not await ask("create_batch", *head_row(transition)):
                raise key_taken()
            if rows := item_rows(transition):
                await ask("add_items", *(list(column) for column in zip(*rows, strict=True)))
            return Done()
        case SettleBatch(batch_id, moment):
            await ask("lock_batch", batch_id)
            if not await ask("settle_batch", batch_id, micros(moment)):
                return NOT_SETTLED
            await ask("record_batch_event", batch_id, now)
            return Done()
        case PruneBatches(finished_before, limit):
            return Done(len(await ask("prune_batches", micros(finished_before), limit)))
        case _:
            raise TypeError(f"not a write of a batch: {transition!r}")
