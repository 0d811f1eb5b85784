"""What calls report to have used: which values are kept, and which are ignored and counted."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest

from fairlead.domain.openai import reported_usage
from fairlead.domain.usage import MAX_TOKENS, MOST_IGNORED, Usage, merged, reported
from fairlead.executors.call_outcome import enveloped, usage_in
from fairlead.executors.function import FunctionExecutor
from fairlead.executors.port import Call, Success
from fairlead.executors.process import ProcessExecutor


@pytest.mark.parametrize(
    ("report", "usage"),
    [
        ({"tokens_in": 3, "tokens_out": 4, "units": 1.5}, Usage(3, 4, None, 1.5)),
        ({"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}, Usage(3, 4)),
        ({"input_tokens": 9, "input_tokens_details": {"cached_tokens": 8}}, Usage(9, None, 8)),
        ({"input_tokens": 2, "cache_read_input_tokens": 80, "output_tokens": 1}, Usage(82, 1, 80)),
        ({"tokens_in": 3.0, "model": "m"}, Usage(3, model="m")),
        ({"tokens_out": 0}, Usage(tokens_out=0)),
    ],
)
def test_reports_in_the_names_of_several_apis_are_read(report: Any, usage: Usage) -> None:
    assert reported(report) == usage


@pytest.mark.parametrize(
    "report",
    [
        {"tokens_in": -1},
        {"tokens_in": MAX_TOKENS + 1},
        {"tokens_in": "12"},
        {"tokens_in": True},
        {"tokens_out": 1.5},
        {"units": math.nan},
        {"units": math.inf},
        {"units": -0.1},
        {"units": 10**400},
        {"model": 7},
        {"model": "a\0b"},
        {"prompt_tokens_details": {"cached_tokens": -3}},
        [1, 2],
        "12 tokens",
    ],
)
def test_a_value_that_is_not_credible_is_ignored_and_counted(report: Any) -> None:
    assert reported(report) == Usage(ignored=1)


def test_the_rest_of_a_report_with_a_bad_value_is_kept() -> None:
    assert reported({"tokens_in": 5, "tokens_out": -1, "tokens_cached": 6}) == Usage(tokens_in=5, ignored=2)


def test_no_report_is_no_usage() -> None:
    assert reported(None) is None
    assert reported({}) is None
    assert reported({"total": 3}, model="m") is None
    assert usage_in([1]) is None


def test_a_later_report_replaces_what_it_names() -> None:
    assert merged(Usage(1, 2, model="a", ignored=1), Usage(None, 5, model="b")) == Usage(1, 5, model="b", ignored=1)
    assert merged(None, Usage(1)) == Usage(1) == merged(Usage(1), None)
    assert merged(Usage(ignored=MOST_IGNORED), Usage(1, ignored=1)) == Usage(1, ignored=MOST_IGNORED)


def test_answers_report_usage_in_their_metrics_beside_them_or_without_an_envelope() -> None:
    inside = enveloped({"data": 1, "metrics": {"usage": {"tokens_in": 2}}, "usage": {"tokens_in": 9}})
    beside = enveloped({"data": 1, "usage": {"tokens_in": 2}, "model": "m"})
    assert isinstance(inside, Success)
    assert isinstance(beside, Success)
    assert inside.usage == Usage(2)
    assert beside.usage == Usage(2, model="m")
    assert usage_in({"usage": {"units": 2}, "image": "..."}) == Usage(units=2.0)
    assert reported_usage({"response": {"model": "m", "usage": {"input_tokens": 1}}}) == Usage(1, model="m")


def call_of(**more: Any) -> Call:
    return Call(
        job_id="1",
        step_index=0,
        total_steps=1,
        service="s",
        feature_name="f",
        user_id="u",
        attempt=1,
        idempotency_key="1:0:0",
        params_json="{}",
        context_json="{}",
        timeout=5.0,
        **more,
    )


def reports_and_fails(call: Call) -> None:
    call.report_usage(tokens_in=7, units=2)
    call.report_usage(tokens_out=3, units=4, model="m")
    raise ValueError("after the report")


def test_the_report_of_a_function_that_fails_is_kept() -> None:
    call = call_of()
    asyncio.run(FunctionExecutor(reports_and_fails, max_result=1000).execute(call))
    assert call.usage == Usage(7, 3, None, 4.0, "m")


def test_the_report_of_a_function_in_a_process_reaches_the_worker() -> None:
    async def run() -> Usage | None:
        executor = ProcessExecutor("tests.unit.test_usage:reports_and_fails", max_result=1000)
        call = call_of()
        try:
            await executor.execute(call)
        finally:
            await executor.close()
        return call.usage

    assert asyncio.run(run()) == Usage(7, 3, None, 4.0, "m")
