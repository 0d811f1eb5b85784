"""The configuration of a service's regions, and the rules derived from it."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead.domain.config import Config, ServiceConfig


def service(**regions: dict[str, Any]) -> ServiceConfig:
    there = {name: {"url": f"http://{name}/", "limit": 1, **options} for name, options in regions.items()}
    return ServiceConfig.model_validate({"limit": 4, "regions": there})


def test_different_weights_are_kept() -> None:
    assert service(us={"weight": 2}, eu={}).rules("s").region_weights == {"us": 2.0, "eu": 1.0}


@pytest.mark.parametrize("weight", [1, 3.5])
def test_equal_weights_change_nothing(weight: float) -> None:
    assert service(us={"weight": weight}, eu={"weight": weight}).rules("s").region_weights == {}
    assert service(us={}, eu={}).rules("s").region_weights == {}


@pytest.mark.parametrize("weight", [0, -1, 1001, "much", float("inf")])
def test_an_invalid_weight_is_refused(weight: Any) -> None:
    with pytest.raises(ValueError, match="weight"):
        service(us={"weight": weight}, eu={})


def test_only_calls_in_the_pooled_regions_count_in_the_pool() -> None:
    rules = service(us={"pool": "gpu"}, eu={}).rules("s")
    assert (rules.pool, rules.pooled_regions, rules.scope) == ("gpu", ("us",), "pool:gpu")
    assert [rules.in_pool(region) for region in ("us", "eu", None)] == [True, False, False]


def test_a_pool_of_all_regions_belongs_to_the_service() -> None:
    rules = service(us={"pool": "gpu"}, eu={"pool": "gpu"}).rules("s")
    assert (rules.pool, rules.pooled_regions) == ("gpu", None)
    assert service(us={}, eu={}).rules("s").pool is None


@pytest.mark.parametrize(
    ("pools", "options", "shards", "key"),
    [
        ({"us": "gpu"}, {}, {}, None),
        ({"us": "nothing"}, {}, {}, "services.s.regions.us.pool"),
        ({"us": "gpu", "eu": "other"}, {}, {}, "services.s.regions"),
        ({"us": "gpu"}, {"pool": "gpu"}, {}, "services.s.pool"),
        ({"us": "gpu"}, {"shard": "b"}, {"b": "redis://b"}, "pools.gpu"),
    ],
)
def test_regions_share_one_pool_that_exists(
    pools: dict[str, str], options: dict[str, Any], shards: dict[str, str], key: str | None
) -> None:
    regions = {name: {"url": "http://x/", "limit": 1, "pool": pools.get(name)} for name in ("us", "eu")}
    whole = {
        "services": {
            "s": {"limit": 2, "regions": regions, **options},
            "t": {"limit": 1, "url": "http://t/", "pool": "gpu"},
        },
        "pools": {"gpu": 2, "other": 2},
        "shards": shards,
    }
    assert [found for found, _ in Config.model_validate(whole).contradictions()] == ([] if key is None else [key])
