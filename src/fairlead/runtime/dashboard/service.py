"""One service: who goes next and why, whose slots they are, its regions, and where its limit comes from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fairlead.dispatch.port import RegionSnapshot, ServiceSnapshot, UserLine
from fairlead.domain.job import Job
from fairlead.domain.limits import Order, Rules, ServiceRules
from fairlead.domain.order import SECOND, Place
from fairlead.runtime import regions
from fairlead.runtime.dashboard.history import Sum
from fairlead.runtime.dashboard.slots import known
from fairlead.store.port import DeclareServices

NEXT = 20
USERS = 100
BREAKERS = {regions.WORKING: "closed", regions.RESTING: "resting", regions.PROBING: "probing"}


@dataclass(frozen=True, slots=True)
class Standings:
    """Each user's line in one service, the one that is served first where it has several."""

    lines: Mapping[str, UserLine]
    waiting: Mapping[str, int]


def standings(snapshots: Sequence[ServiceSnapshot]) -> Standings:
    lines: dict[str, UserLine] = {}
    waiting: dict[str, int] = {}
    for line in sorted((line for each in snapshots for line in each.users), key=_turn):
        lines.setdefault(line.user_id, line)
        waiting[line.user_id] = waiting.get(line.user_id, 0) + line.waiting
    return Standings(lines, waiting)


def _turn(line: UserLine) -> tuple[bool, bool, int, bool, int, str]:
    """Whoever is at the limit per user is set aside until a call of theirs ends; who is new goes first, by arrival."""
    rank = line.arrival or line.tag
    return not line.waiting, line.parked, line.band, not line.arrival, rank, line.user_id


def first(stand: Standings) -> list[str]:
    """The users among whom those are who go next."""
    return [user_id for user_id in stand.lines if stand.waiting[user_id]][:NEXT]


def is_whole(next_ones: Sequence[Mapping[str, Any]]) -> bool:
    """The truth and the line were asked one after the other: what came or went between them may be missing."""
    return [each["rank"] for each in next_ones] == list(range(1, len(next_ones) + 1))


def next_ones(jobs: Sequence[Job], places: Mapping[str, Place], stand: Standings, order: Order) -> list[dict[str, Any]]:
    """In the order in which the line itself says they go."""
    in_line = sorted((job for job in jobs if job.id in places), key=lambda job: places[job.id].position)[:NEXT]
    return [_next(job, places[job.id], stand.lines.get(job.user_id), order) for job in in_line]


def _next(job: Job, place: Place, line: UserLine | None, order: Order) -> dict[str, Any]:
    fair = line if order is Order.FAIR else None
    return known(
        rank=place.position,
        job_id=job.id,
        user_id=job.user_id,
        feature_name=job.feature_name,
        band=job.priority.value,
        priority=job.original_priority.value,
        promoted=job.promoted_at is not None,
        virtual_time=None if fair is None else round(fair.tag / SECOND, 3),
        weight=None if fair is None else fair.weight,
        why=_why(job, place, fair),
    )


def _why(job: Job, place: Place, line: UserLine | None) -> str:
    said = []
    if line is None:
        said.append("in order of arrival")
    else:
        said.append(f"{job.priority.value} priority")
        if job.promoted_at is not None:
            said.append(f"promoted from {job.original_priority.value}")
        if place.newcomer:
            said.append("its user is new in line and goes before all who are not")
        else:
            said.append(f"its user's virtual time is {line.tag / SECOND:.1f} s")
        if place.ahead_own:
            said.append(f"after {place.ahead_own} of its user's own")
        if line.parked:
            said.append("its user is at the limit per user")
    if job.attempt:
        said.append("a retry goes before its user's other jobs")
    elif job.step:
        said.append(f"step {job.step + 1} of {len(job.steps)}: under way goes before new")
    return "; ".join(said)


# ---------------------------------------------------------------- shares


def users(stand: Standings, used: Sum) -> dict[str, Any]:
    """Who waits and who runs, and beside what they had of the slots' time in the last hour, what would be fair: by
    weight, among those who want it now."""
    weights = {user_id: line.weight for user_id, line in stand.lines.items() if stand.waiting[user_id] or line.running}
    total, spent = sum(weights.values()), sum(seconds for _, seconds in used.used.values())
    most = sorted(used.used, key=lambda user_id: -used.used[user_id][1])
    shown = list(dict.fromkeys([*weights, *most]))[:USERS]
    found = {}
    for user_id in shown:
        line = stand.lines.get(user_id)
        seconds = used.used.get(user_id, (0, 0.0))[1]
        found[user_id] = known(
            waiting=stand.waiting.get(user_id, 0),
            running=line.running if line is not None else 0,
            virtual_time=round(line.tag / SECOND, 3) if line is not None else None,
            weight=line.weight if line is not None else None,
            parked=line.parked if line is not None else False,
            used=round(seconds, 1),
            share=round(seconds / spent, 4) if spent else None,
            fair_share=round(weights[user_id] / total, 4) if user_id in weights else None,
        )
    return found


# ---------------------------------------------------------------- regions and limits


def region(seen: RegionSnapshot) -> dict[str, Any]:
    return known(
        limit=seen.limit,
        in_use=seen.in_use,
        waiting=seen.waiting,
        retrying=seen.retrying,
        breaker=BREAKERS[regions.state_of(seen)],
        resting_until=seen.resting_until,
        failures=seen.failures,
        latency=seen.latency if seen.latency is None else round(seen.latency, 3),
    )


def regions_of(rules: ServiceRules, snapshots: Sequence[ServiceSnapshot]) -> dict[str, Any]:
    seen = {each.region: each for snapshot in snapshots for each in snapshot.regions}
    return {name: region(seen[name]) if name in seen else known(limit=limit) for name, limit in rules.regions.items()}


def limit_of(name: str, rules: Rules, declared: DeclareServices) -> dict[str, Any]:
    """What holds, and whose word it is: the configuration's, an operator's, or its own."""
    service, override, adapted = rules.services[name], rules.overrides.get(name), rules.adapted.get(name)
    written = next((each.limit for each in declared.services if each.service == name), None)
    auto = None
    if service.auto is not None:
        changes = adapted.history if adapted is not None else ()
        auto = {
            "min": service.auto.min,
            "max": service.auto.max,
            "history": [{"at": change.at, "limit": change.limit, "why": change.why} for change in changes],
        }
    return known(
        effective=service.limit,
        configured=written,
        override=override.limit if override is not None else None,
        user_limit=service.user_limit,
        auto=auto,
    )
