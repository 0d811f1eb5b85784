"""Options that several commands share, the parsers of their values, and their completion in the shell.

Durations are written as `90`, `90s` or `1h30m`. Times are ISO 8601, in local time unless they have a zone.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast

import httpx2
import typer

from fairlead.client.settings import GatewayAddress
from fairlead.version import __version__

F = TypeVar("F", bound=Callable[..., Any])

FOREVER = "inf"
OR_DURATION = ", or a duration such as 1h30m"
EXAMPLES = "90 (seconds), 90s, 5m, 1h30m or 2d"
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_PART = r"(\d+(?:\.\d+)?)(ms|[smhdw])"
_DURATION = re.compile(rf"(?:{_PART})+")
_LONGEST = timedelta.max.total_seconds() / 2
COMPLETE_WITHIN_S = 0.8
"""Timeout of the request to the gateway that completes an argument. It is short because the shell blocks meanwhile."""


def command(function: F) -> F:
    """Decorator that marks a function as a command, whose options are the function's parameters. `root` registers the
    commands."""
    return function


def with_option(function: F, name: str, annotation: Any, take: Callable[[Any], None]) -> F:
    """Add an option to a command. `take` receives its value before the command runs."""

    @wraps(function)
    def command(*arguments: Any, **options: Any) -> Any:
        take(options.pop(name, None))
        return function(*arguments, **options)

    signature = inspect.signature(function, eval_str=True)
    added = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
    extended = signature.replace(parameters=[*signature.parameters.values(), added])
    command.__dict__["__signature__"] = extended
    command.__annotations__ = {name: each.annotation for name, each in extended.parameters.items()}
    return cast(F, command)


# ---------------------------------------------------------------- values


def seconds_in(text: str) -> float | None:
    """Parse a duration. Returns its seconds, or None if the text is not a duration."""
    try:
        value = float(text)
    except ValueError:
        if not _DURATION.fullmatch(text):
            return None
        value = sum(float(number) * _UNITS[unit] for number, unit in re.findall(_PART, text))
    return value if 0 <= value <= _LONGEST else None


def duration(text: str) -> float:
    value = seconds_in(text)
    if value is None:
        raise typer.BadParameter(f"{text!r} is not a duration; write {EXAMPLES}")
    return value


def duration_or_forever(text: str) -> float:
    return math.inf if text == FOREVER else duration(text)


def past(text: str) -> str:
    """Parse a time, or a duration before now. Returns the time as ISO 8601."""
    ago = seconds_in(text)
    if ago is None or _is_date(text):
        return moment(text, OR_DURATION)
    try:
        return (datetime.now(UTC) - timedelta(seconds=ago)).isoformat()
    except OverflowError:
        raise typer.BadParameter(f"{text!r} is too long ago") from None


def future(text: str) -> str | float:
    """Parse a time or a duration from now. Returns a time as ISO 8601, and a duration in seconds."""
    left = seconds_in(text)
    return moment(text, OR_DURATION) if left is None or _is_date(text) else left


def moment(text: str, alternative: str = "") -> str:
    """Parse a time in ISO 8601. A time without a zone is local time, since all commands print local time. `alternative`
    is added to the error message."""
    try:
        value = datetime.fromisoformat(text)
        return (value if value.tzinfo else value.astimezone()).isoformat()
    except (ValueError, OverflowError):
        raise typer.BadParameter(f"{text!r} is not a time; write 2026-12-31T18:00{alternative}") from None


def _is_date(text: str) -> bool:
    """Return whether the text is a date such as 20261231, and not a number of seconds."""
    return len(text) == 8 and text.isdecimal()


# ---------------------------------------------------------------- completion


def complete_services(context: typer.Context, incomplete: str) -> list[str]:
    return _matching(_services(context), incomplete)


def complete_features(context: typer.Context, incomplete: str) -> list[str]:
    """Complete the name of a feature: offer all services, and the pipelines of recent jobs. The gateway has no list of
    pipelines, and the key of a user cannot list services."""
    recent = (job["feature_name"] for job in _data(context, "/api/v1/jobs?limit=100"))
    return _matching([*_services(context), *recent], incomplete)


def complete_jobs(context: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Complete a job id: offer recent jobs, each with a short description that a shell can show beside the id."""
    found = _data(context, "/api/v1/jobs?limit=30")
    return [
        (job["job_id"], f"{job['feature_name']} {job['status']} {job['user_id']}")
        for job in found
        if job["job_id"].startswith(incomplete)
    ]


def complete_batches(context: typer.Context, incomplete: str) -> list[str]:
    return _matching((batch["batch_id"] for batch in _data(context, "/api/v1/batches?limit=30")), incomplete)


def complete_workers(context: typer.Context, incomplete: str) -> list[str]:
    return _matching((worker["name"] for worker in _data(context, "/admin/workers")), incomplete)


def _services(context: typer.Context) -> Iterator[str]:
    return (service["service"] for service in _data(context, "/queue/status", "services"))


def _matching(names: Any, incomplete: str) -> list[str]:
    return sorted({name for name in names if name.startswith(incomplete)})


def _data(context: typer.Context, path: str, field: str = "data") -> list[dict[str, Any]]:
    # Ignore all errors: a message in the middle of the user's input would be worse than no completion.
    with suppress(Exception):
        address = GatewayAddress.of(_url_in(context), None)
        with httpx2.Client(**{**address.options(__version__), "timeout": COMPLETE_WITHIN_S}) as client:
            return list(client.get(path).raise_for_status().json()[field])
    return []


def _url_in(context: Any) -> str | None:
    """Return the value of `--url`, which may stand after the command, or before it."""
    while context is not None:
        if url := context.params.get("url"):
            return str(url)
        context = context.parent
    return None


# ---------------------------------------------------------------- options

Json = Annotated[bool, typer.Option("--json", help="Print JSON to stdout.")]
Watch = Annotated[bool, typer.Option("--watch", help="Refresh every second until Ctrl-C.")]
JobId = Annotated[
    str, typer.Argument(metavar="ID", help="The job's id, as `submit` prints it.", autocompletion=complete_jobs)
]
Service = Annotated[
    str,
    typer.Argument(
        metavar="SERVICE", help="The service's name, as `status` shows it.", autocompletion=complete_services
    ),
]
User = Annotated[str | None, typer.Option("--user", metavar="USER", help="Only this user's jobs.")]
Feature = Annotated[
    str | None,
    typer.Option(
        "--feature",
        metavar="NAME",
        help="Only jobs of this pipeline or service.",
        autocompletion=complete_features,
    ),
]
IdempotencyKey = Annotated[
    str | None,
    typer.Option("--idempotency-key", metavar="KEY", help="A repeated submit with this key creates nothing new."),
]
OldIdempotencyKey = Annotated[str | None, typer.Option("--key", metavar="KEY", hidden=True)]
"""The name of `--idempotency-key` until 0.2. It was changed because `--key` reads like an API key."""
Limit = Annotated[int, typer.Option("--limit", min=1, metavar="N", help="Maximum number of results.")]
All = Annotated[bool, typer.Option("--all", help="All results, regardless of --limit.")]
FromStart = Annotated[bool, typer.Option("--from-start", help="Run all steps again, not only from the failed one on.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        metavar="FILE",
        help="The configuration file; by default fairlead.toml in the working directory.",
    ),
]
AppPath = Annotated[
    str | None,
    typer.Argument(metavar="MODULE:APP", help="A Fairlead object in your code, e.g. `myproject.jobs:app`."),
]
LOG_LEVELS = ("debug", "info", "warning", "error")
LogLevel = Annotated[
    str | None,
    typer.Option("--log-level", metavar="LEVEL", help=f"The level of the log on stderr: {', '.join(LOG_LEVELS)}."),
]
LOG_FORMATS = ("text", "json")
LogFormat = Annotated[
    str | None,
    typer.Option("--log-format", metavar="FORMAT", help="text, or json: one JSON object per line."),
]
MetricsPort = Annotated[
    int | None,
    typer.Option(
        "--metrics-port",
        min=0,
        max=65535,
        metavar="PORT",
        help="Serve Prometheus metrics here, under /metrics; 0: any port.",
    ),
]
MetricsHost = Annotated[
    str | None, typer.Option("--metrics-host", metavar="HOST", help="Address of --metrics-port; no key is required.")
]
Certfile = Annotated[
    str | None,
    typer.Option(
        "--certfile", metavar="FILE", help="Serve HTTPS with this certificate chain; default: server.certfile."
    ),
]
Keyfile = Annotated[
    str | None,
    typer.Option("--keyfile", metavar="FILE", help="The key of --certfile, if it is in a file of its own."),
]
Host = Annotated[str | None, typer.Option("--host", metavar="HOST", help="Address to listen on; default: server.host.")]
Port = Annotated[
    int | None,
    typer.Option("--port", min=0, max=65535, metavar="PORT", help="Port to listen on; default: server.port, 0: any."),
]
