"""What a configuration says of a service's regions, and the rules that follow from it."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead.domain.config import ServiceConfig


def service(**regions: dict[str, Any]) -> ServiceConfig:
    there = {name: {"url": f"http://{name}/", "limit": 1, **said} for name, said in regions.items()}
    return ServiceConfig.model_validate({"limit": 4, "regions": there})


def test_weights_count_where_they_differ() -> None:
    assert service(us={"weight": 2}, eu={}).rules("s").region_weights == {"us": 2.0, "eu": 1.0}


@pytest.mark.parametrize("weight", [1, 3.5])
def test_weights_that_are_all_the_same_change_nothing(weight: float) -> None:
    assert service(us={"weight": weight}, eu={"weight": weight}).rules("s").region_weights == {}
    assert service(us={}, eu={}).rules("s").region_weights == {}


@pytest.mark.parametrize("weight", [0, -1, 1001, "much", float("inf")])
def test_what_is_no_weight_is_refused(weight: Any) -> None:
    with pytest.raises(ValueError, match="weight"):
        service(us={"weight": weight}, eu={})
