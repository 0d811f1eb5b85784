"""What the doctor says about reported usage."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.unit import doctor_facts

from fairlead.domain.config_budgets import BudgetConfig
from fairlead.domain.config_prices import PriceConfig
from fairlead.domain.rates import Rate
from fairlead.domain.rules import ServiceRules
from fairlead.domain.usage_report import UsageTotal


def total(service: str = "gpu", outcome: str = "success", **changes: Any) -> UsageTotal:
    groups = {"service": service, "outcome": outcome}
    sums = UsageTotal((), None, groups, 10, 0.0, 0.0, 0, 0, 0, 0.0, ignored=0, reported=10, price=0)
    return replace(sums, **changes)


def codes(
    *totals: UsageTotal,
    prices: dict[str, PriceConfig] | None = None,
    budget: dict[str, Any] | None = None,
    **rates: Any,
) -> list[str]:
    known = doctor_facts.facts()
    budgets = {} if budget is None else {"b": BudgetConfig.model_validate({**budget, "per": "day"})}
    config = known.config.model_copy(update={"prices": prices or {}, "budgets": budgets})
    services = {**known.rules.services, "gpu": replace(ServiceRules("gpu", limit=1), **rates)}
    found = doctor_facts.codes(usage=totals, config=config, rules=replace(known.rules, services=services))
    return [code for code in found if code.startswith("usage")]


def test_ignored_values_are_reported_by_service() -> None:
    assert codes(total()) == []
    assert codes(total(ignored=3), total("tts", "failed", ignored=1)) == ["usage-ignored", "usage-ignored"]


def test_a_price_for_tokens_needs_calls_that_report_them() -> None:
    per_token = {"gpu": PriceConfig(per_million_tokens_in=1.0)}
    assert codes(total(reported=9), prices=per_token) == ["usage-missing"]
    assert codes(total(reported=10), prices=per_token) == []
    assert codes(total(outcome="failed", reported=0), prices=per_token) == []
    assert codes(total(reported=0), prices={"gpu": PriceConfig(per_call=1.0)}) == []


def test_a_rate_of_tokens_needs_calls_that_report_them() -> None:
    assert codes(total(reported=9), rate=Rate(units=100.0)) == ["usage-missing"]
    assert codes(total(reported=9), user_rate=Rate(units=100.0)) == ["usage-missing"]
    assert codes(total(reported=10), rate=Rate(units=100.0)) == []
    assert codes(total(reported=0), rate=Rate(requests=9)) == []


def test_a_budget_of_tokens_or_units_needs_calls_that_report_them() -> None:
    assert codes(total(reported=9), budget={"tokens": 100, "service": "gpu"}) == ["usage-missing"]
    assert codes(total(reported=9), budget={"units": 100, "service": ["tts", "gpu"]}) == ["usage-missing"]
    assert codes(total(reported=10), budget={"tokens": 100, "service": "gpu"}) == []
    assert codes(total(reported=0), budget={"seconds": 100, "service": "gpu"}) == []
    assert codes(total(reported=0), budget={"tokens": 100, "service": "tts"}) == []
    assert codes(total(reported=0), budget={"tokens": 100}) == [], "a service may have nothing to report"
