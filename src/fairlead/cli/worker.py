"""worker: runs steps, and listens on no port but, if told one, that of its metrics. It may be bound to some services
and bands."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import typer

from fairlead.cli import process
from fairlead.cli.failure import Exit, Failure
from fairlead.cli.options import AppPath, ConfigFile, Json, LogLevel, MetricsHost, MetricsPort
from fairlead.domain.job import Priority


def worker(
    context: typer.Context,
    app_path: AppPath = None,
    config: ConfigFile = None,
    services: Annotated[
        str | None, typer.Option("--services", metavar="NAMES", help="Only these, as a,b; all of them if not given.")
    ] = None,
    bands: Annotated[
        str | None,
        typer.Option(
            "--bands", metavar="BANDS", help="Only jobs of these priorities, as high,medium; all if not given."
        ),
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option(
            "--concurrency", min=1, metavar="N", help="Calls at once in this process; worker.concurrency if not given."
        ),
    ] = None,
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = process.LOOPBACK,
    log_level: LogLevel = None,
    json: Json = False,
) -> None:
    """Run a worker: it calls the services, as many as their limits allow over all workers. Needs Redis."""
    from fairlead.runtime.roles import Roles

    wanted_bands = bands_of(bands)
    app = process.prepare("worker", context, app_path, config, log_level, needs_redis=True)
    wanted_services = services_of(services, app.config.services)
    if not app.config.services:
        raise Failure(
            "this worker knows no services: give a MODULE:APP, or add [services.NAME] to fairlead.toml", Exit.USAGE
        )
    roles = Roles(api=False, manager=False, services=wanted_services, bands=wanted_bands, concurrency=concurrency)
    process.run("worker", app, roles, [], process.bind_metrics(metrics_host, metrics_port), json=json)


def services_of(text: str | None, known: Mapping[str, Any]) -> frozenset[str] | None:
    return None if text is None else _chosen("--services", "service", text, sorted(known))


def bands_of(text: str | None) -> frozenset[int] | None:
    """As the dispatcher counts them: 1 is high."""
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
