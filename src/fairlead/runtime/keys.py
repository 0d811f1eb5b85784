"""Keys and tickets: made, revoked and used up in the truth, so that every gateway knows the same ones."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import Any

from fairlead.domain import keytext
from fairlead.domain.keys import Key, Role
from fairlead.errors import InvalidInput, NotFound, Unavailable, WrongState
from fairlead.runtime import audit
from fairlead.runtime.audit import Act, AuditBook
from fairlead.runtime.clock import Clock
from fairlead.runtime.events import iso
from fairlead.runtime.submission import MAX_USER_ID, check_text
from fairlead.store.journal import Journal
from fairlead.store.port import CreateKey, Done, IssueTicket, RevokeKey, Store, UseTicket

MAX_NAME = 100
TICKET_LIFE_S = 60
RESERVED = frozenset({"cli", "keyless", "python", "FAIRLEAD_ADMIN_KEY"})
"""Whom the audit calls so has no key of the truth."""


@dataclass(frozen=True, slots=True)
class NewKey:
    """`text` is the key itself: it is here, once, and nowhere else."""

    key: Key
    text: str = field(repr=False)


class Keys:
    """`has_admin` says that an admin's key exists beside those in the truth: `FAIRLEAD_ADMIN_KEY`."""

    def __init__(self, store: Store, journal: Journal, clock: Clock, book: AuditBook, *, has_admin: bool) -> None:
        self._store = store
        self._journal = journal
        self._clock = clock
        self._book = book
        self._has_admin = has_admin

    async def create(self, role: Role | str, user_id: str | None, name: str | None, *, who: str) -> NewKey:
        role = _role(role)
        if role is Role.USER and user_id is None:
            raise InvalidInput("a key of the role user needs a user_id", pointer="/user_id")
        if role is Role.USER:
            user_id = check_text(user_id, "user_id", MAX_USER_ID)
        elif user_id is not None:
            raise InvalidInput(f"only a key of the role user has a user_id; this one is {role}", pointer="/user_id")
        if name in RESERVED:
            raise InvalidInput(f"the audit calls others {name}; choose another name", pointer="/name")
        name = check_text(name, "name", MAX_NAME) if name is not None else user_id or role.value
        if role is not Role.ADMIN and not self._has_admin and not any(map(is_live_admin, await self._store.keys())):
            # From the first key on every request needs one: without an admin's nobody could see to the rest.
            raise WrongState("the first key must be an admin's; make one with the role admin, then this one")
        now = self._clock.now()
        key_id = secrets.token_hex(keytext.ID_BYTES)
        text = keytext.key_text(key_id, secrets.token_bytes(keytext.SECRET_BYTES))
        key = Key(key_id, role, user_id, name[:MAX_NAME], keytext.hash_of(text), now)
        (outcome,) = await self._book.write(_act(who, audit.CREATE_KEY, key), CreateKey(key))
        if not isinstance(outcome, Done):
            raise Unavailable("another key has this id by chance; try again")
        return NewKey(key, text)

    async def revoke(self, key_id: str, *, who: str) -> None:
        known = {key.id: key for key in await self._store.keys()}
        if key_id not in known:
            raise NotFound(f"there is no key {key_id[:50]}")
        key = known[key_id]
        if key.revoked_at is None:
            revoke = RevokeKey(key_id, self._clock.now())
            (outcome,) = await self._book.write(_act(who, audit.REVOKE_KEY, key), revoke)
            if isinstance(outcome, Done):
                return
        raise WrongState(f"the key {key_id} is revoked already")

    async def issue_ticket(self, grant: str) -> str:
        """What it grants is told once, within a minute, to whoever brings it."""
        text = keytext.ticket_text(secrets.token_bytes(keytext.SECRET_BYTES))
        await self._journal.write(IssueTicket(keytext.hash_of(text), grant, self._clock.now() + TICKET_LIFE_S))
        return text

    async def use_ticket(self, text: str) -> str | None:
        """What it grants. None: it is unknown, used up, or too old."""
        if not keytext.is_ticket(text):
            return None
        outcome = await self._journal.write(UseTicket(keytext.hash_of(text), self._clock.now()))
        return str(outcome.value) if isinstance(outcome, Done) else None


def shown(key: Key) -> dict[str, Any]:
    """A key as operators see it: all but its hash."""
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
