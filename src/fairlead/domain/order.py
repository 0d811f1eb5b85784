"""Who goes next: the arithmetic of start-time fair queueing, and of the places and waits that follow from it.

Virtual time is counted in whole microseconds. Integers add up exactly, so the place computed for a waiting step is the
place at which it is served, and the Redis scripts (whose numbers are doubles, exact up to 2^53) agree with this code.
For the same reason everything here rounds down: floor is the one rounding that Python and Lua share.
"""

from __future__ import annotations

from dataclasses import dataclass

SECOND = 1_000_000
DEFAULT_COST = SECOND
_SMOOTHING = 8
_REMEMBERED = 64


def micros(seconds: float) -> int:
    """Seconds as whole microseconds, never negative. To the nearest one: differences of clock readings are inexact."""
    return max(0, round(seconds * SECOND))


def charge(cost: int, weight: float) -> int:
    """What one grant adds to its user's virtual time; at least 1, so that every grant moves the user back."""
    return int(cost / weight) or 1


def smoothed(mean: int | None, measured: int) -> int:
    """A running mean that forgets slowly. A measurement equal to the mean leaves it as it is."""
    if mean is None:
        return measured
    return mean + (measured - mean) // _SMOOTHING


def averaged(mean: int | None, measured: int, count: int) -> tuple[int, int]:
    """The mean of all of a service's calls, until so many are remembered that it forgets the oldest slowly; and the
    new count. Waits add up many calls, so it has to be steadier than one user's."""
    count = min(count + 1, _REMEMBERED)
    return (measured if mean is None else mean + (measured - mean) // count), count


def served_before(tag: int, user_id: str, step_charge: int, count: int, *, mark: int, marked_user: str) -> int:
    """How many of a user's `count` waiting steps start before the step that `marked_user` starts at tag `mark`.

    The n-th of them starts at `tag + n * step_charge`; equal tags go by user id. Asked about a user's own step, it
    answers how many of that user's steps come first.
    """
    if tag > mark:
        return 0
    whole, rest = divmod(mark - tag, step_charge)
    earlier = whole if rest == 0 and user_id >= marked_user else whole + 1
    return min(count, earlier)


def _until_a_slot(slots: int, work: float, running: float) -> float:
    """Seconds until so much work is done. Of the calls that run, the first to end makes room: of n, that is after the
    n-th part or so of what is left of one."""
    slots = max(1, slots)
    return (work - running + running * 2 / (slots + 1)) / slots


@dataclass(frozen=True, slots=True)
class Place:
    """Where a waiting step stands: 1 is next. `work_ahead` is the estimated slot time, in seconds, before its turn;
    `running` of it is what is left of the calls that run.

    `slots` are those that it could have, `free` those of them that nobody has. `band` is the one that it waits in; a
    `newcomer` goes before all others of its band, and nobody who comes later overtakes it. Of the steps ahead,
    `ahead_retries` go before every priority, `ahead_bands` are of higher priority, `ahead_own` are its user's own, and
    the rest are other users' whose turn is earlier.

    `user_slots` are those that its user may have at once, None if there is no such limit; `user_free` of them the user
    has not taken, and `user_running` is what is left of the user's own calls.

    `undated`: what holds the line is known, and nobody knows until when; then no wait can be told.

    `surprise` is by how much waits like this one came out longer than `plain_wait` said, of late: the lower and the
    upper quarter, or None when too little is known.
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
    undated: bool = False
    surprise: tuple[float, float] | None = None

    @property
    def ahead_users(self) -> int:
        return self.position - 1 - self.ahead_retries - self.ahead_bands - self.ahead_own

    @property
    def plain_wait(self) -> float:
        """In seconds, if nobody comes any more and every call takes as long as those before it."""
        line = 0.0 if self.position <= self.free else _until_a_slot(self.slots, self.work_ahead, self.running)
        return max(line, self._own_wait)

    @property
    def _own_wait(self) -> float:
        """Until the user's own limit lets it start, whatever the line does."""
        if self.user_slots is None or self.ahead_own < self.user_free:
            return 0.0
        work = self.ahead_own * self.mean + self.user_running
        return _until_a_slot(self.user_slots, work, self.user_running)

    @property
    def starts_at_once(self) -> bool:
        """There is a slot for it, and nothing of its user's is in its way."""
        return self.position <= self.free and (self.user_slots is None or self.ahead_own < self.user_free)

    @property
    def waits_for_own(self) -> bool:
        """It is the user's own limit that makes it wait, more than the line."""
        return 0.0 < self._own_wait == self.plain_wait

    @property
    def pace(self) -> float:
        """The seconds from one grant to the next while all slots are busy: no wait is known better than this."""
        slots = self.user_slots if self.waits_for_own else self.slots
        return self.mean / max(1, slots or 0)

    def estimated_wait(self) -> tuple[float, float] | None:
        """A range, in seconds: half of the waits like this one ended within it. While too few of them are known, it is
        from every slot being about to free up, to every one having just begun. None where nothing moves."""
        if self.undated or not self.slots:
            return None
        plain, pace = self.plain_wait, self.pace
        if self.surprise is None:
            return (plain, plain + (0.0 if self.starts_at_once else self.mean))
        low, high = self.surprise
        return (max(0.0, (plain + pace) * low - pace), max(0.0, (plain + pace) * high - pace))

    def surprise_of(self, waited: float) -> float:
        """What came true as a share of what was thought; of a wait that is next to nothing it says little."""
        return (waited + self.pace) / (self.plain_wait + self.pace)
