"""Counts the steps that are granted before a given one, in one pass over the users of a band."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import NamedTuple, TypeAlias

from fairlead.domain.groups import GroupAhead

Waiting: TypeAlias = tuple[str, int, int, int]
"""One user's steps in the examined lanes: user id, number of steps, and the estimate and charge of one step."""


class Mark(NamedTuple):
    """A step whose position was requested. `tag` is the virtual time at which it starts, `own` the number of steps of
    the same user that come before it."""

    tag: int
    user_id: str
    job_id: str
    own: int


class Ahead(NamedTuple):
    """What is ahead of one step: how many steps, their estimated work, and how many of them belong to the same user.
    `groups` are the groups that the user is in, from the outermost."""

    job_id: str
    steps: int
    work: int
    own: int
    newcomer: bool = False
    groups: tuple[GroupAhead, ...] = ()


class Tally:
    """Counts, for each of several marks, the steps that are granted before it, and adds up their work. The marks are
    sorted by tag.

    Once all steps of a user are ahead of a mark, they are ahead of all later marks too, so they are added once, at the
    first such mark. For earlier marks, the number of the user's steps ahead is computed mark by mark.
    """

    def __init__(self, marks: Iterable[Mark]) -> None:
        self.marks = sorted(marks)
        self.tags = [mark.tag for mark in self.marks]
        self.users = [mark.user_id for mark in self.marks]
        self.from_here = [0] * (len(self.marks) + 1)
        self.from_here_work = list(self.from_here)
        self.just_here = [0] * len(self.marks)
        self.just_here_work = list(self.just_here)

    def add(self, tag: int, waiting: Waiting) -> None:
        user_id, steps, estimate, step_charge = waiting
        tags = self.tags
        if tag > tags[-1] or not steps:
            return
        all_before = bisect_right(tags, tag + (steps - 1) * step_charge)
        self.from_here[all_before] += steps
        self.from_here_work[all_before] += steps * estimate
        for i in range(bisect_left(tags, tag), all_before):
            # `served_before` inlined: this runs once per user and mark.
            count = (tags[i] - tag) // step_charge + 1
            if user_id >= self.users[i] and tag + (count - 1) * step_charge == tags[i]:
                count -= 1
            self.just_here[i] += count
            self.just_here_work[i] += count * estimate

    def totals(self) -> Iterator[tuple[Mark, int, int]]:
        counts, works = accumulate(self.from_here), accumulate(self.from_here_work)
        for i, (mark, count, work) in enumerate(zip(self.marks, counts, works, strict=False)):
            yield mark, count + self.just_here[i], work + self.just_here_work[i]
