"""Keys, audit and processes as rows, and what refuses a transition of theirs: the same in both engines.

In the database a process is its name, when it was seen, whether it is to drain, and beside that one JSON text with what
it says of itself: a release that says more needs no migration.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from fairlead.domain.audit import AuditRecord
from fairlead.domain.keys import Key, Role
from fairlead.domain.processes import ProcessRecord
from fairlead.errors import InvalidInput
from fairlead.store.port import (
    Announce,
    AskDrain,
    Audit,
    AuditOutcome,
    CreateKey,
    Farewell,
    IssueTicket,
    PruneRecords,
    Refused,
    RequestRebuild,
    RevokeKey,
    UseTicket,
)
from fairlead.store.rows import json_text, micros, seconds

KINDS: tuple[type, ...] = (
    RequestRebuild,
    CreateKey,
    RevokeKey,
    IssueTicket,
    UseTicket,
    Audit,
    AuditOutcome,
    Announce,
    Farewell,
    AskDrain,
    PruneRecords,
)
"""In the order in which they are applied within a batch."""

NEVER_BUILT = Refused("this scope was never built")
KEY_TAKEN = Refused("a key with this id is there already")
NO_KEY = Refused("there is no such key, or it is revoked already")
NO_TICKET = Refused("there is no such ticket: it is unknown, used, or expired")
NO_AUDIT = Refused("there is no such audit record")
NO_PROCESS = Refused("no such process has announced itself")

_SAID = ("concurrency", "host", "pid", "version", "started_at", "clock", "draining", "running")


def key_row(key: Key) -> tuple[Any, ...]:
    _check(key.id, key.user_id, key.name, key.hash)
    return key.id, key.role.value, key.user_id, key.name, key.hash, micros(key.created_at), micros(key.revoked_at)


def key_of(row: Any) -> Key:
    id_, role, user_id, name, hash_, created_at, revoked_at = row
    return Key(id_, Role(role), user_id, name, hash_, created_at / 1e6, seconds(revoked_at))


def ticket_row(ticket: IssueTicket) -> tuple[Any, ...]:
    _check(ticket.hash, ticket.key_id)
    return ticket.hash, ticket.key_id, micros(ticket.expires_at)


def audit_row(record: AuditRecord) -> tuple[Any, ...]:
    _check(record.id, record.who, record.action, record.target)
    details, outcome = json_text(record.details), json_text(record.outcome)
    return record.id, micros(record.at), record.who, record.action, record.target, details, outcome


def audit_of(row: Any) -> AuditRecord:
    id_, at, who, action, target, details, outcome = row
    return AuditRecord(
        id_, at / 1e6, who, action, target, orjson.loads(details), None if outcome is None else orjson.loads(outcome)
    )


def process_row(record: ProcessRecord) -> tuple[str, str]:
    """Its name, and what it says of itself."""
    _check(record.name)
    said: dict[str, Any] = {name: getattr(record, name) for name in _SAID}
    said |= {"roles": record.roles, "services": record.services, "bands": record.bands, "details": record.details}
    return record.name, orjson.dumps(said).decode()


def process_of(row: Any) -> ProcessRecord:
    """What a later release says and this one does not know is left out."""
    name, seen_at, drain_asked, about = row
    said: Mapping[str, Any] = orjson.loads(about)
    return ProcessRecord(
        name=name,
        roles=tuple(said["roles"]),
        services=tuple(said["services"]),
        bands=tuple(said["bands"]),
        seen_at=seen_at / 1e6,
        drain_asked=bool(drain_asked),
        details=said["details"],
        **{field: said[field] for field in _SAID},
    )


def _check(*texts: str | None) -> None:
    """PostgreSQL has no NUL in a text, and SQLite's JSON ends a text there."""
    if any("\0" in text for text in texts if text is not None):
        raise InvalidInput("a name must not contain the character NUL")
