"""What the dashboard keeps and asks: sessions, the history of the last hours, and counts over many jobs.

The same in both engines: the transitions, the reads, and their rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import orjson

from fairlead.domain.activity import Activity
from fairlead.domain.job import Job

_SAID = ("finished", "failed", "waits", "codes", "used")


@dataclass(frozen=True, slots=True)
class OpenSession:
    """A browser that is signed in with this key, until it expires. Those that have expired go. When its key is revoked,
    it goes with it."""

    hash: str
    key_id: str
    expires_at: float


@dataclass(frozen=True, slots=True)
class CloseSession:
    """Of one that is not there, there is nothing to close."""

    hash: str


@dataclass(frozen=True, slots=True)
class NoteActivity:
    """What this process did, minute by minute and in full: written again, it takes the place of what was said before.
    What is of before `keep_from`, a minute, goes, whoever wrote it."""

    process: str
    notes: tuple[Activity, ...]
    keep_from: int


KINDS: tuple[type, ...] = (OpenSession, CloseSession, NoteActivity)
"""In the order in which they are applied within a commit, after all others."""


@dataclass(frozen=True, slots=True)
class Session:
    key_id: str
    expires_at: float


@dataclass(frozen=True, slots=True)
class Waiting:
    """Of one service: since when the step waits that waits longest, and how many jobs back off."""

    oldest_since: float | None
    retrying: int


@dataclass(frozen=True, slots=True)
class UserLoad:
    """The open jobs of one user; `weight` is that of the newest. `oldest_since` is of those in line."""

    user_id: str
    waiting: int
    running: int
    oldest_since: float | None
    weight: float


@dataclass(frozen=True, slots=True)
class DeadGroup:
    """FAILED jobs with the same error at the same service; `first` and `last` are when they failed."""

    code: str
    message: str
    service: str
    count: int
    first: float
    last: float
    examples: tuple[str, ...]


class BoardReads(Protocol):
    async def session(self, hash_: str, now: float) -> Session | None:
        """None: there is none, or it has expired."""
        ...

    async def activity(self, from_minute: int) -> list[Activity]: ...

    async def waiting_by_service(self) -> dict[str, Waiting]:
        """Of services with anything in line or backing off. Looks at every waiting job."""
        ...

    async def user_loads(self, limit: int) -> list[UserLoad]:
        """Users with open jobs: who has most waiting first, then most running. Looks at every open job."""
        ...

    async def heads(self, service: str, user_ids: Sequence[str] | None, each: int) -> list[Job]:
        """Of each of these users and in each band the first so many jobs in line for this service, as the order within
        one user has it; None: the first of all, in order of arrival."""
        ...

    async def dead_groups(self, limit: int) -> list[DeadGroup]:
        """The largest first. Looks at every FAILED job."""
        ...


# ---------------------------------------------------------------- rows


def activity_rows(note: NoteActivity) -> list[tuple[int, str, str]]:
    """(minute, service, what is said of it)"""
    return [
        (each.minute, each.service, orjson.dumps({name: getattr(each, name) for name in _SAID}).decode())
        for each in note.notes
    ]


def activity_of(row: Sequence[Any]) -> Activity:
    """What a later release says and this one does not know is left out."""
    process, minute, service, about = row
    said: Mapping[str, Any] = orjson.loads(about)
    return Activity(process, minute, service, **{name: said[name] for name in _SAID if name in said})


def dead_group_of(row: Sequence[Any]) -> DeadGroup:
    code, message, service, count, first, last, *examples = row
    return DeadGroup(code or "", message or "", service, count, first / 1e6, last / 1e6, tuple(dict.fromkeys(examples)))
