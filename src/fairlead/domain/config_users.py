"""The settings of users, of their plans and of their groups."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fairlead.domain.config_sections import Section
from fairlead.domain.config_types import GroupName, Name, Slots, Weight
from fairlead.domain.job import Priority
from fairlead.domain.rate_config import RateConfig


class PlanConfig(Section):
    """A plan: the priority and weight that all its users have, and the rate of each of them in each service, in place
    of the service's `user_rate`."""

    priority: Priority | None = None
    weight: Weight | None = None
    rate: RateConfig | None = None


class UserConfig(Section):
    """One user. A priority or weight set here overrides the one of the user's plan."""

    priority: Priority | None = None
    weight: Weight | None = None
    plan: Name | None = None
    group: GroupName | None = None


class GroupConfig(Section):
    """A group of users, or of the groups that name it as their `parent`. Its members share one place among the groups
    and users beside it, by `weight`, and have at most `limit` slots at once, and `rate` calls and units, in each
    service."""

    parent: GroupName | None = None
    weight: Weight = 1.0
    limit: Slots | None = None
    rate: RateConfig | None = None


def uncountable_rates(
    plans: Mapping[str, PlanConfig], groups: Mapping[str, GroupConfig], services: Mapping[str, Any]
) -> Iterator[tuple[str, str]]:
    """Yield a (key, problem) for rates of plans and groups, which count in every service, if a service is split."""
    split = next((name for name, table in services.items() if isinstance(table, dict) and table.get("shards")), None)
    for section, tables in (("plans", plans), ("groups", groups)):
        for name, table in tables.items():
            if split is not None and table.rate is not None:
                problem = f"the service {split} is split over shards, and one Redis must count a rate; use one shard"
                yield f"{section}.{name}.rate", problem
