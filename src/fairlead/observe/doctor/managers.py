"""Checks of managers: whether each shard has a leader, and whether timers, promotions and the outbox are on time."""

from __future__ import annotations

from collections.abc import Iterator

from fairlead.domain.job import JobStatus
from fairlead.observe.doctor.facts import MANAGER, Facts
from fairlead.observe.doctor.finding import Finding, Kind, Severity, counted, shown
from fairlead.observe.snapshot import ShardSnapshot

LATE = 10.0
"""Seconds that a due job, a promotion or an outbox row may be overdue. An election takes about that long."""

NO_MANAGER = Kind("no-manager", Severity.ERROR, "no manager is running")
NOT_LEADING = Kind("manager-not-leading", Severity.ERROR, "managers are running, but none leads", passing=True)
CUT_OFF = Kind("manager-cut-off", Severity.WARNING, "a manager cannot reach the database", passing=True)
PROMOTION_LATE = Kind("promotion-late", Severity.ERROR, "promotions are overdue", passing=True)
TIMERS_LATE = Kind("timers-late", Severity.ERROR, "due jobs and retries are not queued", passing=True)
OUTBOX_LATE = Kind("outbox-late", Severity.ERROR, "accepted jobs do not reach the queue", passing=True)
REBUILDING = Kind("rebuilding", Severity.WARNING, "a queue is closed until it is rebuilt", passing=True)
ANOTHER_REDIS = Kind("another-redis", Severity.ERROR, "processes use different Redis servers", passing=True)


def check(facts: Facts) -> Iterator[Finding]:
    if not facts.database_is_known:
        return
    managers = [process.name for process in facts.having(MANAGER)]
    if not managers:
        yield _no_manager(facts)
    for name, shard in facts.shards.items():
        if shard.problem is None:
            if managers and not shard.in_memory and shard.leader is None:
                yield _not_leading(name, managers)
            yield from _scopes(facts, name, shard)
    yield from _cut_off(facts)
    yield from _late(facts)


def _cut_off(facts: Facts) -> Iterator[Finding]:
    leaders = {shard.leader for shard in facts.shards.values()}
    for process in facts.processes:
        if process.name in facts.cut_off and MANAGER in process.roles:
            leads = process.name in leaders
            so = ": it still leads, so no job is promoted, scheduled or recovered" if leads else "; it leads no shard"
            yield CUT_OFF.found(
                f"{process.name} answers through Redis but has not reached the database for "
                f"{shown(facts.now - process.seen_at)}{so}",
                fix=f"check that {process.host} can reach DATABASE_URL; meanwhile start another: " + _start(facts),
                about=process.name,
                severity=Severity.ERROR if leads else None,
                host=process.host,
                pid=process.pid,
                silent=round(facts.now - process.seen_at, 1),
                leads=leads,
            )


def _start(facts: Facts) -> str:
    return facts.starts(MANAGER if facts.distributed else "up")


def _no_manager(facts: Facts) -> Finding:
    silent = [each.name for each in facts.processes if MANAGER in each.roles and not each.alive(facts.now)]
    return NO_MANAGER.found(
        "no job is promoted, scheduled, retried or recovered, and no queue is rebuilt"
        + (f"; {', '.join(silent)} stopped announcing themselves" if silent else ""),
        fix=f"start one: {_start(facts)}",
        silent=silent,
        open_jobs={status.value: count for status, count in facts.jobs.items() if count and not status.finished},
    )


def _not_leading(shard: str, managers: list[str]) -> Finding:
    return NOT_LEADING.found(
        f"none of {', '.join(managers)} is the leader on this Redis ({shard}): they cannot reach it, "
        "or have a different REDIS_URL",
        fix="give all processes the same REDIS_URL and start a manager here: `fairlead manager`",
        about=shard,
        shard=shard,
        managers=managers,
    )


def _scopes(facts: Facts, name: str, shard: ShardSnapshot) -> Iterator[Finding]:
    """Find scopes from which no slot can be granted. Slots can be granted if the scope is open and its epoch and server
    match the database."""
    elsewhere, closed = [], []
    for scope, state in shard.states.items():
        epoch = facts.epochs.get(scope)
        if epoch is not None and epoch.server and state.server and epoch.server != state.server:
            elsewhere.append(scope)
        elif not state.open or epoch is None or state.epoch != epoch.number:
            closed.append(scope)
    if elsewhere:
        yield ANOTHER_REDIS.found(
            f"the queue of {', '.join(sorted(elsewhere))} was built on a different server than the one this process "
            "uses, so no job starts here; a manager with a different REDIS_URL built it, or no manager has rebuilt "
            "it since a fail-over",
            fix="give all processes the same REDIS_URL and run a manager here: `fairlead manager`",
            about=name,
            shard=name,
            scopes=sorted(elsewhere),
            built_on={scope: facts.epochs[scope].server for scope in sorted(elsewhere)},
            here=sorted({shard.states[scope].server for scope in elsewhere}),
            leader=shard.leader,
        )
    if closed:
        yield REBUILDING.found(
            f"no job starts from {', '.join(sorted(closed))}: " + _why_closed(shard),
            fix=f"wait for the leader; if there is none, start a manager: {_start(facts)}",
            about=name,
            shard=name,
            scopes=sorted(closed),
            leader=shard.leader,
            waiting=facts.jobs.get(JobStatus.PENDING, 0),
        )


def _why_closed(shard: ShardSnapshot) -> str:
    if shard.in_memory:
        return "this process is rebuilding it from the database"
    return f"{shard.leader} is rebuilding it from the database" if shard.leader else "there is no leader to rebuild it"


def _late(facts: Facts) -> Iterator[Finding]:
    promotion, timer = facts.next_promotion, facts.next_timer
    again = f"start a manager, or restart the leader: {_start(facts)}"
    if promotion is not None and facts.now - promotion > LATE:
        yield PROMOTION_LATE.found(
            f"the first was due {shown(facts.now - promotion)} ago: no manager is working, or its "
            "[promotion] times are longer than this gateway's",
            fix=again,
            overdue=round(facts.now - promotion, 1),
            low_to_medium_after=facts.config.promotion.low_to_medium_after,
            medium_to_high_after=facts.config.promotion.medium_to_high_after,
        )
    if timer is not None and facts.now - timer > LATE:
        yield TIMERS_LATE.found(
            f"the first was due {shown(facts.now - timer)} ago: no manager handles timers",
            fix=again,
            overdue=round(facts.now - timer, 1),
            scheduled=facts.jobs.get(JobStatus.SCHEDULED, 0),
            retrying=facts.jobs.get(JobStatus.RETRYING, 0),
        )
    age, rows = float(facts.store.get("outbox_age", 0.0)), int(facts.store.get("outbox_rows", 0))
    if age > LATE:
        away = [shard for shard, redis in facts.redis.items() if redis.problem is not None]
        cause = f"Redis is down ({', '.join(away)})" if away else "no manager relays them"
        yield OUTBOX_LATE.found(
            f"{counted(rows, 'change')} did not reach the dispatcher, the oldest for {shown(age)}: {cause}",
            fix=f"start Redis: {_redis(facts, away)}" if away else again,
            rows=rows,
            age=round(age, 1),
            redis_away=away,
        )


def _redis(facts: Facts, shards: list[str]) -> str:
    return ", ".join(facts.redis[shard].shown for shard in shards)
