"""The rules as stored: the declared services and pools, the overrides of operators, and the automatic limits."""

from __future__ import annotations

from dataclasses import asdict, fields, replace
from typing import Any

import orjson

from fairlead.domain.auto_limit import bounded
from fairlead.domain.groups import GroupRules
from fairlead.domain.rates import Rate, RateOf
from fairlead.domain.rules import (
    MAIN_SHARD,
    Adapted,
    Auto,
    Change,
    Order,
    Overridden,
    Rules,
    ServiceRules,
    Share,
    with_rates,
)
from fairlead.store.port import Adapt, DeclareServices, Override, OverrideRates

_FIELDS = frozenset(field.name for field in fields(ServiceRules))
# Fields that the first release does not know and fails on. They are written only if they differ from the default, so
# that processes of the first release can run beside newer ones while no service uses these fields.
_LATER: dict[str, Any] = {
    "shard": MAIN_SHARD,
    "shares": {},
    "part_on": None,
    "remote": False,
    "hold": None,
    "max_attempts": 3,
    "wait_timeout": None,
    "resume_after": None,
    "breaker_failures": 0,
    "breaker_rest": 30.0,
    "auto": None,
    "region_weights": {},
    "pooled_regions": None,
    "turns_only": False,
    "rate": None,
    "user_rate": None,
    "region_rates": {},
    "cost_unit": "seconds",
    "charge": "seconds",
}


def declaration_of(declare: DeclareServices) -> str:
    """Encode declared services, pools and groups as JSON with sorted keys. Equal declarations give the same text, so
    declaring the same services again changes nothing."""
    services = sorted((_written(rules) for rules in declare.services), key=lambda rules: str(rules["service"]))
    whole: dict[str, Any] = {"services": services, "pools": dict(declare.pools)}
    if declare.pool_rates:  # the first releases fail on other keys
        whole["pool_rates"] = {name: asdict(rate) for name, rate in declare.pool_rates.items()}
    if declare.plan_rates:
        whole["plan_rates"] = {name: asdict(rate) for name, rate in declare.plan_rates.items()}
    if declare.groups:
        whole["groups"] = {path: asdict(group) for path, group in declare.groups.items()}
    return orjson.dumps(whole, default=sorted, option=orjson.OPT_SORT_KEYS).decode()  # bands are a set


def _written(rules: ServiceRules) -> dict[str, Any]:
    return {name: value for name, value in asdict(rules).items() if name not in _LATER or value != _LATER[name]}


def _read(service: dict[str, Any]) -> ServiceRules:
    """Decode the declared rules of one service. Fields that only later releases know are ignored."""
    known = {name: value for name, value in service.items() if name in _FIELDS}
    shares = {
        shard: Share(frozenset(share["bands"]), share["limit"]) for shard, share in known.get("shares", {}).items()
    }
    auto = None if known.get("auto") is None else Auto(**known["auto"])
    pooled = None if known.get("pooled_regions") is None else tuple(known["pooled_regions"])
    rates = {name: rate_read(known.get(name)) for name in ("rate", "user_rate")}
    regions = _rates(known.get("region_rates", {}))
    decoded = {"order": Order(known["order"]), "shares": shares, "auto": auto, "pooled_regions": pooled}
    return ServiceRules(**{**known, **decoded, **rates, "region_rates": regions})


def rate_read(rate: dict[str, Any] | None) -> Rate | None:
    return None if rate is None else Rate(rate.get("requests"), rate.get("units"), rate["per"])


def rate_rows(override: OverrideRates) -> list[tuple[str, str, str, str | None]]:
    """The rows of overridden rates: kind, name, region, and the rate as JSON, or None to lift it."""
    return [(*of, None if rate is None else orjson.dumps(asdict(rate)).decode()) for of, rate in override.rates.items()]


def overridden(before: tuple[Any, ...], override: Override) -> tuple[Any, ...]:
    """The row of an override after a change: limit and pause."""
    limit, paused = before
    limit = None if override.lift_limit else limit if override.limit is None else override.limit
    return limit, paused if override.paused is None else override.paused


def _rates(rates: dict[str, Any]) -> dict[str, Rate]:
    return {name: rate for name, each in rates.items() if (rate := rate_read(each)) is not None}


def adapted_row(adapt: Adapt) -> tuple[str, int | None, int, float | None, str]:
    """Encode an automatic limit as a row: the service, its old and new limit, the best latency, and the history as
    JSON."""
    history = [[change.at, change.limit, change.why] for change in adapt.adapted.history]
    return adapt.service, adapt.was, adapt.adapted.limit, adapt.adapted.best, orjson.dumps(history).decode()


def _adapted(rows: list[Any], services: dict[str, ServiceRules]) -> dict[str, Adapted]:
    """Decode the stored automatic limits. Services whose limit is no longer automatic are left out."""
    return {
        name: Adapted(limit, best, tuple(Change(*change) for change in history))
        for name, limit, best, history in rows
        if name in services and services[name].auto is not None
    }


def _with_limit(rules: ServiceRules, adapted: Adapted | None) -> ServiceRules:
    if adapted is None or rules.auto is None:
        return rules
    return replace(rules, limit=bounded(adapted.limit, rules.auto))


def declared_of(declared: dict[str, Any]) -> DeclareServices:
    return DeclareServices(tuple(map(_read, declared["services"])), declared["pools"], **_shared(declared))


def _shared(declared: dict[str, Any]) -> dict[str, Any]:
    """What the services share: the rates of pools and plans, and the groups."""
    groups = {
        path: GroupRules(group["weight"], group["limit"], rate_read(group.get("rate")))
        for path, group in declared.get("groups", {}).items()
    }
    rates = {name: _rates(declared.get(name, {})) for name in ("pool_rates", "plan_rates")}
    return {"groups": groups, **rates}


def rules_of(answer: list[Any]) -> Rules:
    """Decode a row of the SQL fragment `rules`. The limit of a service is the override, else the automatic limit, else
    the declared limit."""
    version, declared, overrides, adaptive, rates = answer
    services = {service["service"]: _read(service) for service in declared["services"]}
    adapted = _adapted(adaptive, services)
    services = {name: _with_limit(rules, adapted.get(name)) for name, rules in services.items()}
    in_force: dict[str, Overridden] = {}
    for name, limit, paused in overrides:
        if (rules := services.get(name)) is not None:
            services[name] = replace(
                rules,
                limit=rules.limit if limit is None else limit,
                paused=rules.paused if paused is None else bool(paused),
            )
            # The config cannot pause a service, so an override with paused = false changes nothing.
            if limit is not None or paused:
                in_force[name] = Overridden(limit, True if paused else None)
    found = Rules(services, declared["pools"], version, in_force, adapted, **_shared(declared))
    read = {RateOf(kind, name, region): rate_read(orjson.loads(rate)) for kind, name, region, rate in sorted(rates)}
    changed = {of: rate for of, rate in read.items() if rate is not None}
    return with_rates(found, changed) if changed else found
