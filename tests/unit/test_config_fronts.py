"""The apps and models of other systems, and the pipelines and services that they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fairlead.config import load
from fairlead.domain.config import Config
from fairlead.errors import ConfigError
from fairlead.gateway.fronts.apps import feature_of, unknown_app

URL = "http://gpu:9000/run"
SERVICES: dict[str, Any] = {
    "image_gen": {"limit": 1, "url": URL},
    "flux": {"limit": 1, "url": URL},
    "flux_dev": {"limit": 1, "url": URL},
    "slots": {"limit": 1},
    "llama": {"limit": 1, "openai": "http://vllm:8000/v1"},
}
APPS = {"acme/flux/pro": "image_gen", "acme/both": "both", "acme/sdxl": "flux", "acme/sdxl:39ed": "flux_dev"}
CONFIG = Config.model_validate(
    {"services": SERVICES, "pipelines": {"both": ["flux", "image_gen"]}, "fronts": {"fal": {"apps": APPS}}}
)


@pytest.mark.parametrize(
    ("app", "feature"),
    [
        ("acme/flux/pro", "image_gen"),
        ("acme/both", "both"),
        ("acme/flux", "flux"),
        ("other/flux/dev", "flux_dev"),
        ("other/Flux-Dev", "flux_dev"),
        ("other/flux.dev", "flux_dev"),
        ("comfy/flux", "flux"),
        ("flux", "flux"),
        ("acme/sdxl", "flux"),
        ("acme/sdxl:39ed", "flux_dev"),
        ("acme/sdxl:another", "flux"),
        ("other/flux:39ed", "flux"),
        ("acme/flux/schnell", None),
        ("acme/flux/dev/more", None),
        ("acme/slots", None),
        ("acme/llama", None),
        ("acme/", None),
        ("", None),
        ("acme/flux\0", None),
        ("//flux", None),
    ],
)
def test_an_app_is_the_feature_of_the_table_or_the_one_with_its_name(app: str, feature: str | None) -> None:
    assert feature_of(CONFIG, CONFIG.fronts.fal.apps, app) == feature


def test_the_error_names_the_setting_and_what_is_offered() -> None:
    text = unknown_app(CONFIG, {"acme/a": "flux"}, "acme/Flux-X", "fronts.fal.apps").message
    assert "'acme/Flux-X'" in text
    assert "'flux_x'" in text
    assert "fronts.fal.apps" in text
    assert text.endswith("known are: acme/a, both, flux, flux_dev, image_gen")


def test_an_app_of_a_feature_that_does_not_exist_is_a_contradiction() -> None:
    config = CONFIG.model_copy(update={"fronts": CONFIG.fronts.model_copy()})
    assert list(config.contradictions()) == []
    fronts = {"fal": {"apps": {"acme/flux": "fluks"}}, "replicate": {"models": {"acme/sdxl": "sdxl"}}}
    wrong = Config.model_validate({"services": SERVICES, "fronts": fronts})
    assert [key for key, _ in wrong.contradictions()] == [
        "fronts.fal.apps.acme/flux",
        "fronts.replicate.models.acme/sdxl",
    ]


@pytest.mark.parametrize("app", ["/flux", "acme/", "acme flux", "https://fal.run/acme/flux", "acme/flux:", "a//b"])
def test_a_name_that_is_no_app_is_refused_with_an_example(tmp_path: Path, app: str) -> None:
    file = tmp_path / "fairlead.toml"
    file.write_text(f'[services.flux]\nlimit = 1\n[fronts.fal]\napps = {{ "{app}" = "flux" }}\n')
    with pytest.raises(ConfigError, match=r"fronts\.fal\.apps.*must be owner/name.*for example acme/flux/dev"):
        load(file, {})


def test_the_environment_sets_a_table_and_the_hold() -> None:
    environ = {
        "FAIRLEAD_FRONTS__FAL__HOLD": "5",
        "FAIRLEAD_FRONTS__REPLICATE__MODELS": '{ "acme/sdxl" = "image_gen" }',
    }
    fronts = load(None, environ).config.fronts
    assert (fronts.fal.hold, fronts.replicate.models) == (5.0, {"acme/sdxl": "image_gen"})
