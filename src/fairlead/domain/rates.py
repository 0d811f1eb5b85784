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


class Demand(NamedTuple):
    """What a waiting step, and the steps ahead of it, take from a window. `steps` counts all of them. The step reserves
    `own` units and is expected to use `own_use`; those ahead reserve `reserved` and use `use`. `mean` is what a call
    uses on average; None means that no call has reported it. `scale` is what calls use of a unit that they reserve;
    None if that is not known."""

    steps: int
    own: int
    own_use: int
    reserved: int
    use: int
    mean: int | None = None
    scale: float | None = None

    def use_of(self, held: int, calls: int, most: int) -> int:
        """What running calls use that have reserved `held` units, of the `most` units of a window."""
        if self.mean is None:
            return held
        return min(held, int(held * self.scale) if self.scale is not None else calls * max(1, min(self.mean, most)))

    def of_some(self, steps: int, *, alike: bool = False) -> Demand:
        """The demand if only this many steps count, the step itself among them. `alike`: those ahead are like it, as
        the steps of one user are; otherwise they are like the others ahead."""
        ahead = steps - 1
        if alike:
            return self._replace(steps=steps, reserved=ahead * self.own, use=ahead * self.own_use)
        each = max(1, self.steps - 1)
        reserved, use = (int(float(ahead) * units / each) for units in (self.reserved, self.use))
        return self._replace(steps=steps, reserved=reserved, use=use)


class _Numbers:
    """A rate in the numbers of windows: `per`, the width of an entry, the margin, and the most requests and units.
    `end` is the end of the entry that was used last. Thousands of windows with the same rate share the numbers, so that
    a claim finds them in the processor's cache."""

    __slots__ = ("end", "margin", "most_requests", "most_units", "per", "width")

    def __init__(self, rate: Rate | None) -> None:
        self.per = SECOND if rate is None else micros(rate.per)
        self.width = self.per // PARTS
        self.margin = min(LONGEST_MARGIN, self.per // MARGIN_PARTS)
        self.most_requests = UNLIMITED if rate is None or rate.requests is None else rate.requests
        self.most_units = UNLIMITED if rate is None or rate.units is None else micros(rate.units)
        self.end = -UNLIMITED

    def end_of(self, at: int) -> int:
        """The end of the entry of a call that the provider has counted by this time."""
        end, at = self.end, at + self.per
        if not end - self.width < at <= end:
            self.end = end = at + -at % self.width  # the only change, because other threads may use the same numbers
        return end


_numbers_of = lru_cache(_Numbers)


class Window:
    """What a rate counts now: `requests` and `units` in total. Of these, `counted` and `counted_units` are those that
    the provider must have counted. They are in `entries`, sorted by their end: end, requests and units of the first
    entry, then those of the second, and so on, in one list of numbers, because a list for each entry costs more time
    and memory than the numbers. In place of the last entry's requests and units, the list has those that were counted
    before it. So a grant changes two numbers, and so does the end of its call.

    The others are open: they belong to grants that have not been sent, as far as is known. A call that ends up to
    `until` is in the last entry, and no entry is over until then; `until` is -1 if no such time is known.

    `rest` is the time until which the provider takes nothing, because it said so; 0 if it takes requests.

    `member` is the id of the user or group whose window it is; "" if the window is that of a service, region or pool.
    The rest is for the dispatcher: `look_at` is the time at which it looks at the window of a member next, 0 if it
    looks at all such windows anyway.
    """

    __slots__ = (
        "counted", "counted_units", "entries", "lacks_grants", "look_at", "member", "most_requests", "most_units",
        "numbers", "rate", "requests", "rest", "units", "until",
    )  # fmt: skip

    def __init__(self, rate: Rate | None = None, member: str = "") -> None:
        self.member = member
        self.look_at = UNLIMITED if member else 0
        self.entries: list[int] = []
        self.requests = self.units = self.counted = self.counted_units = 0
        self.until = -1
        self.lacks_grants = False
        """Whether it was cleared while grants were open that are closed later."""
        self.rest = 0
        self.numbers = _numbers_of(rate)
        self.take_rate(rate)

    @property
    def is_empty(self) -> bool:
        return not (self.rest or self.requests or self.units)

    @property
    def counts(self) -> bool:
        """Whether the rate limits anything."""
        return self.most_requests < UNLIMITED or self.most_units < UNLIMITED

    def has_rate(self, rate: Rate) -> bool:
        if rate is self.rate:
            return True
        mine, others = self.numbers, _numbers_of(rate)
        same = mine.per == others.per and mine.most_requests == others.most_requests
        return same and mine.most_units == others.most_units

    def take_rate(self, rate: Rate | None) -> None:
        """Apply a rate. If its `per` differs from before, the entries end that much later or earlier."""
        numbers = _numbers_of(rate)
        shift = numbers.per - self.numbers.per
        self.rate, self.numbers, self.until = rate, numbers, -1
        self.most_requests, self.most_units = numbers.most_requests, numbers.most_units
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

    def wait(self, demand: Demand, call: int, now: int) -> int:
        """Microseconds until the step of this demand fits. Calls that have not been sent count as sent now, and calls
        take `call` microseconds."""
        waits = self.rest - now if self.rest else 0
        missing = self.requests + demand.steps - self.most_requests
        if missing > 0:
            waits = max(waits, self._freed(missing, self.requests, self.most_requests, 1, now))
        if self.most_units < UNLIMITED:
            waits = max(waits, self._wait_for_units(demand, call, now))
        return max(0, waits)

    def _wait_for_units(self, demand: Demand, call: int, now: int) -> int:
        """The later of two times. One is when the window has the units, if each call before uses what is expected. The
        other is when enough calls have ended: until then, each keeps all that it has reserved."""
        most, held, ahead = self.most_units, self.units - self.counted_units, demand.steps - 1
        own, own_use = (max(1, min(units, most)) for units in (demand.own, demand.own_use))
        reserved, use = (min(units, ahead * most) for units in (demand.reserved, demand.use))
        counted = self.units - held
        taken = counted + demand.use_of(held, self.requests - self.counted, most)
        missing = taken + use + own - most
        each, each_use = (max(1, units // demand.steps) for units in (reserved + own, use + own_use))
        # A step that does not fit keeps all others waiting, so the window is full with a whole number of them. One that
        # is due to fit exactly, but for a rounded mean, counts.
        full = min(most, max(1, (most + most // 100) // each) * each)
        waits = self._freed(missing, taken, max(1, min(most, full - each + each_use)), 2, now) if missing > 0 else 0
        left = max(0, most - counted)
        over = held + reserved + own - left
        if demand.mean is None or over <= 0 or call <= 0:
            return waits
        # What can be reserved at once. What ended calls used takes some of it: on average half of all that is used
        # while this one waits, but no more than calls use at this pace in the part of `per` after their end.
        all_reserved, all_use = reserved + own, use + own_use
        steady = int(most * (all_reserved / (all_reserved + all_use * (max(0, self.numbers.per - call) / call))))
        room = max(own, steady, left - int(over * (all_use / all_reserved) / 2))
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
                return whole * self.numbers.per + max(0, end - now)
        return (whole + 1) * self.numbers.per

    def _triples(self) -> Iterator[tuple[int, int, int]]:
        entries = self.entries
        last = (self.counted - entries[-2], self.counted_units - entries[-1]) if entries else ()
        numbers = iter((*entries[:-2], *last))
        return zip(numbers, numbers, numbers, strict=True)

    # -- what is counted ------------------------------------------------------------------------------------------

    def advance(self, now: int) -> bool:
        """Drop what is over. Returns whether anything was."""
        entries, is_over = self.entries, False
        if entries and entries[0] <= now:
            over = requests = units = 0
            for end, ended, used in self._triples():
                if end > now:
                    break
                requests, units, over = requests + ended, units + used, over + 3
            del entries[:over]
            self._count(-requests, -units, before_last=True)
            is_over = True
        if 0 < self.rest <= now:
            self.rest, is_over = 0, True
        return is_over

    def clear(self) -> None:
        """Forget everything but the rate."""
        self.lacks_grants = self.lacks_grants or self.requests > self.counted
        self.entries, self.until = [], -1
        self.requests = self.units = self.counted = self.counted_units = self.rest = 0

    def sent(self, units: int, sent_at: int) -> None:
        """The grant was sent at this time: it stays in the window for `per` and the margin."""
        self.refund(units)
        self.add(sent_at + self.numbers.margin, 1, units)

    def close(self, units: int, now: int) -> None:
        """The call of a grant has ended and used what it had reserved. As `ended`, but faster."""
        entries, end = self.entries, self.numbers.end_of(now)
        if self.lacks_grants or (entries and (entries[0] <= now or entries[-3] >= end)):
            self.ended(units, None, None, now)
            return
        if entries:
            entries[-2] = self.counted - entries[-2]
            entries[-1] = self.counted_units - entries[-1]
        entries += (end, self.counted, self.counted_units)
        self.counted += 1
        self.counted_units += units
        self.until = min(end - self.numbers.per, entries[0] - 1)

    def ended(self, units: int, used: int | None, sent_at: int | None, now: int, *, reported: bool = False) -> None:
        """The call of a grant has ended. `used` are the units that it really took; None means that this is unknown, so
        that the estimate stays. `sent_at` is None if it is not known when it was sent. `reported`: `sent` was called
        before, with the same time.

        What is over is dropped first: the window of a user or group is looked at only at the end of its last entry,
        which this may put off."""
        entries, numbers = self.entries, self.numbers
        if entries and entries[0] <= now:
            self.advance(now)
        left = units if used is None or used > units else used
        end = numbers.end_of(now if sent_at is None else min(now, sent_at + numbers.margin))
        if reported:
            assert sent_at is not None
            self._subtract(numbers.end_of(sent_at + numbers.margin), units - left)
        elif end <= now:  # it was sent so long ago that it is over
            self.refund(units)
        else:
            if self.lacks_grants:
                self._reopen(units)
            self.units += left - units
            self._insert(end, 1, left)
            if entries[-3] == end and not self.lacks_grants:
                self.until = min(end - numbers.per, entries[0] - 1)
        if used is not None and used > units:
            self.add(now, 0, used - units)  # the provider may have counted these as late as at the end

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
            self.add(until - self.numbers.per, more, more_units)

    def add(self, counted_at: int, requests: int, units: int) -> None:
        """Count requests and units that the provider has counted by this time."""
        self.requests += requests
        self.units += units
        self._insert(self.numbers.end_of(counted_at), requests, units)

    def _insert(self, end: int, requests: int, units: int) -> None:
        """Move open requests and units to the entry with this end."""
        entries = self.entries
        at = len(entries) - 3
        if at < 0 or entries[at] < end:
            if entries:
                entries[-2:] = (self.counted - entries[-2], self.counted_units - entries[-1])
            entries += (end, self.counted, self.counted_units)
        elif entries[at] > end:
            while at >= 0 and entries[at] > end:
                at -= 3
            if at < 0 or entries[at] < end:
                at += 3
                entries[at:at] = (end, 0, 0)
            entries[at + 1] += requests
            entries[at + 2] += units
            entries[-2] += requests
            entries[-1] += units
        self.counted += requests
        self.counted_units += units
        self.until = -1

    def _reopen(self, units: int) -> None:
        """Count a grant that is closed, unless as much is open."""
        self.requests += max(0, 1 + self.counted - self.requests)
        self.units += max(0, units + self.counted_units - self.units)

    def _subtract(self, end: int, units: int) -> None:
        """Take units from the entry with this end, if it has them."""
        entries = self.entries
        for number, (ends, _, used) in enumerate(self._triples()):
            if ends == end:
                is_last = 3 * number + 3 == len(entries)
                if not is_last:
                    entries[3 * number + 2] -= min(units, used)
                self._count(0, -min(units, used), before_last=not is_last)

    def _count(self, requests: int, units: int, *, before_last: bool) -> None:
        """Change what the provider must have counted, in the last entry or before."""
        self.requests += requests
        self.units += units
        self.counted += requests
        self.counted_units += units
        self.until = -1
        if before_last and self.entries:
            self.entries[-2] += requests
            self.entries[-1] += units
