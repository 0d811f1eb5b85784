"""Rates that operators change at run time: of services, their users and regions, of pools, plans and groups. The
changes are stored in the database and recorded in the audit log, like those of limits."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from pydantic import ValidationError

from fairlead.app import audit
from fairlead.app.audit import Act
from fairlead.app.job_commands import TRIES
from fairlead.config import explained
from fairlead.domain.config_checks import known, spelled
from fairlead.domain.costs import TOKENS
from fairlead.domain.rate_config import RateConfig, rate_of
from fairlead.domain.rates import Rate, RateOf
from fairlead.domain.rules import Rules, moved_scopes, with_rates
from fairlead.errors import InvalidInput, NotFound, Unavailable
from fairlead.store.port import OverrideRates, Store

Write = Callable[[OverrideRates, Act], Awaitable[Rules | None]]
"""Returns None if the rules have changed meanwhile."""
SHARED = ("pool", "plan", "group")
"""What has a rate that counts in several services."""


@dataclass(frozen=True, slots=True)
class RateState:
    """The rates of a service that apply now, and those of the configuration; None where there is none."""

    service: str
    rate: Rate | None
    user_rate: Rate | None
    declared_rate: Rate | None
    declared_user_rate: Rate | None
    unit: str
    region_rates: Mapping[str, Rate] = field(default_factory=dict)
    declared_region_rates: Mapping[str, Rate] = field(default_factory=dict)

    @classmethod
    def of(cls, service: str, rules: Rules, declared: Rules) -> RateState:
        now, written = rules.services[service], declared.services[service]
        rates = now.rate, now.user_rate, written.rate, written.user_rate
        return cls(service, *rates, now.cost_unit, now.region_rates, written.region_rates)


@dataclass(frozen=True, slots=True)
class SharedRateState:
    """The rate of a pool, plan or group (`of`) that applies now, and that of the configuration; None where there is
    none."""

    of: str
    name: str
    rate: Rate | None
    declared_rate: Rate | None
    unit: str


def of_service(service: str, region: str | None) -> RateOf:
    return RateOf("service", service) if region is None else RateOf("region", service, region)


def of_shared(of: str, name: str) -> RateOf:
    if of not in SHARED:
        raise InvalidInput(f"services share the rates of a pool, a plan or a group, not of {of[:50]!r}", pointer="/of")
    return RateOf(of, name)


def checked_rate(values: dict[str, float | None]) -> RateConfig:
    """The rate of these values, as in the configuration. Raises InvalidInput."""
    try:
        return RateConfig.model_validate(values)
    except ValidationError as error:
        (problem, *_) = explained(error, "rate")
        raise InvalidInput(problem.removeprefix("rate: ").removeprefix(": ")) from None


async def set_rate(
    of: RateOf, wanted: RateConfig | None, store: Store, plans: Collection[str], write: Write, *, who: str
) -> tuple[Rules, Rules]:
    """Override a rate. None removes the override; for a service, also that of its users. `plans` are the names of the
    configured plans. Returns the rules that apply now and the declared ones."""
    rate = rate_of(wanted)
    for _ in range(TRIES):
        before, declared = await store.rules(), (await store.declared()).rules
        of = declared_as(of, before, plans)
        if wanted is not None and wanted.tokens is not None:
            _check_counts_tokens(of, before.units_of(of))
        changes = {of: rate}
        if rate is None and of.kind == "service":
            changes[RateOf("user", of.name)] = None
        kept = {**before.rate_overrides, **changes}
        after = with_rates(declared, {each: value for each, value in kept.items() if value is not None})
        override = OverrideRates(changes, before.version, moved_scopes(before, after))
        if (rules := await write(override, _act(of, rate, before, who))) is not None:
            return rules, declared
    raise Unavailable("the rules keep changing; try again")


def declared_as(of: RateOf, rules: Rules, plans: Collection[str]) -> RateOf:
    """What the rate belongs to, with the name as it is declared. Raises NotFound, with the names that are declared, and
    InvalidInput if its calls cannot be counted."""
    split = sorted(name for name, service in rules.services.items() if service.shares)
    if of.kind in SHARED:
        names = {"pool": rules.pools, "plan": {*plans, *rules.plan_rates}, "group": rules.groups}[of.kind]
        if of.name not in names:
            raise NotFound(f"there is no {of.kind} {of.name[:100]!r}; {known(names)}")
    elif of.name not in rules.services:
        raise NotFound(f"there is no service {of.name[:100]!r}; {known(rules.services)}")
    elif of.kind == "region":
        regions = rules.services[of.name].regions
        of = of._replace(region=spelled(of.region, regions))
        if of.region not in regions:
            raise NotFound(f"{of.name} has no region {of.region[:100]!r}; {known(regions)}", pointer="/region")
    if of.kind in ("plan", "group") and split:
        raise InvalidInput(f"{split[0]} is split over shards, so {of} cannot have a rate: one Redis must count it")
    if of.kind not in SHARED and of.name in split:
        raise InvalidInput(f"{of.name} is split over shards and cannot have a rate, because one Redis must count it")
    return of


def _check_counts_tokens(of: RateOf, units: Collection[str]) -> None:
    if units and TOKENS not in units:
        counts = f"{of.name if of.kind == 'user' else of} counts in {' and '.join(sorted(units))}"
        raise InvalidInput(f"{counts}, not in tokens: set units instead, or requests", pointer="/tokens")


def _act(of: RateOf, rate: Rate | None, before: Rules, who: str) -> Act:
    set_to, lift = audit.RATES.get(of.kind, (audit.RATE, audit.LIFT_RATE))
    details: dict[str, Any] = {} if rate is None else {"rate": asdict(rate)}
    details |= {"was": _shown(before.rate_of(of)), "unit": before.unit_of(of)}
    if of.kind == "region":
        details["region"] = of.region
    elif rate is None and of.kind == "service":
        details["was_user_rate"] = _shown(before.rate_of(RateOf("user", of.name)))
    elif rate is not None and of.kind not in SHARED:
        details["user"] = of.kind == "user"
    return Act(who, lift if rate is None else set_to, of.name, details)


def _shown(rate: Rate | None) -> dict[str, float | None] | None:
    return None if rate is None else asdict(rate)
