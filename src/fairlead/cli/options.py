"""The options that several commands share, written once so that they read the same everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout, for programs.")]
JobId = Annotated[str, typer.Argument(metavar="ID", help="The job's id, as `submit` printed it.")]
User = Annotated[str | None, typer.Option("--user", metavar="USER", help="Only this user's jobs.")]
Feature = Annotated[
    str | None, typer.Option("--feature", metavar="NAME", help="Only jobs of this pipeline or service.")
]
Limit = Annotated[int, typer.Option("--limit", min=1, metavar="N", help="At most this many.")]
All = Annotated[bool, typer.Option("--all", help="All of them, whatever --limit says.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before acting.")]
ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config", "-c", metavar="FILE", help="The configuration; fairlead.toml in the working directory if not given."
    ),
]
AppPath = Annotated[
    str | None,
    typer.Argument(metavar="[MODULE:APP]", help="A Fairlead object in your code, e.g. `myproject.jobs:app`."),
]
LOG_LEVELS = ("debug", "info", "warning", "error")
LogLevel = Annotated[
    str | None,
    typer.Option("--log-level", metavar="LEVEL", help=f"What is logged to stderr: {', '.join(LOG_LEVELS)}."),
]
MetricsPort = Annotated[
    int | None,
    typer.Option(
        "--metrics-port", min=0, max=65535, metavar="PORT", help="Tell Prometheus here, under /metrics; 0: any port."
    ),
]
MetricsHost = Annotated[
    str | None, typer.Option("--metrics-host", metavar="HOST", help="Where --metrics-port listens; it asks for no key.")
]
Host = Annotated[str | None, typer.Option("--host", metavar="HOST", help="Listen here; server.host if not given.")]
Port = Annotated[
    int | None,
    typer.Option("--port", min=0, max=65535, metavar="PORT", help="Listen here; server.port if not given, 0: any."),
]
