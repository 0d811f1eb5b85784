"""The fields of structured log lines: which job, user, service, request and trace a line is about.

A line has the fields of its `extra`, made by `about` or `with_fields`, and those of its context: `within` sets them for
all lines that are logged while a call or a request runs, also by the code of the application.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any

from fairlead.domain.job import Job
from fairlead.domain.trace_context import of_text

FIELDS = "fairlead_fields"
"""The attribute of a log record that has its fields."""

NOTHING: Mapping[str, Any] = MappingProxyType({})
_context: ContextVar[Mapping[str, Any]] = ContextVar("fairlead_log_fields", default=NOTHING)
_wanted = False


def want(on: bool) -> None:
    """Collect fields from now on, or no longer. Plain logs do not show them."""
    global _wanted
    _wanted = on


def wanted() -> bool:
    return _wanted


def about(job: Job) -> dict[str, Any]:
    """The `extra` of a line about a job."""
    return {FIELDS: fields_of(job)} if _wanted else {}


def with_fields(**fields: Any) -> dict[str, Any]:
    """The `extra` of a line with these fields."""
    return {FIELDS: fields} if _wanted else {}


def fields_of(job: Job) -> dict[str, Any]:
    fields = {
        "job_id": job.id,
        "user_id": job.user_id,
        "feature_name": job.feature_name,
        "service": job.service,
        "attempt": job.attempt,
    }
    context = None if job.trace is None else of_text(job.trace)
    return fields if context is None else {**fields, "trace_id": context.trace_id}


@contextmanager
def within(fields: Mapping[str, Any]) -> Iterator[None]:
    """Give all lines that are logged in the block these fields too."""
    token = _context.set({**_context.get(), **fields})
    try:
        yield
    finally:
        _context.reset(token)


def current() -> dict[str, Any]:
    """The fields of the context. If the application uses OpenTelemetry, its current span belongs to them."""
    otel = sys.modules.get("opentelemetry.trace")
    span = None if otel is None else otel.get_current_span().get_span_context()
    if span is None or not span.is_valid:
        return dict(_context.get())
    return {**_context.get(), "trace_id": f"{span.trace_id:032x}", "span_id": f"{span.span_id:016x}"}
