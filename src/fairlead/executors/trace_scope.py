"""Makes the trace of a call the current one, for handlers that use OpenTelemetry."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from fairlead.domain.retry import Failure
from fairlead.domain.trace_context import of_text
from fairlead.executors.port import Call, Executor, Success


async def execute(executor: Executor, call: Call) -> Success | Failure:
    """Make the call within its trace."""
    if call.trace is None:
        return await executor.execute(call)
    with current_trace(call.trace):
        return await executor.execute(call)


@contextmanager
def current_trace(trace: str) -> Iterator[None]:
    """Within the block, new spans are children of the call. Does nothing in a process that has not imported
    OpenTelemetry."""
    otel = sys.modules.get("opentelemetry.trace")
    context = None if otel is None else of_text(trace)
    if otel is None or context is None:
        yield
        return
    span = otel.SpanContext(
        int(context.trace_id, 16), int(context.span_id, 16), is_remote=True, trace_flags=otel.TraceFlags(context.flags),
        trace_state=otel.TraceState.from_header([context.state]) if context.state else None,
    )  # fmt: skip
    with otel.use_span(otel.NonRecordingSpan(span)):
        yield
