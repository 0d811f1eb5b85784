"""up: everything a single machine needs, in one process."""

from __future__ import annotations

from typing import Annotated

import typer

from fairlead.cli import listen
from fairlead.cli.failure import Exit
from fairlead.cli.logs import log_to_stderr
from fairlead.cli.options import AppPath, ConfigFile, Json, LogLevel
from fairlead.errors import ConfigError


def up(
    context: typer.Context,
    app_path: AppPath = None,
    config: ConfigFile = None,
    host: Annotated[
        str | None, typer.Option("--host", metavar="HOST", help="Listen here; server.host if not given.")
    ] = None,
    port: Annotated[
        int | None,
        typer.Option("--port", min=0, max=65535, metavar="PORT", help="Listen here; server.port if not given, 0: any."),
    ] = None,
    log_level: LogLevel = None,
    json: Json = False,
) -> None:
    """Run everything in one process: gateway, dispatcher, workers and manager."""
    # Imported here: the gateway and the engines take a while to load, and the client commands do without them.
    from fairlead.cli import banner, serve
    from fairlead.cli.loading import load_app

    log_to_stderr(log_level or context.obj or "info")
    app = load_app(app_path, config)
    if problems := app.check():
        raise ConfigError(problems)
    server = app.config.server
    sockets = listen.bind(
        host or server.host,
        server.port if port is None else port,
        has_key=app.settings.admin_key is not None,
    )
    said = banner.facts(app, [listen.url_of(each) for each in sockets])
    try:
        serve.run(app, sockets, on_up=lambda: banner.show(said, json=json))
    finally:
        for each in sockets:
            each.close()
    serve.leave(Exit.OK)
