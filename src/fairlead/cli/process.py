"""up, api, worker, manager: each command loads an app, prints the banner, and runs until a signal arrives."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from fairlead.cli import listen
from fairlead.cli.failure import Exit, Failure
from fairlead.cli.logs import choose_format, log_to_stderr
from fairlead.cli.options import (
    AppPath,
    Certfile,
    ConfigFile,
    Host,
    Json,
    Keyfile,
    LogFormat,
    LogLevel,
    MetricsHost,
    MetricsPort,
    Port,
    with_option,
)
from fairlead.cli.tls import Certificate
from fairlead.domain.config_checks import spelled
from fairlead.domain.job import Priority
from fairlead.errors import ConfigError, Unavailable

if TYPE_CHECKING:
    from fairlead.app.fairlead import Fairlead
    from fairlead.domain.config import Config
    from fairlead.engine.roles import Roles

log = logging.getLogger("fairlead.process")

LOOPBACK = "127.0.0.1"
F = TypeVar("F", bound=Callable[..., Any])

Services = Annotated[
    str | None, typer.Option("--services", metavar="NAMES", help="Only these services, as a,b; default: all.")
]
Bands = Annotated[
    str | None,
    typer.Option("--bands", metavar="BANDS", help="Only jobs of these priorities, as high,medium; default: all."),
]
Regions = Annotated[
    str | None,
    typer.Option("--regions", metavar="NAMES", help="Only slots of these regions, as us,eu; default: all."),
]
Concurrency = Annotated[
    int | None,
    typer.Option(
        "--concurrency", min=1, metavar="N", help="Concurrent calls in this process; default: worker.concurrency."
    ),
]
Pool = Annotated[
    str | None, typer.Option("--pool", metavar="NAME", help="Only this one of [worker_pools]; default: all.")
]

OpenAI = Annotated[
    str | None,
    typer.Option(
        "--openai", metavar="URL", help="A server with OpenAI's protocol, as the service openai; with --limit."
    ),
]
Limit = Annotated[
    int | None, typer.Option("--limit", min=1, metavar="N", help="Concurrent calls of --openai; default: 1.")
]


def process_command(function: F) -> F:
    """Decorator that marks a function as the command of a process, with the option `--log-format`."""
    return with_option(function, "log_format", LogFormat, choose_format)


@process_command
def up(
    context: typer.Context,
    app_path: AppPath = None,
    config: ConfigFile = None,
    openai: OpenAI = None,
    limit: Limit = None,
    host: Host = None,
    port: Port = None,
    certfile: Certfile = None,
    keyfile: Keyfile = None,
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = None,
    log_level: LogLevel = None,
    json: Json = False,
) -> None:
    """Run everything in one process.

    Gateway, dispatcher, workers and manager, on any backends.
    """
    from fairlead.engine.roles import Roles

    if limit is not None and openai is None:
        raise Failure("--limit needs --openai; the limits of other services are in fairlead.toml", Exit.USAGE)
    upstream = None if openai is None else (openai, limit)
    app = prepare("up", context, app_path, config, log_level, upstream=upstream)
    listening = bind(app, host, port, certfile, keyfile)
    run("up", app, Roles(), listening, bind_metrics(metrics_host, metrics_port), json=json)


@process_command
def api(
    context: typer.Context,
    app_path: AppPath = None,
    config: ConfigFile = None,
    host: Host = None,
    port: Port = None,
    certfile: Certfile = None,
    keyfile: Keyfile = None,
    log_level: LogLevel = None,
    json: Json = False,
) -> None:
    """Run a gateway: it accepts and shows jobs.

    Workers in other processes run them.
    """
    from fairlead.engine.roles import Roles

    app = prepare("api", context, app_path, config, log_level)
    run("api", app, Roles(worker=False, manager=False), bind(app, host, port, certfile, keyfile), json=json)


@process_command
def worker(
    context: typer.Context,
    app_path: AppPath = None,
    config: ConfigFile = None,
    services: Services = None,
    bands: Bands = None,
    regions: Regions = None,
    concurrency: Concurrency = None,
    pool: Pool = None,
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = None,
    log_level: LogLevel = None,
    json: Json = False,
) -> None:
    """Run a worker: it calls the services. Needs Redis.

    Limits apply over all workers.
    """
    from fairlead.engine.roles import Roles

    if pool is not None and any(each is not None for each in (services, bands, regions, concurrency)):
        raise Failure("--pool: the section defines what its worker takes; omit the other options", Exit.USAGE)
    chosen_bands = bands_of(bands)
    app = prepare("worker", context, app_path, config, log_level, needs_redis=True)
    chosen_services = services_of(services, app.config.services)
    if not app.config.services:
        raise Failure("no services: pass MODULE:APP, or add [services.NAME] to fairlead.toml", Exit.USAGE)
    if pool is not None:
        _chosen("--pool", "pool of workers", pool, sorted(app.config.worker_pools))
    roles = Roles(
        api=False,
        manager=False,
        services=chosen_services,
        bands=chosen_bands,
        regions=regions_of(regions, app.config),
        concurrency=concurrency,
        pool=pool,
    )
    run("worker", app, roles, Listening([]), bind_metrics(metrics_host, metrics_port), json=json)


@process_command
def manager(
    context: typer.Context,
    app_path: AppPath = None,
    config: ConfigFile = None,
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = None,
    log_level: LogLevel = None,
    json: Json = False,
) -> None:
    """Run a manager: due jobs, recovery, retention. Needs Redis.

    Start two: one leads, one is on standby.
    """
    from fairlead.engine.roles import Roles

    app = prepare("manager", context, app_path, config, log_level, needs_redis=True)
    roles = Roles(api=False, worker=False)
    run("manager", app, roles, Listening([]), bind_metrics(metrics_host, metrics_port), json=json)


def prepare(
    command: str,
    context: typer.Context,
    app_path: str | None,
    config: Path | None,
    log_level: str | None,
    *,
    needs_redis: bool = False,
    upstream: tuple[str, int | None] | None = None,
) -> Fairlead:
    """Load the app and check its configuration. `upstream` is the URL and the limit of a server with OpenAI's protocol
    that is added as a service. Raises ConfigError."""
    # Imported here: the engines are slow to load, and client commands do not need them.
    from fairlead.cli.loading import load_app, load_with_upstream

    log_to_stderr(log_level or context.obj or "info")
    app = load_app(app_path, config) if upstream is None else load_with_upstream(app_path, config, *upstream)
    problems = app.check()
    if needs_redis and app.settings.redis_url is None:
        problems.append(
            f"REDIS_URL: fairlead {command} needs a Redis that all processes share: set REDIS_URL "
            "(and DATABASE_URL=postgresql://user@host/database), or run everything in one process with: fairlead up"
        )
    if problems:
        raise ConfigError(problems)
    return app


@dataclass(frozen=True, slots=True)
class Listening:
    """The sockets of the gateway, and its certificate if it serves HTTPS."""

    sockets: list[socket.socket]
    certificate: Certificate | None = None

    @property
    def scheme(self) -> str:
        return "http" if self.certificate is None else "https"


def bind(
    app: Fairlead, host: str | None, port: int | None, certfile: str | None = None, keyfile: str | None = None
) -> Listening:
    from fairlead.cli.loading import has_admin_key
    from fairlead.config import admin_key_too_short

    server = app.config.server
    host, port = host or server.host, server.port if port is None else port
    local = listen.is_local(host, port)
    if problem := admin_key_too_short(app.settings.admin_key):
        if not local:
            raise ConfigError([problem])
        log.warning("%s", problem)
    certificate = Certificate.of(certfile or server.certfile, keyfile or (None if certfile else server.keyfile))
    listening = Listening(listen.bind(host, port, has_key=not local and has_admin_key(app.settings)), certificate)
    app.listens_on = [listen.bound_to(each, listening.scheme) for each in listening.sockets]
    return listening


def bind_metrics(host: str | None, port: int | None) -> list[socket.socket]:
    """Bind the port for metrics, if one is set. Metrics contain no data of users, so no key is required, even on a
    public address."""
    if port is None:
        if host is not None:
            raise Failure("--metrics-host needs --metrics-port", Exit.USAGE)
        return []
    return listen.bind(host or LOOPBACK, port, has_key=True, option="--metrics-port")


def run(
    command: str,
    app: Fairlead,
    roles: Roles,
    listening: Listening,
    metrics: list[socket.socket] | None = None,
    *,
    json: bool,
) -> None:
    """Print the banner, run the process until it stops, and exit."""
    from fairlead.cli import banner, serve

    metrics, sockets = metrics or [], listening.sockets
    urls = [listen.url_of(each, listening.scheme) for each in sockets]
    fields = banner.facts(command, app, roles, urls)
    if metrics:
        fields["metrics"] = f"{listen.url_of(metrics[0])}/metrics"

    async def show() -> None:
        if sockets and not fields["key_needed"]:
            with suppress(Unavailable):  # the process starts even if the database is unavailable
                fields["key_needed"] = bool(await app.keys())
        banner.show(fields, json=json)

    try:
        code = serve.run(app, roles, serve.Endpoints(sockets, metrics, listening.certificate), on_up=show)
    finally:
        for each in (*sockets, *metrics):
            each.close()
    serve.leave(code)


def services_of(text: str | None, known: Mapping[str, Any]) -> frozenset[str] | None:
    return None if text is None else _chosen("--services", "service", text, sorted(known))


def regions_of(text: str | None, config: Config) -> frozenset[str] | None:
    there = {region for service in config.services.values() for region in service.regions}
    if text is None:
        return None
    named = ",".join(spelled(name.strip(), there) for name in text.split(","))
    return _chosen("--regions", "region", named, sorted(there))


def bands_of(text: str | None) -> frozenset[int] | None:
    """Parse the names of bands and return their numbers: 1 is high, 2 medium, 3 low."""
    if text is None:
        return None
    return frozenset(Priority(name).band for name in _chosen("--bands", "band", text, list(Priority)))


def _chosen(option: str, what: str, text: str, known: Iterable[str]) -> frozenset[str]:
    names = [name for part in text.split(",") if (name := part.strip())]
    listed = f"known are: {', '.join(known)}" if known else "none is declared"
    if not names:
        raise Failure(f"{option}: name at least one {what}; {listed}", Exit.USAGE)
    if unknown := [name for name in dict.fromkeys(names) if name not in known]:
        raise Failure(f"{option}: no {what} is called {', '.join(map(repr, unknown))}; {listed}", Exit.USAGE)
    return frozenset(names)
