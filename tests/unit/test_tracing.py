"""The spans of jobs, read from an exporter in memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased, Sampler
from opentelemetry.trace import NoOpTracerProvider

from fairlead.app.telemetry import exporters_of
from fairlead.domain import transitions
from fairlead.domain.calls import SUCCESS, CallEnd
from fairlead.domain.job import Job, JobStatus
from fairlead.domain.trace_context import of_headers, of_text
from fairlead.domain.usage import Usage
from fairlead.engine.tracing import Tracing

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = f"00-{TRACE}-{SPAN}-01"
WAITING = Job("job", "draw", "ada", ("draw",), created_at=10.0, queued_at=10.0, waiting_since=10.0, trace=PARENT)
RUNNING = replace(
    WAITING, status=JobStatus.RUNNING, run=2, attempt=1, call_started_at=12.0, lease="lease", worker="worker-1"
)


class Made:
    """A `Tracing` and what it exports."""

    def __init__(self, sampler: Sampler | None = None) -> None:
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider(sampler=sampler, shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracing = Tracing(provider, frozenset({"draw"}))

    def spans(self) -> list[ReadableSpan]:
        return list(self.exporter.get_finished_spans())


def parent_of(span: ReadableSpan) -> str | None:
    return None if span.parent is None else f"{span.parent.span_id:016x}"


def test_a_call_that_ended_has_a_wait_and_a_call_with_the_id_that_the_upstream_got() -> None:
    made = Made()
    sent = of_text(made.tracing.trace_of_call(RUNNING) or "")
    move = transitions.hand_back(RUNNING, now=15.0, waits={})
    call = CallEnd(RUNNING, SUCCESS, 15.0, Usage(tokens_in=3, tokens_out=5, model="m"), {"span.name": "chat m"})
    made.tracing.moved(RUNNING, replace(move, call=call), 15.0)
    wait, called = made.spans()
    assert [parent_of(span) for span in (wait, called)] == [SPAN, SPAN]
    assert (wait.name, wait.start_time, wait.end_time) == ("wait draw", 10 * 10**9, 12 * 10**9)
    assert (called.name, called.start_time, called.end_time) == ("chat m", 12 * 10**9, 15 * 10**9)
    assert sent is not None
    assert f"{called.context.span_id:016x}" == sent.span_id
    assert f"{called.context.trace_id:032x}" == TRACE
    attributes: dict[str, Any] = dict(called.attributes or {})
    assert attributes["gen_ai.usage.input_tokens"] == 3
    assert attributes["gen_ai.response.model"] == "m"
    assert "span.name" not in attributes
    assert called.status.is_unset


def test_a_recovered_call_is_an_error_with_the_same_id() -> None:
    """The leader makes the span of a call whose worker died."""
    worker, leader = Made(), Made()
    sent = of_text(worker.tracing.trace_of_call(RUNNING) or "")
    move = transitions.recover(RUNNING, now=20.0, waits={}, max_attempts=3, hold=None)
    leader.tracing.moved(RUNNING, move, 20.0)
    _, called = leader.spans()
    assert sent is not None
    assert f"{called.context.span_id:016x}" == sent.span_id
    assert dict(called.attributes or {})["fairlead.outcome"] == "lost"
    assert called.status.description == "WORKER_DIED"


def test_a_job_that_is_cancelled_while_it_waits_has_a_wait_alone() -> None:
    made = Made()
    made.tracing.moved(WAITING, transitions.cancel(WAITING, now=11.0), 11.0)
    (wait,) = made.spans()
    assert (wait.name, wait.end_time) == ("wait draw", 11 * 10**9)
    assert dict(wait.attributes or {})["fairlead.outcome"] == "cancelled"


def test_a_job_without_a_trace_has_no_spans() -> None:
    made = Made()
    job = replace(WAITING, trace=None)
    made.tracing.moved(job, transitions.cancel(job, now=11.0), 11.0)
    assert made.spans() == []
    assert made.tracing.trace_of_call(job) is None


def test_a_submit_is_a_child_of_its_caller_and_the_parent_of_the_rest() -> None:
    made = Made()
    with made.tracing.submitting(["draw"], of_headers(PARENT)) as submitting:
        submitting.accepted(["job"])
    (span,) = made.spans()
    assert (span.name, parent_of(span)) == ("submit draw", SPAN)
    kept = of_text(submitting.trace or "")
    assert kept is not None
    assert (kept.trace_id, kept.span_id) == (TRACE, f"{span.context.span_id:016x}")


def test_an_error_of_a_submit_is_an_error_of_its_span() -> None:
    made = Made()
    with pytest.raises(ValueError, match="no"), made.tracing.submitting(["draw", "paint"], None):
        raise ValueError("no")
    (span,) = made.spans()
    assert span.name == "submit"
    assert not span.status.is_ok


@pytest.mark.parametrize(("caller", "kept"), [(None, None), (f"{PARENT[:-1]}0", f"{PARENT[:-1]}0")])
def test_a_trace_that_is_not_sampled_is_stored_only_if_the_caller_has_one(caller: str | None, kept: str | None) -> None:
    made = Made(ParentBased(ALWAYS_OFF))
    with made.tracing.submitting(["draw"], of_headers(caller)) as submitting:
        assert submitting.trace == kept
    assert made.spans() == []


@pytest.mark.parametrize(
    ("variables", "exporters"),
    [
        ({}, []),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}, ["otlp"]),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://collector:4318/v1/traces"}, ["otlp"]),
        ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://collector:4318/v1/metrics"}, []),
        ({"OTEL_TRACES_EXPORTER": "console, otlp"}, ["console", "otlp"]),
        ({"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}, []),
        ({"OTEL_SDK_DISABLED": "true", "OTEL_TRACES_EXPORTER": "otlp"}, []),
    ],
)
def test_nothing_is_exported_unless_the_variables_ask_for_it(variables: dict[str, str], exporters: list[str]) -> None:
    assert exporters_of("TRACES", variables) == exporters


def test_a_provider_that_chooses_its_own_ids_and_fails_harms_no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    tracing = Tracing(NoOpTracerProvider())
    assert tracing.trace_of_call(RUNNING) == PARENT, "the parent of the upstream's spans is the submit"
    with tracing.submitting(["draw"], of_headers(PARENT)) as submitting:
        assert submitting.trace == PARENT
    monkeypatch.setattr(tracing, "_moved", lambda *_: 1 / 0)
    tracing.moved(WAITING, transitions.cancel(WAITING, now=11.0), 11.0)
