"""The cost of a step in its service's unit: what endpoints report, and how it reaches the dispatcher."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import orjson
import pytest
from pydantic import ValidationError

from fairlead.dispatch.port import Release
from fairlead.dispatch.redis.codec import release_args
from fairlead.domain import cost_expression
from fairlead.domain.config import Config, ServiceConfig
from fairlead.domain.costs import CostError, used_units
from fairlead.domain.job import Job
from fairlead.domain.openai import FrontRequest, estimated_tokens
from fairlead.domain.rates import UNITS, RateOf
from fairlead.domain.rules import Order, Rules, ServiceRules
from fairlead.domain.submission import Submission, SubmissionChecker, check
from fairlead.domain.usage import reported
from fairlead.errors import InvalidInput
from fairlead.store.rows import job_of, spec_of


@pytest.mark.parametrize(
    ("report", "unit", "used"),
    [
        ({"prompt_tokens": 10, "completion_tokens": 5}, "tokens", 15.0),
        ({"tokens_out": 5, "units": 2.5}, "tokens", 5.0),
        ({"tokens_out": 5, "units": 2.5}, "images", 2.5),
        ({"tokens_out": 5}, "images", None),
        ({"units": 2e9}, "images", None),
        ({"units": -1}, "images", None),
    ],
)
def test_use_is_taken_in_the_unit_of_the_service(report: dict[str, Any], unit: str, used: float | None) -> None:
    usage = reported(report)
    assert usage is not None
    assert used_units(usage, unit) == used


def test_releases_carry_the_units_that_their_calls_used() -> None:
    releases = [
        Release("1:1", "s"),
        Release("1:2", "s"),
        Release("1:3", "s", failed=False, used=2.5),
        Release("1:4", "s", refund=True, used=9.0),
    ]
    assert release_args(releases) == ["s", "0", "1:1\0001:2", "s", "22500000", "1:3", "s", "1", "1:4"]


INPUT = {
    "steps": 20, "width": 1024, "size": {"max-side": 512}, "images": ["a", "b"], "hd": True, "style": "oil",
    "none": None, "zero": 0, "huge": 10**400,
}  # fmt: skip


@pytest.mark.parametrize(
    ("expression", "cost"),
    [
        ("input.steps * input.width ** 2 / 1e6", 20.97152),
        ("2 * len(input.images) if input.hd else 1", 4.0),
        ('3 if input.style == "oil" and not input.zero else 1', 3.0),
        ('max(1, input.size["max-side"] // 100, -input.steps % 7)', 5.0),
        ("default(input.seed, 7) + default(input.none, 1)", 8.0),
        ("len(input.images[1])", 1.0),
    ],
)
def test_an_expression_reads_the_cost_from_the_input(expression: str, cost: float) -> None:
    assert cost_expression.parsed(expression)(INPUT) == pytest.approx(cost)


@pytest.mark.parametrize(
    ("expression", "problem"),
    [
        ("1 / input.zero", "divides by zero"),
        ("input.zero % input.zero", "divides by zero"),
        ("input.missing", "input has no 'missing'"),
        ("input.size.width", "input.size has no 'width'"),
        ("input.images[2]", "input.images has no '2'"),
        ("input.images + 1", "input.images is a list, not a number"),
        ("input.hd * 2", "input.hd is a boolean, not a number"),
        ("input.huge + 1", "too large"),
        ("9 ** 9 ** 9 ** 9", "too large"),
        ("(-8) ** 0.5", "root of a negative number"),
        ("1e308 * 10", "not a finite number"),
        ("len(input.steps)", "has no length"),
    ],
)
def test_an_input_that_cannot_be_read_is_an_error_that_names_the_field(expression: str, problem: str) -> None:
    with pytest.raises(CostError, match=problem):
        cost_expression.parsed(expression)(INPUT)


@pytest.mark.parametrize(
    "expression",
    [
        "__import__('os').system('true')",
        "input.__class__()",
        "().__class__",
        "[x for x in input.images]",
        "lambda: 1",
        "1" * 400,
        "(x := 1)",
        "f'{input}'",
        "input.images[0:1]",
        "input[input.style]",
        "print(1)",
        "min()",
        "True",
        "1j",
        "1 < 2 < 3",
        "a",
        "input.x if",
        "",
        "1 +",
        "-" * 40 + "1",
        "1 + " * 200 + "1",
        "while True: pass",
        "min(*input.images)",
    ],
)
def test_everything_else_is_refused_when_the_expression_is_parsed(expression: str) -> None:
    with pytest.raises(CostError):
        cost_expression.parsed(expression)


@pytest.mark.parametrize(
    ("expression", "problem"),
    [
        ("input", "input is an object, not a number"),
        ("2 * input", "input is an object, not a number"),
        ("default(input, 5)", "default(input, 5) is an object, not a number"),
        ("input.steps > 20", "input.steps > 20 is a boolean, not a number"),
        ("not input.hd", "not input.hd is a boolean, not a number"),
        ("'a' if input.hd else input", "'a' if input.hd else input is text, not a number"),
        ("input.zero == 1 or 'b'", "input.zero == 1 or 'b' is a boolean, not a number"),
    ],
)
def test_what_is_a_number_for_no_input_is_refused_when_the_expression_is_parsed(expression: str, problem: str) -> None:
    with pytest.raises(CostError, match=re.escape(problem)):
        cost_expression.parsed(expression)


@pytest.mark.parametrize(
    ("expression", "cost"),
    [("input.steps if input.hd else 'a'", 20.0), ("input.hd and input.steps", 20.0), ("input.zero or 4", 4.0)],
)
def test_what_is_a_number_for_some_inputs_is_computed(expression: str, cost: float) -> None:
    assert cost_expression.parsed(expression)(INPUT) == cost


def service(**options: Any) -> ServiceConfig:
    return ServiceConfig.model_validate({"limit": 1, "url": "http://gpu/run", **options})


def submitted(config: ServiceConfig, params: Any, **options: Any) -> Job:
    submission = Submission("flux", params, "ann", **options)
    return check(submission, Config(services={"flux": config}), now=1.0).job


def test_the_jobs_own_cost_goes_before_the_services() -> None:
    flux = service(cost="input.steps / 2", cost_unit="steps")
    assert submitted(flux, {"steps": 20}).step_cost == 10.0
    assert submitted(flux, {"steps": 20}, cost=3.0).step_cost == 3.0
    assert submitted(service(cost=3.5), {"steps": 20}).step_cost is None, "a number is a duration"
    assert (service(cost=3.5).rules("flux").cost, flux.rules("flux").cost) == (3.5, None)


def test_a_cost_survives_the_store() -> None:
    job = submitted(service(cost="input.steps", cost_unit="steps"), {"steps": 20})
    row: list[Any] = [0] * 32
    row[4], row[5], row[31] = 1, job.priority.band, spec_of(job)
    row[28:31] = [None] * 3
    assert job_of(row).costs == (20.0,)
    assert spec_of(replace(job, costs=None)).count(",") < spec_of(job).count(","), "written only if it is used"


@pytest.mark.parametrize("params", [{}, {"steps": 0}, {"steps": -1}, {"steps": "20"}, {"steps": 1e10}, None])
def test_an_input_without_a_valid_cost_is_refused(params: Any) -> None:
    with pytest.raises(InvalidInput, match="the cost of flux cannot be computed") as caught:
        submitted(service(cost="input.steps", cost_unit="steps"), params)
    assert caught.value.pointer == "/input_data"


def test_a_hook_computes_the_cost_or_refuses_the_input() -> None:
    flux = service(cost_unit="steps").reading_cost(lambda params: params["steps"] * 2 if params else None)
    assert submitted(flux, {"steps": 4}).costs == (8.0,)
    assert submitted(flux, {}).costs is None
    with pytest.raises(InvalidInput, match="KeyError: 'steps'"):
        submitted(flux, {"other": 1})


def test_a_hook_changes_nothing_that_is_stored_and_reveals_no_password() -> None:
    def hook(params: dict[str, Any]) -> float:
        if params.pop("away", None):
            raise ConnectionError("no answer of postgresql://ada:secret@db/prices")
        return float(params.pop("steps"))

    config = Config(services={"flux": service(cost_unit="steps").reading_cost(hook)})
    submit = SubmissionChecker(config, now=0.0).submit_of(Submission("flux", {"steps": 4}, "ada"))
    assert (submit.job.costs, submit.input_json) == ((4.0,), '{"steps":4}')
    with pytest.raises(InvalidInput, match=r"no answer of postgresql://\*\*\*@db/prices"):
        SubmissionChecker(config, now=0.0).submit_of(Submission("flux", {"away": 1}, "ada"))


def test_a_broken_expression_and_a_charge_without_its_unit_are_refused_at_start() -> None:
    with pytest.raises(ValidationError, match=r"cost: 'input.steps \*' is not an expression"):
        service(cost="input.steps *")
    for never in ("input.steps / (1 - 1)", "input.steps if input.steps else 1 % 0"):
        with pytest.raises(ValidationError, match="cost: it divides by zero"):
            service(cost=never)
    with pytest.raises(ValidationError, match="cost: a number is too large"):
        service(cost="9**9**9**9")
    for never in ("-1", "2 - 2", "1e9 + 1"):
        with pytest.raises(ValidationError, match="cost: the cost must be more than 0 and at most 1000000000, not"):
            service(cost=never)
    with pytest.raises(ValidationError, match="cost: 'free' is text, not a number"):
        service(cost="'free'")
    with pytest.raises(ValidationError, match="cost: input is an object, not a number"):
        service(cost="input")
    with pytest.raises(ValidationError, match='charge = "tokens" needs cost_unit = "tokens", but it is "seconds"'):
        service(charge="tokens")
    assert service(charge="tokens", cost_unit="tokens").rules("flux").charge == "tokens"


def request(path: str, **body: Any) -> dict[str, Any]:
    return FrontRequest(path, "application/json", orjson.dumps(body)).as_input()


@pytest.mark.parametrize(
    ("value", "tokens"),
    [
        (request("chat/completions", messages=[{"role": "user", "content": "x" * 396}], max_tokens=50), 150.0),
        (request("chat/completions", messages=[{"content": "x" * 400}], max_completion_tokens=50, n=3), 250.0),
        (request("completions", prompt=[1, 2, 3, 4], max_tokens=6), 10.0),
        (request("responses", input="x" * 40, max_output_tokens=10), 20.0),
        (request("embeddings", input=["x" * 40, "x" * 40]), 20.0),
        (request("completions", prompt="x" * 40), 266.0),
        (request("completions", prompt="x" * 40, max_tokens="many", n=-1), 266.0),
        (
            request("chat/completions", messages=[{"content": [{"image_url": "x" * 9999}]}], max_tokens=1),
            1001.0,
        ),
        (request("images/generations", prompt="a cat"), None),
        ({"path": "completions", "body": "not JSON" * 4}, 264.0),
        ({"prompt": "a cat"}, None),
        (None, None),
    ],
)
def test_the_tokens_of_a_request_are_estimated_from_its_texts_and_its_maximum(value: Any, tokens: float | None) -> None:
    assert estimated_tokens(value) == tokens


def test_services_that_speak_openai_count_in_tokens() -> None:
    llm = ServiceConfig.model_validate({"limit": 1, "openai": "http://vllm/v1", "charge": "tokens"})
    assert (llm.unit, llm.rules("flux").charge) == ("tokens", "tokens")
    assert submitted(llm, request("completions", prompt="x" * 40, max_tokens=10)).step_cost == 20.0


def test_the_rate_of_a_pool_without_services_counts_units() -> None:
    rules = Rules({"s": ServiceRules("s", limit=1, cost_unit="tokens", pool="gpu")}, {"gpu": 2, "spare": 1})
    assert [rules.unit_of(RateOf("pool", name)) for name in ("gpu", "spare")] == ["tokens", UNITS]


def test_the_rate_of_a_group_does_not_count_in_the_unit_of_a_fifo_service() -> None:
    fifo = ServiceRules("fifo", limit=1, order=Order.FIFO)
    rules = Rules({"fifo": fifo, "llm": ServiceRules("llm", limit=1, cost_unit="tokens")})
    assert [rules.unit_of(RateOf(kind, "acme")) for kind in ("group", "plan")] == ["tokens", UNITS]


def test_tokens_are_the_unit_of_a_service_whose_calls_a_rate_in_tokens_counts() -> None:
    rate = {"tokens": 100}
    services = {
        "plain": {"limit": 1},
        "images": {"limit": 1, "cost_unit": "images", "pool": "gpu"},
        "pooled": {"limit": 1, "pool": "gpu"},
        "fifo": {"limit": 1, "order": "fifo"},
        "region": {"limit": 1, "regions": {"eu": {"url": "http://eu", "limit": 1, "pool": "gpu"}}},
    }

    def units(**shared: Any) -> set[str]:
        config = Config.model_validate({"services": services, "pools": {"gpu": 1}, **shared})
        assert config.units["images"] == "images"
        return {name for name, unit in config.units.items() if unit == "tokens"}

    assert units() == units(plans={"free": {"rate": {"units": 9}}}) == set()
    assert units(pools={"gpu": {"limit": 1, "rate": rate}}) == {"pooled", "region"}
    assert units(plans={"free": {"rate": rate}}) == {"plain", "pooled", "fifo", "region"}
    assert units(groups={"acme": {"rate": rate}}) == {"plain", "pooled", "region"}
