"""The output of a call: what handlers emit, and what Celery tasks report."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from fairlead import Call
from fairlead.domain.retry import Failure
from fairlead.executors.call_outcome import concluded
from fairlead.executors.celery.results import report_progress
from fairlead.executors.port import CallOutput, Success


class Reporter:
    def __init__(self, max_output: int = 1000) -> None:
        self.max_output = max_output
        self.progress: list[dict[str, Any]] = []
        self.reports = 0

    def __call__(self, progress: dict[str, Any]) -> None:
        self.progress.append(progress)

    def emitted(self, output: CallOutput) -> None:
        self.reports += 1

    def check_long(self, chunk_json: str) -> None: ...

    def ended(self) -> None: ...


def call_of(reporter: Reporter | None = None) -> Call:
    return Call(
        job_id="j",
        step_index=0,
        total_steps=1,
        service="s",
        feature_name="s",
        user_id="ada",
        attempt=1,
        idempotency_key="j:0:0",
        params_json="{}",
        context_json="{}",
        timeout=1.0,
        report=reporter or Reporter(),
    )


def emitted(call: Call) -> list[Any]:
    return [] if call.output is None else [orjson.loads(chunk) for chunk in call.output.chunks]


@pytest.mark.parametrize(
    ("chunks", "returned", "result"),
    [
        (['a "quoted" ', "ä\n", "", "c"], None, 'a "quoted" ä\nc'),
        (["a", 1, None, {"b": [2]}], None, ["a", 1, None, {"b": [2]}]),
        (["a"], {"tokens": 1}, {"tokens": 1}),
        ([], None, None),
    ],
)
def test_the_result_is_what_was_returned_or_the_output(chunks: list[Any], returned: Any, result: Any) -> None:
    call = call_of()
    for chunk in chunks:
        call.emit(chunk)
    outcome = concluded(returned, call, 1000)
    assert isinstance(outcome, Success)
    assert orjson.loads(outcome.data_json) == result


def test_chunks_are_reported_once_until_they_are_read() -> None:
    reporter = Reporter()
    call = call_of(reporter)
    for number in range(3):
        call.emit(number)
    assert call.output is not None
    assert (reporter.reports, call.output.read(1)) == (1, ["1", "2"])
    call.emit(3)
    assert (reporter.reports, call.output.read(3)) == (2, ["3"])


def test_chunks_after_the_end_are_ignored() -> None:
    call = call_of()
    call.emit("a")
    assert isinstance(concluded(None, call, 1000), Success)
    call.emit("b")
    assert emitted(call) == ["a"]


def test_a_celery_task_reports_its_output_so_far() -> None:
    reporter = Reporter()
    call = call_of(reporter)
    for text in ("one", "one", "one two", "other", "one two three"):
        report_progress(call, {"status": "PROGRESS", "result": {"output": text}})
    assert emitted(call) == ["one", " two", " three"]
    assert reporter.progress == []
    report_progress(call, {"status": "PROGRESS", "result": {"output": "one two three", "fraction": 0.5}})
    assert reporter.progress == [{"fraction": 0.5}]


def test_a_celery_task_reports_a_list_of_chunks() -> None:
    call = call_of()
    for chunks in ([{"n": 1}], [{"n": 1}, "b"], [{"n": 1}], [{"n": 1}, "b", 3]):
        report_progress(call, {"status": "PROGRESS", "result": {"output": chunks}})
    assert emitted(call) == [{"n": 1}, "b", 3]


def test_a_celery_task_with_too_much_output_fails() -> None:
    call = call_of(Reporter(max_output=10))
    report_progress(call, {"status": "PROGRESS", "result": {"output": "x" * 100}})
    assert isinstance(concluded("short", call, 10), Failure)
