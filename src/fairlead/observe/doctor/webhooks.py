"""Checks of webhooks: endpoints that are disabled, or whose requests all fail."""

from __future__ import annotations

from collections.abc import Iterator

from fairlead.observe.doctor.facts import Facts
from fairlead.observe.doctor.finding import Finding, Kind, Severity, shown

FAILING_FOR = 3600.0
"""Seconds for which all requests to an endpoint may fail."""

DISABLED = Kind("webhook-disabled", Severity.WARNING, "an endpoint of webhooks is disabled")
FAILING = Kind("webhook-failing", Severity.WARNING, "an endpoint of webhooks does not accept requests")


def check(facts: Facts) -> Iterator[Finding]:
    for endpoint in facts.endpoints:
        since = endpoint.failing_since
        if endpoint.disabled_at is not None:
            yield DISABLED.found(
                f"{endpoint.id} receives nothing since {shown(facts.now - endpoint.disabled_at)} ago: "
                f"{endpoint.disabled_reason}",
                fix=f"fix the receiver, then `fairlead webhooks enable {endpoint.id}`; or delete it: "
                f"`fairlead webhooks delete {endpoint.id}`",
                about=endpoint.id,
                reason=endpoint.disabled_reason,
                url=endpoint.url,
                user_id=endpoint.user_id,
            )
        elif since is not None and facts.now - since >= FAILING_FOR:
            yield FAILING.found(
                f"every request to {endpoint.id} has failed for {shown(facts.now - since)}",
                fix=f"see the responses: `fairlead webhooks deliveries --endpoint {endpoint.id}`",
                about=endpoint.id,
                failing_for=round(facts.now - since),
                url=endpoint.url,
                user_id=endpoint.user_id,
            )
