"""The spans of jobs, for OpenTelemetry (docs/adr/0035).

The submit of a job is a span, and the job keeps its context. All other spans of the job are its children: the wait for
each call, each call, and each request of a webhook. Spans of waits and calls are made when the call has ended, from the
times in the job's row, by the process that records the end. Nothing of a trace is therefore lost with a worker.

Only a process that exports spans imports this module.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from opentelemetry import trace as otel
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, TracerProvider
from opentelemetry.trace.span import TraceState

from fairlead.domain.calls import SUCCESS, CallEnd
from fairlead.domain.job import Job
from fairlead.domain.trace_context import TraceContext, call_context, of_text
from fairlead.domain.transitions import Move
from fairlead.domain.webhooks import Delivery
from fairlead.version import __version__

log = logging.getLogger("fairlead.tracing")

NAME = "span.name"
"""The detail of a call that is the name of its span."""
FLUSH_WITHIN_MS = 5000
MESSAGING = {"messaging.system": "fairlead"}
SEND, PROCESS = {"messaging.operation.type": "send"}, {"messaging.operation.type": "process"}


class SpanIds:
    """Random ids, except for a span whose id was chosen before. Has the interface of the SDK's `IdGenerator`."""

    def __init__(self, random: Any) -> None:
        self._random = random
        self.next_span: int | None = None

    def generate_span_id(self) -> int:
        chosen, self.next_span = self.next_span, None
        return int(self._random.generate_span_id()) if chosen is None else chosen

    def generate_trace_id(self) -> int:
        return int(self._random.generate_trace_id())

    def is_trace_id_random(self) -> bool:
        return bool(getattr(self._random, "is_trace_id_random", bool)())


class Submitting:
    """The span of one submit. `trace` is what its jobs keep; None if the trace is not recorded."""

    def __init__(self, span: Span, given: TraceContext | None) -> None:
        self._span = span
        context = span.get_span_context()
        if context.is_valid and context.trace_flags.sampled:
            self.trace: str | None = str(context_of(context))
        else:
            self.trace = None if given is None else str(given)

    def accepted(self, job_ids: Sequence[str]) -> None:
        if len(job_ids) == 1:
            self._span.set_attribute("fairlead.job.id", job_ids[0])


class WebhookSpan:
    """The span of one request of a webhook."""

    def __init__(self, span: Span) -> None:
        self._span = span
        self.headers = {"traceparent": context_of(span.get_span_context()).traceparent}

    def end(self, status: int | None, problem: str | None) -> None:
        if status is not None:
            self._span.set_attribute("http.response.status_code", status)
        if problem is not None:
            self._span.set_status(Status(StatusCode.ERROR, problem))
        self._span.end()


class Tracing:
    def __init__(self, provider: TracerProvider, remote: frozenset[str] = frozenset()) -> None:
        """`remote`: the services that run outside of Fairlead's processes."""
        self._provider = provider
        self._remote = remote
        self._tracer = provider.get_tracer("fairlead", __version__)
        # The tracer was made for this object, so that nothing else uses its ids.
        self._ids: SpanIds | None = None
        tracer: Any = self._tracer
        if hasattr(getattr(tracer, "id_generator", None), "generate_span_id"):
            self._ids = tracer.id_generator = SpanIds(tracer.id_generator)
        else:
            log.info("the ids of spans cannot be chosen; the spans of services become children of the submit")

    # ------------------------------------------------------------ submit

    @contextmanager
    def submitting(self, feature_names: Sequence[str], given: TraceContext | None) -> Iterator[Submitting]:
        """The span of a submit. Its parent is the current span, else the one that the request names."""
        current = otel.get_current_span().get_span_context().is_valid
        names = set(feature_names)
        name = f"submit {feature_names[0]}" if len(names) == 1 else "submit"
        attributes: dict[str, Any] = {**MESSAGING, "messaging.operation.name": "submit", **SEND}
        if len(names) == 1:
            attributes["fairlead.feature"] = feature_names[0]
        if len(feature_names) > 1:
            attributes["messaging.batch.message_count"] = len(feature_names)
        parent = None if current or given is None else _parent(given)
        with self._tracer.start_as_current_span(name, parent, SpanKind.PRODUCER, attributes) as span:
            yield Submitting(span, given)

    def current(self) -> str | None:
        """The trace of a turn that the current span asks for; None if there is no such span, or it is not recorded."""
        context = otel.get_current_span().get_span_context()
        return str(context_of(context)) if context.is_valid and context.trace_flags.sampled else None

    # ------------------------------------------------------------ waits and calls

    def trace_of_call(self, job: Job) -> str | None:
        """The trace of what the next call of this job does."""
        if job.trace is None or self._ids is None:
            return job.trace
        context = call_context(job.trace, job.id, job.run)
        return job.trace if context is None else str(context)

    def moved(self, job: Job, move: Move, now: float) -> None:
        """Make the spans of a call that has ended, or of a wait that ended without a call. Never raises: the move is
        written already."""
        if job.trace is None:
            return
        try:
            self._moved(job, move, now)
        except Exception:
            log.exception("the spans of job %s could not be made", job.id)

    def _moved(self, job: Job, move: Move, now: float) -> None:
        if move.call is not None:
            self._ended(move.call, move)
        elif move.status.finished:
            began = job.waiting_since or job.queued_at or job.created_at
            self._wait(job, began, now, outcome=move.status.value.lower(), error=_code(move.error))

    def _ended(self, call: CallEnd, move: Move) -> None:
        job = call.job
        began = call.ended_at if job.call_started_at is None else job.call_started_at
        if job.waiting_since is not None and job.waiting_since <= began:
            self._wait(job, job.waiting_since, began)
        details = dict(call.details or {})
        name = details.pop(NAME, f"call {job.service}")
        attributes = {**_attributes(job), "fairlead.outcome": call.outcome, **details, **_usage(call)}
        where = {"fairlead.region": job.call_region, "fairlead.worker": job.worker}
        attributes |= {key: value for key, value in where.items() if value is not None}
        error = _code(None if move.failed is None else move.failed.error)
        if error is None and call.outcome != SUCCESS:
            error = call.outcome
        context = call_context(job.trace or "", job.id, job.run)
        if self._ids is not None and context is not None:
            self._ids.next_span = int(context.span_id, 16)
        kind = SpanKind.CLIENT
        if job.service not in self._remote:
            kind, attributes = SpanKind.CONSUMER, {**attributes, **MESSAGING, **PROCESS}
        self._span(name, job, (began, call.ended_at), kind, attributes, error)

    def _wait(
        self, job: Job, began: float, ended: float, *, outcome: str | None = None, error: str | None = None
    ) -> None:
        attributes = {**_attributes(job), "fairlead.priority": job.priority.value}
        if outcome is not None:
            attributes["fairlead.outcome"] = outcome
        self._span(f"wait {job.service}", job, (began, ended), SpanKind.INTERNAL, attributes, error)

    def _span(
        self,
        name: str,
        job: Job,
        times: tuple[float, float],
        kind: SpanKind,
        attributes: Mapping[str, Any],
        error: str | None,
    ) -> None:
        context = of_text(job.trace or "")
        if context is None:
            return
        began, ended = (round(moment * 1e6) * 1000 for moment in times)
        span = self._tracer.start_span(name, _parent(context), kind, attributes, start_time=began)
        if error is not None:
            span.set_attribute("error.type", error)
            span.set_status(Status(StatusCode.ERROR, error))
        span.end(max(began, ended))

    # ------------------------------------------------------------ webhooks

    def webhook(self, delivery: Delivery, trace: str) -> WebhookSpan | None:
        context = of_text(trace)
        if context is None:
            return None
        attributes: dict[str, Any] = {
            "fairlead.delivery.id": delivery.id,
            "fairlead.event": delivery.event,
            "fairlead.attempt": delivery.attempts + 1,
            "http.request.method": "POST",
            "fairlead.receiver": delivery.receiver,
        }
        if delivery.job_id is not None:
            attributes["fairlead.job.id"] = delivery.job_id
        span = self._tracer.start_span(f"webhook {delivery.event}", _parent(context), SpanKind.CLIENT, attributes)
        return WebhookSpan(span)

    def flush(self) -> None:
        """Export what has ended. Blocks."""
        flush = getattr(self._provider, "force_flush", None)
        if flush is not None:
            flush(FLUSH_WITHIN_MS)


def context_of(context: otel.SpanContext) -> TraceContext:
    return TraceContext(
        otel.format_trace_id(context.trace_id),
        otel.format_span_id(context.span_id),
        int(context.trace_flags),
        context.trace_state.to_header(),
    )


def span_context(context: TraceContext, *, remote: bool = True) -> otel.SpanContext:
    return otel.SpanContext(
        int(context.trace_id, 16),
        int(context.span_id, 16),
        is_remote=remote,
        trace_flags=otel.TraceFlags(context.flags),
        trace_state=TraceState.from_header([context.state]) if context.state else None,
    )


def _parent(context: TraceContext) -> Context:
    return otel.set_span_in_context(otel.NonRecordingSpan(span_context(context)), Context())


def _attributes(job: Job) -> dict[str, Any]:
    return {
        "fairlead.job.id": job.id,
        "fairlead.feature": job.feature_name,
        "fairlead.service": job.service,
        "fairlead.step": job.step,
        "fairlead.attempt": job.attempt,
    }


def _usage(call: CallEnd) -> dict[str, Any]:
    usage = call.usage
    if usage is None:
        return {}
    found = {
        "gen_ai.response.model": usage.model,
        "gen_ai.usage.input_tokens": usage.tokens_in,
        "gen_ai.usage.output_tokens": usage.tokens_out,
    }
    return {name: value for name, value in found.items() if value is not None}


def _code(error: Mapping[str, Any] | None) -> str | None:
    return None if error is None else str(error.get("code"))
