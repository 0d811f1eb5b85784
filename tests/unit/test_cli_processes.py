"""The options of the processes, and the banner that each prints first."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead import Config, Fairlead
from fairlead.cli import banner
from fairlead.cli.failure import Exit, Failure
from fairlead.cli.process import bands_of, bind_metrics, regions_of, services_of
from fairlead.cli.redact import shown_settings, without_secrets
from fairlead.config import Settings
from fairlead.engine.roles import Roles

KNOWN = {"paint": 1, "chat": 1}
CONFIG = Config.model_validate(
    {
        "services": {
            "otp": {
                "function": "project:otp",
                "shards": {
                    "redis_high": {"bands": ["high"], "limit": 2},
                    "main": {"bands": ["medium", "low"], "limit": 6},
                },
            },
            "paint": {"limit": 1, "url": "http://127.0.0.1:9/"},
        },
        "pipelines": {"art": ["paint"]},
        "shards": {"redis_high": "redis://ada:s3cret@fast:6379/0"},
    }
)
SETTINGS = Settings(
    CONFIG, "postgresql://ada:s3cret@db/x", "s3cret", None, "rediss://:s3cret@main:6379/0?password=s3cret"
)
URLS = ["http://127.0.0.1:8000"]


def drawn(process: str, settings: Settings, roles: Roles, urls: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    banner.show(banner.facts(process, Fairlead(settings), roles, urls), json=False)
    return capsys.readouterr().out


def test_the_banner_names_the_url_of_the_dashboard(capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = [
        each for each in drawn("up", Settings(Config()), Roles(), URLS, capsys).splitlines() if "dashboard" in each
    ]
    assert line.split() == ["dashboard", "http://127.0.0.1:8000/"]
    assert "dashboard" not in drawn("worker", Settings(Config()), Roles(api=False), [], capsys)


# ---------------------------------------------------------------- which services, which bands


def test_a_worker_runs_all_services_by_default() -> None:
    assert services_of(None, KNOWN) is None
    assert bands_of(None) is None


def test_a_worker_can_be_bound_to_services_and_bands() -> None:
    assert services_of("chat, paint,chat", KNOWN) == {"chat", "paint"}
    assert bands_of("high") == {1}
    assert bands_of("low,medium") == {2, 3}


def test_a_metrics_host_without_a_port_is_a_usage_error() -> None:
    with pytest.raises(Failure, match="--metrics-port") as refused:
        bind_metrics("10.0.0.5", None)
    assert refused.value.code is Exit.USAGE
    assert bind_metrics(None, None) == []


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("paint,sing,dance", "--services: no service is called 'sing', 'dance'; known are: chat, paint"),
        (" , ", "--services: name at least one service; known are: chat, paint"),
    ],
)
def test_unknown_services_are_listed_with_the_known_ones(given: str, expected: str) -> None:
    with pytest.raises(Failure) as caught:
        services_of(given, KNOWN)
    assert (caught.value.message, caught.value.code) == (expected, Exit.USAGE)


def test_services_for_an_app_without_services_are_refused() -> None:
    with pytest.raises(Failure, match="none is declared"):
        services_of("paint", {})


@pytest.mark.parametrize("given", ["urgent", "1", "HIGH", ""])
def test_unknown_bands_are_listed_with_the_known_ones(given: str) -> None:
    with pytest.raises(Failure, match=r"--bands: .*known are: high, medium, low") as caught:
        bands_of(given)
    assert caught.value.code == Exit.USAGE


# ---------------------------------------------------------------- the banner


@pytest.mark.parametrize(
    ("process", "roles", "urls", "keys"),
    [
        ("up", Roles(), URLS, {"urls", "key_needed", "pipelines", "bands", "concurrency"}),
        ("api", Roles(worker=False, manager=False), URLS, {"urls", "key_needed", "pipelines"}),
        ("worker", Roles(api=False, manager=False), [], {"bands", "concurrency"}),
        ("manager", Roles(api=False, worker=False), [], set()),
    ],
)
def test_each_process_prints_its_own_facts_only(
    process: str, roles: Roles, urls: list[str], keys: set[str], capsys: pytest.CaptureFixture[str]
) -> None:
    facts = banner.facts(process, Fairlead(SETTINGS), roles, urls)
    common = {"version", "process", "config", "database", "dispatcher", "shards", "services"}
    assert set(facts) == common | keys
    assert facts["process"] == process
    assert facts["database"] == "postgresql://ada:***@db/x"
    assert facts["dispatcher"] == "rediss://:***@main:6379/0?password=***"
    assert facts["shards"] == {"redis_high": "redis://ada:***@fast:6379/0"}
    assert facts["services"]["otp"]["shard"] == "redis_high high (2), main medium+low (6)"
    assert "s3cret" not in drawn(process, SETTINGS, roles, urls, capsys)


def test_the_banner_counts_schedules_and_budgets(capsys: pytest.CaptureFixture[str]) -> None:
    budgets = {f"b{n}": {"seconds": 1, "per": "day"} for n in range(7)}
    schedules = {"news": {"every": 60, "feature_name": "paint"}}
    config = Config.model_validate({"services": {"paint": {"limit": 1}}, "budgets": budgets, "schedules": schedules})
    lines = [line.split(maxsplit=1) for line in drawn("up", Settings(config), Roles(), URLS, capsys).splitlines()]
    assert ["schedules", "1: news"] in [[word.strip() for word in line] for line in lines]
    assert ["budgets", "7: b0, b1, b2, b3, b4 and 2 more"] in [[word.strip() for word in line] for line in lines]
    worker = banner.facts("worker", Fairlead(Settings(config)), Roles(api=False, manager=False), [])
    assert not {"schedules", "budgets"} & set(worker)


def test_the_banner_names_the_executor_of_each_service() -> None:
    config = Config.model_validate(
        {"services": {"flux": {"limit": 1}, "mail": {"limit": 2, "celery": "shop.mail"}}, "celery": {"app": "shop:app"}}
    )
    services = banner.facts("up", Fairlead(Settings(config)), Roles(), URLS)["services"]
    assert {name: service["runs"] for name, service in services.items()} == {
        "flux": "turns only",
        "mail": "the Celery task shop.mail",
    }


def test_the_banner_of_a_worker_names_its_services_and_bands(capsys: pytest.CaptureFixture[str]) -> None:
    roles = Roles(api=False, manager=False, services=frozenset({"otp"}), bands=frozenset({1, 2}), concurrency=7)
    facts = banner.facts("worker", Fairlead(SETTINGS), roles, [])
    assert (list(facts["services"]), facts["bands"], facts["concurrency"]) == (["otp"], ["high", "medium"], 7)
    text = drawn("worker", SETTINGS, roles, [], capsys)
    assert "high, medium; 7 calls at once" in text
    assert "worker" in text.splitlines()[0]
    assert "paint" not in text


REGIONAL = Config.model_validate(
    {
        "services": {
            "infer": {"limit": 2, "regions": {"us": {"url": "http://us/", "limit": 1}}},
            "paint": {"limit": 1, "url": "http://127.0.0.1:9/"},
        },
        "worker_pools": {
            "high": {"bands": ["high"], "concurrency": 5},
            "us": {"services": ["infer"], "regions": ["us"], "concurrency": 3},
        },
    }
)


@pytest.mark.parametrize("process", ["up", "worker"])
def test_the_banner_of_a_process_with_several_workers_lists_each(
    process: str, capsys: pytest.CaptureFixture[str]
) -> None:
    facts = banner.facts(process, Fairlead(Settings(REGIONAL)), Roles(), [])
    assert (facts["bands"], facts["concurrency"]) == (["high", "medium", "low"], 8)
    assert [pool["name"] for pool in facts["pools"]] == ["high", "us"]
    text = drawn(process, Settings(REGIONAL), Roles(), [], capsys)
    assert "high; 5 calls at once" in text
    assert "high, medium, low; infer; region us; 3 calls at once" in text


def test_options_of_the_command_line_override_the_worker_section(capsys: pytest.CaptureFixture[str]) -> None:
    text = drawn("worker", Settings(REGIONAL), Roles(api=False, regions=frozenset({"us"})), [], capsys)
    assert "high, medium, low; region us; 1000 calls at once" in text
    text = drawn("worker", Settings(REGIONAL), Roles(api=False, pool="high"), [], capsys)
    assert "pool high" in text
    assert "region us" not in text


def test_a_worker_can_be_bound_to_known_regions() -> None:
    assert regions_of(None, REGIONAL) is None
    assert regions_of("us", REGIONAL) == {"us"}
    with pytest.raises(Failure, match="no region is called 'eu'; known are: us"):
        regions_of("eu", REGIONAL)


@pytest.mark.parametrize(
    ("process", "roles", "expected"),
    [
        ("up", Roles(), "in memory, in this process"),
        ("api", Roles(worker=False, manager=False), "none: a `fairlead up` on the same database dispatches"),
    ],
)
def test_without_redis_one_process_dispatches(
    process: str, roles: Roles, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert expected in drawn(process, Settings(CONFIG), roles, URLS, capsys)


def test_a_manager_without_services_names_the_services_it_manages(capsys: pytest.CaptureFixture[str]) -> None:
    settings = Settings(Config(), redis_url="redis://main")
    assert "those that are declared in the database" in drawn(
        "manager", settings, Roles(api=False, worker=False), [], capsys
    )


# ---------------------------------------------------------------- secrets


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://:pw@[::1]:6379/0", "redis://:***@[::1]:6379/0"),
        ("rediss+sentinel://ada:pw@a:1,b:2/mymaster/0", "rediss+sentinel://ada:***@a:1,b:2/mymaster/0"),
        ("redis+cluster://ada:pw@a:1,b:2", "redis+cluster://ada:***@a:1,b:2"),
        ("unix://ada:pw@/run/redis.sock?db=1", "unix://ada:***@/run/redis.sock?db=***"),
        ("redis://:p/w@host", "***"),
    ],
)
def test_redis_urls_are_shown_without_passwords(url: str, shown: str) -> None:
    assert without_secrets(url) == shown


def test_settings_are_shown_without_passwords() -> None:
    shown: dict[str, Any] = shown_settings(SETTINGS)
    assert "s3cret" not in str(shown)
    assert shown["redis_url"] == "rediss://:***@main:6379/0?password=***"
    assert shown["shards"] == {"redis_high": "redis://ada:***@fast:6379/0"}
    named = Settings(Config.model_validate({"shards": {"redis_high": "env:FAST_REDIS"}}))
    assert shown_settings(named)["shards"] == {"redis_high": "env:FAST_REDIS"}


def test_the_priority_service_is_shown_without_credentials() -> None:
    headers = {"Authorization": "Bearer s3cret", "X-Key": "env:KEY"}
    priority = {"url": "http://ada:s3cret@priorities/", "headers": headers}
    shown = shown_settings(Settings(Config.model_validate({"priority": priority})))["priority"]
    assert shown["url"] == "http://ada:***@priorities/"
    assert shown["headers"] == {"Authorization": "***", "X-Key": "env:KEY"}
