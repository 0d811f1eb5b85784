"""api: a gateway alone. It accepts and shows jobs; other processes run them."""

from __future__ import annotations

import typer

from fairlead.cli import process
from fairlead.cli.options import AppPath, ConfigFile, Host, Json, LogLevel, Port


def api(
    context: typer.Context,
    app_path: AppPath = None,
    config: ConfigFile = None,
    host: Host = None,
    port: Port = None,
    log_level: LogLevel = None,
    json: Json = False,
) -> None:
    """Run a gateway: it accepts and shows jobs, and workers elsewhere run them."""
    from fairlead.runtime.roles import Roles

    app = process.prepare("api", context, app_path, config, log_level)
    process.run("api", app, Roles(worker=False, manager=False), process.bind(app, host, port), json=json)
