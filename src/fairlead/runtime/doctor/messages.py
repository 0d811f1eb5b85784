"""Events between processes: does what one says reach the others?"""

from __future__ import annotations

from collections.abc import Iterator

from fairlead.runtime.doctor.facts import Facts
from fairlead.runtime.doctor.finding import Finding, Kind, Severity

EVENTS_LOST = Kind("events-not-arriving", Severity.ERROR, "live updates do not arrive", passing=True)


def check(facts: Facts) -> Iterator[Finding]:
    if facts.echo is None or facts.echo.problem is None:
        return
    yield EVENTS_LOST.found(
        f"a message that this gateway sent to itself by way of Redis was not heard: {facts.echo.problem}",
        fix="let the user of REDIS_URL publish and subscribe: `redis-cli ACL SETUSER NAME allchannels +@pubsub`; if it "
        "may, see that nothing between the gateway and Redis cuts long connections",
        reason=facts.echo.problem,
    )
