"""Logging to stderr, one plain line per record."""

from __future__ import annotations

import logging
import sys
from typing import Any

from fairlead.cli.failure import Exit, Failure
from fairlead.cli.options import LOG_LEVELS
from fairlead.cli.output import clean
from fairlead.cli.redact import without_keys
from fairlead.domain.redaction import redacted

_NOISE = ("without completing handshake", "without completing response", "Invalid UTF-8 sequence received")


class OneLine(logging.Formatter):
    """Log formatter that escapes line breaks and control characters in messages, because a message may contain values
    of a job. Tracebacks keep their line breaks. Keys, tickets and secrets in URLs are removed from everything."""

    def format(self, record: logging.LogRecord) -> str:
        return redacted(without_keys(super().format(record)))

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = clean(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:
        return clean(super().formatException(ei), keep_lines=True)

    def formatStack(self, stack_info: str) -> str:
        return clean(super().formatStack(stack_info), keep_lines=True)


def log_to_stderr(level: str) -> None:
    if level.lower() not in LOG_LEVELS:
        raise Failure(f"--log-level {level}: should be one of {', '.join(LOG_LEVELS)}", Exit.USAGE)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(OneLine("%(asctime)s %(levelname)-7s %(name)s: %(message)s"))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # Our own messages about starting and stopping replace uvicorn's.
    uvicorn = logging.getLogger("uvicorn.error")
    uvicorn.setLevel(max(logging.getLogger().level, logging.WARNING))
    uvicorn.addFilter(_is_relevant)


def _is_relevant(record: logging.LogRecord) -> bool:
    """Log filter that drops errors of uvicorn which any client can cause: a WebSocket that was refused with an HTTP
    status, a response that was cut off because its key was revoked, and a frame that is not UTF-8. Fairlead's own log
    line about the request has its status, and real failures are logged separately."""
    message = record.getMessage()
    return not any(noise in message for noise in _NOISE)
