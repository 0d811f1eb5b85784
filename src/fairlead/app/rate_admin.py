"""Rates of services that operators change at run time. The changes are stored in the database and recorded in the audit
log, like those of limits."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass

from pydantic import ValidationError

from fairlead.app import audit
from fairlead.app.audit import Act
from fairlead.config import explained
from fairlead.domain.rate_config import RateConfig
from fairlead.domain.rates import Rate
from fairlead.domain.rules import Rules, ServiceRules
from fairlead.errors import InvalidInput
from fairlead.store.port import Override, Store

Write = Callable[[Override, Act], Awaitable[Rules]]


@dataclass(frozen=True, slots=True)
class RateState:
    """The rates of a service that apply now, and those of the configuration; None where there is none."""

    service: str
    rate: Rate | None
    user_rate: Rate | None
    declared_rate: Rate | None
    declared_user_rate: Rate | None


def checked_rate(values: dict[str, float | None]) -> Rate:
    """The rate of these values, as in the configuration. Raises InvalidInput."""
    try:
        return RateConfig.model_validate(values).rate
    except ValidationError as error:
        (problem, *_) = explained(error, "rate")
        raise InvalidInput(problem.removeprefix("rate: ").removeprefix(": ")) from None


async def set_rate(
    rules: ServiceRules, rate: Rate | None, store: Store, write: Write, *, user: bool, who: str
) -> RateState:
    """Override the rate of a service, or with `user` the rate of each of its users. A rate of None removes both
    overrides."""
    name = rules.service
    if rules.shares:
        raise InvalidInput(f"{name} is split over shards and cannot have a rate, because one Redis must count it")
    if rate is None:
        was = {"was": _shown(rules.rate), "was_user_rate": _shown(rules.user_rate)}
        after = await write(Override(name, lift_rates=True), Act(who, audit.LIFT_RATE, name, was))
    else:
        details = {"rate": _shown(rate), "was": _shown(rules.user_rate if user else rules.rate), "user": user}
        override = Override(name, user_rate=rate) if user else Override(name, rate=rate)
        after = await write(override, Act(who, audit.RATE, name, details))
    declared = {each.service: each for each in (await store.declared()).services}.get(name, rules)
    current = after.services[name]
    return RateState(name, current.rate, current.user_rate, declared.rate, declared.user_rate)


def _shown(rate: Rate | None) -> dict[str, float | None] | None:
    return None if rate is None else asdict(rate)
