"""Applying what operators do: keys, tickets, audit, processes, and requests for a rebuild."""

from __future__ import annotations

from typing import Any

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
from fairlead.store.postgres.moves import Ask
from fairlead.store.rows import json_text, micros

DONE = Done()


async def apply(transition: Any, ask: Ask, now: int) -> Outcome:
    """Within an open transaction."""
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
            found = await ask("use_ticket", hash_, micros(moment))
            return Done(found[0][0]) if found else NO_TICKET
        case Audit(record):
            await ask("audit_action", *audit_row(record))
        case AuditOutcome(audit_id, outcome):
            return _done(await ask("audit_outcome", audit_id, json_text(outcome)), NO_AUDIT)
        case Announce(record):
            ((drain_asked,),) = await ask("announce", *process_row(record), now)
            return Done(drain_asked)
        case Farewell(name):
            await ask("farewell", name)
        case AskDrain(name, on):
            return _done(await ask("ask_drain", name, on), NO_PROCESS)
        case PruneRecords():
            await ask("prune_processes", micros(transition.seen_before))
            return Done(len(await ask("prune_audit", micros(transition.audit_before), transition.limit)))
    return DONE


def _done(rows: list[Any], refused: Refused) -> Outcome:
    return DONE if rows else refused
