"""Which regions no live worker claims for."""

from __future__ import annotations

from typing import Any

from fairlead.domain.processes import ProcessRecord
from fairlead.domain.rules import ServiceRules
from fairlead.engine.loops.workers import unserved

SERVICES = {
    "gpu": ServiceRules("gpu", limit=2, regions={"eu": 1, "us": 1}),
    "llm": ServiceRules("llm", limit=2, regions={"us": 1}),
    "plain": ServiceRules("plain", limit=2),
}


def worker(*services: str, **details: Any) -> ProcessRecord:
    return ProcessRecord("w", ("worker",), services, ("high",), 1, "host", 1, "0", 0.0, details=details)


def test_without_workers_no_region_is_served() -> None:
    assert unserved(SERVICES, []) == {("gpu", "eu"), ("gpu", "us"), ("llm", "us")}


def test_an_unbound_worker_serves_every_region_of_its_services() -> None:
    assert unserved(SERVICES, [worker("gpu", "plain", "unknown")]) == {("llm", "us")}


def test_a_bound_worker_serves_its_regions_only() -> None:
    bound = [worker("gpu", regions=["eu"]), worker("llm", regions=["us"])]
    assert unserved(SERVICES, bound) == {("gpu", "us")}


def test_turns_need_no_worker() -> None:
    assert unserved({"turns": ServiceRules("turns", limit=1, regions={"eu": 1}, turns_only=True)}, []) == set()
