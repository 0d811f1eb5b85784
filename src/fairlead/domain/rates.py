"""Rates: how many requests and units a provider takes in any window of `per` seconds, and the window that holds a rate.

A provider counts a request when it arrives, which is some time after the slot was granted. A grant therefore occupies
the window from its claim until `per` seconds after the provider must have counted it: after the call was sent (plus a
margin for the way) or after it ended, whichever is earlier. While neither is known, the grant stays in the window. So
every window of the provider lies within a window of ours, however long a grant takes to arrive (docs/adr/0029).

Times are whole microseconds, and units whole millionths, so that the Redis scripts compute the same numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from fairlead.domain.fair_share import SECOND, micros

UNLIMITED = 1 << 52
UNITS = "units"
"""The name of the unit of a rate that counts in several units."""
PARTS = 100
"""The ends of a window's entries are rounded up to a hundredth of `per`, so that a window has about a hundred
entries, however high its rate is."""
MARGIN_PARTS, LONGEST_MARGIN = 40, SECOND
"""A sent request is taken to arrive within a fortieth of `per`, at most a second."""


@dataclass(frozen=True, slots=True)
class Rate:
    """At most `requests` requests and `units` units, for example tokens, in any window of `per` seconds. None means
    that the number is not limited."""

    requests: int | None = None
    units: float | None = None
    per: float = 60.0

    def __str__(self) -> str:
        return self.shown()

    def shown(self, unit: str = UNITS) -> str:
        """The rate as a text, with the name of its unit."""
        parts = [
            f"{self.requests} request{'' if self.requests == 1 else 's'}" if self.requests is not None else "",
            f"{self.units:.10g} {unit}" if self.units is not None else "",
        ]
        return f"{' and '.join(filter(None, parts))} per {self.per:g} s"


class RateOf(NamedTuple):
    """Whose rate it is: that of a `service`, of each `user` of a service, of a `region` of a service, of a `pool`, of
    each user of a `plan`, or of a `group`. `name` is that of the service, the pool or the plan, or the group's path."""

    kind: str
    name: str
    region: str = ""

    def __str__(self) -> str:
        if self.kind == "region":
            return f"{self.name} in {self.region}"
        return self.name if self.kind == "service" else f"the {self.kind} {self.name}"


class MemberRates(NamedTuple):
    """The rates of plans, which each of their users has in each service, and those of groups, by path."""

    plans: Mapping[str, Rate] = {}
    groups: Mapping[str, Rate] = {}


@lru_cache
def _numbers_of(rate: Rate | None) -> tuple[int, int, int, int, int]:
    """`per`, the width of an entry, the margin, and the most requests and units, as windows have them. Thousands of
    windows with the same rate share these numbers, so that a claim finds them in the processor's cache."""
    per = SECOND if rate is None else micros(rate.per)
    most_requests = UNLIMITED if rate is None or rate.requests is None else rate.requests
    most_units = UNLIMITED if rate is None or rate.units is None else micros(rate.units)
    return per, per // PARTS, min(LONGEST_MARGIN, per // MARGIN_PARTS), most_requests, most_units


class Window:
    """What a rate counts now: `requests` and `units` in total. Those that the provider must have counted are in
    `entries`, sorted by their end: end, requests and units of the first entry, then those of the second, and so on, in
    one list of numbers, because a list for each entry costs more time and memory than the numbers. The others are
    `open`: they belong to grants that have not been sent, as far as is known. So a grant changes the totals, and the
    end of its call only adds to an entry, unless the call used other units than estimated.

    `rest` is the time until which the provider takes nothing, because it said so; 0 if it takes requests.

    `member` is the id of the user or group whose window it is; "" if the window is that of a service, region or pool.
    The rest is for the dispatcher: `look_at` is the time at which it looks at the window of a member next, 0 if it
    looks at all such windows anyway. `kept` is whether it knows the window: it may drop that of a user that is empty.
    """

    __slots__ = (
        "counts", "entries", "kept", "lacks_grants", "look_at", "margin", "member", "most_requests", "most_units",
        "per", "rate", "requests", "rest", "units", "width",
    )  # fmt: skip

    def __init__(self, rate: Rate | None = None, member: str = "") -> None:
        self.member = member
        self.look_at = UNLIMITED if member else 0
        self.kept = True
        self.entries: list[int] = []
        self.requests = self.units = 0
        self.lacks_grants = False
        """Whether it was cleared while grants were open that are closed later."""
        self.rest = 0
        self.per = 0
        self.take_rate(rate)

    @property
    def is_empty(self) -> bool:
        return not (self.rest or self.requests or self.units)

    @property
    def open_requests(self) -> int:
        return self.requests - sum(self.entries[1::3])

    @property
    def open_units(self) -> int:
        return self.units - sum(self.entries[2::3])

    def has_rate(self, rate: Rate) -> bool:
        if rate is self.rate:
            return True
        return (self.per, self.width, self.margin, self.most_requests, self.most_units) == _numbers_of(rate)

    def take_rate(self, rate: Rate | None) -> None:
        """Apply a rate. If its `per` differs from before, the entries end that much later or earlier."""
        self.rate, (per, self.width, self.margin, self.most_requests, self.most_units) = rate, _numbers_of(rate)
        shift, self.per = per - self.per if self.per else 0, per
        self.counts = self.most_requests < UNLIMITED or self.most_units < UNLIMITED
        if shift:
            for at in range(0, len(self.entries), 3):
                self.entries[at] += shift

    # -- what fits ------------------------------------------------------------------------------------------------

    @property
    def is_full(self) -> bool:
        """Whether `room` is 0."""
        return self.requests >= self.most_requests or self.units >= self.most_units < UNLIMITED or self.rest > 0

    def fits_any(self, most: int) -> bool:
        """Whether every request of at most this many units may be granted now."""
        if self.requests >= self.most_requests or self.rest:
            return False
        return self.units + most < self.most_units or self.most_units == UNLIMITED

    def room(self) -> int:
        """How many requests may be granted now, as far as this can be known without their units."""
        if self.rest or (self.most_units < UNLIMITED and self.units >= self.most_units):
            return 0
        return max(0, self.most_requests - self.requests) if self.most_requests < UNLIMITED else UNLIMITED

    def fits(self, units: int) -> bool:
        """Whether a request of this many units may be granted now. One with more units than the rate allows goes
        alone, when the window has none."""
        if self.requests >= self.most_requests or self.rest:
            return False
        most, used = self.most_units, self.units
        return most == UNLIMITED or (used < most and used + units <= most) or not used

    def due(self, units: int) -> int | None:
        """The time at which such a request fits, if nothing else is granted before: 0 if it fits now, and None if that
        depends on calls that have not been sent."""
        if self.fits(units):
            return 0
        requests = self.requests + 1 - self.most_requests
        over = self.units + max(1, min(units, self.most_units)) - self.most_units
        if self.most_units == UNLIMITED:
            over = 0
        if self.most_requests == UNLIMITED:
            requests = 0
        due = self.rest
        for end, freed_requests, freed_units in self._triples():
            if requests <= 0 and over <= 0:
                break
            due = max(due, end)
            requests, over = requests - freed_requests, over - freed_units
        return due if requests <= 0 and over <= 0 else None

    def wait(self, count: int, units: int, mean: int | None, call: int, now: int) -> int:
        """Microseconds until the `count`-th request from now fits, if it reserves this many units. Calls that have not
        been sent count as sent now, and calls take `call` microseconds. `mean` is what they really use on average; None
        means that they use what they reserve."""
        waits = self.rest - now if self.rest else 0
        missing = self.requests + count - self.most_requests
        if missing > 0:
            waits = max(waits, self._freed(missing, self.requests, self.most_requests, 1, now))
        if self.most_units < UNLIMITED:
            waits = max(waits, self._wait_for_units(count, units, mean, call, now))
        return max(0, waits)

    def _wait_for_units(self, count: int, units: int, mean: int | None, call: int, now: int) -> int:
        """The later of two times. One is when the window has the units, if each call before uses the mean. The other is
        when enough calls have ended: until then, each keeps all that it has reserved."""
        most, reserved = self.most_units, self.open_units
        own = max(1, min(units, most))
        each = own if mean is None else max(1, min(mean, most))
        counted = self.units - reserved
        taken = counted + (reserved if mean is None else min(reserved, self.open_requests * each))
        missing = taken + (count - 1) * each + own - most
        waits = self._freed(missing, taken, max(1, min(most, most - own + each)), 2, now) if missing > 0 else 0
        left = max(0, most - counted)
        over = reserved + count * own - left
        if mean is None or over <= 0 or call <= 0:
            return waits
        # What can be reserved at once. What ended calls used takes some of it: on average half of all that is used
        # while this one waits, but no more than calls use at this pace in the part of `per` after their end.
        steady = int(most * (own / (own + each * (max(0, self.per - call) / call))))
        room = max(own, steady, left - int(over * (each / own) / 2))
        return max(waits, int(call * (over / room)))

    def _freed(self, missing: int, taken: int, most: int, at: int, now: int) -> int:
        """Microseconds until `missing` requests (`at` 1) or units (`at` 2) are free: what is freed is used at once, and
        is free again `per` later. What is `taken` beyond `most`, by a step larger than the window or before the rate
        was lowered, is not used again."""
        whole = max(0, missing - 1 - max(0, taken - most)) // most
        rest = missing - 1 - whole * most
        for end, *freed in self._triples():
            rest -= freed[at - 1]
            if rest < 0:
                return whole * self.per + max(0, end - now)
        return (whole + 1) * self.per

    def _triples(self) -> Iterator[tuple[int, int, int]]:
        numbers = iter(self.entries)
        return zip(numbers, numbers, numbers, strict=True)

    # -- what is counted ------------------------------------------------------------------------------------------

    def advance(self, now: int) -> bool:
        """Drop what is over. Returns whether anything was."""
        entries, over = self.entries, 0
        while over < len(entries) and entries[over] <= now:
            self.requests -= entries[over + 1]
            self.units -= entries[over + 2]
            over += 3
        del entries[:over]
        rested = 0 < self.rest <= now
        if rested:
            self.rest = 0
        return over > 0 or rested

    def clear(self) -> None:
        """Forget everything but the rate."""
        self.lacks_grants = self.lacks_grants or self.open_requests > 0
        self.entries = []
        self.requests = self.units = self.rest = 0

    def take(self, units: int) -> None:
        """Count a grant."""
        self.requests += 1
        self.units += units

    def sent(self, units: int, sent_at: int) -> None:
        """The grant was sent at this time: it stays in the window for `per` and the margin."""
        self.refund(units)
        self.add(sent_at + self.margin, 1, units)

    def ended(self, units: int, used: int | None, sent_at: int | None, now: int, *, reported: bool = False) -> None:
        """The call of a grant has ended. `used` are the units that it really took; None means that this is unknown, so
        that the estimate stays. `reported`: `sent` was called before, with the same time.

        What is over is dropped first: the window of a user or group is looked at only at the end of its last entry,
        which this may put off."""
        left = units if used is None or used > units else used
        if not reported:
            self.close(units, left, self.end_of(sent_at, now), now)
        else:
            assert sent_at is not None
            self.advance(now)
            self._subtract(self._rounded(sent_at + self.margin + self.per), 0, units - left)
        if used is not None and used > units:
            self.add(now, 0, used - units)  # the provider may have counted these as late as at the end

    def end_of(self, sent_at: int | None, now: int) -> int:
        """The end of the entry of a call that has ended now. `sent_at` is None if it is not known when it was sent."""
        end = (now if sent_at is None else min(now, sent_at + self.margin)) + self.per
        return end + -end % self.width

    def close(self, units: int, left: int, end: int, now: int) -> None:
        """The call of a grant has ended. Of its units, `left` stay in the window until `end`, unless that is over."""
        entries = self.entries
        if entries and entries[0] <= now:
            self.advance(now)
        if self.lacks_grants:
            self._reopen(units)
        if left != units:
            self.units += left - units
        if end <= now:  # it was sent so long ago that it is over
            self.requests -= 1
            self.units -= left
        elif not entries or entries[-3] < end:
            entries += (end, 1, left)
        elif entries[-3] == end:
            entries[-2] += 1
            entries[-1] += left
        else:
            self._insert(end, 1, left)

    def refund(self, units: int) -> None:
        """The call of a grant was never made."""
        if self.lacks_grants:
            self._reopen(units)
        self.requests -= 1
        self.units -= units

    def correct(self, requests: int | None, units: int | None, until: int) -> None:
        """The provider says that it takes only this many more requests and units until a time. What we counted less is
        added; what we counted more is left, since the provider has not seen the calls on their way."""
        more = 0 if requests is None else max(0, self.room() - requests) if self.most_requests < UNLIMITED else 0
        left = max(0, self.most_units - self.units)
        more_units = 0 if units is None or self.most_units == UNLIMITED else max(0, left - units)
        if more or more_units:
            self.add(until - self.per, more, more_units)

    def add(self, counted_at: int, requests: int, units: int) -> None:
        """Count requests and units that the provider has counted by this time."""
        self.requests += requests
        self.units += units
        self._insert(self._rounded(counted_at + self.per), requests, units)

    def _insert(self, end: int, requests: int, units: int) -> None:
        entries = self.entries
        at = len(entries) - 3
        while at >= 0 and entries[at] > end:
            at -= 3
        if at >= 0 and entries[at] == end:
            entries[at + 1] += requests
            entries[at + 2] += units
        else:
            entries[at + 3 : at + 3] = (end, requests, units)

    def _rounded(self, end: int) -> int:
        return end + -end % self.width

    def _reopen(self, units: int) -> None:
        """Count a grant that is closed, unless as much is open."""
        self.requests += max(0, 1 - self.open_requests)
        self.units += max(0, units - self.open_units)

    def _subtract(self, end: int, requests: int, units: int) -> None:
        entries = self.entries
        for at in range(len(entries) - 3, -1, -3):
            if entries[at] == end:
                requests, units = min(requests, entries[at + 1]), min(units, entries[at + 2])
                entries[at + 1] -= requests
                entries[at + 2] -= units
                self.requests -= requests
                self.units -= units
            if entries[at] <= end:
                return
