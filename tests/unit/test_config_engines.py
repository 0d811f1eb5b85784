"""The URLs of the engines, and which engines go together."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from fairlead import Config, Fairlead
from fairlead.config import Settings, load
from fairlead.errors import ConfigError
from fairlead.urls import REDIS_SCHEMES, redis_problem

POSTGRES = "postgresql://fairlead@127.0.0.1/fairlead"
REDIS = "redis://127.0.0.1:6379/0"


@pytest.fixture(autouse=True)
def _an_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def problems(
    shards: dict[str, str] | None = None, *, database_url: str = POSTGRES, redis_url: str | None = REDIS
) -> list[str]:
    config = Config.model_validate({"shards": shards or {}})
    return Fairlead(Settings(config, database_url, redis_url=redis_url)).check()


# ---------------------------------------------------------------- REDIS_URL


def test_the_redis_url_comes_from_the_environment() -> None:
    assert load(None, {}).redis_url is None
    assert load(None, {"REDIS_URL": ""}).redis_url is None
    assert load(None, {"REDIS_URL": REDIS}).redis_url == REDIS


def test_redis_with_postgresql_is_accepted() -> None:
    assert problems() == []


def test_redis_with_sqlite_is_refused_with_advice() -> None:
    (problem,) = problems(database_url="sqlite:///fairlead.db")
    assert problem.startswith("REDIS_URL: ")
    assert "DATABASE_URL=postgresql://" in problem
    assert "unset REDIS_URL" in problem


def test_an_app_with_its_own_database_is_not_refused_because_of_the_default_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("REDIS_URL", REDIS)
    monkeypatch.delenv("DATABASE_URL", raising=False)
    assert Fairlead(database_url=POSTGRES).check() == []


def test_a_missing_client_library_is_reported_with_the_extra_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "redis" else found(name))
    (problem,) = problems()
    assert "pip install 'fairlead[redis]'" in problem


@pytest.mark.parametrize(
    "url",
    [
        "redis://127.0.0.1",
        "redis://ada:p%2Fw@redis.example:6380/3",
        "redis://:pw@[::1]:6379/0",
        "redis://[::1]",
        "rediss://redis.example:6380?ssl_ca_certs=/etc/ssl/ca.pem",
        "unix:///run/redis/redis.sock?db=1",
        "unix://:pw@/run/redis/redis.sock",
        "redis+sentinel://a:26379,b:26379/mymaster",
        "rediss+sentinel://ada:pw@a:26379,b/mymaster/2",
        "redis+cluster://a:6379,b:6379,c",
        "rediss+cluster://ada:pw@a:6379/",
    ],
)
def test_redis_urls_are_parsed(url: str) -> None:
    assert redis_problem(url) is None


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://ada:hunter2@redis.example", "http://... is not a Redis URL"),
        ("redis.example:6379", "this is not a Redis URL"),
        ("redis+magic://a", ", ".join(REDIS_SCHEMES)),
        ("redis://", "the host is missing"),
        ("redis://:hunter2@", "the host is missing"),
        ("redis://a:port", "a number from 1 to 65535"),
        ("redis://a:0", "a number from 1 to 65535"),
        ("redis://a:", "a number from 1 to 65535"),
        ("redis://a:1,b:2", "redis+sentinel:// or redis+cluster://"),
        ("redis://a/first", "the number of a database"),
        ("redis://a/0/1", "the number of a database"),
        ("redis://:hun/ter2@a", "%2F"),
        ("redis://[::1", "not a valid URL"),
        ("unix://", "a socket URL needs a path"),
        ("redis+sentinel://a,b", "the name of the master is missing: redis+sentinel://"),
        ("redis+sentinel://a/mymaster/x", "the number of a database"),
        ("redis+cluster://a,b/1", "no numbered databases"),
        ("redis+cluster://a,,b", "the host is missing"),
    ],
)
def test_an_invalid_redis_url_is_reported_without_its_password(url: str, expected: str) -> None:
    (problem,) = problems(redis_url=url)
    assert problem.startswith("REDIS_URL: ")
    assert expected in problem
    assert "hun" not in problem


# ---------------------------------------------------------------- [shards]


def test_shards_are_named_and_may_be_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BULK_REDIS", "redis://:pw@bulk")
    shards = {"redis_high": "redis://fast", "redis_low": "env:BULK_REDIS"}
    assert problems(shards) == []
    settings = Settings(Config.model_validate({"shards": shards}), POSTGRES, redis_url=REDIS)
    assert settings.shards == {"redis_high": "redis://fast", "redis_low": "redis://:pw@bulk"}


def test_a_shard_can_be_set_from_the_environment_alone() -> None:
    config = load(None, {"FAIRLEAD_SHARDS__REDIS_HIGH": "redis://fast:6379/0"}).config
    assert config.shards == {"redis_high": "redis://fast:6379/0"}


def test_a_missing_variable_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BULK_REDIS", raising=False)
    (problem,) = problems({"redis_low": "env:BULK_REDIS"})
    assert "shards.redis_low: the environment variable BULK_REDIS is not set" in problem


def test_shards_without_a_main_redis_are_refused() -> None:
    (problem,) = problems({"redis_high": "redis://fast"}, redis_url=None)
    assert "shards: need a main Redis as well; set REDIS_URL, " in problem
    (problem,) = problems({"redis_high": "redis://fast"}, redis_url=None, database_url="sqlite:///f.db")
    assert "REDIS_URL and DATABASE_URL=postgresql://" in problem


def test_the_name_main_is_reserved() -> None:
    (problem,) = problems({"main": "redis://fast"})
    assert "shards.main: this name is reserved for the Redis of REDIS_URL" in problem


def test_each_shard_has_its_own_redis() -> None:
    found = problems({"redis_a": REDIS, "redis_b": "redis://b", "redis_c": "redis://b"})
    assert [problem.partition(": shards.")[2] for problem in found] == [
        "redis_a: this is the Redis of REDIS_URL; every shard needs its own Redis",
        "redis_c: this is the Redis of shards.redis_b; every shard needs its own Redis",
    ]


def test_an_invalid_shard_url_is_reported_without_its_password() -> None:
    (problem,) = problems({"redis_high": "http://ada:hunter2@fast"})
    assert "shards.redis_high: http://... is not a Redis URL" in problem
    assert "hunter2" not in problem


def test_engine_mistakes_are_reported_with_all_others() -> None:
    Path("fairlead.toml").write_text('[shards]\nredis_high = "ftp://fast"\n[server]\nport = -1\n', encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load(None, {"REDIS_URL": "http://redis"})
    keys = [problem.removeprefix("fairlead.toml: ").partition(":")[0] for problem in caught.value.problems]
    assert keys == ["server.port", "REDIS_URL", "REDIS_URL", "shards.redis_high"]
