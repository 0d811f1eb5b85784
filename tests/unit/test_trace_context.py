"""The trace of a job: which headers are taken, what is stored and passed on."""

from __future__ import annotations

import pytest

from fairlead.domain.trace_context import (
    TraceContext,
    call_context,
    headers_of,
    of_headers,
    of_text,
    trace_id_of,
)

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = f"00-{TRACE}-{SPAN}-01"


def test_a_traceparent_is_taken_and_passed_on() -> None:
    context = of_headers(PARENT, "vendor=1,other=2")
    assert context == TraceContext(TRACE, SPAN, 1, "vendor=1,other=2")
    assert of_text(str(context)) == context
    assert headers_of(str(context)) == {"traceparent": PARENT, "tracestate": "vendor=1,other=2"}
    assert trace_id_of(str(context)) == TRACE
    assert headers_of(None) == {}
    assert trace_id_of(None) is None


def test_a_later_version_is_read_as_far_as_it_is_known() -> None:
    assert of_headers(f"cc-{TRACE}-{SPAN}-00-what-else") == TraceContext(TRACE, SPAN, 0)


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "nonsense",
        PARENT.upper(),
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"{PARENT}-more",
        PARENT[:-1],
        f"{PARENT}\n{PARENT}",
        "00-" + "٤" * 32 + f"-{SPAN}-01",
    ],
)
def test_an_invalid_traceparent_is_ignored(header: str | None) -> None:
    assert of_headers(header, "vendor=1") is None


@pytest.mark.parametrize("state", [None, "", "v=" + "1" * 512, "v=\x00", "v=1\r\nx: y", "v=é"])
def test_an_invalid_tracestate_is_dropped_alone(state: str | None) -> None:
    assert of_headers(PARENT, state) == TraceContext(TRACE, SPAN, 1)


def test_every_process_computes_the_same_span_of_a_call() -> None:
    context = call_context(f"{PARENT} vendor=1", "job", 3)
    assert context is not None
    assert (context.trace_id, context.flags, context.state) == (TRACE, 1, "vendor=1")
    assert context == call_context(f"{PARENT} vendor=1", "job", 3)
    others = {call_context(PARENT, "job", 4), call_context(PARENT, "other", 3)}
    assert context.span_id not in {other.span_id for other in others if other is not None} | {SPAN}
