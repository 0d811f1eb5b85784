"""The template of a raw request: placeholders and their types, and what `config check` reports."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead.domain.body_template import MissingField, filled, steps_used
from fairlead.domain.config import Config

INPUT = {"prompt": "a city", "n": 2, "none": None, "tags": ["x", {"deep": True}], "text": "{input.n}"}
CONTEXT = {
    "step_0_sketch": {"status": "SUCCESS", "data": {"url": "http://files/1"}, "metrics": {"seconds": 1.5}},
    "step_10_long_name": {"status": "SUCCESS", "data": "plain words", "metrics": {}},
}


@pytest.mark.parametrize(
    ("template", "value"),
    [
        ("{input.prompt}", "a city"),
        ("{input.n}", 2),
        ("{input.none}", None),
        ("{input.tags}", ["x", {"deep": True}]),
        ("{input.tags.1.deep}", True),
        ("{input}", INPUT),
        ("{step_0.data.url}", "http://files/1"),
        ("{step_0.metrics.seconds}", 1.5),
        ("{step_10.data}", "plain words"),
        ("{input.n} x {input.prompt}", "2 x a city"),
        ("tags: {input.tags}", 'tags: ["x",{"deep":true}]'),
        ("{{input.n}}", "{input.n}"),
        ("{{{input.n}}}", "{2}"),
        # A value is never filled in again: callers cannot write placeholders.
        ("{input.text}", "{input.n}"),
        ("{input.text}!", "{input.n}!"),
        (7, 7),
        ([{"a": "{input.n}"}], [{"a": 2}]),
    ],
)
def test_a_placeholder_has_the_value_at_its_path(template: Any, value: Any) -> None:
    assert filled({"x": template}, INPUT, CONTEXT) == {"x": value}


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        ("{input.seed}", "the body needs {input.seed}, but input has no 'seed'"),
        ("{input.prompt.length}", "the body needs {input.prompt.length}, but input.prompt has no 'length'"),
        ("{input.tags.2}", "the body needs {input.tags.2}, but input.tags has no '2'"),
        ("{input.tags.-1}", "the body needs {input.tags.-1}, but input.tags has no '-1'"),
        ("{input.__class__}", "the body needs {input.__class__}, but input has no '__class__'"),
        ("{step_1.data}", "the body needs {step_1.data}, but the job has no 'step_1'"),
    ],
)
def test_a_value_that_the_job_lacks_is_named(template: str, problem: str) -> None:
    with pytest.raises(MissingField) as error:
        filled({"x": f"so: {template}"}, INPUT, CONTEXT)
    assert str(error.value) == problem


def test_the_steps_of_a_body_are_found_at_any_depth() -> None:
    body = {"a": "{step_0.data}", "b": [{"c": "{input.x} {step_12.metrics.y}"}], "{step_3.data}": "a key"}
    assert steps_used(body) == {0, 12}


def problems(body: Any, **options: Any) -> list[tuple[str, str]]:
    services = {
        "first": {"limit": 1, "url": "http://first/"},
        "second": {"limit": 1, "url": "http://second/", "format": "raw", "body": body, **options},
    }
    config = Config.model_validate({"services": services, "pipelines": {"both": ["first", "second"]}})
    return list(config.contradictions())


def test_a_correct_body_has_no_problems() -> None:
    assert problems({"prompt": "{input.prompt}", "url": ["{step_0.data.url}"], "n": 1}) == []
    celery = {"limit": 1, "celery": "team.paint", "body": {"prompt": "{input.prompt}"}}
    assert list(Config.model_validate({"services": {"paint": celery}}).contradictions()) == []


@pytest.mark.parametrize(
    "text", ["{prompt}", "{step_0.url}", "{step_x.data}", "{input.a b}", "{}", "a {", "}", "{input.}"]
)
def test_what_is_not_a_placeholder_is_reported(text: str) -> None:
    [(key, problem)] = problems({"image": {"urls": [text]}})
    assert key == "services.second.body.image.urls.0"
    assert "is not a placeholder; valid are {input.FIELD} and {step_0.data.FIELD}" in problem


def test_a_result_that_comes_later_is_reported() -> None:
    [(key, problem)] = problems({"image": "{step_1.data.url}"})
    assert (key, problem) == (
        "pipelines.both",
        "step 1 (second) needs the result of step 1, which does not run before it",
    )


def test_a_body_needs_a_raw_request() -> None:
    assert problems({}, format="envelope") == [
        ("services.second.body", 'needs format = "raw"; in an envelope, the payload is the job\'s own')
    ]
    [(key, problem)] = problems({}, url=None)
    assert (key, problem[:13]) == ("services.second.body", "only the requ")


def test_a_body_is_json() -> None:
    [(key, problem)] = problems({"n": float("nan")})
    assert (key, problem) == ("services.second.body", "must be JSON: it contains NaN or an infinity")
