"""The page of one service: the next jobs and why they are next, each user's part of the slot time, the regions, and
where the limit comes from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fairlead.dispatch.port import RegionSnapshot, ServiceSnapshot, UserQueue
from fairlead.domain.fair_share import SECOND, QueuePosition
from fairlead.domain.groups import GroupRules, fair_shares
from fairlead.domain.job import Job
from fairlead.domain.rates import RateOf
from fairlead.domain.rules import Order, Rules
from fairlead.observe import status
from fairlead.observe.dashboard.history import Sum
from fairlead.observe.dashboard.overview import known, rate_of
from fairlead.store.port import DeclareServices

NEXT = 20
USERS = 100
BREAKERS = {status.WORKING: "closed", status.RESTING: "resting", status.PROBING: "probing"}


@dataclass(frozen=True, slots=True)
class UserQueues:
    """The queues of users in one service. `first` has one queue for each user: if a user has queues in several bands or
    shards, the one that is served first. `waiting` has the number of waiting jobs of each user."""

    first: Mapping[str, UserQueue]
    waiting: Mapping[str, int]


def user_queues(snapshots: Sequence[ServiceSnapshot]) -> UserQueues:
    queues: dict[str, UserQueue] = {}
    waiting: dict[str, int] = {}
    for queue in sorted((queue for each in snapshots for queue in each.users), key=_turn):
        queues.setdefault(queue.user_id, queue)
        waiting[queue.user_id] = waiting.get(queue.user_id, 0) + queue.waiting
    return UserQueues(queues, waiting)


def _turn(queue: UserQueue) -> tuple[bool, bool, int, bool, int, str]:
    """The sort key of a user's queue: the queue that is served first has the lowest key. Empty queues come last, and
    queues of parked users just before them; within a band, newcomers come first, in order of arrival."""
    rank = queue.arrival or queue.tag
    return not queue.waiting, queue.parked, queue.band, not queue.arrival, rank, queue.user_id


def first(queues: UserQueues) -> list[str]:
    """The users who may have one of the next jobs, in the order in which they are served."""
    return [user_id for user_id in queues.first if queues.waiting[user_id]][:NEXT]


def is_whole(next_ones: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the ranks in this list of next jobs are 1, 2, 3 and so on without a gap. The database and the dispatcher
    are read one after the other, so a job that moves in between leaves a gap."""
    return [each["rank"] for each in next_ones] == list(range(1, len(next_ones) + 1))


def next_ones(
    jobs: Sequence[Job], positions: Mapping[str, QueuePosition], queues: UserQueues, order: Order
) -> list[dict[str, Any]]:
    """The next jobs, in the dispatcher's order, each with its rank and the reason for it."""
    queued = sorted((job for job in jobs if job.id in positions), key=lambda job: positions[job.id].position)[:NEXT]
    return [_next(job, positions[job.id], queues.first.get(job.user_id), order) for job in queued]


def _next(job: Job, position: QueuePosition, queue: UserQueue | None, order: Order) -> dict[str, Any]:
    fair = queue if order is Order.FAIR else None
    return known(
        rank=position.position,
        job_id=job.id,
        user_id=job.user_id,
        feature_name=job.feature_name,
        band=job.priority.value,
        priority=job.original_priority.value,
        promoted=job.promoted_at is not None,
        virtual_time=None if fair is None else round(fair.tag / SECOND, 3),
        weight=None if fair is None else fair.weight,
        why=_why(job, position, fair),
    )


def _why(job: Job, position: QueuePosition, queue: UserQueue | None) -> str:
    parts = []
    if queue is None:
        parts.append("in order of arrival")
    else:
        parts.append(f"{job.priority.value} priority")
        if job.promoted_at is not None:
            parts.append(f"promoted from {job.original_priority.value}")
        if position.newcomer:
            parts.append("its user is new in the queue and goes before users that are not")
        else:
            within = f" in {queue.group}" if queue.group is not None else ""
            parts.append(f"its user's virtual time{within} is {queue.tag / SECOND:.1f} s")
            parts += [f"{group.path} has used {group.debt:.1f} s more" for group in position.groups if group.debt]
        if position.ahead_own:
            parts.append(f"after {position.ahead_own} of its user's own")
        if queue.parked:
            parts.append("its user is at the limit per user")
    if job.attempt:
        parts.append("a retry goes before its user's other jobs")
    elif job.step:
        parts.append(f"step {job.step + 1} of {len(job.steps)}: started jobs go before new ones")
    return "; ".join(parts)


# ---------------------------------------------------------------- shares


def users(queues: UserQueues, used: Sum, groups: Mapping[str, GroupRules]) -> dict[str, Any]:
    """Each user's waiting and running jobs, with two fractions: the part of the slot time that the user used in the
    last hour (`share`), and the part that the weights of the user and of its `groups` allow among the users that are
    active now (`fair_share`)."""
    weights = {
        user_id: queue.weight for user_id, queue in queues.first.items() if queues.waiting[user_id] or queue.running
    }
    shares = fair_shares(weights, {user_id: queues.first[user_id].group for user_id in weights}, groups)
    spent = sum(seconds for _, seconds in used.used.values())
    most = sorted(used.used, key=lambda user_id: -used.used[user_id][1])
    shown = list(dict.fromkeys([*weights, *most]))[:USERS]
    found = {}
    for user_id in shown:
        queue = queues.first.get(user_id)
        seconds = used.used.get(user_id, (0, 0.0))[1]
        found[user_id] = known(
            waiting=queues.waiting.get(user_id, 0),
            running=queue.running if queue is not None else 0,
            virtual_time=round(queue.tag / SECOND, 3) if queue is not None else None,
            weight=queue.weight if queue is not None else None,
            parked=queue.parked if queue is not None else False,
            group=queue.group if queue is not None else None,
            used=round(seconds, 1),
            share=round(seconds / spent, 4) if spent else None,
            fair_share=round(shares[user_id], 4) if user_id in weights else None,
        )
    return found


# ---------------------------------------------------------------- regions and limits


def region(seen: RegionSnapshot) -> dict[str, Any]:
    return known(
        limit=seen.limit,
        in_use=seen.in_use,
        waiting=seen.waiting,
        retrying=seen.retrying,
        breaker=BREAKERS[status.state_of(seen)],
        resting_until=seen.resting_until,
        failures=seen.failures,
        latency=seen.latency if seen.latency is None else round(seen.latency, 3),
    )


def regions_of(name: str, all_rules: Rules, snapshots: Sequence[ServiceSnapshot]) -> dict[str, Any]:
    rules = all_rules.services[name]
    seen = {each.region: each for snapshot in snapshots for each in snapshot.regions}
    return {
        each: {
            **(region(seen[each]) if each in seen else known(limit=limit)),
            **rate_of(RateOf("region", name, each), all_rules),
        }
        for each, limit in rules.regions.items()
    }


def limit_of(name: str, rules: Rules, declared: DeclareServices) -> dict[str, Any]:
    """The limit in force, and the values that it can come from: the configuration, an operator's override, and
    automatic adjustment."""
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
        rate=None if service.rate is None else known(**asdict(service.rate)),
        user_rate=None if service.user_rate is None else known(**asdict(service.user_rate)),
        rate_overridden=any(RateOf(kind, name) in rules.rate_overrides for kind in ("service", "user")) or None,
    )
