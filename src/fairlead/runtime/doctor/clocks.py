"""Clocks: stored times are the database's, leases are the dispatcher's; a machine whose own clock is off shows wrong
times, and waits too long or too short for what it has stored itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fairlead.runtime.doctor.facts import Facts
from fairlead.runtime.doctor.finding import Finding, Kind, Severity, shown

FAR = 5.0
"""Seconds by which two clocks may differ: more than an announcement takes on its way."""

SKEW = Kind("clock-skew", Severity.WARNING, "clocks differ")


def check(facts: Facts) -> Iterator[Finding]:
    for process in facts.alive:
        if abs(process.skew) > FAR:
            yield _found(f"{process.name} on {process.host}", process.host, process.skew, process=process.name)
    for shard, redis in facts.redis.items():
        for node in redis.nodes:
            # Both were compared with the clock of this process, whichever that is.
            skew = (node.clock - node.asked_at) - _ours_to_the_database(facts)
            if abs(skew) > FAR:
                yield _found(f"the Redis of {shard}", redis.shown, skew, shard=shard)


def _ours_to_the_database(facts: Facts) -> float:
    """What must be added to this process's clock to have the database's."""
    asked_at = facts.store.get("asked_at")
    return 0.0 if asked_at is None else facts.now - float(asked_at)


def _found(who: str, host: str, skew: float, **evidence: Any) -> Finding:
    way = "ahead of" if skew > 0 else "behind"
    return SKEW.found(
        f"the clock of {who} is {shown(abs(skew))} {way} the database's",
        fix=f"set the clock on {host}, and keep it set: `timedatectl set-ntp true`",
        about=who,
        skew=round(skew, 3),
        **evidence,
    )
