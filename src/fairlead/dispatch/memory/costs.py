"""How long the steps of a service are expected to take, what a call is charged, and the costs that wait in the queues.

Durations are in microseconds. Costs and use are in millionths of the service's unit. A step that states no cost has the
cost None. Same behaviour as scripts/include/costs.lua.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

from fairlead.domain.costs import ENOUGH, Ratio
from fairlead.domain.fair_share import DEFAULT_COST, averaged, micros, smoothed
from fairlead.domain.rules import SECONDS, ServiceRules

if TYPE_CHECKING:
    from fairlead.dispatch.memory.fair_queue import User


@lru_cache(1024)
def stated_cost(cost: float | None) -> int | None:
    """The cost of a step in millionths. All steps with the same cost share one number, which saves memory."""
    return None if cost is None else micros(cost)


ONE_STEP: Final = 1 << 80
"""Added for each step to a sum of stated costs, so that one number has both. No sum of costs is as large."""


class LaneCosts:
    """The stated costs of the steps that wait in a lane, in total and by user: the sum of the costs, plus `ONE_STEP`
    for each step."""

    __slots__ = ("all", "users")

    def __init__(self) -> None:
        self.all = 0
        self.users: dict[str, int] = {}

    def add(self, user_id: str, stated: int) -> None:
        """Steps of a user join (or leave, if the number is negative)."""
        users = self.users
        self.all += stated
        stated += users.get(user_id, 0)
        if stated:
            users[user_id] = stated
        else:
            del users[user_id]


class ServiceCosts:
    __slots__ = ("by_used", "default", "in_seconds", "mean", "measured", "per_cost", "per_used", "regions",
                 "used_per_cost")  # fmt: skip

    def __init__(self) -> None:
        self.default = DEFAULT_COST
        self.in_seconds = True
        self.by_used = False
        self.clear()

    def clear(self) -> None:
        """Forget all measurements."""
        self.mean: int | None = None
        self.measured = 0
        """The number of calls in the mean, up to a maximum."""
        self.per_cost = Ratio()
        """Microseconds per stated millionth of a unit."""
        self.regions: dict[str, Ratio] = {}
        """The same for each region."""
        self.per_used = Ratio()
        """Microseconds per used millionth of a unit."""
        self.used_per_cost = Ratio()

    def take_rules(self, rules: ServiceRules) -> None:
        self.default = DEFAULT_COST if rules.cost is None else micros(rules.cost)
        self.in_seconds = rules.cost_unit == SECONDS
        self.by_used = rules.charge != SECONDS

    # -- estimates -----------------------------------------------------------------------------------------------

    @property
    def expected(self) -> int:
        """The estimate of a step of an unknown user that states no cost."""
        return self.default if self.mean is None else self.mean

    def estimate(self, user: User, cost: int | None, region: str | None = None) -> int:
        """The estimate of a step. `region` is where it is called, if that is known."""
        if cost is not None:
            ratio = self.per_cost
            if region is not None and (own := self.regions.get(region)) is not None and own.count >= ENOUGH:
                ratio = own
            if ratio.count:
                return ratio.of(cost)
            if self.in_seconds:
                return cost
        return self.expected if user.mean is None else user.mean

    def estimated_by(self, user: User, cost: int | None) -> int:
        """What `estimate` is based on, as an index of `ESTIMATED_BY`."""
        if cost is not None and (self.per_cost.count or self.in_seconds):
            return 0
        return 1 if user.mean is not None else 3 if self.mean is None else 2

    def mean_estimate(self, plain: int, steps: int, all_stated: int) -> int:
        """The mean estimate of `steps` waiting steps, whose stated costs are as in `LaneCosts`. `plain` is the estimate
        of those that state none."""
        stated, cost = divmod(all_stated, ONE_STEP)
        if stated <= 0 or not (self.per_cost.count or self.in_seconds):
            return plain
        steps = max(steps, stated)
        of_stated = self.per_cost.of(cost, stated) if self.per_cost.count else cost
        return (of_stated + (steps - stated) * plain) // steps

    # -- ended calls ---------------------------------------------------------------------------------------------

    def ended(self, user: User, real: int, cost: int | None, used: float | None, region: str | None) -> int:
        """Learn from a call that took `real`, and return what the call is charged, before the user's weight."""
        user.mean = smoothed(user.mean, real)
        self.mean, self.measured = averaged(self.mean, real, self.measured)
        units = None if used is None else micros(used)
        if cost is not None:
            self.per_cost.learn(real, cost)
            if region is not None:
                self.regions.setdefault(region, Ratio()).learn(real, cost)
            if units is not None:
                self.used_per_cost.learn(units, cost)
        if units is None:
            return real
        self.per_used.learn(real, units)
        return self.per_used.of(units) if self.by_used and self.per_used.count else real
