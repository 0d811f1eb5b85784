"""What time alone must do: does a manager lead, and does it get its work done?"""

from __future__ import annotations

from collections.abc import Iterator

from fairlead.domain.job import JobStatus
from fairlead.runtime.doctor.facts import MANAGER, Facts, LineFacts
from fairlead.runtime.doctor.finding import Finding, Kind, Severity, counted, shown

LATE = 10.0
"""Seconds that a due job, a promotion or an outbox row may be overdue: a new leader takes as long to be elected."""

NO_MANAGER = Kind("no-manager", Severity.ERROR, "no manager runs")
NOT_LEADING = Kind("manager-not-leading", Severity.ERROR, "managers run, and none of them leads", passing=True)
PROMOTION_LATE = Kind("promotion-late", Severity.ERROR, "jobs are not promoted when their time has come", passing=True)
TIMERS_LATE = Kind("timers-late", Severity.ERROR, "due jobs and retries are not released", passing=True)
OUTBOX_LATE = Kind("outbox-late", Severity.ERROR, "accepted jobs do not reach the line", passing=True)
REBUILDING = Kind("rebuilding", Severity.WARNING, "a line is closed until it is rebuilt", passing=True)
ANOTHER_REDIS = Kind("another-redis", Severity.ERROR, "processes use different Redis servers", passing=True)


def check(facts: Facts) -> Iterator[Finding]:
    if not facts.truth_is_known:
        return
    managers = [process.name for process in facts.having(MANAGER)]
    if not managers:
        yield _no_manager(facts)
    for shard, line in facts.lines.items():
        if line.problem is None:
            if managers and not line.in_memory and line.leader is None:
                yield _not_leading(shard, managers)
            yield from _scopes(facts, shard, line)
    yield from _late(facts)


def _start(facts: Facts) -> str:
    return facts.starts(MANAGER if facts.distributed else "up")


def _no_manager(facts: Facts) -> Finding:
    silent = [each.name for each in facts.processes if MANAGER in each.roles and not each.alive(facts.now)]
    return NO_MANAGER.found(
        "nothing is promoted, released, retried, recovered or rebuilt"
        + (f"; {', '.join(silent)} fell silent" if silent else ""),
        fix=f"start one: {_start(facts)}",
        silent=silent,
        open_jobs={status.value: count for status, count in facts.jobs.items() if count and not status.finished},
    )


def _not_leading(shard: str, managers: list[str]) -> Finding:
    return NOT_LEADING.found(
        f"none of {', '.join(managers)} holds the lease of the leader on this Redis ({shard}): they do not reach it, "
        "or have another REDIS_URL",
        fix="give all processes the same REDIS_URL, and start one here: `fairlead manager`",
        about=shard,
        shard=shard,
        managers=managers,
    )


def _scopes(facts: Facts, shard: str, line: LineFacts) -> Iterator[Finding]:
    """A scope stands if it is open, and is what the truth built last, on the server that the truth names."""
    elsewhere, closed = [], []
    for scope, state in line.states.items():
        epoch = facts.epochs.get(scope)
        if epoch is not None and epoch.server and state.server and epoch.server != state.server:
            elsewhere.append(scope)
        elif not state.open or epoch is None or state.epoch != epoch.number:
            closed.append(scope)
    if elsewhere:
        yield ANOTHER_REDIS.found(
            f"the line of {', '.join(sorted(elsewhere))} was built on another server than the one that this process "
            "reaches, so nothing is granted here; a manager with another REDIS_URL built it, or none has rebuilt it "
            "since this Redis took over",
            fix="give all processes the same REDIS_URL, and see that one of them leads here: `fairlead manager`",
            about=shard,
            shard=shard,
            scopes=sorted(elsewhere),
            built_on={scope: facts.epochs[scope].server for scope in sorted(elsewhere)},
            here=sorted({line.states[scope].server for scope in elsewhere}),
            leader=line.leader,
        )
    if closed:
        yield REBUILDING.found(
            f"nothing is granted from {', '.join(sorted(closed))}: " + _why_closed(facts, line),
            fix=f"wait while the leader builds it; if none leads, start one: {_start(facts)}",
            about=shard,
            shard=shard,
            scopes=sorted(closed),
            leader=line.leader,
            waiting=facts.jobs.get(JobStatus.PENDING, 0),
        )


def _why_closed(facts: Facts, line: LineFacts) -> str:
    if line.in_memory:
        return "this process builds it from the database"
    return f"{line.leader} builds it from the database" if line.leader else "nobody leads who would build it"


def _late(facts: Facts) -> Iterator[Finding]:
    promotion, timer = facts.next_promotion, facts.next_timer
    again = f"start a manager, or restart the one that leads: {_start(facts)}"
    if promotion is not None and facts.now - promotion > LATE:
        yield PROMOTION_LATE.found(
            f"the first was due {shown(facts.now - promotion)} ago: no manager does it, or it has longer times in its "
            "[promotion] than this gateway",
            fix=again,
            overdue=round(facts.now - promotion, 1),
            low_to_medium_after=facts.config.promotion.low_to_medium_after,
            medium_to_high_after=facts.config.promotion.medium_to_high_after,
        )
    if timer is not None and facts.now - timer > LATE:
        yield TIMERS_LATE.found(
            f"the first was due {shown(facts.now - timer)} ago: no manager does it",
            fix=again,
            overdue=round(facts.now - timer, 1),
            scheduled=facts.jobs.get(JobStatus.SCHEDULED, 0),
            retrying=facts.jobs.get(JobStatus.RETRYING, 0),
        )
    age, rows = float(facts.store.get("outbox_age", 0.0)), int(facts.store.get("outbox_rows", 0))
    if age > LATE:
        away = [shard for shard, redis in facts.redis.items() if redis.problem is not None]
        cause = f"Redis is away ({', '.join(away)})" if away else "no manager relays them"
        yield OUTBOX_LATE.found(
            f"{counted(rows, 'change')} did not reach the dispatcher, the oldest since {shown(age)}: {cause}",
            fix=f"bring Redis back: {_redis(facts, away)}" if away else again,
            rows=rows,
            age=round(age, 1),
            redis_away=away,
        )


def _redis(facts: Facts, shards: list[str]) -> str:
    return ", ".join(facts.redis[shard].shown for shard in shards)
