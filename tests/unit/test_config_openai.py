"""The settings of services that speak OpenAI's protocol."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from fairlead.domain.config import Config, ServiceConfig

URL = "http://vllm:8000/v1"
REGIONS = {"eu": {"url": URL, "limit": 1}}


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"openai": URL, "url": URL}, "url and openai are both set"),
        ({"openai": URL, "format": "raw"}, "openai and format are both set"),
        ({"format": "openai"}, "needs a url or regions"),
        ({"format": "openai", "url": URL, "body": {}}, "bodies of its clients"),
        ({"url": URL, "retry_streams": True}, "retry_streams: only with openai"),
        ({"url": URL, "models": ["a"], "aliases": {"b": "a"}}, "models and aliases: only with openai"),
        ({"openai": "vllm"}, "http"),
        ({"openai": URL, "models": [""]}, "at least 1"),
        ({"openai": URL, "models": ["a b"]}, "match pattern"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        ServiceConfig.model_validate({"limit": 1, **fields})


@pytest.mark.parametrize(
    "fields", [{"openai": URL}, {"format": "openai", "url": URL}, {"format": "openai", "regions": REGIONS}]
)
def test_a_service_speaks_openai(fields: dict[str, Any]) -> None:
    service = ServiceConfig.model_validate({"limit": 1, "models": ["a"], "aliases": {"b": "a"}, **fields})
    assert service.speaks_openai
    assert service.remote
    assert not service.turns_only
    assert list(Config.model_validate({"services": {"llama": service}}).contradictions()) == []


def test_slots_of_openai_services_are_held_for_a_short_time_after_a_crash() -> None:
    def hold(**table: object) -> float | None:
        return ServiceConfig.model_validate({"limit": 1, **table}).rules("s").hold

    assert hold(openai="http://vllm/v1") == 5.0
    assert hold(url="http://vllm/v1", format="openai") == 5.0
    assert hold(openai="http://vllm/v1", hold_after_crash=0) == 0.0
    assert hold(url="http://vllm/v1") is None, "until the timeout"
    assert hold(url="http://vllm/v1", hold_after_crash=60) == 60.0
    with pytest.raises(ValueError, match="hold_after_crash: the calls of a function end with their worker"):
        hold(function="app:handle", hold_after_crash=60)
