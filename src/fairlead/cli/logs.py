"""Logging for people: one plain line per record, to stderr."""

from __future__ import annotations

import logging
import sys

from fairlead.cli.failure import Exit, Failure
from fairlead.cli.options import LOG_LEVELS
from fairlead.cli.output import clean
from fairlead.cli.redact import without_keys


class OneLine(logging.Formatter):
    """What a job said may be part of a message; it must not begin a line of its own. Tracebacks keep their lines.
    No key and no ticket is written, however it got into a message."""

    def format(self, record: logging.LogRecord) -> str:
        return without_keys(super().format(record))

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = clean(record.message)
        return super().formatMessage(record)


def log_to_stderr(level: str) -> None:
    if level.lower() not in LOG_LEVELS:
        raise Failure(f"--log-level {level}: should be one of {', '.join(LOG_LEVELS)}", Exit.USAGE)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(OneLine("%(asctime)s %(levelname)-7s %(name)s: %(message)s"))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # Uvicorn's own talk of starting and stopping says less than ours.
    uvicorn = logging.getLogger("uvicorn.error")
    uvicorn.setLevel(max(logging.getLogger().level, logging.WARNING))
    uvicorn.addFilter(_is_news)


def _is_news(record: logging.LogRecord) -> bool:
    """Uvicorn takes a WebSocket that was refused with an HTTP status for an application that failed, and a frame
    that is not UTF-8 for an error of ours: anybody could fill the log with them. Our own line of a socket's end has its
    code."""
    said = record.getMessage()
    return not any(noise in said for noise in ("without completing handshake", "Invalid UTF-8 sequence received"))
