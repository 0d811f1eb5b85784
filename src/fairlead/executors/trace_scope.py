"""Makes the trace of a call the current one, for handlers that use OpenTelemetry."""

from __future__ import annotations

import sys
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from fairlead import log_fields
from fairlead.domain.retry import Failure
from fairlead.domain.trace_context import of_text
from fairlead.executors.port import Call, Executor, Success


def execute(executor: Executor, call: Call) -> Coroutine[Any, Any, Success | Failure]:
    """Make the call within its trace, and name it in the log lines of its handler. A call with neither, which is nearly
    every call, is the executor's own coroutine: one more around it would cost a microsecond."""
    if call.trace is None and not log_fields.wanted():
        return executor.execute(call)
    return _execute(executor, call)


def _fields(call: Call) -> dict[str, Any]:
    context = None if call.trace is None else of_text(call.trace)
    trace = {} if context is None else {"trace_id": context.trace_id}
    return {
        "job_id": call.job_id,
        "user_id": call.user_id,
        "feature_name": call.feature_name,
        "service": call.service,
        "attempt": call.attempt,
        **trace,
    }


async def _execute(executor: Executor, call: Call) -> Success | Failure:
    with (
        log_fields.within(_fields(call)) if log_fields.wanted() else nullcontext(),
        nullcontext() if call.trace is None else current_trace(call.trace),
    ):
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
