"""What is shown of a region whose dispatcher cannot be asked: that it is not known, and not that it is nothing."""

from __future__ import annotations

from fairlead.cli.status import _region_line
from fairlead.dispatch.port import RegionSnapshot, ServiceSnapshot
from fairlead.domain.limits import Rules, ServiceRules
from fairlead.gateway.models_operations import RegionStatus, ServiceRegion
from fairlead.runtime import regions
from fairlead.runtime.dashboard.service import regions_of

RULES = ServiceRules("s", limit=9, regions={"eu": 2, "us": 3})
OTHER = ServiceRules("t", limit=9, regions={"us": 1})
SEEN = ServiceSnapshot("t", 9, 1, 0, False, {}, (), (), {}, None, regions=(RegionSnapshot("us", 1, 1, waiting=4),))


def test_a_region_that_cannot_be_asked_about_has_nulls_and_no_zeros() -> None:
    shown = regions.of_service(RULES, ())["us"]
    assert (shown["limit"], shown["running"], shown["breaker"], shown["latency"]) == (3, None, None, None)
    assert shown["waiting"] == {"main": None, "retry": None}
    ServiceRegion.model_validate(shown)
    assert regions_of(RULES, ())["us"] == {"limit": 3}
    assert _region_line("s", "us", shown, partly=False) == "s in us: ?/3 slots in use"


def test_a_sum_over_services_is_not_known_if_one_of_them_is_not() -> None:
    rules = Rules({"s": RULES, "t": OTHER})
    shown = regions.describe("us", rules, {"t": [SEEN]}, "main: away")
    assert (shown["limit"], shown["running"], shown["unknown"]) == (4, None, "main: away")
    assert shown["waiting"] == shown["waiting_anywhere"] == {"main": None, "retry": None}
    assert [each["running"] for each in shown["services"]] == [None, 1]
    RegionStatus.model_validate(shown)


def test_what_is_known_is_summed() -> None:
    shown = regions.describe("us", Rules({"t": OTHER}), {"t": [SEEN]}, None)
    assert (shown["running"], shown["waiting"], shown["unknown"]) == (1, {"main": 4, "retry": 0}, None)
