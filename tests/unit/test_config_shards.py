"""Services on shards: on one, or split by priority."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead import Config
from fairlead.config import load, problems_of
from fairlead.domain.config import ServiceConfig
from fairlead.domain.rules import MAIN_SHARD, Share
from fairlead.errors import ConfigError

SHARDS = {"redis_high": "redis://fast", "redis_low": "redis://bulk"}
SPLIT = {
    "redis_high": {"bands": ["high"], "limit": 2},
    "redis_low": {"bands": ["medium", "low"], "limit": 6},
}


def problems(**services: Any) -> list[str]:
    config = Config.model_validate({"services": services, "shards": SHARDS, "pools": {"gpu": 4}})
    return [problem.removeprefix("f: ") for problem in problems_of(config, "f")]


def test_a_service_is_on_the_main_shard_unless_it_names_another() -> None:
    assert ServiceConfig(limit=1).rules("x").shard == MAIN_SHARD
    assert ServiceConfig(limit=1, shard="redis_high").rules("x").shard == "redis_high"
    assert problems(x={"limit": 1, "shard": "main"}, y={"limit": 1, "shard": "redis_low"}) == []


def test_a_service_is_split_by_priority_and_its_limit_is_the_sum() -> None:
    assert problems(otp={"shards": SPLIT}) == []
    rules = ServiceConfig.model_validate({"shards": SPLIT}).rules("otp")
    assert rules.limit == 8
    assert rules.shares == {"redis_high": Share(frozenset({1}), 2), "redis_low": Share(frozenset({2, 3}), 6)}
    assert [rules.shard_of(band) for band in (1, 2, 3)] == ["redis_high", "redis_low", "redis_low"]


def test_a_limit_equal_to_the_sum_is_accepted() -> None:
    assert problems(otp={"limit": 8, "shards": SPLIT}) == []


def test_a_limit_other_than_the_sum_is_a_mistake() -> None:
    (problem,) = problems(otp={"limit": 5, "shards": SPLIT})
    assert problem.startswith("services.otp.limit: is 5, but its shards have 8 slots in total")


def test_without_shards_a_limit_is_required() -> None:
    with pytest.raises(ConfigError, match=r"services\.x\.limit: is required"):
        load(None, {"FAIRLEAD_SERVICES__X__URL": "http://a/b"})


def test_unknown_shards_are_reported_with_the_known_ones() -> None:
    found = problems(
        a={"limit": 1, "shard": "elsewhere"},
        b={"shards": {"main": {"bands": ["high"], "limit": 1}, "nowhere": {"bands": ["medium", "low"], "limit": 1}}},
    )
    assert found == [
        "services.a.shard: no shard is called 'elsewhere'; known are: main, redis_high, redis_low",
        "services.b.shards.nowhere: no shard is called 'nowhere'; known are: main, redis_high, redis_low",
    ]


def test_shard_and_shards_exclude_each_other() -> None:
    (problem,) = problems(x={"shard": "redis_high", "shards": SPLIT})
    assert problem.startswith("services.x: shard and shards are both set")


@pytest.mark.parametrize(
    ("high", "low", "expected"),
    [
        (["high"], ["low"], "medium is on no shard"),
        (["high"], ["high", "medium", "low"], "high is listed twice (redis_high, redis_low)"),
        (["high", "high"], ["medium", "low"], "high is listed twice (redis_high, redis_high)"),
    ],
)
def test_every_band_belongs_to_exactly_one_shard(high: list[str], low: list[str], expected: str) -> None:
    split = {"redis_high": {"bands": high, "limit": 1}, "redis_low": {"bands": low, "limit": 1}}
    (problem,) = problems(x={"shards": split})
    assert problem.startswith(f"services.x.shards: {expected}")


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("pool", "gpu", "cannot be in a pool"),
        ("regions", {"us": {"url": "http://us/x", "limit": 1}}, "cannot have regions"),
        ("order", "fifo", "ignores priority"),
    ],
)
def test_a_split_service_allows_only_what_one_redis_can_count(key: str, value: Any, expected: str) -> None:
    (problem,) = problems(x={"shards": SPLIT, key: value})
    assert problem.startswith(f"services.x.{key}: ")
    assert expected in problem


def test_a_pool_does_not_span_shards() -> None:
    together = {"a": {"limit": 1, "pool": "gpu", "shard": "redis_high"}}
    assert problems(**together, b={"limit": 1, "pool": "gpu", "shard": "redis_high"}) == []
    (problem,) = problems(**together, b={"limit": 1, "pool": "gpu"}, c={"limit": 1})
    assert problem.startswith("pools.gpu: its services live on several shards (b on main; a on redis_high)")


def test_mistakes_in_a_share_are_reported_once() -> None:
    environ = {"FAIRLEAD_SERVICES__X__SHARDS": '{ main = { bands = ["urgent"], limit = 0 }, b = { bands = [] } }'}
    with pytest.raises(ConfigError) as caught:
        load(None, environ)
    keys = sorted(problem.split(": ")[1] for problem in caught.value.problems)
    assert keys == [
        "services.x.shards.b",
        "services.x.shards.b.bands",
        "services.x.shards.b.limit",
        "services.x.shards.main.bands.0",
        "services.x.shards.main.limit",
    ]


def test_shards_in_the_environment_are_read_as_toml() -> None:
    text = '{ redis_high = { bands = ["high"], limit = 2 }, redis_low = { bands = ["medium", "low"], limit = 6 } }'
    service = load(None, {"FAIRLEAD_SERVICES__OTP__SHARDS": text}).config.services["otp"]
    assert service == ServiceConfig.model_validate({"shards": SPLIT})


def test_shard_mistakes_are_reported_with_all_others() -> None:
    environ = {
        "FAIRLEAD_SERVICES__X__SHARD": "nowhere",
        "FAIRLEAD_SERVICES__X__LIMIT": "0",
        "FAIRLEAD_SERVICES__Y__SHARDS": '{ main = { bands = ["high", "low"], limit = 1 } }',
        "FAIRLEAD_SERVICES__Y__ORDER": "fifo",
    }
    with pytest.raises(ConfigError) as caught:
        load(None, environ)
    keys = sorted(problem.split(": ")[1] for problem in caught.value.problems)
    assert keys == ["services.x.limit", "services.x.shard", "services.y.order", "services.y.shards"]
