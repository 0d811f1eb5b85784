"""Writes, reads and rows of the dashboard, shared by both engines: sessions, minute statistics, and counts of jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import orjson

from fairlead.domain.job import Job
from fairlead.domain.stats import MinuteStats

_FIELDS = ("finished", "failed", "waits", "codes", "used", "models")


@dataclass(frozen=True, slots=True)
class OpenSession:
    """Store the session of a browser that signed in with this key.

    Also deletes expired sessions. If this key has more than `per_key` sessions, or all keys together have more than
    `in_all`, the oldest ones are deleted too. Revoking the key deletes its sessions.
    """

    hash: str
    key_id: str
    expires_at: float
    per_key: int = 50
    in_all: int = 10_000


@dataclass(frozen=True, slots=True)
class CloseSession:
    """Delete a session, if it exists."""

    hash: str


@dataclass(frozen=True, slots=True)
class RecordMinuteStats:
    """Store statistics of this process per service and minute, replacing earlier values. Also deletes the rows of all
    processes from before the minute `keep_from`."""

    process: str
    notes: tuple[MinuteStats, ...]
    keep_from: int


KINDS: tuple[type, ...] = (OpenSession, CloseSession, RecordMinuteStats)
"""The writes of the dashboard, in the order in which a commit applies them, after all other kinds."""


@dataclass(frozen=True, slots=True)
class Session:
    key_id: str
    expires_at: float


@dataclass(frozen=True, slots=True)
class Waiting:
    """The waiting jobs of one service. `oldest_since` is the time at which the longest-waiting of the queued jobs began
    to wait, `retrying` the number of jobs in backoff."""

    oldest_since: float | None
    retrying: int


@dataclass(frozen=True, slots=True)
class UserLoad:
    """The open jobs of one user. `weight`, `group` and `plan` are those of the user's newest job. `oldest_since` is the
    time at which the longest-waiting of the queued jobs began to wait."""

    user_id: str
    waiting: int
    running: int
    oldest_since: float | None
    weight: float
    group: str | None = None
    plan: str | None = None


@dataclass(frozen=True, slots=True)
class DeadGroup:
    """The FAILED jobs of one service with the same error. `first` and `last` are the times of the first and last
    failure."""

    code: str
    message: str
    service: str
    count: int
    first: float
    last: float
    examples: tuple[str, ...]


class DashboardReads(Protocol):
    async def session(self, hash_: str, now: float) -> Session | None:
        """The session with this hash, or None if it does not exist or has expired."""
        ...

    async def activity(self, from_minute: int) -> list[MinuteStats]: ...

    async def waiting_by_service(self) -> dict[str, Waiting]:
        """One row for each service that has queued jobs or jobs in backoff. Reads every waiting job."""
        ...

    async def user_loads(self, limit: int) -> list[UserLoad]:
        """The users with open jobs, sorted by waiting jobs and then by running jobs, most first. Reads every open
        job."""
        ...

    async def heads(self, service: str, user_ids: Sequence[str] | None, each: int) -> list[Job]:
        """The next queued jobs of a service. With `user_ids`, these are the first `each` jobs of each user and band, in
        the order in which that user's jobs are served. If `user_ids` is None, these are the first `each` jobs in order
        of arrival, of any user."""
        ...

    async def dead_groups(self, limit: int) -> list[DeadGroup]:
        """The groups of FAILED jobs with the same error, largest first. Reads every FAILED job."""
        ...


def activity_rows(note: RecordMinuteStats) -> list[tuple[int, str, str]]:
    """Encode minute statistics as rows of (minute, service, JSON)."""
    return [
        (each.minute, each.service, orjson.dumps({name: getattr(each, name) for name in _FIELDS}).decode())
        for each in note.notes
    ]


def activity_of(row: Sequence[Any]) -> MinuteStats:
    """Decode one row of minute statistics. Fields that only later releases know are ignored."""
    process, minute, service, text = row
    values: Mapping[str, Any] = orjson.loads(text)
    return MinuteStats(process, minute, service, **{name: values[name] for name in _FIELDS if name in values})


def dead_group_of(row: Sequence[Any]) -> DeadGroup:
    code, message, service, count, first, last, *examples = row
    return DeadGroup(code or "", message or "", service, count, first / 1e6, last / 1e6, tuple(dict.fromkeys(examples)))
