"""Computes queue positions in a band with groups, in one pass over its users.

Within each group the steps ahead are counted as in a band without groups. The result is the number of grants that the
group gets first, and so the virtual time at which the group is granted the step, among the groups and users beside it.
A group counts there like a user whose steps each take the mean time of the steps of its members.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from fairlead.dispatch.memory.groups import MARK, GroupedBand, Groups
from fairlead.dispatch.memory.service import Service
from fairlead.dispatch.memory.tally import Ahead, Mark, Tally, Waiting
from fairlead.domain.fair_share import SECOND, charge, micros
from fairlead.domain.groups import GroupAhead


def ahead_in_groups(
    service: Service, band: GroupedBand, marks: Iterable[Mark], waiting: Iterable[Waiting], now: float
) -> Iterator[Ahead]:
    """What is ahead of each mark. The marks are steps of users, `waiting` are all users of the lanes that compete."""
    groups = service.groups
    assert groups is not None
    levels: dict[str | None, list[Waiting]] = {}
    for each in waiting:
        levels.setdefault(groups.parents.get(each[0]), []).append(each)
    own = {}
    marked: dict[str | None, list[Mark]] = {}
    for mark in marks:
        own[mark.job_id] = mark
        marked.setdefault(groups.parents.get(mark.user_id), []).append(mark)
    within: dict[str, list[tuple[str, int]]] = {job_id: [] for job_id in own}
    running = _running(service, now)
    for level in [*_from_the_innermost(levels), None]:
        tally = Tally(marked.get(level, ()))
        for each in levels.get(level, ()) if level in marked else ():
            _add(tally, band, each)
        if level is None:
            for mark, count, work in tally.totals():
                user = own[mark.job_id]
                aheads = [_group_ahead(groups, band, *each, running) for each in reversed(within[mark.job_id])]
                is_new = (
                    user.own == 0
                    and _is_new(band, user.user_id)
                    and all(ahead == 0 and _is_new(band, group) for group, ahead in within[mark.job_id])
                )
                yield Ahead(mark.job_id, count, work, user.own, is_new, tuple(aheads))
            return
        members = _as_one(groups, level, levels[level])
        levels.setdefault(groups.parents.get(level), []).append(members)
        for mark, count, _ in tally.totals():
            within[mark.job_id].append((level, count))
            is_next = count == 0 and _is_new(band, level)
            tag = band.nodes[level].key if is_next else _tag(band, level) + count * members[3]
            marked.setdefault(groups.parents.get(level), []).append(Mark(tag, level, mark.job_id, count))


def _from_the_innermost(levels: Iterable[str | None]) -> list[str]:
    """The groups, and the organisations of teams: teams first."""
    named = {level for level in levels if level is not None}
    outer = {level.rpartition("/")[0] for level in named if "/" in level}
    return sorted(named | outer, key=lambda level: ("/" not in level, level))


def _add(tally: Tally, band: GroupedBand, waiting: Waiting) -> None:
    node, steps, estimate, step_charge = waiting
    tag = _tag(band, node)
    if _is_new(band, node):
        tally.add(band.nodes[node].key, (node, 1, estimate, step_charge))
        tag, waiting = tag + step_charge, (node, steps - 1, estimate, step_charge)
    tally.add(tag, waiting)


def _tag(band: GroupedBand, node: str) -> int:
    """The virtual time of a node. A group that has been parked since its first step came has none yet."""
    return band.nodes[node].tag if node in band.nodes else band.time(band.parents.get(node))


def _is_new(band: GroupedBand, node: str) -> bool:
    return node in band.nodes and band.nodes[node].is_new


def _as_one(groups: Groups, group_id: str, members: list[Waiting]) -> Waiting:
    """All steps of a group's members, as if they were the steps of one user."""
    steps = sum(each[1] for each in members)
    estimate = sum(each[1] * each[2] for each in members) // steps
    return group_id, steps, estimate, charge(estimate, groups.by_id[group_id].weight)


def _running(service: Service, now: float) -> dict[str, int]:
    """The remaining work of the running steps of each group, in microseconds."""
    left: dict[str, int] = {}
    for lease, estimate, *_ in service.leases.values():
        for group in service.users[lease.user_id].levels:
            left[group.id] = left.get(group.id, 0) + max(0, estimate - micros(now - lease.granted_at))
    return left


def _group_ahead(groups: Groups, band: GroupedBand, group_id: str, ahead: int, running: dict[str, int]) -> GroupAhead:
    group, limit = groups.by_id[group_id], groups.by_id[group_id].limit
    debt = 0 if _is_new(band, group_id) else _tag(band, group_id) - band.time(groups.parents.get(group_id))
    return GroupAhead(
        group_id.removeprefix(MARK),
        ahead,
        limit,
        0 if limit is None else max(0, limit - group.running),
        running.get(group_id, 0) / SECOND,
        max(0, debt) / SECOND,
    )
