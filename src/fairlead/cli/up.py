"""up: everything in one process, on any engines."""

from __future__ import annotations

import typer

from fairlead.cli import process
from fairlead.cli.options import AppPath, ConfigFile, Host, Json, LogLevel, Port


def up(
    context: typer.Context,
    app_path: AppPath = None,
    config: ConfigFile = None,
    host: Host = None,
    port: Port = None,
    log_level: LogLevel = None,
    json: Json = False,
) -> None:
    """Run everything in one process: gateway, dispatcher, workers and manager."""
    from fairlead.runtime.roles import Roles

    app = process.prepare("up", context, app_path, config, log_level)
    process.run("up", app, Roles(), process.bind(app, host, port), json=json)
