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


@dataclass(frozen=True, slots=True)
class Place:
    """Where a waiting step stands: 1 is next. `work_ahead` is the estimated slot time, in seconds, before its turn."""

    position: int
    work_ahead: float
    slots: int
    mean: float

    def estimated_wait(self) -> tuple[float, float]:
        """A range, in seconds: from every slot being about to free up, to every one having just begun."""
        shared = self.work_ahead / max(1, self.slots)
        return (shared, shared + self.mean)
