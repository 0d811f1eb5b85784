"""watch: a job's live line, to its end."""

from __future__ import annotations

import typer

from fairlead.cli.client import gateway
from fairlead.cli.follow import end_of, follow
from fairlead.cli.options import JobId, Json
from fairlead.cli.output import print_json


def watch(job_id: JobId, json: Json = False) -> None:
    """Follow one job live. Exits with 0 when it completed, 3 when it failed, 4 when it was cancelled."""
    line = follow(gateway(), job_id, quiet=json, on_event=print_json if json else None)
    raise typer.Exit(end_of(line.status))
