"""What is configured, and is allowed, but will not go well."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from fairlead.runtime.doctor.facts import Facts
from fairlead.runtime.doctor.finding import Finding, Kind, Severity, counted, shown

SHORT_LEASE = 3.0
"""Seconds: the heartbeat comes every third of it, and a slow round trip or a busy machine can take a second."""
SLOW_PROMOTION = 86400.0
FAR_ABOVE, LONG_TIMEOUT = 20.0, 600.0
"""A timeout of so many times what calls take, and so many seconds, is far above them."""
DEAD_WITHIN, MANY_DEAD = 600.0, 10
"""So many dead letters within so many seconds are no accident."""

CONFIG_INVALID = Kind("config-invalid", Severity.ERROR, "the configuration is wrong")
LEASE_SHORT = Kind("lease-ttl-short", Severity.WARNING, "leases are too short for their heartbeat")
DRAIN_SHORT = Kind("drain-timeout-short", Severity.NOTE, "a stopping worker does not wait for its calls")
TIMEOUT_LONG = Kind("timeout-far-above-calls", Severity.NOTE, "a call whose worker dies keeps its slot for very long")
PROMOTION_SLOW = Kind("promotion-slow", Severity.NOTE, "low-priority jobs are promoted after days only")
PRIORITY_SILENT = Kind("priority-not-answered", Severity.WARNING, "nobody says who goes first: jobs get medium")
DEAD_LETTERS = Kind("dead-letters-growing", Severity.WARNING, "many jobs have failed for good lately")


def check(facts: Facts) -> Iterator[Finding]:
    if facts.config_problems:
        yield invalid(facts.config_problems)
    yield from _leases(facts)
    yield from _durations(facts)
    slowest = max(facts.config.promotion.low_to_medium_after, facts.config.promotion.medium_to_high_after)
    if slowest > SLOW_PROMOTION:
        yield PROMOTION_SLOW.found(
            f"a job of low priority may wait {shown(slowest)} before it moves up, if others keep coming",
            fix="lower promotion.low_to_medium_after and promotion.medium_to_high_after, and restart: "
            f"`fairlead {'manager' if facts.distributed else 'up'}`",
            low_to_medium_after=facts.config.promotion.low_to_medium_after,
            medium_to_high_after=facts.config.promotion.medium_to_high_after,
        )
    for who, reason in facts.priority_problems.items():
        yield PRIORITY_SILENT.found(
            f"{who}: {reason}. Whoever pays to go first does not, until it answers again",
            fix="mend it, or correct PRIORITY_API_URL ([priority] url): `fairlead config show` has it; the next job "
            "that is submitted asks again",
            about=who,
            reason=reason,
        )
    yield from _dead(facts)


def invalid(problems: Sequence[str]) -> Finding:
    return CONFIG_INVALID.found(
        "; ".join(problems),
        fix="correct what it says, and look again: `fairlead config check`",
        problems=list(problems),
    )


def _leases(facts: Facts) -> Iterator[Finding]:
    for name, rules in sorted(facts.rules.services.items()):
        if rules.lease_ttl < SHORT_LEASE:
            yield LEASE_SHORT.found(
                f"lease_ttl of {name} is {rules.lease_ttl:g} s, its heartbeat comes every {rules.lease_ttl / 3:.1g} s: "
                "a worker that is only slow is taken for dead, and its call is made twice",
                fix=f"set services.{name}.lease_ttl to 15 (it is at least {SHORT_LEASE:g}), and restart a gateway: "
                f"`fairlead {'api' if facts.distributed else 'up'}`",
                about=name,
                service=name,
                lease_ttl=rules.lease_ttl,
            )


def _durations(facts: Facts) -> Iterator[Finding]:
    """Compared with what calls really take."""
    means: dict[str, float] = {}
    for line in facts.lines.values():
        for name, snapshot in line.snapshots.items():
            if snapshot.mean_duration is not None:
                means[name] = max(snapshot.mean_duration, means.get(name, 0.0))
    patience = facts.config.worker.drain_timeout
    for name, mean in sorted(means.items()):
        service = facts.config.services.get(name)
        if service is None:
            continue
        restart = f"and restart: `fairlead {'worker' if facts.distributed else 'up'}`"
        if mean > patience:
            yield DRAIN_SHORT.found(
                f"calls of {name} take {shown(mean)}, and a worker that stops waits {shown(patience)} for them: most "
                "are handed back and made again",
                fix=f"set worker.drain_timeout to {mean * 2:.0f}, {restart}",
                about=name,
                service=name,
                mean_duration=round(mean, 1),
                drain_timeout=patience,
            )
        if service.remote and service.timeout > LONG_TIMEOUT and service.timeout > FAR_ABOVE * mean:
            yield TIMEOUT_LONG.found(
                f"calls of {name} take {shown(mean)}, its timeout is {shown(service.timeout)}: so long is a slot held "
                "after a worker died, for the endpoint may still be computing",
                fix=f"set services.{name}.timeout to {max(mean * 5, 30):.0f}, {restart}",
                about=name,
                service=name,
                mean_duration=round(mean, 1),
                timeout=service.timeout,
            )


def _dead(facts: Facts) -> Iterator[Finding]:
    lately = [job for job in facts.died_lately if facts.now - (job.finished_at or 0.0) <= DEAD_WITHIN]
    if len(lately) < MANY_DEAD:
        return
    codes = Counter(f"{job.service}: {(job.error or {}).get('code', 'unknown')}" for job in lately)
    most, _ = codes.most_common(1)[0]
    yield DEAD_LETTERS.found(
        f"{counted(len(lately), 'job')} failed within {shown(DEAD_WITHIN)}, most of them with {most}",
        fix="see why: `fairlead dead list`; mend it, then put them back: `fairlead dead requeue --all --yes`, or let "
        "them go: `fairlead dead purge --all --yes`",
        failed=len(lately),
        within=DEAD_WITHIN,
        by_error=dict(codes.most_common(10)),
    )
