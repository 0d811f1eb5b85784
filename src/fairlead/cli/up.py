"""up: everything in one process, on any engines."""

from __future__ import annotations

import typer

from fairlead.cli import process
from fairlead.cli.options import AppPath, ConfigFile, Host, Json, LogLevel, MetricsHost, MetricsPort, Port


def up(
    context: typer.Context,
    app_path: AppPath = None,
    config: ConfigFile = None,
    host: Host = None,
    port: Port = None,
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = None,
    log_level: LogLevel = None,
    json: Json = False,
) -> None:
    """Run everything in one process: gateway, dispatcher, workers and manager."""
    from fairlead.runtime.roles import Roles

    app = process.prepare("up", context, app_path, config, log_level)
    sockets = process.bind(app, host, port)
    process.run("up", app, Roles(), sockets, process.bind_metrics(metrics_host, metrics_port), json=json)
