"""API keys, tickets (secrets that can be used once) and browser sessions. They are stored in the database, as hashes,
so every gateway accepts them, and a restart loses none."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import Any

from fairlead.app import audit
from fairlead.app.audit import Act, AuditLog
from fairlead.app.runtime import Runtime
from fairlead.domain.access import ID_BYTES, SECRET_BYTES, Key, Role, is_ticket, key_text, secret_hash, ticket_text
from fairlead.domain.events import iso
from fairlead.domain.submission import MAX_USER_ID
from fairlead.domain.validation import check_text
from fairlead.errors import InvalidInput, NotFound, Unavailable, WrongState
from fairlead.store.dashboard import CloseSession, OpenSession
from fairlead.store.port import CreateKey, Done, IssueTicket, RevokeKey, UseTicket

MAX_NAME = 100
TICKET_LIFE_S = 60
RESERVED = frozenset({"cli", "keyless", "python", "FAIRLEAD_ADMIN_KEY"})
"""Names that the audit log uses for operators without a stored key."""
SESSION_LIFE_S = 12 * 3600
MAX_SESSION_TEXT = 100


@dataclass(frozen=True, slots=True)
class NewKey:
    """An API key that was just created. `text` is the key itself, which is returned only once and stored nowhere."""

    key: Key
    text: str = field(repr=False)


class ApiKeys:
    def __init__(self, runtime: Runtime, audit: AuditLog) -> None:
        self._runtime = runtime
        self._audit = audit

    async def all(self) -> list[Key]:
        """Every API key, including revoked keys, oldest first."""
        return await self._runtime.store.keys()

    async def count(self) -> tuple[int, int]:
        """The number of API keys, and how many of these are revoked."""
        return await self._runtime.store.count_keys()

    async def create(self, role: Role | str, user_id: str | None, name: str | None, *, who: str) -> NewKey:
        role = _role(role)
        if role is Role.USER and user_id is None:
            raise InvalidInput("a key with the role user needs a user_id", pointer="/user_id")
        if role is Role.USER:
            user_id = check_text(user_id, "user_id", MAX_USER_ID)
        elif user_id is not None:
            raise InvalidInput(f"only a key with the role user has a user_id; this role is {role}", pointer="/user_id")
        if name in RESERVED:
            raise InvalidInput(f"the name {name} is reserved in the audit log; choose another", pointer="/name")
        name = check_text(name, "name", MAX_NAME) if name is not None else user_id or role.value
        if role is not Role.ADMIN and not await self._has_admin():
            # Once a key exists, every request needs a key. Without an admin's key, no further key could be created.
            raise WrongState("the first key must be an admin's; create one with the role admin first")
        now = self._runtime.clock.now()
        key_id = secrets.token_hex(ID_BYTES)
        text = key_text(key_id, secrets.token_bytes(SECRET_BYTES))
        key = Key(key_id, role, user_id, name[:MAX_NAME], secret_hash(text), now)
        (outcome,) = await self._audit.write(_act(who, audit.CREATE_KEY, key), CreateKey(key))
        if not isinstance(outcome, Done):
            raise Unavailable("the generated id is already in use; try again")
        return NewKey(key, text)

    async def _has_admin(self) -> bool:
        if self._runtime.settings.admin_key is not None:
            return True
        return any(map(is_live_admin, await self._runtime.store.keys()))

    async def revoke(self, key_id: str, *, who: str) -> None:
        keys = {key.id: key for key in await self._runtime.store.keys()}
        if key_id not in keys:
            raise NotFound(f"there is no key {key_id[:50]}")
        key = keys[key_id]
        if key.revoked_at is None:
            revoke = RevokeKey(key_id, self._runtime.clock.now())
            (outcome,) = await self._audit.write(_act(who, audit.REVOKE_KEY, key), revoke)
            if isinstance(outcome, Done):
                return
        raise WrongState(f"the key {key_id} is revoked already")

    async def issue_ticket(self, grant: str) -> str:
        """Make a ticket: a secret that can be exchanged for `grant` once, in any process, within a minute."""
        text = ticket_text(secrets.token_bytes(SECRET_BYTES))
        await self._runtime.group_commit.write(
            IssueTicket(secret_hash(text), grant, self._runtime.clock.now() + TICKET_LIFE_S)
        )
        return text

    async def use_ticket(self, text: str) -> str | None:
        """Exchange a ticket for its grant. Returns None if the ticket is unknown, used or expired."""
        if not is_ticket(text):
            return None
        outcome = await self._runtime.group_commit.write(UseTicket(secret_hash(text), self._runtime.clock.now()))
        return str(outcome.value) if isinstance(outcome, Done) else None


class Sessions:
    """Browser sessions of the dashboard."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    async def open(self, key_id: str) -> str:
        """Open a session and return its secret. The session is valid for twelve hours, or until the key is revoked."""
        text = secrets.token_urlsafe(32)
        expires_at = self._runtime.clock.now() + SESSION_LIFE_S
        await self._runtime.group_commit.write(OpenSession(secret_hash(text), key_id, expires_at))
        return text

    async def key_of(self, text: str) -> str | None:
        """The id of the API key that the session was opened with. None if there is no such session, or it has ended."""
        if not 0 < len(text) <= MAX_SESSION_TEXT:
            return None
        session = await self._runtime.store.session(secret_hash(text), self._runtime.clock.now())
        return None if session is None else session.key_id

    async def close(self, text: str) -> None:
        await self._runtime.group_commit.write(CloseSession(secret_hash(text)))


def shown(key: Key) -> dict[str, Any]:
    """The fields of an API key that operators may see: all but its hash."""
    return {
        "id": key.id,
        "role": key.role,
        "user_id": key.user_id,
        "name": key.name,
        "created_at": iso(key.created_at),
        "revoked_at": iso(key.revoked_at),
    }


def is_live_admin(key: Key) -> bool:
    return key.role is Role.ADMIN and key.revoked_at is None


def _act(who: str, action: str, key: Key) -> Act:
    return Act(who, action, key.id, {"role": key.role.value, "user_id": key.user_id, "name": key.name})


def _role(value: Role | str) -> Role:
    try:
        return Role(value)
    except ValueError:
        raise InvalidInput(
            f"role must be admin, viewer, service or user, not {str(value)[:50]!r}", pointer="/role"
        ) from None
