"""Checks of schedules: recurring jobs that cannot be submitted, because no service or pipeline has their feature."""

from __future__ import annotations

from collections.abc import Iterator

from fairlead.domain.schedules import LATE_AFTER
from fairlead.observe.doctor.facts import Facts
from fairlead.observe.doctor.finding import Finding, Kind, Severity, shown

UNKNOWN = Kind("schedule-unknown-feature", Severity.WARNING, "a schedule submits nothing: its feature is unknown")


def check(facts: Facts) -> Iterator[Finding]:
    for schedule in facts.schedules:
        feature, next_at = schedule.job["feature_name"], schedule.next_at
        if facts.config.steps_of(feature) is not None or feature in facts.rules.services:
            continue
        late = 0.0 if next_at is None or schedule.paused_at is not None else max(0.0, facts.now - next_at)
        if facts.outside and late <= LATE_AFTER:
            continue  # the managers may know features that this process does not
        waits = f", which has waited for {shown(late)}" if late > 0 else ""
        yield UNKNOWN.found(
            f"the schedule {schedule.id} submits {feature!r}{waits}; no pipeline or service is called that",
            fix=f"add the feature, or stop the schedule: `fairlead schedules pause {schedule.id}` or "
            f"`fairlead schedules delete {schedule.id}`",
            about=schedule.id,
            feature_name=feature,
            user_id=schedule.user_id,
            late=round(late),
        )
