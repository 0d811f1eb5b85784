"""worker: runs steps, and listens on no port but, if told one, that of its metrics. It may be bound to some services,
bands and regions, or be several workers, as [worker_pools] says."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fairlead.cli import process
from fairlead.cli.failure import Exit, Failure
from fairlead.cli.options import AppPath, ConfigFile, Json, LogLevel, MetricsHost, MetricsPort
from fairlead.domain.job import Priority

if TYPE_CHECKING:
    from fairlead.domain.config import Config


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
    regions: Annotated[
        str | None,
        typer.Option("--regions", metavar="NAMES", help="Only slots of these regions, as us,eu; all if not given."),
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option(
            "--concurrency", min=1, metavar="N", help="Calls at once in this process; worker.concurrency if not given."
        ),
    ] = None,
    pool: Annotated[
        str | None, typer.Option("--pool", metavar="NAME", help="Only this one of [worker_pools]; all if not given.")
    ] = None,
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = None,
    log_level: LogLevel = None,
    json: Json = False,
) -> None:
    """Run a worker: it calls the services, as many as their limits allow over all workers. Needs Redis."""
    from fairlead.runtime.roles import Roles

    if pool is not None and any(each is not None for each in (services, bands, regions, concurrency)):
        raise Failure("--pool: the section says what its worker takes; leave out the other options", Exit.USAGE)
    wanted_bands = bands_of(bands)
    app = process.prepare("worker", context, app_path, config, log_level, needs_redis=True)
    wanted_services = services_of(services, app.config.services)
    if not app.config.services:
        raise Failure(
            "this worker knows no services: give a MODULE:APP, or add [services.NAME] to fairlead.toml", Exit.USAGE
        )
    if pool is not None:
        _chosen("--pool", "pool of workers", pool, sorted(app.config.worker_pools))
    roles = Roles(
        api=False,
        manager=False,
        services=wanted_services,
        bands=wanted_bands,
        regions=regions_of(regions, app.config),
        concurrency=concurrency,
        pool=pool,
    )
    process.run("worker", app, roles, [], process.bind_metrics(metrics_host, metrics_port), json=json)


def services_of(text: str | None, known: Mapping[str, Any]) -> frozenset[str] | None:
    return None if text is None else _chosen("--services", "service", text, sorted(known))


def regions_of(text: str | None, config: Config) -> frozenset[str] | None:
    there = {region for service in config.services.values() for region in service.regions}
    return None if text is None else _chosen("--regions", "region", text, sorted(there))


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
