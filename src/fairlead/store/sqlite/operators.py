"""What operators do, as rows of the view `batch` (see `operators.sql`), and what the answers mean."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import orjson

from fairlead.store.operators import (
    KEY_TAKEN,
    NEVER_BUILT,
    NO_AUDIT,
    NO_KEY,
    NO_PROCESS,
    NO_TICKET,
    audit_row,
    key_row,
    process_row,
    ticket_row,
)
from fairlead.store.port import (
    Announce,
    AskDrain,
    Audit,
    AuditOutcome,
    CreateKey,
    Done,
    Farewell,
    IssueTicket,
    Outcome,
    PruneRecords,
    Refused,
    RequestRebuild,
    RevokeKey,
    UseTicket,
)
from fairlead.store.rows import json_text, micros
from fairlead.store.sqlite.encode import Row


def operator_rows(transitions: Sequence[Any]) -> list[Row]:
    return [_row(transition) for transition in transitions]


def _row(transition: Any) -> Row:
    match transition:
        case RequestRebuild(scope):
            return "rebuild", scope
        case CreateKey(key):
            return "key", _body(key_row(key))
        case RevokeKey(key_id, now):
            return "revoke", _body((key_id, micros(now)))
        case IssueTicket():
            return "ticket", _body(ticket_row(transition))
        case UseTicket(hash_, now):
            return "use_ticket", _body((hash_, micros(now)))
        case Audit(record):
            return "audit", _body(audit_row(record))
        case AuditOutcome(audit_id, outcome):
            return "audit_outcome", _body((audit_id, json_text(outcome)))
        case Announce(record):
            return "announce", _body(process_row(record))
        case Farewell(name):
            return "farewell", name
        case AskDrain(name, on):
            return "ask_drain", _body((name, on))
        case PruneRecords(audit_before, seen_before, limit):
            return "prune_records", _body((micros(audit_before), micros(seen_before), limit))
        case _:
            raise TypeError(f"no operator's transition: {transition!r}")


def _body(value: Any) -> str:
    return orjson.dumps(value).decode()


def _done_or(refused: Refused) -> Callable[[Any], Outcome]:
    return lambda changed: Done() if changed else refused


OUTCOMES: dict[type, tuple[str, Callable[[Any], Outcome]]] = {
    RequestRebuild: ("rebuild", _done_or(NEVER_BUILT)),
    CreateKey: ("key", _done_or(KEY_TAKEN)),
    RevokeKey: ("revoke", _done_or(NO_KEY)),
    UseTicket: ("use_ticket", lambda key_id: NO_TICKET if key_id is None else Done(key_id)),
    AuditOutcome: ("audit_outcome", _done_or(NO_AUDIT)),
    Announce: ("announce", lambda drain_asked: Done(bool(drain_asked))),
    AskDrain: ("ask_drain", _done_or(NO_PROCESS)),
    PruneRecords: ("prune_records", Done),
}
"""By kind, the name of its answer and the outcome that it stands for. The others are always done."""
