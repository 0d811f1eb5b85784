"""Encodes the writes of operators and of batches as rows of the view `batch`, and decodes the answers.

See `admin.sql` and `batches.sql`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

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
    process_row,
    ticket_row,
)
from fairlead.store.rows import json_text, micros
from fairlead.store.sqlite.encode import Row, json_body
from fairlead.store.usage import PruneUsage, RollUpUsage


def operator_rows(transitions: Sequence[Any]) -> list[Row]:
    return [_operator_row(transition) for transition in transitions]


def _operator_row(transition: Any) -> Row:
    match transition:
        case RequestRebuild(scope):
            return "rebuild", scope
        case CreateKey(key):
            return "key", json_body(key_row(key))
        case RevokeKey(key_id, now):
            return "revoke", json_body((key_id, micros(now)))
        case IssueTicket():
            return "ticket", json_body(ticket_row(transition))
        case UseTicket(hash_, now):
            return "use_ticket", json_body((hash_, micros(now)))
        case Audit(record):
            return "audit", json_body(audit_row(record))
        case AuditOutcome(audit_id, outcome):
            return "audit_outcome", json_body((audit_id, json_text(outcome)))
        case ChangeReader(user_id, key, was, reader):
            return "reader", json_body((user_id, key, was, reader))
        case Erase(job_ids):
            return "erase", json_body((job_ids, ERASED_INPUT, ERASED_MESSAGE))
        case RegisterProcess(record):
            return "register", json_body(process_row(record))
        case DeregisterProcess(name):
            return "deregister", name
        case RequestDrain(name, on):
            return "ask_drain", json_body((name, on))
        case PruneRecords(audit_before, seen_before, limit):
            return "prune_records", json_body((micros(audit_before), micros(seen_before), limit))
        case _:
            raise TypeError(f"not a write of operators: {transition!r}")


def _done_or(refused: Refused) -> Callable[[Any], Outcome]:
    return lambda changed: Done() if changed else refused


def batch_rows(transitions: Sequence[Any]) -> list[Row]:
    return [row for transition in transitions for row in _rows_of_batch(transition)]


def _rows_of_batch(transition: Any) -> list[Row]:
    match transition:
        case CreateBatch(items=items):
            head = (*head_row(transition), items[0].job_id)
            return [("job_batch", json_body(head)), ("batch_item", json_body(item_rows(transition)))]
        case SettleBatch(batch_id, now):
            return [("settle", json_body((batch_id, micros(now)))), ("batch_event", batch_id)]
        case PruneBatches(finished_before, limit):
            return [("prune_batches", json_body((micros(finished_before), limit)))]
        case _:
            raise TypeError(f"not a write of a batch: {transition!r}")


OUTCOMES: dict[type, tuple[str, Callable[[Any], Outcome]]] = {
    RequestRebuild: ("rebuild", _done_or(NEVER_BUILT)),
    CreateKey: ("key", _done_or(KEY_TAKEN)),
    RevokeKey: ("revoke", _done_or(NO_KEY)),
    UseTicket: ("use_ticket", lambda key_id: NO_TICKET if key_id is None else Done(key_id)),
    AuditOutcome: ("audit_outcome", _done_or(NO_AUDIT)),
    ChangeReader: ("reader", _done_or(OTHER_READER)),
    Erase: ("erased", Done),
    RegisterProcess: ("register", lambda drain_asked: Done(bool(drain_asked))),
    RequestDrain: ("ask_drain", _done_or(NO_PROCESS)),
    PruneRecords: ("prune_records", Done),
    SettleBatch: ("settle", _done_or(NOT_SETTLED)),
    PruneBatches: ("prune_batches", Done),
    RollUpUsage: ("rolled_up", Done),
    PruneUsage: ("pruned_usage", Done),
}
"""For each kind of write, the name of its answer and the function that decodes the outcome. Kinds that are absent are
never refused."""
