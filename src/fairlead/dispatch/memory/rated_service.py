"""What the rates of a service mean for its queue: which steps fit, which members are parked, how long steps wait."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fairlead.dispatch.memory.costs import ONE_STEP
from fairlead.dispatch.memory.fair_queue import COST, USER, Entry, FairBand, FifoBand, Lane, User
from fairlead.dispatch.memory.rates import MARK, ServiceRates
from fairlead.dispatch.port import Lease
from fairlead.domain.fair_share import SECOND, micros
from fairlead.domain.groups import GroupAhead, levels_of
from fairlead.domain.rates import Demand

if TYPE_CHECKING:
    from fairlead.dispatch.memory.service import Pick, Service
    from fairlead.dispatch.memory.topology import RateTimer


def start_rates(service: Service, timer: RateTimer) -> ServiceRates:
    """The rates of a service. Creates them if it has none yet."""
    if service.rates is None:
        service.rates = ServiceRates(service.rules, service.member_rates, service.users, timer)
        for entry in service.entries():
            service.rates.expect(entry[COST] or 0)
    return service.rates


def groups_of_path(service: Service, path: str | None) -> tuple[str, ...]:
    """The ids of the group with this path, and of those that it is in, as far as they have a rate."""
    rated = {} if service.rates is None or service.fifo else service.rates.members.groups
    return () if path is None else tuple(MARK + level for level in reversed(levels_of(path)) if level in rated)


def fits(service: Service, pick: Pick) -> bool:
    """Whether the rates of the service and its pool allow the pick now. If not, no other step goes before it, because a
    large one would never get its turn."""
    number, lane, user_id, region = pick
    rates = service.rates
    assert rates is not None
    units = rates.units_of(service.bands[number].lanes[lane].queues[user_id][0][COST])
    return rates.own.fits(units) and not (
        rates.pool is not None and service.rules.in_pool(region) and not rates.pool.fits(units)
    )


def rated_pick(service: Service, rates: ServiceRates, bands: tuple[int, ...]) -> Pick | None:
    """The next step of a service without regions whose own window is not full. Parks users and groups at their own
    rate."""
    for number in bands:
        band = service.bands[number]
        if band.waiting and (head := rated_head(service, band, None)) is not None:
            pick = (number, None, head[-1], None)
            has_room = rates.pool is None and rates.own not in rates.tight
            return pick if has_room or fits(service, pick) else None
    return None


def rated_head(service: Service, band: FairBand | FifoBand, lane: str | None) -> tuple[Any, ...] | None:
    """The user that is next in a lane. Parks users and groups at their own rate."""
    rates = service.rates
    while (head := band.head(lane, service.parked)) is not None and rates is not None and rates.tight:
        user = service.users[head[-1]]
        if user.window not in rates.tight and not rates.group_rates:
            break
        cost = band.lanes[lane].queues[head[-1]][0][COST]
        full = _full_member(rates, user, rates.units_of(cost))
        if full is None:
            break
        _park(service, full, cost)
    return head


def _full_member(rates: ServiceRates, user: User, units: int) -> str | None:
    """The user, or the first of its groups, whose rate keeps a step of this many units from being granted."""
    if user.window in rates.tight and not rates.allows(user.window, units):
        return user.user_id
    if rates.group_rates and user.levels:
        for group in user.levels[0].rated or rates.rated_groups(user):
            if not rates.allows(rates.windows.get(group), units):
                return group
    return None


def _park(service: Service, member: str, cost: int | None) -> None:
    """Park a member whose rate keeps a step with this cost from being granted."""
    assert service.rates is not None
    service.rates.park(member, cost)
    if service.groups is not None:
        service.groups.park(member)
    service.parked.add(member)


def fitting_regions(service: Service, lane: Lane, head: tuple[Any, ...], regions: list[str]) -> list[str]:
    """Those of the regions whose rate allows the first step of this user."""
    rates = service.rates
    if rates is None or not rates.regions:
        return regions
    cost = lane.queues[head[-1]][0][COST]
    return [region for region in regions if rates.region_fits(region, cost)]


def call_sent(service: Service, lease: Lease, after: float, now: int) -> tuple[str, ...]:
    """The call of a lease was sent. Returns the groups whose windows have changed."""
    _, estimate, cost, held = service.leases[lease.name]
    if service.rates is None or held is None:
        return ()
    held, groups = service.rates.sent(lease, held, after, now)
    service.leases[lease.name] = (lease, estimate, cost, held)
    return groups


def advance_service(service: Service, now: int) -> bool:
    """Drop what is over from the windows of a service, and unpark members. Returns whether anything has changed."""
    assert service.rates is not None
    changed, unparked = service.rates.advance(now)
    for member in unparked:
        if member in service.users:
            service.park_or_unpark(service.users[member])
        elif service.groups is not None:
            service.groups.reconsider([member])
    return changed or bool(unparked)


def demand_of(service: Service, rates: ServiceRates, entry: Entry, steps: int, work: int) -> Demand:
    """What a step with `steps` steps ahead takes from windows. The units of those ahead follow from their estimated
    `work`, because an estimate is the stated cost of a step, times the time that a unit takes."""
    costs, cost, mean = service.costs, entry[COST], rates.mean_units
    own = max(1, rates.units_of(cost))
    stated, total = _waiting_costs(service)
    if not stated:
        each = own if mean is None else max(1, mean)
        return Demand(steps + 1, own, each, steps * own, steps * each, mean)
    per_cost, scale = costs.per_cost, costs.used_per_cost.value
    if per_cost.count and per_cost.over:
        reserved = int(float(work) * per_cost.under / per_cost.over)
    elif costs.in_seconds and not per_cost.count:
        reserved = work
    else:
        reserved = int(float(steps) * total / stated)
    own_use = own if cost is None or scale is None else int(own * scale)
    return Demand(steps + 1, own, own_use, reserved, reserved if scale is None else int(reserved * scale), mean, scale)


def _waiting_costs(service: Service) -> tuple[int, int]:
    """The number of waiting steps that state a cost, and the sum of these costs."""
    return divmod(sum(lane.costs.all for band in service.bands for lane in band.lanes.values()), ONE_STEP)


def rate_waits(
    service: Service, entry: Entry, demand: Demand | None, own: int, regions: list[str], now: float
) -> tuple[float, float]:
    """Seconds until the rates of the service, its pool and the first of the regions allow a step with this demand; and
    until the rate of its user does, for the `own`-th step of the user."""
    rates = service.rates
    if rates is None or demand is None:
        return 0.0, 0.0
    of_call = (demand, service.costs.expected, micros(now))
    waits = [rates.own.wait(*of_call)]
    if rates.pool is not None and service.rules.pooled_regions is None:
        waits.append(rates.pool.wait(*of_call))
    if regions and rates.regions:
        windows = [rates.regions.get(name) for name in regions]
        waits.append(min(0 if window is None else window.wait(*of_call) for window in windows))
    user = rates.windows.get(entry[USER])
    alike = demand.of_some(own, alike=True)
    return max(waits) / SECOND, 0.0 if user is None else user.wait(alike, *of_call[1:]) / SECOND


def group_rate_waits(
    service: Service, demand: Demand | None, groups: tuple[GroupAhead, ...], now: float
) -> tuple[GroupAhead, ...]:
    """The groups of a step's user, with the seconds until their rates allow the step."""
    rates = service.rates
    if rates is None or demand is None or not rates.members.groups or not groups:
        return groups
    windows = [rates.windows.get(MARK + group.path) for group in groups]
    of_call = (service.costs.expected, micros(now))
    return tuple(
        group
        if window is None or window.is_empty
        else replace(group, rate_wait=window.wait(demand.of_some(group.ahead + 1), *of_call) / SECOND)
        for group, window in zip(groups, windows, strict=True)
    )
