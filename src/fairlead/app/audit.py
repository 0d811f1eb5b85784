"""The audit log: one row for each action of an operator. Only this module writes these rows.

An action that is a single transition is committed together with its row. An action that takes many commits writes its
row first and adds the outcome at the end: if a row has no outcome, its action is still running, or the process that ran
it died.

Operators may do to any job what users may do to their own jobs. An operator's action has an `Act`. A user's action has
none, and is not recorded.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from fairlead.app.runtime import Runtime
from fairlead.domain.access import AuditRecord
from fairlead.domain.job import Job
from fairlead.domain.pagination import Page, check_limit
from fairlead.engine.clock import id_at
from fairlead.errors import InvalidInput, shown
from fairlead.store.port import Audit, AuditOutcome, Outcome, Refused, Transition

PAUSE = "service.pause"
RESUME = "service.resume"
LIMIT = "service.limit"
LIFT_LIMIT = "service.lift_limit"
RATE = "service.rate"
LIFT_RATE = "service.lift_rate"
RATES = {kind: (f"{kind}.rate", f"{kind}.lift_rate") for kind in ("pool", "plan", "group")}
"""The actions that set and lift the rates which services share. Those of regions are actions on their service."""
REBUILD = "service.rebuild"
SET_BUDGET = "budget.set"
RESET_BUDGET = "budget.reset"
PRIORITY = "job.priority"
CANCEL_JOB = "job.cancel"
RESUME_JOB = "job.resume"
RETRY_JOB = "job.retry"
RETRY_STEP = "job.retry_step"
DELETE_JOB = "job.delete"
CANCEL_TURN = "turn.cancel"
CANCEL_BATCH = "batch.cancel"
RESUME_BATCH = "batch.resume"
RETRY_BATCH = "batch.retry"
RETRY_ITEM = "batch.retry_item"
REQUEUE = "dead.requeue"
PURGE = "dead.purge"
DRAIN = "worker.drain"
UNDRAIN = "worker.undrain"
CREATE_KEY = "key.create"
REVOKE_KEY = "key.revoke"
CREATE_ENDPOINT = "webhook.create"
CHANGE_ENDPOINT = "webhook.change"
DELETE_ENDPOINT = "webhook.delete"
ROTATE_SECRET = "webhook.rotate"
REPLAY = "webhook.replay"
CREATE_SCHEDULE = "schedule.create"
CHANGE_SCHEDULE = "schedule.change"
DELETE_SCHEDULE = "schedule.delete"
PAUSE_SCHEDULE = "schedule.pause"
RESUME_SCHEDULE = "schedule.resume"
RUN_SCHEDULE = "schedule.run"
MAX_WHO = 255


@dataclass(frozen=True, slots=True)
class Act:
    """An operator's action and its target."""

    who: str
    action: str
    target: str
    details: Mapping[str, Any] = field(default_factory=dict)

    def on(self, job: Job) -> Act:
        """A copy of this act whose details include the job's owner, feature and current status."""
        fields = {"user_id": job.user_id, "feature_name": job.feature_name, "status": job.status.value}
        return replace(self, details={**self.details, **fields})


def act_of(who: str | None, action: str, target: str, **details: Any) -> Act | None:
    """Make the act to record for the operator `who`. Returns None if `who` is None: the actions of users on their own
    jobs are not recorded."""
    return None if who is None else Act(who, action, target, details)


class AuditLog:
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    async def write(self, act: Act | None, *transitions: Transition) -> list[Outcome]:
        """Commit an action together with its row in the log. If the store refuses the action, the row records the
        refusal."""
        group_commit = self._runtime.group_commit
        if act is None:
            return await group_commit.write_all(transitions)
        row = self._row(act, {"status": "done"})
        outcomes = await group_commit.write_all([*transitions, Audit(row)])
        for outcome in outcomes:
            if isinstance(outcome, Refused):
                await group_commit.write(AuditOutcome(row.id, {"status": "refused", "reason": outcome.reason}))
                break
        return outcomes[:-1]

    @asynccontextmanager
    async def many(self, act: Act | None) -> AsyncIterator[dict[str, Any]]:
        """Record an action that takes many commits. Whatever the block puts in the yielded mapping is stored as the
        outcome."""
        outcome: dict[str, Any] = {}
        if act is None:
            yield outcome
            return
        group_commit, row = self._runtime.group_commit, self._row(act, None)
        await group_commit.write(Audit(row))
        try:
            yield outcome
        except BaseException as error:
            # Not awaited: the store may be what failed, and the caller may be cancelled.
            group_commit.write_later(AuditOutcome(row.id, {"status": "failed", "reason": shown(error), **outcome}))
            raise
        await group_commit.write(AuditOutcome(row.id, {"status": "done", **outcome}))

    async def page(self, *, action: str | None, limit: int, cursor: str | None) -> Page[AuditRecord]:
        """A page of the audit log, newest first."""
        check_limit(limit)
        if "\0" in (action or ""):
            raise InvalidInput("a name must not contain the character NUL", pointer="/action")
        if cursor is not None:
            _check_cursor(cursor)
        rows = await self._runtime.store.audit(before=cursor, limit=limit + 1, action=action)
        return Page(rows[:limit], rows[limit - 1].id if len(rows) > limit else None)

    def _row(self, act: Act, outcome: Mapping[str, Any] | None) -> AuditRecord:
        if not isinstance(act.who, str) or not act.who or len(act.who) > MAX_WHO:
            raise InvalidInput(f"who must be the operator's name, of 1 to {MAX_WHO} characters", pointer="/who")
        now = self._runtime.clock.now()
        return AuditRecord(id_at(now), now, act.who, act.action, act.target, act.details, outcome)


def _check_cursor(cursor: str) -> None:
    try:
        if str(UUID(cursor)) == cursor:
            return
    except ValueError:
        pass
    raise InvalidInput("this cursor is not from this list; start without one", pointer="/cursor")
