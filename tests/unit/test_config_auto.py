"""`limit = "auto"`: its settings, what excludes it, and that it declares nothing when it is not used."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead import Call, Config, Fairlead
from fairlead.config import load
from fairlead.domain.config import ServiceConfig
from fairlead.domain.rules import Auto
from fairlead.errors import ConfigError
from fairlead.store.port import DeclareServices
from fairlead.store.rules import declaration_of


def test_an_automatic_limit_starts_at_its_minimum_and_has_a_maximum() -> None:
    rules = ServiceConfig(limit="auto", min=2, max=16, latency_target=3.5).rules("gpu")
    assert (rules.limit, rules.auto) == (2, Auto(2, 16, 3.5))
    rules = ServiceConfig(limit="auto", max=16).rules("gpu")
    assert (rules.limit, rules.auto) == (1, Auto(1, 16))


def test_without_auto_the_declared_rules_are_those_of_the_previous_release() -> None:
    rules = ServiceConfig(limit=4).rules("gpu")
    assert (rules.limit, rules.auto) == (4, None)
    assert "auto" not in declaration_of(DeclareServices((rules,), {}))


@pytest.mark.parametrize(
    ("setting", "problem"),
    [
        ('limit = "auto"', 'services.gpu: limit = "auto" needs a max'),
        ('limit = "auto"\nmax = 2\nmin = 3', "services.gpu: max is 2, but min is 3"),
        ('limit = "auto"\nmax = 0', "services.gpu.max: should be greater than or equal to 1, not 0"),
        ('limit = "auto"\nmax = 4\nlatency_target = 0', "services.gpu.latency_target: should be greater than 0"),
        ('limit = "Auto"\nmax = 4', "services.gpu.limit: should be a valid integer"),
        ("limit = 0", 'services.gpu.limit: should be greater than or equal to 1, or "auto", not 0'),
        ("limit = 4\nmax = 8", 'services.gpu: max: only with limit = "auto", but the limit is 4'),
        ("limit = 4\nmin = 1\nlatency_target = 2", "services.gpu: min and latency_target: only with"),
        (
            'limit = "auto"\nmax = 8\nshards = { a = { bands = ["high", "medium", "low"], limit = 2 } }',
            "cannot be split over shards",
        ),
    ],
)
def test_mistakes_are_reported(tmp_path: Path, setting: str, problem: str) -> None:
    file = tmp_path / "fairlead.toml"
    file.write_text(f'[services.gpu]\nurl = "http://gpu/x"\n{setting}\n', encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load(file, {})
    assert any(problem in each for each in caught.value.problems), caught.value.problems


async def gpu(call: Call) -> None: ...


def test_the_limit_in_the_file_overrides_the_one_in_the_code() -> None:
    fixed = Fairlead(Config.model_validate({"services": {"gpu": {"limit": 3}}}))
    fixed.service(limit="auto", min=2, max=8)(gpu)
    assert fixed.config.services["gpu"].rules("gpu").limit == 3
    assert fixed.config.services["gpu"].auto is None
    found = Fairlead(Config.model_validate({"services": {"gpu": {"limit": "auto", "max": 8}}}))
    found.service(limit=3)(gpu)
    assert found.config.services["gpu"].auto == Auto(1, 8)
