"""The audit: what operators did. Every action of theirs leaves a row, and this is the one place that writes it.

An action that is one transition is in one commit with its row. One of many commits writes its row first and how it
ended after: a row without an outcome is of an action that is under way, or whose process died with it.

What users may do to their own jobs, operators may do to any: then it is an `Act`, and without one a user's own, which
leaves no row.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from uuid_utils import uuid7

from fairlead.domain.audit import AuditRecord
from fairlead.domain.job import Job
from fairlead.errors import InvalidInput, shown
from fairlead.runtime.clock import Clock
from fairlead.runtime.paging import Page, check_limit
from fairlead.store.journal import Journal
from fairlead.store.port import Audit, AuditOutcome, Outcome, Refused, Store, Transition

PAUSE = "service.pause"
RESUME = "service.resume"
LIMIT = "service.limit"
LIFT_LIMIT = "service.lift_limit"
REBUILD = "service.rebuild"
PRIORITY = "job.priority"
CANCEL_JOB = "job.cancel"
RESUME_JOB = "job.resume"
RETRY_STEP = "job.retry_step"
DELETE_JOB = "job.delete"
CANCEL_TURN = "turn.cancel"
CANCEL_BATCH = "batch.cancel"
RESUME_BATCH = "batch.resume"
RETRY_ITEM = "batch.retry_item"
REQUEUE = "dead.requeue"
PURGE = "dead.purge"
DRAIN = "worker.drain"
UNDRAIN = "worker.undrain"
CREATE_KEY = "key.create"
REVOKE_KEY = "key.revoke"
LONGEST = 255


@dataclass(frozen=True, slots=True)
class Act:
    """Who does what, and to what."""

    who: str
    action: str
    target: str
    details: Mapping[str, Any] = field(default_factory=dict)

    def on(self, job: Job) -> Act:
        """With whose job it is, and in which state it was found."""
        about = {"user_id": job.user_id, "feature_name": job.feature_name, "status": job.status.value}
        return replace(self, details={**self.details, **about})


def act_of(who: str | None, action: str, target: str, **details: Any) -> Act | None:
    """None if no operator is named: it is a user's own."""
    return None if who is None else Act(who, action, target, details)


class AuditBook:
    def __init__(self, store: Store, journal: Journal, clock: Clock) -> None:
        self._store = store
        self._journal = journal
        self._clock = clock

    async def write(self, act: Act | None, *transitions: Transition) -> list[Outcome]:
        """The action and its row, in one commit. The row of what was refused says so."""
        if act is None:
            return await self._journal.write_all(transitions)
        row = self._row(act, {"status": "done"})
        outcomes = await self._journal.write_all([*transitions, Audit(row)])
        for outcome in outcomes:
            if isinstance(outcome, Refused):
                await self._journal.write(AuditOutcome(row.id, {"status": "refused", "reason": outcome.reason}))
                break
        return outcomes[:-1]

    @asynccontextmanager
    async def many(self, act: Act | None) -> AsyncIterator[dict[str, Any]]:
        """Around an action of many commits: what it puts into the mapping becomes the row's outcome."""
        outcome: dict[str, Any] = {}
        if act is None:
            yield outcome
            return
        row = self._row(act, None)
        await self._journal.write(Audit(row))
        try:
            yield outcome
        except BaseException as error:
            # Nobody waits for this one: the store may be what failed, and the caller may be going away.
            self._journal.write_later(AuditOutcome(row.id, {"status": "failed", "reason": shown(error), **outcome}))
            raise
        await self._journal.write(AuditOutcome(row.id, {"status": "done", **outcome}))

    async def page(self, *, action: str | None, limit: int, cursor: str | None) -> Page[AuditRecord]:
        """Newest first."""
        check_limit(limit)
        if "\0" in (action or ""):
            raise InvalidInput("a name must not contain the character NUL", pointer="/action")
        if cursor is not None:
            _check_cursor(cursor)
        rows = await self._store.audit(before=cursor, limit=limit + 1, action=action)
        return Page(rows[:limit], rows[limit - 1].id if len(rows) > limit else None)

    def _row(self, act: Act, outcome: Mapping[str, Any] | None) -> AuditRecord:
        if not isinstance(act.who, str) or not act.who or len(act.who) > LONGEST:
            raise InvalidInput(f"who is 1 to {LONGEST} characters that name the operator", pointer="/who")
        return AuditRecord(str(uuid7()), self._clock.now(), act.who, act.action, act.target, act.details, outcome)


def _check_cursor(cursor: str) -> None:
    try:
        UUID(cursor)
    except ValueError:
        raise InvalidInput("this cursor is not from this list; begin without one", pointer="/cursor") from None
