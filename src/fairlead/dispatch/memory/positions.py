"""Computes queue positions, assuming that no more steps arrive and every step takes as long as estimated.

In FIFO lanes the steps ahead are counted exactly. In fair lanes the n-th waiting step of a user starts at `tag + n *
charge`. One pass over the users of the band can therefore count the steps ahead of all requested steps. The first step
of a newcomer starts at the newcomer's sort key instead, before all virtual times.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator

from fairlead.dispatch.memory.costs import ONE_STEP
from fairlead.dispatch.memory.fair_queue import COST, JOB, KEY, USER, Entry, FairBand, Lane, Queue
from fairlead.dispatch.memory.group_positions import ahead_in_groups
from fairlead.dispatch.memory.groups import GroupedBand
from fairlead.dispatch.memory.rated_service import demand_of, group_rate_waits, rate_waits
from fairlead.dispatch.memory.service import RETRIES, Service
from fairlead.dispatch.memory.tally import Ahead, Mark, Tally, Waiting
from fairlead.dispatch.port import Unserved
from fairlead.domain.fair_share import ESTIMATED_BY, SECOND, QueuePosition, SlotMark, charge, micros, slot_waits
from fairlead.domain.job import Hold

FIRST_PRIORITY = 1
"""The band of the highest priority. The band before it holds the retries that go first."""


def positions(service: Service, entries: Iterable[Entry], now: float, unserved: Unserved) -> dict[str, QueuePosition]:
    """The queue positions of these entries. All of them wait for this service."""
    groups: dict[tuple[int, str | None], list[Entry]] = {}
    for entry in entries:
        groups.setdefault(service.band_and_lane(entry), []).append(entry)
    positions_by_job: dict[str, QueuePosition] = {}
    for (band, region), group in groups.items():
        running = _running_work(service, region, now, unserved)
        slots, free = _slots(service, region, unserved), _free(service, region, now, unserved)
        mean, rests = service.costs.expected / SECOND, _rests(service, region, now, unserved)
        if service.holds:
            slots, rests = _without_held(service, region, now, unserved, slots, rests)
        entry_of = {entry[JOB]: entry for entry in group}
        regions_open = [name for name in service.rules.regions if _is_open(service, name, region, unserved)]
        retries, retry_work = _retries_ahead(service, band, region, unserved)
        higher, higher_work = _all_of(service, range(FIRST_PRIORITY, band), region, unserved)
        before, work_before = retries + higher, retry_work + higher_work
        all_ahead = list((_fifo_ahead if service.fifo else _fair_ahead)(service, band, region, group, unserved, now))
        marks = [(before + ahead.steps, work_before + ahead.work) for ahead in all_ahead]
        waits = _slot_waits(service, region, now, unserved, (slots, free), marks)
        for ahead, (steps, work), wait in zip(all_ahead, marks, waits, strict=True):
            entry = entry_of[ahead.job_id]
            user, cost = service.users[entry[USER]], entry[COST]
            demand = None if service.rates is None else demand_of(service, service.rates, entry, steps, work)
            positions_by_job[ahead.job_id] = QueuePosition(
                steps + 1, (work + running) / SECOND, slots, mean, free, service.name, band, ahead.newcomer, retries,
                higher, ahead.own, running / SECOND, *_user_slots(service, user.user_id, now), rests,
                *rate_waits(service, entry, demand, ahead.own + 1, regions_open, now),
                slot_wait=wait, groups=group_rate_waits(service, demand, ahead.groups, now),
                estimate=service.costs.estimate(user, cost) / SECOND,
                estimated_by=ESTIMATED_BY[service.costs.estimated_by(user, cost)],
            )  # fmt: skip
    return positions_by_job


def _slot_waits(
    service: Service, lane: str | None, now: float, unserved: Unserved, slots: tuple[int, int], marks: list[SlotMark]
) -> list[float | None]:
    """For each mark, seconds until the steps ahead have had a slot and another slot is free; None if that cannot be
    computed from the calls that are running, because none of them stated its cost. `slots` are as `_slots` and
    `_free`."""
    running = [granted for granted in service.leases.values() if _serves(service, granted[0].region, lane, unserved)]
    if not slots[0] or all(cost is None for _, _, cost, _ in running):
        return [None] * len(marks)
    ends = sorted(max(0, estimate - micros(now - lease.granted_at)) for lease, estimate, *_ in running)
    return [wait / SECOND for wait in slot_waits(ends, *slots, service.costs.expected, marks)]


def _slots(service: Service, region: str | None, unserved: Unserved) -> int:
    """How many slots the steps of the lane `region` could use if all slots were free."""
    rules = service.rules
    pool = math.inf if service.pool is None else service.pool.limit
    return _most(
        service,
        rules.limit,
        pool,
        {name: limit for name, limit in rules.regions.items() if _is_open(service, name, region, unserved)},
    )


def _most(service: Service, own: int, pool: float, regions: dict[str, int]) -> int:
    """How many slots can be used at once within the limits `own` of the service, `pool` of its pool, and `regions` of
    its regions."""
    rules = service.rules
    if not rules.regions:
        return int(min(own, pool))
    pooled = sum(slots for region, slots in regions.items() if rules.in_pool(region))
    return int(min(own, min(pool, pooled) + sum(regions.values()) - pooled))


def _serves(service: Service, region: str | None, lane: str | None, unserved: Unserved) -> bool:
    within = service.allowed_regions(lane, unserved)
    return within is None or region in within


def _is_open(service: Service, region: str, lane: str | None, unserved: Unserved) -> bool:
    """Whether steps of the lane `lane` may be called in this region now."""
    return _serves(service, region, lane, unserved) and (service.name, region) not in unserved


def _free(service: Service, region: str | None, now: float, unserved: Unserved) -> int:
    """The number of free slots that steps of the lane `region` could use. 0 for a paused service. The slot of a hold
    whose time is over counts as free."""
    rules = service.rules
    if rules.paused:
        return 0
    free, pool = rules.limit - _in_use(service, now), math.inf
    if service.pool is not None:
        pool = max(0, service.pool.limit - sum(_in_pool(each, now) for each in service.pool.services))
    regions = {
        each: _free_in(service, each, now) for each in rules.regions if _is_open(service, each, region, unserved)
    }
    return max(0, _most(service, free, pool, regions))


def _rests(service: Service, lane: str | None, now: float, unserved: Unserved) -> float:
    """Seconds until the first region of the lane accepts calls again, or 0 if one of them accepts calls now."""
    regions = [region for region in service.rules.regions if _is_open(service, region, lane, unserved)]
    ends = [0 if (breaker := service.breakers.get(region)) is None else breaker.until for region in regions]
    return max(0, min(ends, default=0) - micros(now)) / SECOND


def _without_held(
    service: Service, lane: str | None, now: float, unserved: Unserved, slots: int, rests: float
) -> tuple[int, float]:
    """The slots of a lane that are not held, because only these serve steps until the holds end. If all of them are
    held, the slots and the seconds until the first hold ends."""
    ends = [
        ends_at
        for hold, ends_at in service.holds.values()
        if ends_at > now and _serves(service, hold.region, lane, unserved)
    ]
    if not ends or slots > len(ends):
        return slots - len(ends), rests
    return slots, max(rests, (micros(min(ends)) - micros(now)) / SECOND)


def _ended_holds(service: Service, now: float) -> list[Hold]:
    """The holds whose time is over and that have not been removed yet."""
    return [hold for hold, ends_at in service.holds.values() if ends_at <= now]


def _in_use(service: Service, now: float) -> int:
    return service.in_use - len(_ended_holds(service, now))


def _in_pool(service: Service, now: float) -> int:
    over = [hold for hold in _ended_holds(service, now) if service.rules.in_pool(hold.region)]
    return service.in_pool - len(over)


def _free_in(service: Service, region: str, now: float) -> int:
    over = sum(hold.region == region for hold in _ended_holds(service, now))
    return max(0, service.region_free(region, over))


def _user_slots(service: Service, user_id: str, now: float) -> tuple[int | None, int, float]:
    """The user's own limit (None: no limit), how much of that limit is unused, and the remaining work of the user's
    running steps in seconds."""
    limit = service.rules.user_limit
    if limit is None:
        return None, 0, 0.0
    left = sum(
        max(0, estimate - micros(now - lease.granted_at))
        for lease, estimate, *_ in service.leases.values()
        if lease.user_id == user_id
    )
    return limit, max(0, limit - service.users[user_id].running), left / SECOND


def _running_work(service: Service, region: str | None, now: float, unserved: Unserved) -> int:
    """The remaining work of the running steps, in microseconds. If the lane `region` is bound to regions, only steps
    that run in these regions count."""
    return sum(
        max(0, estimate - micros(now - lease.granted_at))
        for lease, estimate, *_ in service.leases.values()
        if _serves(service, lease.region, region, unserved)
    )


def _lanes_ahead(service: Service, band: int, region: str | None, unserved: Unserved) -> list[Lane]:
    """The lanes whose steps may go before a step of the lane `region`, its own lane among them. For an unbound step
    these are all lanes. For a step that is bound to regions, these are the unbound lane and the lanes that share a
    region with its own lane.

    The unbound lane comes first and the others follow by name, so that all implementations count in the same order.
    """
    lanes = service.bands[band].lanes
    own = service.allowed_regions(region, unserved)
    if own is None:
        ahead = list(lanes)
    else:
        ahead = [
            name
            for name in lanes
            if (others := service.allowed_regions(name, unserved)) is None or not set(own).isdisjoint(others)
        ]
    return [lanes[name] for name in sorted(ahead, key=lambda name: (name is not None, name))]


def _rivals(service: Service, band: int, region: str | None, unserved: Unserved) -> list[Lane]:
    """The lanes among `_lanes_ahead` whose users compete with the users of the lane `region` by virtual time. In the
    band of retries that go first, unbound steps go before all others, so unbound and bound lanes do not compete
    there."""
    if band != RETRIES:
        return _lanes_ahead(service, band, region, unserved)
    unbound = service.bands[band].lanes.get(None)
    lanes = _lanes_ahead(service, band, region, unserved)
    return [lane for lane in lanes if (lane is unbound) == (region is None)]


def _fifo_ahead(
    service: Service, band: int, region: str | None, entries: list[Entry], unserved: Unserved, now: float
) -> Iterator[Ahead]:
    lanes, own_lane = _rivals(service, band, region, unserved), service.bands[band].lanes[region]
    for entry in entries:
        count = work = 0
        for lane in lanes:
            before = lane.keys.bisect_left(entry[KEY])
            count += before
            work += before * _fifo_mean(service, lane, entry if lane is own_lane else None)
        own = sum(_count_before(lane.queues[entry[USER]], entry) for lane in lanes if entry[USER] in lane.queues)
        yield Ahead(entry[JOB], count, work, own)


def _fifo_mean(service: Service, lane: Lane, without: Entry | None = None) -> int:
    """The mean estimate of the steps of a FIFO lane. The step `without` is left out, so that the work ahead of the last
    step of a lane is the sum of all others."""
    costs, steps, stated = service.costs, len(lane.keys), lane.costs.all
    if without is not None:
        steps, stated = steps - 1, stated - (0 if without[COST] is None else ONE_STEP + without[COST])
    return costs.mean_estimate(costs.expected, steps, stated)


def _fair_ahead(
    service: Service, band: int, region: str | None, entries: list[Entry], unserved: Unserved, now: float
) -> Iterator[Ahead]:
    fair = service.bands[band]
    assert isinstance(fair, FairBand)
    lanes = _rivals(service, band, region, unserved)
    if isinstance(fair, GroupedBand):
        marks = [_mark(service, fair, lanes, entry) for entry in entries]
        yield from ahead_in_groups(service, fair, marks, _waiting(service, lanes), now)
        return
    tally = Tally(_mark(service, fair, lanes, entry) for entry in entries)
    for waiting in _waiting(service, lanes):
        user_id, steps, estimate, step_charge = waiting
        node = fair.nodes[user_id]
        tag = node.tag
        if node.key != tag:
            tally.add(node.key, (user_id, 1, estimate, step_charge))
            tag, waiting = tag + step_charge, (user_id, steps - 1, estimate, step_charge)
        tally.add(tag, waiting)
    for mark, count, work in tally.totals():
        yield Ahead(mark.job_id, count, work, mark.own, mark.own == 0 and fair.nodes[mark.user_id].is_new)


def _retries_ahead(service: Service, band: int, region: str | None, unserved: Unserved) -> tuple[int, int]:
    """The number of retries that go before all steps of this band and of the lane `region`, and their work."""
    if band != RETRIES:
        return _all_of(service, range(FIRST_PRIORITY), region, unserved)
    unbound = service.bands[band].lanes.get(None)
    return (0, 0) if region is None or unbound is None else _sum_of(service, [unbound])


def _all_of(service: Service, bands: range, region: str | None, unserved: Unserved) -> tuple[int, int]:
    """The number of steps in these bands that steps of the lane `region` wait behind, and their work."""
    sums = [
        _sum_of(service, _lanes_ahead(service, band, region, unserved)) for band in bands if service.bands[band].waiting
    ]
    return sum(count for count, _ in sums), sum(work for _, work in sums)


def _sum_of(service: Service, lanes: list[Lane]) -> tuple[int, int]:
    if service.fifo:
        return sum(len(lane.keys) for lane in lanes), sum(len(lane.keys) * _fifo_mean(service, lane) for lane in lanes)
    count = work = 0
    for _, steps, estimate, _ in _waiting(service, lanes):
        count += steps
        work += steps * estimate
    return count, work


def _mark(service: Service, band: FairBand, lanes: list[Lane], entry: Entry) -> Mark:
    user_id = entry[USER]
    queues = [lane.queues[user_id] for lane in lanes if user_id in lane.queues]
    index = sum(_count_before(queue, entry) for queue in queues)
    node = band.nodes[user_id]
    if index == 0 and node.is_new:
        return Mark(node.key, user_id, entry[JOB], 0)
    _, _, _, step_charge = _of_user(service, user_id, lanes)
    return Mark(node.tag + index * step_charge, user_id, entry[JOB], index)


def _waiting(service: Service, lanes: list[Lane]) -> Iterator[Waiting]:
    if len(lanes) > 1 or lanes[0].costs.all:
        for user_id in {user_id for lane in lanes for user_id in lane.queues}:
            yield _of_user(service, user_id, lanes)
        return
    # `_of_user` inlined: there may be a hundred thousand users, and this blocks the event loop.
    users, expected = service.users, service.costs.expected
    for user_id, queue in lanes[0].queues.items():
        user = users[user_id]
        estimate = expected if user.mean is None else user.mean
        yield user_id, len(queue), estimate, charge(estimate, user.weight)


def _of_user(service: Service, user_id: str, lanes: list[Lane]) -> Waiting:
    """Sum up the waiting steps of one user in these lanes, with the mean estimate and charge of a single step."""
    user, steps, stated = service.users[user_id], 0, 0
    for lane in lanes:
        if user_id in lane.queues:
            steps, stated = steps + len(lane.queues[user_id]), stated + lane.costs.users.get(user_id, 0)
    plain = service.costs.expected if user.mean is None else user.mean
    estimate = service.costs.mean_estimate(plain, steps, stated)
    return user_id, steps, estimate, charge(estimate, user.weight)


def _count_before(queue: Queue, entry: Entry) -> int:
    """How many entries of the queue sort before this entry. The entry itself need not be in the queue."""
    return bisect_left(queue, entry) if isinstance(queue, list) else queue.bisect_left(entry)
