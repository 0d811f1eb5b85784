"""Which trace a job belongs to, as W3C Trace Context defines it (https://www.w3.org/TR/trace-context/).

The trace of a job is stored as one text: a `traceparent`, followed by a space and a `tracestate` if there is one.
"""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import NamedTuple

SAMPLED = 0x01
MAX_STATE = 512
"""Characters of a `tracestate`. A longer one is dropped."""

_PARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-[\x21-\x7e]*)?", re.ASCII)
_STATE = re.compile(r"[\x20-\x7e]+")


class TraceContext(NamedTuple):
    """A span of a trace. The ids are hexadecimal text."""

    trace_id: str
    span_id: str
    flags: int = SAMPLED
    state: str = ""

    @property
    def sampled(self) -> bool:
        return bool(self.flags & SAMPLED)

    @property
    def traceparent(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-{self.flags:02x}"

    def __str__(self) -> str:
        return f"{self.traceparent} {self.state}" if self.state else self.traceparent


def of_headers(traceparent: str | None, tracestate: str | None = None) -> TraceContext | None:
    """The context that a request names; None if it names none, or an invalid one."""
    found = None if traceparent is None else _PARENT.fullmatch(traceparent.strip())
    if found is None:
        return None
    version, trace_id, span_id, flags, more = found.groups()
    if version == "ff" or (version == "00" and more) or not int(trace_id, 16) or not int(span_id, 16):
        return None
    state = (tracestate or "").strip()
    if len(state) > MAX_STATE or not _STATE.fullmatch(state):
        state = ""
    return TraceContext(trace_id, span_id, int(flags, 16), state)


def of_text(trace: str) -> TraceContext | None:
    """Decode the trace of a job."""
    parent, _, state = trace.partition(" ")
    return of_headers(parent, state)


def headers_of(trace: str | None) -> dict[str, str]:
    """The headers of a request that belongs to this trace."""
    if trace is None:
        return {}
    parent, _, state = trace.partition(" ")
    return {"traceparent": parent, "tracestate": state} if state else {"traceparent": parent}


def trace_id_of(trace: str | None) -> str | None:
    return None if trace is None else trace[3:35]


def call_context(trace: str, job_id: str, run: int) -> TraceContext | None:
    """The span of a call. Its id follows from the job and its run: the process that records the end of the call makes
    the span, and that is another process if the worker has died."""
    parent = of_text(trace)
    if parent is None:
        return None
    return parent._replace(span_id=blake2b(f"{job_id}:{run}".encode(), digest_size=8).hexdigest())
