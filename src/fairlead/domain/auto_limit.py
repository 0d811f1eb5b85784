"""Finds the limit of a service by additive increase and multiplicative decrease, as TCP congestion control does.

The limit grows by one while the latency stays low, and drops by a factor as soon as the service refuses calls.

One decision is made per window. A window ends when the number of calls that ended in it reaches the limit. Calls that
were already running when the limit changed are not counted. One overload is therefore counted once, and calls that ran
under a lower limit do not raise the limit. The one exception is a call that is refused after an increase: it counts at
once, because it shows that the new limit is too high.

A limit that proved too high is not tried again immediately, because the capacity of a service rarely changes. It is
tried again after a few windows. The pause doubles each time the limit proves too high again, and is forgotten once the
limit works.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from fairlead.domain.fast_dataclass import StringEnum
from fairlead.domain.retry import RETRY_ASKED, TIMEOUT, Failure
from fairlead.domain.rules import Adapted, Auto, Change

DECREASE = 0.7
TOLERANCE = 2.0
"""Without a latency target, the limit grows while the latency is at most this multiple of the lowest latency
measured."""
SMOOTHING = 0.3
"""The weight of the newest window in the smoothed latency."""
KEPT = 20
"""Number of changes kept in the history."""
FIRST_PAUSE, LONGEST_PAUSE = 4, 64
"""The number of windows to wait before a limit that proved too high is tried again."""


class Ending(StringEnum):
    OK = "ok"
    OVERLOADED = "overloaded"
    OTHER = "other"


_OVERLOADED = frozenset({TIMEOUT, RETRY_ASKED, "HTTP_429", "HTTP_503", "HTTP_504"})


def ending_of(failure: Failure | None) -> Ending:
    """Classify how a call ended. A function that raises `fairlead.Retry` counts like an endpoint that returns 503."""
    if failure is None:
        return Ending.OK
    return Ending.OVERLOADED if failure.code in _OVERLOADED else Ending.OTHER


def was_refused(failure: Failure) -> bool:
    """Whether the service rejected the call before doing any work, because too many calls were running."""
    return failure.code in (RETRY_ASKED, "HTTP_429", "HTTP_503")


@dataclass(frozen=True, slots=True)
class Calls:
    """Counts of ended calls by outcome. `seconds` is the total duration of the successful calls."""

    ok: int = 0
    overloaded: int = 0
    other: int = 0
    seconds: float = 0.0

    @property
    def ended(self) -> int:
        return self.ok + self.overloaded + self.other

    def __add__(self, more: Calls) -> Calls:
        return Calls(
            self.ok + more.ok,
            self.overloaded + more.overloaded,
            self.other + more.other,
            self.seconds + more.seconds,
        )

    def since(self, before: Calls) -> Calls:
        """This count minus `before`, an earlier count with the same starting point: the calls that ended in between."""
        return Calls(
            max(0, self.ok - before.ok),
            max(0, self.overloaded - before.overloaded),
            max(0, self.other - before.other),
            max(0.0, self.seconds - before.seconds),
        )


@dataclass(frozen=True, slots=True)
class Ceiling:
    """A limit that proved too high: the limit, how many times in a row it failed, and how many windows to wait before
    it is tried again."""

    limit: int
    failed: int = 1
    pause: int = FIRST_PAUSE

    def again(self) -> Ceiling:
        return Ceiling(self.limit, self.failed + 1, min(LONGEST_PAUSE, FIRST_PAUSE << min(self.failed, 16)))


@dataclass(frozen=True, slots=True)
class Window:
    """What was observed since the last decision.

    The first `skip` calls that end are ignored. `rose` is true after an increase, until all slots of the raised limit
    have been in use. While it is true, skipping stops at the first call that is refused or times out, and that call is
    counted. `used` is true if all slots were in use at some time. `latency` is the smoothed latency of the previous
    windows.
    """

    skip: int = 0
    calls: Calls = Calls()
    used: bool = False
    latency: float | None = None
    rose: bool = False
    ceiling: Ceiling | None = None

    def seen(self, calls: Calls, *, used: bool) -> Window:
        if self.skip and not (self.rose and calls.overloaded):
            return replace(self, skip=max(0, self.skip - calls.ended))
        return replace(self, skip=0, calls=self.calls + calls, used=self.used or used)

    def over(self, limit: int) -> bool:
        too_high = self.rose and self.calls.overloaded > 0
        return not self.skip and (too_high or self.calls.ended >= max(1, limit))


@dataclass(frozen=True, slots=True)
class LimitDecision:
    """The result of one decision: the limit, the best latency measured so far, the reason for the change (None if the
    limit did not change), and the next window."""

    limit: int
    best: float | None
    why: str | None
    window: Window


def bounded(limit: int, auto: Auto) -> int:
    return max(auto.min, min(limit, auto.max))


def decide(auto: Auto, limit: int, best: float | None, window: Window) -> LimitDecision | None:
    """Decide at the end of a window whether the limit changes. Returns None if the window has not ended yet."""
    if not window.over(limit):
        return None
    latency = _smoothed(window)
    if latency is not None:
        best = latency if best is None else min(best, latency)
    after, why = _next(auto, limit, window, latency, best)
    after, ceiling = bounded(after, auto), _ceiling(limit, window)
    if ceiling is not None and ceiling.pause and limit < after >= ceiling.limit:
        after, ceiling = limit, replace(ceiling, pause=ceiling.pause - 1)
    if after == limit:
        # A raised limit is not confirmed until all of its slots have been in use.
        untried = window.rose and not window.used
        return LimitDecision(limit, best, None, Window(latency=latency, rose=untried, ceiling=ceiling))
    return LimitDecision(after, best, why, Window(skip=limit, rose=after > limit, latency=latency, ceiling=ceiling))


def _ceiling(limit: int, window: Window) -> Ceiling | None:
    """The ceiling that applies after this window, or None if no limit is known to be too high."""
    known = window.ceiling
    if window.calls.overloaded:
        if not window.rose:
            return None  # the capacity has dropped; forget the ceiling and measure again
        return known.again() if known is not None and known.limit == limit else Ceiling(limit)
    holds = known is not None and limit >= known.limit and window.used and window.calls.ok > 0
    return None if holds else known


def _next(auto: Auto, limit: int, window: Window, latency: float | None, best: float | None) -> tuple[int, str]:
    calls = window.calls
    if calls.overloaded:
        why = f"{calls.overloaded} of {calls.ended} calls were refused or timed out"
        return min(limit - 1, int(limit * DECREASE)), why
    if not calls.ok or not window.used or latency is None or best is None:
        return limit, ""
    mark = TOLERANCE * best if auto.latency_target is None else auto.latency_target
    return limit + (latency <= mark), f"all slots were used, and calls took {latency:.3g} s"


def _smoothed(window: Window) -> float | None:
    calls, before = window.calls, window.latency
    if not calls.ok:
        return before
    newest = calls.seconds / calls.ok
    return newest if before is None else before + SMOOTHING * (newest - before)


def changed(history: Sequence[Change], decision: LimitDecision, now: float) -> Adapted:
    change = Change(now, decision.limit, decision.why or "")
    return Adapted(decision.limit, decision.best, (*history, change)[-KEPT:])
