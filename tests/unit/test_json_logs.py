"""Structured logs: one JSON object per line, with the fields of the job, the request and the trace."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from fairlead import log_fields
from fairlead.cli.logs import JsonLines
from fairlead.domain.job import Job

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
JOB = Job("job-1", "draw_then_scale", "ada", ("draw", "scale"), attempt=2, trace=f"00-{TRACE}-00f067aa0ba902b7-01")


class Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(JsonLines())
        self.got: list[dict[str, Any]] = []
        self.raw: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.raw.append(self.format(record))
        self.got.append(json.loads(self.raw[-1]))


@pytest.fixture
def lines() -> Iterator[Lines]:
    logger, handler = logging.getLogger("fairlead.test"), Lines()
    logger.addHandler(handler)
    log_fields.want(True)
    try:
        yield handler
    finally:
        log_fields.want(False)
        logger.removeHandler(handler)


log = logging.getLogger("fairlead.test")


def test_a_line_about_a_job_has_its_fields(lines: Lines) -> None:
    log.warning("job %s: failed", JOB.id, extra=log_fields.about(JOB))
    (line,) = lines.got
    assert {name: line[name] for name in ("level", "logger", "message")} == {
        "level": "warning",
        "logger": "fairlead.test",
        "message": "job job-1: failed",
    }
    assert (line["job_id"], line["user_id"], line["service"], line["attempt"]) == ("job-1", "ada", "draw", 2)
    assert line["trace_id"] == TRACE
    assert line["time"].endswith("Z")


def test_a_line_that_begins_with_a_job_has_its_id(lines: Lines) -> None:
    log.warning("job %s: its lease is lost", "job-7")
    log.warning("turn %s: its lease is lost", "turn-7")
    log.warning("the job %s", "job-7")
    assert [line.get("job_id") for line in lines.got] == ["job-7", "turn-7", None]


def test_lines_of_a_call_or_a_request_have_its_fields_and_others_do_not(lines: Lines) -> None:
    with log_fields.within({"request_id": "r1"}):
        with log_fields.within({"job_id": "job-1"}):
            log.warning("inside")
        log.warning("after the call")
    log.warning("outside")
    found = [(line.get("request_id"), line.get("job_id")) for line in lines.got]
    assert found == [("r1", "job-1"), ("r1", None), (None, None)]


def test_a_line_about_another_job_has_no_fields_of_the_request_that_began_its_task(lines: Lines) -> None:
    with log_fields.within({"request_id": "r1", "span_id": "s1"}):
        log.warning("job %s: completed", JOB.id, extra=log_fields.about(JOB))
    assert not lines.got[0].keys() & {"request_id", "span_id"}
    assert lines.got[0]["job_id"] == JOB.id


def test_the_current_span_of_the_application_is_named(lines: Lines) -> None:
    otel = pytest.importorskip("opentelemetry.trace")
    span = otel.SpanContext(int(TRACE, 16), 0xF067AA0BA902B7, is_remote=True, trace_flags=otel.TraceFlags(1))
    with otel.use_span(otel.NonRecordingSpan(span)):
        log.warning("inside")
    assert (lines.got[0]["trace_id"], lines.got[0]["span_id"]) == (TRACE, "00f067aa0ba902b7")


def test_a_line_is_one_line_of_json_without_secrets() -> None:
    """Formatted directly: a lone surrogate in a captured log line cannot be sent between the processes of the tests."""
    try:
        raise ValueError("broken\nby \x1b[31m the input \ud800")
    except ValueError:
        caught = sys.exc_info()
    arguments = ("postgresql://user:hunter2@db/app",)
    record = logging.LogRecord("fairlead.test", logging.ERROR, __file__, 1, "cannot reach %s", arguments, caught)
    raw = JsonLines().format(record)
    assert "\n" not in raw
    assert "hunter2" not in raw
    assert "ValueError: broken\nby \x1b[31m the input \\ud800" in json.loads(raw)["exception"]


def test_plain_logs_collect_no_fields() -> None:
    log_fields.want(False)
    assert log_fields.about(JOB) == {}
