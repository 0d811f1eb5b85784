"""The arithmetic of start-time fair queueing, and of the queue positions and waiting times that follow from it.

Virtual time is counted in whole microseconds. Integers add up exactly, so the position computed for a waiting step is
the position at which it is served, and the Redis scripts (whose numbers are doubles, exact up to 2^53) agree with this
code. For the same reason everything here rounds down: floor is the only rounding that Python and Lua share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapreplace
from typing import TypeAlias

from fairlead.domain.groups import GroupAhead

SECOND = 1_000_000
DEFAULT_COST = SECOND
_SMOOTHING = 8
_REMEMBERED = 64
_ONE_BY_ONE = 64
"""The number of waiting steps for which the slot that each gets is determined."""


def micros(seconds: float) -> int:
    """Convert seconds to whole microseconds; negative numbers become 0. The result is rounded to the nearest integer,
    unlike all other results in this module: a difference of two floats may be a tiny bit too small, and rounding it
    down would lose a microsecond."""
    rounded = round(seconds * SECOND)
    return rounded if rounded > 0 else 0


MOST_CHARGED = 10**13
"""The slot time of 115 days at weight 1. Virtual times have to remain numbers that Redis sorts as text."""


def charge(cost: int, weight: float) -> int:
    """The virtual time that one grant adds to its user. It is at least 1, so that every grant moves the user back in
    the order."""
    charged = cost / weight
    return (int(charged) or 1) if charged < MOST_CHARGED else MOST_CHARGED


def smoothed(mean: int | None, measured: int) -> int:
    """The exponential moving average after one more measurement. A measurement equal to the mean leaves the mean
    unchanged."""
    if mean is None:
        return measured
    return mean + (measured - mean) // _SMOOTHING


def averaged(mean: int | None, measured: int, count: int) -> tuple[int, int]:
    """The mean duration of a service's calls after one more call, and the new number of calls. The mean is exact for
    the first calls and a moving average afterwards. It changes more slowly than the mean of one user, because an
    estimated wait is the sum of many calls."""
    count = min(count + 1, _REMEMBERED)
    return (measured if mean is None else mean + (measured - mean) // count), count


def served_before(tag: int, user_id: str, step_charge: int, count: int, *, mark: int, marked_user: str) -> int:
    """How many of a user's `count` waiting steps are granted before the step of `marked_user` that has the start tag
    `mark`.

    The n-th of the user's steps, from 0, has the start tag `tag + n * step_charge`; equal tags are ordered by user id.
    If both users are the same, the result is the number of the user's own steps that come first.
    """
    if tag > mark:
        return 0
    whole, rest = divmod(mark - tag, step_charge)
    earlier = whole if rest == 0 and user_id >= marked_user else whole + 1
    return min(count, earlier)


BY_COST = "cost"
ESTIMATED_BY = (BY_COST, "user_mean", "service_mean", "default")
"""What the estimate of a step is based on: its cost, the mean duration of its user or service, or what the service
declares."""

SlotMark: TypeAlias = tuple[int, int]
"""The number of waiting steps ahead of a step, and their work."""


def slot_waits(ends: list[int], slots: int, free: int, expected: int, marks: Sequence[SlotMark]) -> list[int]:
    """For each mark, the time until the steps ahead have had a slot and another slot is free, in microseconds.

    `ends` are the remaining times of the known running calls, sorted. A slot that is taken by something else is
    expected to be free after half of the time `expected` of a call. The first steps are given to slots one by one, each
    with the mean work of the steps up to the next mark; the slots share what is behind.
    """
    busy = max(0, slots - free)
    known = ends[max(0, len(ends) - busy) :]
    heap = sorted([0] * (slots - busy) + known + [expected // 2] * (busy - len(known)))
    waits = [0] * len(marks)
    given = work_given = 0
    for index in sorted(range(len(marks)), key=marks.__getitem__):
        steps, work = marks[index]
        if given < min(steps, _ONE_BY_ONE):
            each = max(0, work - work_given) // (steps - given)
            for _ in range(min(steps, _ONE_BY_ONE) - given):
                heapreplace(heap, heap[0] + each)
            work_given += each * (min(steps, _ONE_BY_ONE) - given)
            given = min(steps, _ONE_BY_ONE)
        waits[index] = heap[0] + max(0, work - work_given) // slots
    return waits


def _until_a_slot(slots: int, work: float, running: float) -> float:
    """Seconds until the steps ahead have had their slots and another slot is free.

    `running` is the total remaining time of the running calls. `work` is `running` plus the estimated time of the
    waiting steps ahead, which all slots share. The first of n running calls is expected to end after 2 / (n + 1) of
    their mean remaining time.
    """
    slots = max(1, slots)
    return (work - running + running * 2 / (slots + 1)) / slots


@dataclass(frozen=True, slots=True)
class QueuePosition:
    """The position of a waiting step: 1 is next. `work_ahead` is the estimated slot time, in seconds, that calls take
    before this step is granted. `running` is the part of `work_ahead` that belongs to calls already running.

    `slots` is the number of slots that the step could use, `free` the number of those that are not taken. `band` is the
    band in which the step waits. `newcomer` is true for the first step of a new user: it goes before all other steps of
    its band, and later newcomers go after it. The steps ahead are `ahead_retries` (retries that go before every
    priority), `ahead_bands` (steps of higher priorities), `ahead_own` (steps of the same user) and `ahead_users` (steps
    of others).

    `user_slots` is the user's own limit (None: no limit), `user_free` the unused part of that limit, and `user_running`
    the remaining time of the user's own calls.

    `groups` are the groups that the user is in, from the outermost.

    `rests` is the number of seconds until the first allowed region accepts calls again, or 0 if an allowed region
    accepts calls now.

    `rate_wait` is the number of seconds until the rates of the service, its region and its pool allow this step, if all
    steps ahead go first; `user_rate_wait` the same for the rate of the user.

    `undated` means that the queue is stalled for an unknown time, so no wait can be estimated.

    `slot_wait` is the number of seconds until the steps ahead have had a slot and another slot is free. It is computed
    if calls state costs, from the end of each running call. None: it is estimated from `work_ahead` and `running`.

    `estimate` is how long the call of the step itself is expected to take, and `estimated_by` one of `ESTIMATED_BY`.

    `surprise` shows how far recent estimates were off: the lower and upper quartile of their `surprise_of`. None if
    there are too few recent waits.
    """

    position: int
    work_ahead: float
    slots: int
    mean: float
    free: int = 0
    service: str = ""
    band: int = 0
    newcomer: bool = False
    ahead_retries: int = 0
    ahead_bands: int = 0
    ahead_own: int = 0
    running: float = 0.0
    user_slots: int | None = None
    user_free: int = 0
    user_running: float = 0.0
    rests: float = 0.0
    rate_wait: float = 0.0
    user_rate_wait: float = 0.0
    undated: bool = False
    surprise: tuple[float, float] | None = None
    slot_wait: float | None = None
    groups: tuple[GroupAhead, ...] = ()
    estimate: float = 0.0
    estimated_by: str = ""

    @property
    def ahead_users(self) -> int:
        return self.position - 1 - self.ahead_retries - self.ahead_bands - self.ahead_own

    @property
    def plain_wait(self) -> float:
        """The wait in seconds, assuming that no more jobs arrive and that every call takes as long as estimated."""
        queue = 0.0
        if self.position > self.free:
            slot_wait = self.slot_wait
            queue = _until_a_slot(self.slots, self.work_ahead, self.running) if slot_wait is None else slot_wait
        of_groups = (self._wait_of(group) for group in self.groups)
        return max(queue, self._own_wait, self.rests, self.rate_wait, self.user_rate_wait, *of_groups)

    @property
    def _own_wait(self) -> float:
        """The wait caused by the user's own limit alone."""
        if self.user_slots is None or self.ahead_own < self.user_free:
            return 0.0
        work = self.ahead_own * self.mean + self.user_running
        return _until_a_slot(self.user_slots, work, self.user_running)

    def _wait_of(self, group: GroupAhead) -> float:
        """The wait caused by the limit and rate of a group alone."""
        if group.slots is None or group.ahead < group.free:
            return group.rate_wait
        work = group.ahead * self.mean + group.running
        return max(group.rate_wait, _until_a_slot(group.slots, work, group.running))

    @property
    def ahead_of_group(self) -> int:
        """The number of steps ahead that belong to other members of the user's outermost group."""
        return self.groups[0].ahead - self.ahead_own if self.groups else 0

    @property
    def ahead_groups(self) -> int:
        """The number of steps ahead, in the step's own band, that belong to other groups, and to users without one. 0
        if the user has no group."""
        return self.ahead_users - self.ahead_of_group if self.groups else 0

    @property
    def starts_at_once(self) -> bool:
        """Whether a slot is free for the step now, within the limits and rates of the user and of the user's groups."""
        if self.rate_wait or self.user_rate_wait or self.position > self.free:
            return False
        within = not any(
            group.rate_wait or (group.slots is not None and group.ahead >= group.free) for group in self.groups
        )
        return within and (self.user_slots is None or self.ahead_own < self.user_free)

    @property
    def waits_for_group(self) -> GroupAhead | None:
        """The group whose limit or rate determines the wait: no other cause makes the step wait longer."""
        return next((group for group in self.groups if 0.0 < self._wait_of(group) == self.plain_wait), None)

    @property
    def waits_for_own(self) -> bool:
        """Whether the user's own limit determines the wait: no other cause makes the step wait longer."""
        return 0.0 < self._own_wait == self.plain_wait

    @property
    def pace(self) -> float:
        """Seconds between two grants while all slots are busy. An estimate cannot be more precise than this."""
        slots = self.user_slots if self.waits_for_own else self.slots
        if group := self.waits_for_group:
            slots = group.slots or slots
        return self.mean / max(1, slots or 0)

    def estimated_wait(self) -> tuple[float, float] | None:
        """The estimated wait as a range in seconds, or None if the queue is stalled or the step can use no slot. Half
        of the recent similar waits were within this range. If there are too few recent waits, the range begins at
        `plain_wait` and is as long as one call, or empty for a step that starts at once."""
        if self.undated or not self.slots:
            return None
        plain, pace = self.plain_wait, self.pace
        if self.surprise is None:
            return (plain, plain + (0.0 if self.starts_at_once else self.mean))
        low, high = self.surprise
        return (max(0.0, (plain + pace) * low - pace), max(0.0, (plain + pace) * high - pace))

    def surprise_of(self, waited: float) -> float:
        """The ratio of the actual wait to `plain_wait`. `pace` is added to both, so that the ratio stays close to 1 if
        both are very short."""
        return (waited + self.pace) / (self.plain_wait + self.pace)
