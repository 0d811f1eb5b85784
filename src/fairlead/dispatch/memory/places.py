"""Where waiting steps stand, as if nothing more arrived and everything took as long as estimated.

FIFO lanes: counted exactly. Fair lanes: the n-th waiting step of a user starts at `tag + n * charge`, so the steps
before a given one can be counted per user, in one pass over the band's users for all steps that are asked about.
The first step of a newcomer starts where the newcomer stands instead, before all virtual times.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import NamedTuple, TypeAlias

from fairlead.dispatch.memory.lines import COST, JOB, KEY, USER, Entry, FairBand, Lane, Line, before
from fairlead.dispatch.memory.service import RETRIES, Service
from fairlead.domain.limits import regions_of
from fairlead.domain.order import SECOND, Place, charge, micros

FIRST_PRIORITY = 1
"""The band before it has the retries that go first."""

Waiting: TypeAlias = tuple[str, int, int, int]
"""One user's steps in the lanes looked at: user id, how many, the estimate for one of them, and its charge."""


class Mark(NamedTuple):
    """The virtual time at which a step that is asked about starts; `own` steps of its user come before it."""

    tag: int
    user_id: str
    job_id: str
    own: int


class Ahead(NamedTuple):
    """What comes before one step: how many steps, how much work, and of the steps how many are the user's own."""

    job_id: str
    steps: int
    work: int
    own: int
    newcomer: bool = False


def places(service: Service, entries: Iterable[Entry], now: float) -> dict[str, Place]:
    """The places of these steps, all of which wait for this service."""
    groups: dict[tuple[int, str | None], list[Entry]] = {}
    for entry in entries:
        groups.setdefault(service.where(entry), []).append(entry)
    found: dict[str, Place] = {}
    for (band, region), group in groups.items():
        running = _running_work(service, region, now)
        slots, free = _slots(service, region), _free(service, region, now)
        mean = _mean(service) / SECOND
        users = {entry[JOB]: entry[USER] for entry in group}
        retries, retry_work = _retries_ahead(service, band, region)
        higher, higher_work = _all_of(service, range(FIRST_PRIORITY, band), region)
        before, work_before = retries + higher, retry_work + higher_work + running
        for ahead in (_fifo_ahead if service.fifo else _fair_ahead)(service, band, region, group):
            found[ahead.job_id] = Place(
                before + ahead.steps + 1, (work_before + ahead.work) / SECOND, slots, mean, free, service.name, band,
                ahead.newcomer, retries, higher, ahead.own, running / SECOND,
                *_user_slots(service, users[ahead.job_id], now),
            )  # fmt: skip
    return found


def _slots(service: Service, region: str | None) -> int:
    """How many of them this step could ever have."""
    rules = service.rules
    pool = math.inf if service.pool is None else service.pool.limit
    return _most(
        service, rules.limit, pool, {name: limit for name, limit in rules.regions.items() if _serves(name, region)}
    )


def _most(service: Service, own: int, pool: float, regions: dict[str, int]) -> int:
    """Of the service's slots, the pool's and those of regions, as many as can be had at once."""
    rules = service.rules
    if not rules.regions:
        return int(min(own, pool))
    pooled = sum(slots for region, slots in regions.items() if rules.in_pool(region))
    return int(min(own, min(pool, pooled) + sum(regions.values()) - pooled))


def _serves(region: str | None, lane: str | None) -> bool:
    return lane is None or region in regions_of(lane)


def _free(service: Service, region: str | None, now: float) -> int:
    """How many of them nobody has now; none of a lane that grants nothing. Holds that are over count no more."""
    rules = service.rules
    if rules.paused:
        return 0
    free, pool = rules.limit - _in_use(service, now), math.inf
    if service.pool is not None:
        pool = max(0, service.pool.limit - sum(_in_pool(each, now) for each in service.pool.services))
    regions = {each: _free_in(service, each, now) for each in rules.regions if _serves(each, region)}
    return max(0, _most(service, free, pool, regions))


def _in_use(service: Service, now: float) -> int:
    return service.in_use - sum(hold.until <= now for hold in service.holds.values())


def _in_pool(service: Service, now: float) -> int:
    over = [hold for hold in service.holds.values() if hold.until <= now and service.rules.in_pool(hold.region)]
    return service.in_pool - len(over)


def _free_in(service: Service, region: str, now: float) -> int:
    over = sum(hold.region == region and hold.until <= now for hold in service.holds.values())
    return max(0, service.region_free(region, over))


def _user_slots(service: Service, user_id: str, now: float) -> tuple[int | None, int, float]:
    """How many its user may have at once, how many of them it has not taken, and what is left of what it runs."""
    limit = service.rules.user_limit
    if limit is None:
        return None, 0, 0.0
    left = sum(
        max(0, estimate - micros(now - lease.granted_at))
        for lease, estimate in service.leases.values()
        if lease.user_id == user_id
    )
    return limit, max(0, limit - service.users[user_id].running), left / SECOND


def _mean(service: Service) -> int:
    return service.default_cost if service.mean is None else service.mean


def _running_work(service: Service, region: str | None, now: float) -> int:
    """What is left to do of the steps that run: all of them, or those in the lane's regions."""
    return sum(
        max(0, estimate - micros(now - lease.granted_at))
        for lease, estimate in service.leases.values()
        if _serves(lease.region, region)
    )


def _lanes_ahead(service: Service, band: int, region: str | None) -> list[Lane]:
    """A bound step waits behind the lanes that share a region with its own, and the unbound one; an unbound step behind
    all of them.

    The unbound one first, then by name, not by when they came to be: the same in every engine.
    """
    lanes = service.bands[band].lanes
    if region is None:
        ahead = list(lanes)
    else:
        own = set(regions_of(region))
        ahead = [name for name in lanes if name is None or not own.isdisjoint(regions_of(name))]
    return [lanes[name] for name in sorted(ahead, key=lambda name: (name is not None, name))]


def _rivals(service: Service, band: int, region: str | None) -> list[Lane]:
    """Of those, the lanes that its steps take turns with: among the retries that go first, unbound ones come before all
    others."""
    if band != RETRIES:
        return _lanes_ahead(service, band, region)
    unbound = service.bands[band].lanes.get(None)
    lanes = _lanes_ahead(service, band, region)
    return [lane for lane in lanes if (lane is unbound) == (region is None)]


def _fifo_ahead(service: Service, band: int, region: str | None, entries: list[Entry]) -> Iterator[Ahead]:
    mean = _mean(service)
    lanes = _rivals(service, band, region)
    for entry in entries:
        count = sum(lane.keys.bisect_left(entry[KEY]) for lane in lanes)
        own = sum(before(lane.lines[entry[USER]], entry) for lane in lanes if entry[USER] in lane.lines)
        yield Ahead(entry[JOB], count, count * mean, own)


def _fair_ahead(service: Service, band: int, region: str | None, entries: list[Entry]) -> Iterator[Ahead]:
    fair = service.bands[band]
    assert isinstance(fair, FairBand)
    lanes = _rivals(service, band, region)
    tally = _Tally(_mark(service, fair, lanes, entry) for entry in entries)
    for waiting in _waiting(service, lanes):
        user_id, steps, estimate, step_charge = waiting
        tag = fair.tags[user_id]
        if user_id in fair.new:
            tally.add(fair.new[user_id], (user_id, 1, estimate, step_charge))
            tag, waiting = tag + step_charge, (user_id, steps - 1, estimate, step_charge)
        tally.add(tag, waiting)
    for mark, count, work in tally.totals():
        yield Ahead(mark.job_id, count, work, mark.own, mark.own == 0 and mark.user_id in fair.new)


class _Tally:
    """How many steps, and how much work, come before each of some marks.

    What is before every mark from the i-th on is counted once, at i; only the rest is counted mark by mark.
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
            # `served_before`, spelled out: this is what runs users times marks often.
            count = (tags[i] - tag) // step_charge + 1
            if user_id >= self.users[i] and tag + (count - 1) * step_charge == tags[i]:
                count -= 1
            self.just_here[i] += count
            self.just_here_work[i] += count * estimate

    def totals(self) -> Iterator[tuple[Mark, int, int]]:
        counts, works = accumulate(self.from_here), accumulate(self.from_here_work)
        for i, (mark, count, work) in enumerate(zip(self.marks, counts, works, strict=False)):
            yield mark, count + self.just_here[i], work + self.just_here_work[i]


def _retries_ahead(service: Service, band: int, region: str | None) -> tuple[int, int]:
    """Retries that go before all steps of this band and lane, and their work."""
    if band != RETRIES:
        return _all_of(service, range(FIRST_PRIORITY), region)
    unbound = service.bands[band].lanes.get(None)
    return (0, 0) if region is None or unbound is None else _sum_of(service, [unbound])


def _all_of(service: Service, bands: range, region: str | None) -> tuple[int, int]:
    """All steps of these bands that this lane's steps wait behind, and their work."""
    sums = [_sum_of(service, _lanes_ahead(service, band, region)) for band in bands if service.bands[band].waiting]
    return sum(count for count, _ in sums), sum(work for _, work in sums)


def _sum_of(service: Service, lanes: list[Lane]) -> tuple[int, int]:
    if service.fifo:
        steps = sum(len(lane.keys) for lane in lanes)
        return steps, steps * _mean(service)
    count = work = 0
    for _, steps, estimate, _ in _waiting(service, lanes):
        count += steps
        work += steps * estimate
    return count, work


def _mark(service: Service, band: FairBand, lanes: list[Lane], entry: Entry) -> Mark:
    user_id = entry[USER]
    lines = [lane.lines[user_id] for lane in lanes if user_id in lane.lines]
    index = sum(before(line, entry) for line in lines)
    if index == 0 and user_id in band.new:
        return Mark(band.new[user_id], user_id, entry[JOB], 0)
    _, _, _, step_charge = _of_user(service, user_id, lines)
    return Mark(band.tags[user_id] + index * step_charge, user_id, entry[JOB], index)


def _waiting(service: Service, lanes: list[Lane]) -> Iterator[Waiting]:
    if len(lanes) > 1:
        for user_id in {user_id for lane in lanes for user_id in lane.lines}:
            yield _of_user(service, user_id, [lane.lines[user_id] for lane in lanes if user_id in lane.lines])
        return
    # The same as `_of_user`, spelled out: there may be a hundred thousand users to go through while others wait.
    users, mean, default = service.users, service.mean, service.default_cost
    for user_id, line in lanes[0].lines.items():
        user = users[user_id]
        estimate = user.mean if user.mean is not None else mean
        if estimate is None:
            cost = line[0][COST]
            estimate = default if cost is None else cost
        yield user_id, len(line), estimate, int(estimate / user.weight) or 1


def _of_user(service: Service, user_id: str, lines: list[Line]) -> Waiting:
    """Steps whose declared costs differ, of a user and service with nothing measured yet, all count as the first."""
    user = service.users[user_id]
    estimate = service.estimate(user, lines[0][0][COST])
    return user_id, sum(map(len, lines)), estimate, charge(estimate, user.weight)
