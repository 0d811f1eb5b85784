"""What `up`, `api`, `worker` and `manager` have in common: they load an app, say what runs, and run until a signal."""

from __future__ import annotations

import logging
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from fairlead import adminkey
from fairlead.cli import listen
from fairlead.cli.failure import Exit, Failure
from fairlead.cli.logs import log_to_stderr
from fairlead.errors import ConfigError

if TYPE_CHECKING:
    from fairlead.app import Fairlead
    from fairlead.runtime.roles import Roles

log = logging.getLogger("fairlead.process")

LOOPBACK = "127.0.0.1"


def prepare(
    command: str,
    context: typer.Context,
    app_path: str | None,
    config: Path | None,
    log_level: str | None,
    *,
    needs_redis: bool = False,
) -> Fairlead:
    """The app, once nothing is wrong with it."""
    # Imported here: the engines take a while to load, and the client commands do without them.
    from fairlead.cli.loading import load_app

    log_to_stderr(log_level or context.obj or "info")
    app = load_app(app_path, config)
    problems = app.check()
    if needs_redis and app.settings.redis_url is None:
        problems.append(
            f"REDIS_URL: fairlead {command} needs a Redis that all processes share: set REDIS_URL "
            "(and DATABASE_URL=postgresql://user@host/database), or run everything in one process with: fairlead up"
        )
    if problems:
        raise ConfigError(problems)
    return app


def bind(app: Fairlead, host: str | None, port: int | None) -> list[socket.socket]:
    from fairlead.cli.loading import has_admin_key

    server = app.config.server
    host, port = host or server.host, server.port if port is None else port
    local = listen.is_local(host, port)
    if problem := adminkey.too_short(app.settings.admin_key):
        if not local:
            raise ConfigError([problem])
        log.warning("%s", problem)
    sockets = listen.bind(host, port, has_key=not local and has_admin_key(app.settings))
    app.listens_on = [listen.bound_to(each) for each in sockets]
    return sockets


def bind_metrics(host: str | None, port: int | None) -> list[socket.socket]:
    """None unless told. Metrics hold nothing of any user, so whoever says where may have them there without a key."""
    if port is None:
        if host is not None:
            raise Failure("--metrics-host says where --metrics-port listens: give that too", Exit.USAGE)
        return []
    return listen.bind(host or LOOPBACK, port, has_key=True, option="--metrics-port")


def run(
    command: str,
    app: Fairlead,
    roles: Roles,
    sockets: list[socket.socket],
    metrics: list[socket.socket] | None = None,
    *,
    json: bool,
) -> None:
    """Does not return."""
    from fairlead.cli import banner, serve

    metrics = metrics or []
    said = banner.facts(command, app, roles, [listen.url_of(each) for each in sockets])
    if metrics:
        said["metrics"] = f"{listen.url_of(metrics[0])}/metrics"

    async def show() -> None:
        if sockets and not said["key_needed"]:
            said["key_needed"] = bool(await app.keys())
        banner.show(said, json=json)

    try:
        code = serve.run(app, roles, sockets, metrics, on_up=show)
    finally:
        for each in (*sockets, *metrics):
            each.close()
    serve.leave(code)
