"""The section `[budgets]`: how much may be used in an hour, a day or a month."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, tzinfo
from typing import Annotated, Any, Literal
from zoneinfo import ZoneInfo

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from fairlead.domain.budgets import MAX_AMOUNT, MONEY, MOST, PARTS, UNITS, Budget, Budgets
from fairlead.domain.config_checks import known
from fairlead.domain.config_types import Name, Number, UserId, Whole
from fairlead.domain.costs import TOKENS
from fairlead.domain.groups import path_of
from fairlead.domain.rules import SECONDS

MOST_BUDGETS = 200

Amount = Annotated[Number, Field(gt=0, le=MOST[SECONDS])]


class BudgetConfig(BaseModel):
    """One budget: whose calls it concerns, how much they may use of what, and what happens when it is spent."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    user: UserId | None = None
    plan: Name | None = None
    group: str | None = None
    each_user: bool = False
    service: Name | list[Name] | None = None
    seconds: Amount | None = None
    units: Amount | None = None
    tokens: Annotated[Whole, Field(ge=1, le=int(MOST[TOKENS]))] | None = None
    money: Amount | None = None
    per: Literal["hour", "day", "month"]
    timezone: str = "UTC"
    at_end: Literal["hold", "demote", "refuse"] = "hold"
    warn_at: list[Annotated[Number, Field(gt=0, le=1)]] = [0.8, 1.0]

    @field_validator("timezone")
    @classmethod
    def _zone_exists(cls, name: str) -> str:
        zone_of(name)
        return name

    @model_validator(mode="after")
    def _says_what_and_whose(self) -> BudgetConfig:
        amounts = [measure for measure in PARTS if getattr(self, measure) is not None]
        if len(amounts) != 1:
            has = f"it has {' and '.join(amounts)}" if amounts else "it has none of them"
            raise ValueError(f"needs one amount: seconds, units, tokens or money; {has}")
        whose = [name for name in ("user", "plan", "group") if getattr(self, name) is not None]
        if len(whose) > 1:
            raise ValueError(f"{' and '.join(whose)}: set one of them; a budget concerns one user, plan or group")
        if self.user is not None and self.each_user:
            raise ValueError("each_user: a budget of one user is that user's already")
        if self.units is not None and self.service is None:
            raise ValueError("units: needs a service, because each service has its own unit")
        if self.service == []:
            raise ValueError("service: names no service; omit it for all services")
        return self

    @property
    def services(self) -> frozenset[str] | None:
        if self.service is None:
            return None
        return frozenset([self.service] if isinstance(self.service, str) else self.service)

    def budget(self, name: str, groups: Mapping[str, str]) -> Budget:
        measure = next(measure for measure in (SECONDS, UNITS, TOKENS, MONEY) if getattr(self, measure) is not None)
        return Budget(
            name,
            measure,
            min(MAX_AMOUNT, max(1, round(getattr(self, measure) * PARTS[measure]))),
            self.per,
            zone_of(self.timezone),
            self.at_end,
            self.user,
            self.plan,
            None if self.group is None else groups.get(self.group, self.group),
            self.each_user,
            self.services,
            tuple(sorted(set(self.warn_at))),
        )


def zone_of(name: str) -> tzinfo:
    if name == "UTC":
        return UTC  # also without a database of time zones
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        text = f"{name[:100]!r} is not a known time zone; use a name such as Europe/Berlin"
        raise ValueError(f"{text} (on a system without time zones: pip install tzdata)") from None


def budgets_of(config: Any) -> Budgets:
    """The budgets of a whole configuration (`Config`)."""
    return Budgets(
        {name: table.budget(name, config.group_paths) for name, table in config.budgets.items()},
        {user_id: user.plan for user_id, user in config.users.items() if user.plan is not None},
        config.units,
        config.wait_timeouts,
    )


def budget_problems(
    budgets: Mapping[str, Any],
    services: Mapping[str, Any],
    plans: Mapping[str, Any],
    prices: Mapping[str, Any],
    group_paths: Mapping[str, str],
) -> Iterator[tuple[str, str]]:
    """Yield a (key, problem) for each budget that names something that does not exist, or that can never be used up."""
    if len(budgets) > MOST_BUDGETS:
        yield "budgets", f"has {len(budgets)} budgets; at most {MOST_BUDGETS} are possible"
    for name, table in budgets.items():
        named = table.get("service")
        named = [named] if isinstance(named, str) else named or ()
        for service in named:
            if service not in services:
                yield f"budgets.{name}.service", f"no service is called {service!r}; {known(services)}"
        if (plan := table.get("plan")) is not None and plan not in plans:
            yield f"budgets.{name}.plan", f"no plan is called {plan!r}; {known(plans)}"
        if (group := table.get("group")) is not None:
            try:
                path_of(group, group_paths)
            except ValueError as error:
                yield f"budgets.{name}.group", str(error)
        if table.get(MONEY) is not None and prices.keys().isdisjoint(named or prices):
            none = f"{' and '.join(named)} has no price" if named else "no service has a price"
            yield f"budgets.{name}.money", f"{none}: without [prices], calls cost nothing"
