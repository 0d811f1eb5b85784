"""manager: what time alone must do. Any number may run; one of them leads, per shard."""

from __future__ import annotations

import typer

from fairlead.cli import process
from fairlead.cli.options import AppPath, ConfigFile, Json, LogLevel, MetricsHost, MetricsPort


def manager(
    context: typer.Context,
    app_path: AppPath = None,
    config: ConfigFile = None,
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = None,
    log_level: LogLevel = None,
    json: Json = False,
) -> None:
    """Run a manager: due jobs, promotion, recovery, retention. Start two; one leads and one stands by. Needs Redis."""
    from fairlead.runtime.roles import Roles

    app = process.prepare("manager", context, app_path, config, log_level, needs_redis=True)
    roles = Roles(api=False, worker=False)
    process.run("manager", app, roles, [], process.bind_metrics(metrics_host, metrics_port), json=json)
