"""Logging to stderr: one plain line per record, or one JSON object."""

from __future__ import annotations

import logging
import os
import sys
import textwrap
from typing import Any

import orjson

from fairlead import log_fields
from fairlead.cli.failure import Exit, Failure
from fairlead.cli.options import LOG_FORMATS, LOG_LEVELS
from fairlead.cli.output import clean
from fairlead.cli.redact import without_keys
from fairlead.domain.events import iso
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


class JsonLines(logging.Formatter):
    """Log formatter that writes one JSON object per record, with the fields of `log_fields`. Keys, tickets and secrets
    in URLs are removed from everything."""

    def format(self, record: logging.LogRecord) -> str:
        own, context = {**_job_id(record), **getattr(record, log_fields.FIELDS, {})}, log_fields.current()
        if own.get("job_id", context.get("job_id")) != context.get("job_id"):
            context = {}  # of whichever request or call began the task: the line is about another job
        fields: dict[str, Any] = {
            "time": iso(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "pid": record.process,
            **context,
            **own,
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            fields["stack"] = textwrap.dedent(record.stack_info)
        safe = {name: _safe(value) if isinstance(value, str) else value for name, value in fields.items()}
        return orjson.dumps(safe, default=str, option=orjson.OPT_NON_STR_KEYS).decode()


def _job_id(record: logging.LogRecord) -> dict[str, Any]:
    """The id of the job that a line is about, for lines without fields of their own: they begin with it."""
    begins = isinstance(record.msg, str) and record.msg.startswith(("job %s", "turn %s"))
    return {"job_id": record.args[0]} if begins and isinstance(record.args, tuple) and record.args else {}


def _safe(text: str) -> str:
    # Lone surrogates are not JSON.
    return redacted(without_keys(text)).encode(errors="backslashreplace").decode()


_chosen: list[str] = []


def choose_format(name: str | None) -> None:
    """Use this format for the log of this command. None changes nothing."""
    if name is not None:
        _chosen[:] = [name]


def log_to_stderr(level: str) -> None:
    if level.lower() not in LOG_LEVELS:
        raise Failure(f"--log-level {level}: should be one of {', '.join(LOG_LEVELS)}", Exit.USAGE)
    chosen = _chosen[0] if _chosen else os.environ.get("LOG_FORMAT") or LOG_FORMATS[0]
    if chosen not in LOG_FORMATS:
        source = "--log-format" if _chosen else "LOG_FORMAT"
        raise Failure(f"{source} {chosen}: should be one of {', '.join(LOG_FORMATS)}", Exit.USAGE)
    handler = logging.StreamHandler(sys.stderr)
    log_fields.want(chosen == "json")
    plain = OneLine("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    handler.setFormatter(JsonLines() if chosen == "json" else plain)
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
