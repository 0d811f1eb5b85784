"""The rows of keys, tickets, audit records, processes and batches, which are the same in both engines, and the reasons
why their writes are refused.

A process row has columns for its name, the time at which it was last seen, and whether it should drain. All other
fields are in one JSON text, so that new fields need no migration.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from fairlead.domain.access import AuditRecord, Key, Role
from fairlead.domain.batch import Batch, BatchState
from fairlead.domain.processes import ProcessRecord
from fairlead.domain.webhooks import BATCH_ENDED, SILENT, JobWebhook
from fairlead.errors import InvalidInput
from fairlead.store.port import (
    Audit,
    AuditOutcome,
    ChangeReader,
    CreateBatch,
    CreateKey,
    DeregisterProcess,
    EndedFronts,
    Erase,
    IssueTicket,
    KeyTaken,
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
from fairlead.store.rows import STATUSES, json_text, micros, seconds

ADMIN_KINDS: tuple[type, ...] = (
    RequestRebuild,
    CreateKey,
    RevokeKey,
    IssueTicket,
    UseTicket,
    Audit,
    AuditOutcome,
    ChangeReader,
    Erase,
    RegisterProcess,
    DeregisterProcess,
    RequestDrain,
    PruneRecords,
)
"""The writes of operators, in the order in which a commit applies them."""

ERASED_INPUT = '{"kept":"nothing"}'
"""The input of a job whose request was erased (`openai.keep`)."""
ERASED_MESSAGE = "the message is not kept (openai.keep)"

NEVER_BUILT = Refused("this scope was never built")
KEY_TAKEN = Refused("a key with this id exists")
NO_KEY = Refused("the key does not exist or is already revoked")
NO_TICKET = Refused("the ticket is unknown, used or expired")
NO_AUDIT = Refused("the audit record does not exist")
OTHER_READER = Refused("the job has another reader")
NOT_CREATED = Refused("the file of the batch does not exist or is not complete, or its key was used before")
NO_PROCESS = Refused("the process is not registered")
NO_ENDPOINT = Refused("the endpoint does not exist or is already disabled")
NO_SCHEDULE = Refused("the schedule does not exist")
OTHER_REVISION = Refused("the schedule exists already, or has changed")
OTHER_JOB = Refused("its job was not stored: another one has its idempotency key")
OTHER_ATTEMPT = Refused("another process has recorded this attempt")
WARNED = Refused("the threshold was announced before, or the window is over")

_FIELDS = ("concurrency", "host", "pid", "version", "started_at", "clock", "draining", "running")


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
    """The name of a process, and its other fields as JSON text."""
    _check(record.name)
    values: dict[str, Any] = {name: getattr(record, name) for name in _FIELDS}
    values |= {"roles": record.roles, "services": record.services, "bands": record.bands, "details": record.details}
    return record.name, orjson.dumps(values).decode()


def process_of(row: Any) -> ProcessRecord:
    """Decode the row of a process. Fields that only later releases know are ignored."""
    name, seen_at, drain_asked, text = row
    values: Mapping[str, Any] = orjson.loads(text)
    return ProcessRecord(
        name=name,
        roles=tuple(values["roles"]),
        services=tuple(values["services"]),
        bands=tuple(values["bands"]),
        seen_at=seen_at / 1e6,
        drain_asked=bool(drain_asked),
        details=values["details"],
        **{field: values[field] for field in _FIELDS},
    )


def ended_fronts_of(job_ids: list[str], more: bool, last: Sequence[int] | None) -> EndedFronts:
    """Decode an answer of the query `ended_fronts`."""
    return EndedFronts(job_ids, (last[0] / 1e6, last[1]) if more and last is not None else None)


def _check(*texts: str | None) -> None:
    """Raise an error if a text contains NUL. PostgreSQL cannot store NUL, and in SQLite's JSON a NUL ends the text."""
    if any("\0" in text for text in texts if text is not None):
        raise InvalidInput("a name must not contain the character NUL")


BATCH_KINDS: tuple[type, ...] = (CreateBatch, SettleBatch, PruneBatches)
"""The writes of batches of jobs, in the order in which a commit applies them, after all moves."""

NO_FILE = Refused("the file does not exist")
NOT_UPLOADING = Refused("the file does not exist, or is complete already")
NO_PART = Refused("the part does not begin where the parts before it end")
OTHER_VERSION = Refused("the batch has changed, or one of its files is not complete")

NOT_SETTLED = Refused("the batch has open items, is already settled, or does not exist")


def head_row(create: CreateBatch) -> tuple[Any, ...]:
    """Encode a batch as the values of its row in the table of batches."""
    batch = create.batch
    _check(batch.id, batch.user_id, batch.name, create.idempotency_key)
    return (
        batch.id,
        batch.user_id,
        batch.name,
        batch.metadata_json,
        micros(batch.created_at),
        batch.total,
        create.idempotency_key,
        create.body_hash,
        batch_webhook(batch.webhook),
    )


def batch_webhook(webhook: JobWebhook | None) -> str | None:
    """Encode the receiver of the end of a batch; None if it has none of its own."""
    if webhook is SILENT:
        return '{"silent":true}'
    receiver = None if webhook is None else webhook.receiver_of(BATCH_ENDED)
    if webhook is None or receiver is None:
        return None
    about = {"url": webhook.url, "shape": webhook.shape, "subject": webhook.subject}
    return orjson.dumps({"receiver": receiver, "about": about}).decode()


def item_rows(create: CreateBatch) -> list[tuple[str, int, str, str | None]]:
    _check(*(item.custom_id for item in create.items))
    return [(create.batch.id, item.number, item.job_id, item.custom_id) for item in create.items]


def batch_state_of(row: Sequence[Any]) -> BatchState:
    """Decode a row of the SQL fragment `batch_row`."""
    id_, user_id, name, metadata, created_at, total, finished_at, counts = row
    pairs = orjson.loads(counts) if isinstance(counts, str) else counts or ()
    return BatchState(
        Batch(id_, user_id, total, created_at / 1e6, name, metadata),
        {STATUSES[status]: count for status, count in pairs},
        seconds(finished_at),
    )


def key_taken() -> KeyTaken:
    return KeyTaken(
        "another request with this Idempotency-Key created a batch at the same time", pointer="/Idempotency-Key"
    )


def item_number_of(name: str) -> int | None:
    """Parse `name` as the number of an item. Returns None if it is not one."""
    return int(name) if name.isascii() and name.isdecimal() and name == str(int(name[:9])) else None
