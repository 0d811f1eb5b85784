"""docs/configuration.md documents every setting and environment variable with its default."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from fairlead.config import ALIASES, DEFAULT_DATABASE_URL, DEFAULT_FILE, PREFIX, load
from fairlead.domain.config import (
    BackoffConfig,
    BreakerConfig,
    Config,
    GroupConfig,
    PlanConfig,
    RegionConfig,
    ServiceConfig,
    ShareConfig,
    UserConfig,
    WorkerPoolConfig,
)
from fairlead.domain.config_budgets import BudgetConfig
from fairlead.domain.config_fronts import FalConfig, FrontsConfig, ReplicateConfig
from fairlead.domain.config_prices import PriceConfig
from fairlead.domain.config_schedules import ScheduleConfig
from fairlead.domain.config_webhooks import WebhookEndpointConfig
from fairlead.domain.job import Priority
from fairlead.domain.user_priority import UserPriority
from fairlead.urls import REDIS_SCHEMES

ROOT = Path(__file__).parents[2]
DOCS = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
SECTIONS = {title.strip(): body for title, body in re.findall(r"^## \[(.+?)\]\n(.*?)(?=^## |\Z)", DOCS, re.M | re.S)}
# Sections whose keys are the user's own names.
NAMED = {"services", "pipelines", "pools", "shards", "plans", "groups", "prices", "budgets", "users", "worker_pools"}
NAMED |= {"fronts", "schedules"}
PLAIN = {name: field for name, field in Config.model_fields.items() if name not in NAMED}


def rows(section: str) -> dict[str, list[str]]:
    """The other cells of each table row, by its key."""
    cells = re.findall(r"^\| `([^`]+)` \| (.+) \|$", SECTIONS[section], re.M)
    return {key: [cell.strip() for cell in rest.split(" | ")] for key, rest in cells}


def shown_default(field: Any) -> str:
    if field.is_required():
        return "required"
    if field.default is None:
        return "none"
    if isinstance(field.default, BaseModel):
        return "see below"
    return f"`{json.dumps(field.default)}`"


def defaults_of(model: type[BaseModel], prefix: str = "") -> dict[str, str]:
    return {f"{prefix}{name}": shown_default(field) for name, field in model.model_fields.items()}


@pytest.mark.parametrize("section", PLAIN)
def test_every_key_of_a_section_is_documented_with_its_default_and_its_environment_variable(section: str) -> None:
    model = type(PLAIN[section].default)
    documented = rows(section)
    assert {key: cells[0] for key, cells in documented.items()} == defaults_of(model)
    for key, cells in documented.items():
        assert cells[1] == f"`{PREFIX}{section.upper()}__{key.upper()}`"


def test_every_key_of_a_service_is_documented_with_its_default() -> None:
    expected = {
        **defaults_of(ServiceConfig),
        **defaults_of(BackoffConfig, "backoff."),
        **defaults_of(RegionConfig, "regions.REGION."),
        **defaults_of(BreakerConfig, "breaker."),
        **defaults_of(ShareConfig, "shards.SHARD."),
    }
    assert {key: cells[0] for key, cells in rows("services.NAME").items()} == expected


@pytest.mark.parametrize(
    ("section", "model"),
    [
        ("plans.NAME", PlanConfig),
        ("groups.NAME", GroupConfig),
        ("prices.NAME", PriceConfig),
        ("budgets.NAME", BudgetConfig),
        ("users.ID", UserConfig),
        ("worker_pools.NAME", WorkerPoolConfig),
        ("webhooks.NAME", WebhookEndpointConfig),
        ("fronts.fal", FalConfig),
        ("fronts.replicate", ReplicateConfig),
        ("schedules.NAME", ScheduleConfig),
    ],
)
def test_every_key_of_plans_groups_prices_users_and_worker_pools_is_documented_with_its_default(
    section: str, model: type[BaseModel]
) -> None:
    assert {key: cells[0] for key, cells in rows(section).items()} == defaults_of(model)


def test_every_front_is_documented() -> None:
    documented = {title.removeprefix("fronts.") for title in SECTIONS if title.startswith("fronts.")}
    assert documented == set(FrontsConfig.model_fields)


def test_the_table_of_the_guide_on_priorities_is_valid(tmp_path: Path) -> None:
    block = re.search(r"```toml\n(.*?)```", (ROOT / "docs" / "priority.md").read_text(encoding="utf-8"), re.S)
    assert block is not None
    file = tmp_path / "fairlead.toml"
    file.write_text(block[1], encoding="utf-8")
    config = load(file, {}).config
    assert list(config.contradictions()) == []
    assert config.user_standings["team-7@example.com"] == UserPriority(Priority.LOW, 2.0, plan="free")


def test_every_section_is_documented() -> None:
    sections = {title.partition(".")[0] for title in SECTIONS}
    assert sections == set(Config.model_fields)
    for name in NAMED:
        assert f"{PREFIX}{name.upper()}__" in DOCS


def test_every_environment_variable_that_the_code_names_is_documented() -> None:
    source = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    named = set(
        re.findall(r"""["']((?:FAIRLEAD_[A-Z_]*[A-Z]|[A-Z_]+_URL|PROMOTE_[A-Z_]+|CELERY_[A-Z_]+))["']""", source)
    )
    assert named >= {"DATABASE_URL", "REDIS_URL", "FAIRLEAD_ADMIN_KEY", "FAIRLEAD_URL", *ALIASES}
    assert [name for name in sorted(named) if f"`{name}`" not in DOCS] == []


def test_the_defaults_of_the_environment_are_documented() -> None:
    assert f"`{DEFAULT_DATABASE_URL}`" in DOCS
    assert f"`{DEFAULT_FILE}`" in DOCS
    for variable, (section, key) in ALIASES.items():
        assert f"the same as `{section}.{key}`" in next(line for line in DOCS.splitlines() if f"`{variable}`" in line)


def test_the_examples_of_the_environment_are_understood(tmp_path: Path) -> None:
    block = re.search(r"```\w*\n(FAIRLEAD_.*?)```", DOCS, re.S)
    assert block is not None
    environ = dict(line.split("=", 1) for line in block[1].strip().splitlines())
    environ = {name: value.strip("'") for name, value in environ.items()}
    file = tmp_path / "fairlead.toml"
    file.write_text("[services.image_gen]\nlimit = 1\n")
    config = load(file, environ).config
    assert config.server.port == 8123
    assert config.services["image_gen"].url == "http://10.0.0.7:9000/v1/execute"
    assert config.pipelines["text_only"] == ["prompt_enhancer", "fast_chat_llm"]


@pytest.mark.parametrize("scheme", REDIS_SCHEMES)
def test_every_form_of_redis_is_documented(scheme: str) -> None:
    assert f"`{scheme}://" in DOCS


def test_the_example_of_shards_is_valid(tmp_path: Path) -> None:
    block = re.search(r"```toml\n(.*?)```", SECTIONS["shards"], re.S)
    assert block is not None
    file = tmp_path / "fairlead.toml"
    file.write_text(block[1], encoding="utf-8")
    config = load(file, {}).config
    assert list(config.contradictions()) == []
    assert config.services["send_message"].limit == 8
