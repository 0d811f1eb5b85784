"""Every service with its slots and its line, and how the whole is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fairlead.domain.job import Priority
from fairlead.domain.limits import Overridden, ServiceRules
from fairlead.domain.processes import ProcessRecord
from fairlead.runtime.dashboard import slots
from fairlead.runtime.dashboard.history import Past
from fairlead.runtime.dashboard.slots import Bearers, known
from fairlead.runtime.doctor.finding import Finding, Severity
from fairlead.runtime.status import Sight
from fairlead.store.board import Waiting
from fairlead.store.port import Facts


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What is known beside the line itself, each as of a little while ago."""

    past: Past
    waiting: Mapping[str, Waiting]


def services(sight: Sight, around: Surroundings, bearers: Bearers, kinds: Mapping[str, str]) -> dict[str, Any]:
    return {name: service(name, sight, around, bearers, kinds.get(name)) for name in sorted(sight.rules.services)}


def service(name: str, sight: Sight, around: Surroundings, bearers: Bearers, kind: str | None) -> dict[str, Any]:
    rules, snapshots, is_known = sight.rules.services[name], sight.snapshots.get(name, ()), sight.knows(name)
    waiting = around.waiting.get(name)
    lately = around.past.lately.get(name)
    shown = known(
        kind=kind or ("http" if rules.remote else "function"),
        limit=rules.limit,
        limit_source=source_of(rules, sight.rules.overrides.get(name)),
        paused=rules.paused,
        order=rules.order.value,
        pool=rules.pool,
        retrying=waiting.retrying if waiting is not None else 0,
        oldest_since=waiting.oldest_since if waiting is not None else None,
        wait_p50=lately.wait(0.5) if lately is not None else None,
        wait_p95=lately.wait(0.95) if lately is not None else None,
    )
    if not is_known:
        return shown
    return {
        **shown,
        "in_use": sum(each.in_use for each in snapshots),
        "held": sum(each.held for each in snapshots),
        "waiting": {band.value: sum(each.waiting.get(band.band, 0) for each in snapshots) for band in Priority},
        **slots.shown(snapshots, bearers),
    }


def source_of(rules: ServiceRules, override: Overridden | None) -> str:
    if override is not None and override.limit is not None:
        return "override"
    return "auto" if rules.auto is not None else "config"


def health(
    sight: Sight, processes: Sequence[ProcessRecord], now: float, facts: Facts, findings: Iterable[Finding] | None
) -> dict[str, Any]:
    alive = [record for record in processes if record.alive(now)]
    found = None if findings is None else list(findings)
    return known(
        leaders={shard: known(**leader) for shard, leader in sight.leaders.items()},
        workers=sum("worker" in record.roles for record in alive),
        managers=sum("manager" in record.roles for record in alive),
        gateways=sum("api" in record.roles for record in alive),
        outbox_rows=facts["outbox_rows"],
        outbox_age=round(float(facts["outbox_age"])),
        rebuilding=sorted(scope for scope, state in sight.states.items() if not state.open),
        unknown=sight.unknown,
        findings=None if found is None else {_key(each): _finding(each) for each in found},
        well=None if found is None else all(each.severity is Severity.NOTE for each in found),
    )


def _key(finding: Finding) -> str:
    return f"{finding.code} {finding.about}".rstrip()


def _finding(finding: Finding) -> dict[str, Any]:
    return known(
        code=finding.code,
        level=finding.severity.value,
        title=finding.title,
        about=finding.about or None,
        text=finding.cause,
        fix=finding.fix,
    )
