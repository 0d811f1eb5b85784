"""A region whose dispatcher cannot be reached is shown as unknown and not as zero."""

from __future__ import annotations

from fairlead.cli.status import _region_line
from fairlead.dispatch.port import RegionSnapshot, ServiceSnapshot
from fairlead.domain.rules import Rules, ServiceRules
from fairlead.gateway.models_runtime import RegionStatus, ServiceRegion
from fairlead.observe import status
from fairlead.observe.dashboard.service import regions_of
from fairlead.observe.snapshot import QueueSnapshot

RULES = ServiceRules("s", limit=9, regions={"eu": 2, "us": 3})
OTHER = ServiceRules("t", limit=9, regions={"us": 1})
SEEN = ServiceSnapshot("t", 9, 1, 0, False, {}, (), (), {}, None, regions=(RegionSnapshot("us", 1, 1, waiting=4),))


def test_an_unknown_region_has_nulls_and_no_zeros() -> None:
    shown = status.region_states(RULES, ())["us"]
    assert (shown["limit"], shown["running"], shown["breaker"], shown["latency"]) == (3, None, None, None)
    assert shown["waiting"] == {"main": None, "retry": None}
    ServiceRegion.model_validate(shown)
    assert regions_of("s", Rules({"s": RULES}), ())["us"] == {"limit": 3, "unit": "seconds", "overridden": False}
    assert _region_line("s", "us", shown, partly=False) == "s in us: ?/3 slots in use"


def test_a_sum_with_an_unknown_part_is_unknown() -> None:
    rules = Rules({"s": RULES, "t": OTHER})
    shown = status.describe_region("us", QueueSnapshot(rules, {"t": [SEEN]}, unknown="main: away"))
    assert (shown["limit"], shown["running"], shown["unknown"]) == (4, None, "main: away")
    assert shown["waiting"] == shown["waiting_anywhere"] == {"main": None, "retry": None}
    assert [each["running"] for each in shown["services"]] == [None, 1]
    RegionStatus.model_validate(shown)


def test_known_values_are_summed() -> None:
    shown = status.describe_region("us", QueueSnapshot(Rules({"t": OTHER}), {"t": [SEEN]}, unknown=None))
    assert (shown["running"], shown["waiting"], shown["unknown"]) == (1, {"main": 4, "retry": 0}, None)
