"""Checks of the configuration and of access to the gateway (API keys, listening addresses, allowed origins); and
findings about a gateway that does not respond, or that refuses the key of the command line."""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Iterator, Sequence
from urllib.parse import urlsplit

from fairlead.domain.access import Role
from fairlead.observe.doctor.facts import TIMEOUTS_MINUTES, Facts
from fairlead.observe.doctor.finding import Finding, Kind, Severity, counted, sentence, shown

SHORT_LEASE = 3.0
"""Leases shorter than this many seconds are reported. A lease is renewed after a third of its length, and a slow round
trip may take a second."""
SLOW_PROMOTION = 86400.0
FAR_ABOVE, LONG_TIMEOUT = 20.0, 600.0
"""A timeout is too long if it exceeds both this multiple of the mean duration of calls and this many seconds."""
MANY_TIMEOUTS, SHARE_OF_TIMEOUTS = 3, 0.1
"""Timeouts are reported if there are at least this many, and they are at least this share of the calls."""
DEAD_WITHIN, MANY_DEAD = 600.0, 10
"""Dead letters are reported if there are at least this many (the second value) within this many seconds (the first)."""

CONFIG_INVALID = Kind("config-invalid", Severity.ERROR, "the configuration is wrong")
LEASE_SHORT = Kind("lease-ttl-short", Severity.WARNING, "leases are too short for their heartbeat")
DRAIN_SHORT = Kind("drain-timeout-short", Severity.NOTE, "the drain timeout is shorter than the calls")
TIMEOUT_LONG = Kind("timeout-far-above-calls", Severity.NOTE, "a timeout is far longer than the calls")
CALLS_TIME_OUT = Kind("calls-time-out", Severity.WARNING, "calls end by their timeout")
PROMOTION_SLOW = Kind("promotion-slow", Severity.NOTE, "promotion takes days")
PRIORITY_SILENT = Kind("priority-not-answered", Severity.WARNING, "the priority service does not answer")
DEAD_LETTERS = Kind("dead-letters-growing", Severity.WARNING, "many jobs failed recently")
NO_KEYS = Kind("no-keys", Severity.NOTE, "there are no API keys")
ONE_KEY = Kind("only-admin-keys", Severity.NOTE, "there are only admin keys")
PUBLIC = Kind("bound-publicly", Severity.NOTE, "the gateway listens on the network without TLS")
ANY_ORIGIN = Kind("any-origin", Severity.WARNING, "any web page may call the gateway")
UNREACHABLE = Kind("gateway-unreachable", Severity.ERROR, "the gateway does not respond")
REFUSED = Kind("gateway-refuses", Severity.ERROR, "the gateway refuses this key")


def check(facts: Facts) -> Iterator[Finding]:
    if facts.config_problems:
        yield invalid(facts.config_problems)
    yield from _leases(facts)
    yield from _durations(facts)
    yield from _timeouts(facts)
    slowest = max(facts.config.promotion.low_to_medium_after, facts.config.promotion.medium_to_high_after)
    if slowest > SLOW_PROMOTION:
        yield PROMOTION_SLOW.found(
            f"a low-priority job may wait {shown(slowest)} before it is promoted, if other jobs keep arriving",
            fix="lower promotion.low_to_medium_after and promotion.medium_to_high_after, and restart: "
            f"`fairlead {'manager' if facts.distributed else 'up'}`",
            low_to_medium_after=facts.config.promotion.low_to_medium_after,
            medium_to_high_after=facts.config.promotion.medium_to_high_after,
        )
    for who, reason in facts.priority_problems.items():
        yield PRIORITY_SILENT.found(
            f"{who}: {reason}. Until it answers again, jobs get medium priority",
            fix="fix it, or correct PRIORITY_API_URL ([priority] url): `fairlead config show` prints it; the next "
            "submitted job tries again",
            about=who,
            reason=reason,
        )
    yield from _dead(facts)


def invalid(problems: Sequence[str]) -> Finding:
    return CONFIG_INVALID.found(
        "; ".join(problems),
        fix="correct these problems and check again: `fairlead config check`",
        problems=list(problems),
    )


def _leases(facts: Facts) -> Iterator[Finding]:
    for name, rules in sorted(facts.rules.services.items()):
        if rules.lease_ttl < SHORT_LEASE:
            yield LEASE_SHORT.found(
                f"lease_ttl of {name} is {rules.lease_ttl:g} s, its heartbeat comes every {rules.lease_ttl / 3:.1g} s: "
                "a slow worker may be taken for dead, and its call is repeated",
                fix=f"set services.{name}.lease_ttl to 15 (it is at least {SHORT_LEASE:g}), and restart a gateway: "
                f"`fairlead {'api' if facts.distributed else 'up'}`",
                about=name,
                service=name,
                lease_ttl=rules.lease_ttl,
            )


def _durations(facts: Facts) -> Iterator[Finding]:
    """Find timeouts that do not fit the mean duration of calls: a drain timeout that is shorter, or a call timeout that
    is far longer."""
    means: dict[str, float] = {}
    for shard in facts.shards.values():
        for name, snapshot in shard.services.items():
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
                "are returned to the queue and repeated",
                fix=f"set worker.drain_timeout to {mean * 2:.0f}, {restart}",
                about=name,
                service=name,
                mean_duration=round(mean, 1),
                drain_timeout=patience,
            )
        held = service.timeout if service.hold is None else min(service.hold, service.timeout)
        if service.remote and held > LONG_TIMEOUT and held > FAR_ABOVE * mean:
            yield TIMEOUT_LONG.found(
                f"calls of {name} take {shown(mean)}, its timeout is {shown(service.timeout)}: if a worker dies, its "
                "slot is held that long, since the endpoint may still be computing",
                fix=f"set services.{name}.timeout to {max(mean * 5, 30):.0f}, {restart}",
                about=name,
                service=name,
                mean_duration=round(mean, 1),
                timeout=service.timeout,
            )


def _timeouts(facts: Facts) -> Iterator[Finding]:
    for name, (timeouts, calls) in sorted(facts.timeouts.items()):
        service = facts.config.services.get(name)
        if service is None or timeouts < MANY_TIMEOUTS or timeouts < SHARE_OF_TIMEOUTS * calls:
            continue
        yield CALLS_TIME_OUT.found(
            f"{timeouts} of {counted(calls, 'call')} of {name} in the last {TIMEOUTS_MINUTES} minutes took longer than "
            f"its timeout of {shown(service.timeout)}",
            fix=f"if its calls take that long, raise services.{name}.timeout and restart; if not, look "
            "at the endpoint: `fairlead dead list --error TIMEOUT` has its jobs",
            about=name,
            service=name,
            timeouts=timeouts,
            calls=calls,
            timeout=service.timeout,
        )


def _dead(facts: Facts) -> Iterator[Finding]:
    lately = [job for job in facts.failed_recently if facts.now - (job.finished_at or 0.0) <= DEAD_WITHIN]
    if len(lately) < MANY_DEAD:
        return
    codes = Counter(f"{job.service}: {(job.error or {}).get('code', 'unknown')}" for job in lately)
    most, _ = codes.most_common(1)[0]
    yield DEAD_LETTERS.found(
        f"{counted(len(lately), 'job')} failed within {shown(DEAD_WITHIN)}, most of them with {most}",
        fix="list them: `fairlead dead list`; fix the cause, then requeue them: `fairlead dead requeue --all --yes`, "
        "or delete them: `fairlead dead purge --all --yes`",
        failed=len(lately),
        within=DEAD_WITHIN,
        by_error=dict(codes.most_common(10)),
    )


def check_access(facts: Facts) -> Iterator[Finding]:
    if "*" in facts.config.server.allowed_origins:
        yield ANY_ORIGIN.found(
            'server.allowed_origins has "*"',
            fix="name the origins of your own pages, such as https://app.example.com, and restart the gateway: "
            f"`fairlead {'api' if facts.distributed else 'up'}`",
            allowed_origins=list(facts.config.server.allowed_origins),
        )
    live = [key for key in facts.keys or () if key.revoked_at is None]
    first = facts.settings.admin_key is not None
    public = [url for url in facts.listens_on if not is_loopback(urlsplit(url).hostname or "")]
    if public:
        yield PUBLIC.found(
            f"it listens on {', '.join(public)}: keys and jobs cross the network unencrypted",
            fix="put a TLS proxy in front of it and listen on loopback: `fairlead up --host 127.0.0.1`",
            severity=None if live or first else Severity.ERROR,
            listens_on=public,
        )
    if facts.keys is None:
        return
    if not live and not first:
        yield NO_KEYS.found(
            "FAIRLEAD_ADMIN_KEY is not set and the database has no key: local clients are admins, others are refused",
            fix="`fairlead keys create --role admin`, then a key with --role service or user for each client",
        )
    elif not any(key.role is not Role.ADMIN for key in live):
        yield ONE_KEY.found(
            "there is no key with the role service or user: every client that submits jobs may also purge them",
            fix="give each client its own key: `fairlead keys create --role service`, or --role user --user U",
            admin_keys=len([key for key in live if key.role is Role.ADMIN]) + first,
        )


def is_loopback(host: str) -> bool:
    if host in ("", "localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def unreachable(url: str, reason: str) -> Finding:
    return UNREACHABLE.found(
        f"{sentence(reason)} The findings below come from this machine, without queues and slots",
        fix="start it with `fairlead up` or `fairlead api`, or correct FAIRLEAD_URL",
        about=url,
        url=url,
        reason=reason,
    )


def refused(url: str, reason: str) -> Finding:
    return REFUSED.found(
        f"{sentence(reason)} The findings below come from this machine, without queues and slots",
        fix="set FAIRLEAD_API_KEY to an admin key; create one on the server: `fairlead keys create --role admin`",
        about=url,
        url=url,
        reason=reason,
    )
