"""Groups of users: an organisation, its teams, and the path that names a user's place in them.

A path is the name of a group, or of an organisation and one of its teams: `acme` or `acme/red`. It is stored with the
job, so that a rebuild of the queue asks no source for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fairlead.domain.fast_dataclass import fast_dataclass

if TYPE_CHECKING:
    from fairlead.domain.rates import Rate

GROUP_NAME = r"^[A-Za-z0-9_][A-Za-z0-9_.@:-]{0,99}$"
DEEPEST = 2
_BETWEEN = "/"
_name = re.compile(GROUP_NAME)


@dataclass(frozen=True, slots=True)
class GroupRules:
    """The weight of a group among the groups and users beside it, and what its members may have together in each
    service: `limit` slots at once and a rate (None: any number)."""

    weight: float = 1.0
    limit: int | None = None
    rate: Rate | None = None


UNDECLARED_GROUP = GroupRules()


@fast_dataclass
class GroupAhead:
    """What a group means for the position of a member's step: the number of steps ahead that belong to members, the
    group's limit (None: no limit), how much of it is unused, and the remaining time, in seconds, of the members'
    running calls. `debt` is the slot time, in seconds by weight, that the group has used more than the one that was
    served last. `rate_wait` is the number of seconds until the group's rate allows the step."""

    path: str
    ahead: int
    slots: int | None = None
    free: int = 0
    running: float = 0.0
    debt: float = 0.0
    rate_wait: float = 0.0


@dataclass(frozen=True, slots=True)
class GroupQueue:
    """One group in one band of one service. `members` counts the users and teams in it that the service remembers.
    `running` is the number of slots that the members have. The
    other fields are those of `UserQueue`: `tag` is the group's virtual time among the groups and users beside it, and
    `virtual_time` that of its members."""

    path: str
    band: int
    members: int
    running: int
    tag: int
    virtual_time: int
    weight: float
    limit: int | None
    parked: bool
    arrival: int = 0


def levels_of(path: str) -> list[str]:
    """The groups that a path names, from the outermost: `acme/red` gives `acme` and `acme/red`."""
    names = path.split(_BETWEEN)
    return [_BETWEEN.join(names[: depth + 1]) for depth in range(len(names))]


def parent_of(path: str) -> str | None:
    outer, separator, _ = path.rpartition(_BETWEEN)
    return outer if separator else None


def paths_of(groups: Mapping[str, str | None]) -> dict[str, str]:
    """The path of each declared group. `groups` maps the names to their parents, and has no `group_problems`."""
    return {name: name if parent is None else f"{parent}{_BETWEEN}{name}" for name, parent in groups.items()}


def path_of(value: Any, paths: Mapping[str, str]) -> str:
    """The path that the answer of a hook or of the priority service names: a declared group by its name, or any group
    or team by its path. Raises ValueError."""
    if not isinstance(value, str):
        raise ValueError(f"a group is text, not {type(value).__name__}")
    if value in paths:
        return paths[value]
    names = value.split(_BETWEEN)
    if len(names) > DEEPEST:
        raise ValueError(f"a group has at most {DEEPEST} levels, such as acme/red, not {value[:50]!r}")
    if not all(map(_name.match, names)):
        raise ValueError(f"{value[:50]!r} is not the name of a group")
    declared = paths.get(names[-1])
    if declared is not None and declared != value:
        raise ValueError(f"the group {names[-1]} is declared as {declared}, not {value[:50]!r}")
    if len(names) == DEEPEST and paths.get(names[0], names[0]) != names[0]:
        raise ValueError(f"{names[0]} is a team of {parent_of(paths[names[0]])}, and teams have no groups of their own")
    return value


def group_problems(groups: Mapping[str, Any], users: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield a (key, problem) for parents and groups that do not exist, and for groups that are nested too deeply or in
    a circle. `groups` and `users` hold the tables of `[groups]` and `[users]`."""
    parents = {name: table.get("parent") if isinstance(table, dict) else None for name, table in groups.items()}
    listed = f"known are: {', '.join(sorted(groups))}" if groups else "there is no [groups]"
    for name, parent in parents.items():
        if parent is None:
            continue
        if parent not in parents:
            yield f"groups.{name}.parent", f"no group is called {parent!r}; {listed}"
        elif circle := _circle(name, parents):
            yield f"groups.{name}.parent", f"the groups contain each other: {' in '.join(circle)}"
        elif parents[parent] is not None:
            chain = f"{name} in {parent} in {parents[parent]}"
            yield f"groups.{name}.parent", f"groups have at most {DEEPEST} levels, organisation and team, not {chain}"
    for user_id, table in users.items():
        group = table.get("group") if isinstance(table, dict) else None
        if group is not None and group not in groups:
            yield f"users.{user_id}.group", f"no group is called {group!r}; {listed}"


def _circle(name: str, parents: Mapping[str, str | None]) -> list[str]:
    """The groups from this one back to itself; empty if it is in no circle."""
    chain = [name]
    while (parent := parents.get(chain[-1])) is not None and parent not in chain:
        chain.append(parent)
    return [*chain, name] if parent == name else []


def fair_shares(
    weights: Mapping[str, float], group_of: Mapping[str, str | None], groups: Mapping[str, GroupRules]
) -> dict[str, float]:
    """The part of all slot time that each of these users may use while all of them wait: users and groups share it by
    weight at every level."""
    paths = {level for path in group_of.values() if path is not None for level in levels_of(path)}
    beside: dict[str | None, float] = {}
    for user_id, weight in weights.items():
        beside[group_of[user_id]] = beside.get(group_of[user_id], 0.0) + weight
    for path in paths:
        beside[parent_of(path)] = beside.get(parent_of(path), 0.0) + groups.get(path, UNDECLARED_GROUP).weight
    share_of: dict[str | None, float] = {None: 1.0}
    for path in sorted(paths):  # organisations come before their teams
        weight = groups.get(path, UNDECLARED_GROUP).weight
        share_of[path] = share_of[parent_of(path)] * weight / beside[parent_of(path)]
    return {user: share_of[group_of[user]] * weight / beside[group_of[user]] for user, weight in weights.items()}
