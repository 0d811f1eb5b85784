"""Finds a limit by itself: one more while calls are as quick as they were, far fewer as soon as the service turns calls
away. Additive increase and multiplicative decrease, as TCP finds its share of a wire.

It is decided once per window: when as many calls have ended as the limit allows. After a change, as many as were
allowed before it are passed over first, for they were open then: so one overload is answered once, and nothing rises by
calls that ran while the limit was lower. Only what is turned away after a rise is heard at once: it was one too many.

A limit that was one too many is not tried again at once: what the service takes seldom changes. It is tried after a few
windows, and each time it fails after twice as many; once it succeeds, all is forgotten.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from fairlead.domain.limits import Adapted, Auto, Change
from fairlead.domain.records import Word
from fairlead.domain.retry import RETRY_ASKED, TIMEOUT, Failure

DECREASE = 0.7
TOLERANCE = 2.0
"""Latency holds while it is at most this many times the best that was seen, unless a target is given."""
SMOOTHING = 0.3
"""What the newest window counts in the smoothed latency."""
KEPT = 20
"""Changes that are remembered."""
FIRST_PAUSE, LONGEST_PAUSE = 4, 64
"""Windows in which the limit could have risen, and did not, because one more was too many before."""


class Ending(Word):
    OK = "ok"
    OVERLOADED = "overloaded"
    OTHER = "other"


_OVERLOADED = frozenset({TIMEOUT, RETRY_ASKED, "HTTP_429", "HTTP_503", "HTTP_504"})


def ending_of(failure: Failure | None) -> Ending:
    """Of a call that succeeded, or failed so. A function says with `fairlead.Retry` what an endpoint says with 503."""
    if failure is None:
        return Ending.OK
    return Ending.OVERLOADED if failure.code in _OVERLOADED else Ending.OTHER


def was_refused(failure: Failure) -> bool:
    """Turned away before anything was done: with these a service says that it has too many."""
    return failure.code in (RETRY_ASKED, "HTTP_429", "HTTP_503")


@dataclass(frozen=True, slots=True)
class Calls:
    """How calls ended. `seconds` is what those took, together, that ended well."""

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
        """Both were counted from the same beginning, so nothing is below zero but by a mistake of whoever counted."""
        return Calls(
            max(0, self.ok - before.ok),
            max(0, self.overloaded - before.overloaded),
            max(0, self.other - before.other),
            max(0.0, self.seconds - before.seconds),
        )


@dataclass(frozen=True, slots=True)
class Ceiling:
    """A limit that was too high, how often in a row it was so, and the windows to pass before it is tried again."""

    limit: int
    failed: int = 1
    pause: int = FIRST_PAUSE

    def again(self) -> Ceiling:
        return Ceiling(self.limit, self.failed + 1, min(LONGEST_PAUSE, FIRST_PAUSE << min(self.failed, 16)))


@dataclass(frozen=True, slots=True)
class Window:
    """What was seen since the last decision. `skip`: so many calls that end are passed over first; but calls that are
    turned away after the limit `rose` are its answer, and count at once. `used`: at some moment all slots were taken.
    `latency` is the smoothed one of the windows before."""

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
class Decision:
    """The limit and the best latency from now on, why the limit is another one (None: it is not), and the next
    window."""

    limit: int
    best: float | None
    why: str | None
    window: Window


def bounded(limit: int, auto: Auto) -> int:
    return max(auto.min, min(limit, auto.max))


def decide(auto: Auto, limit: int, best: float | None, window: Window) -> Decision | None:
    """None as long as too little was seen."""
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
        # It has shown what it is worth once all slots were used.
        untried = window.rose and not window.used
        return Decision(limit, best, None, Window(latency=latency, rose=untried, ceiling=ceiling))
    return Decision(after, best, why, Window(skip=limit, rose=after > limit, latency=latency, ceiling=ceiling))


def _ceiling(limit: int, window: Window) -> Ceiling | None:
    """What is known of it after this window."""
    known = window.ceiling
    if window.calls.overloaded:
        if not window.rose:
            return None  # it takes less than it did, and how much is found anew
        return known.again() if known is not None and known.limit == limit else Ceiling(limit)
    holds = known is not None and limit >= known.limit and window.used and window.calls.ok > 0
    return None if holds else known


def _next(auto: Auto, limit: int, window: Window, latency: float | None, best: float | None) -> tuple[int, str]:
    calls = window.calls
    if calls.overloaded:
        said = f"{calls.overloaded} of {calls.ended} calls were turned away or timed out"
        return min(limit - 1, int(limit * DECREASE)), said
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


def changed(history: Sequence[Change], decision: Decision, now: float) -> Adapted:
    change = Change(now, decision.limit, decision.why or "")
    return Adapted(decision.limit, decision.best, (*history, change)[-KEPT:])
