"""The rules as they are kept: what was declared, as JSON in one canonical spelling, and the overrides beside it."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import orjson

from fairlead.domain.limits import Order, Rules, ServiceRules
from fairlead.store.port import DeclareServices


def declaration_of(declare: DeclareServices) -> str:
    """Sorted, so that the same declaration is the same text, and a repeated one changes nothing."""
    services = sorted((asdict(rules) for rules in declare.services), key=lambda rules: str(rules["service"]))
    return orjson.dumps({"services": services, "pools": dict(declare.pools)}, option=orjson.OPT_SORT_KEYS).decode()


def rules_of(answer: list[Any]) -> Rules:
    """Reads what the fragment `rules` wrote. Run-time overrides win over what is declared."""
    version, declared, overrides = answer
    services = {
        service["service"]: ServiceRules(**{**service, "order": Order(service["order"])})
        for service in declared["services"]
    }
    for name, limit, paused in overrides:
        if (rules := services.get(name)) is not None:
            services[name] = replace(
                rules,
                limit=rules.limit if limit is None else limit,
                paused=rules.paused if paused is None else bool(paused),
            )
    return Rules(services, declared["pools"], version)
