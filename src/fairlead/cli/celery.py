"""celery loads, reconcile, metrics: the queues of a Celery app that has a load balancer."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fairlead.cli.failure import Exit, Failure
from fairlead.cli.options import Json
from fairlead.cli.output import note, print_json, print_whole, say, stdout, table

if TYPE_CHECKING:
    from rich.table import Table

    from fairlead.celery import LoadBalancer

LOOK_EVERY_S = 1.0

celery = typer.Typer(
    name="celery", help="The load-balanced queues of a Celery app (`LoadBalancer`).", no_args_is_help=True
)

CeleryApp = Annotated[
    str,
    typer.Option("--app", "-A", metavar="APP", help="The Celery app, as for `celery -A`: `proj` or `proj.tasks:app`."),
]


@celery.command()
def loads(
    app: CeleryApp,
    watch: Annotated[bool, typer.Option("--watch", help="Go on, once a second, until interrupted.")] = False,
    json: Json = False,
) -> None:
    """Show how many tasks wait and run in every queue."""
    balancer = _balancer_of(app)
    if json:
        _print_lines(balancer, watch)
    elif watch:
        _watch(balancer)
    else:
        print_whole(_table(balancer))


@celery.command()
def reconcile(app: CeleryApp, json: Json = False) -> None:
    """Compare what is counted with the broker and the workers, repair it, and say what was repaired."""
    done = _balancer_of(app).reconcile()
    if json:
        print_json(
            {
                "repaired": done.kinds,
                "tasks": [repair._asdict() for repair in done.repairs],
                "counters": [
                    {"queue": each.queue, "state": each.state, "was": each.was, "now": each.now}
                    for each in done.miscounts
                ],
            }
        )
        return
    for repair in done.repairs:
        say(f"{repair.queue}: task {repair.ticket} was {repair.was or 'not counted'}, is {repair.now or 'gone'}")
    for each in done.miscounts:
        say(f"{each.queue}: {each.state} was {each.was}, is {each.now}")
    note(str(done))


@celery.command()
def metrics(
    app: CeleryApp,
    port: Annotated[int, typer.Option("--port", min=0, max=65535, metavar="PORT", help="Listen here; 0: any.")] = 9808,
    host: Annotated[str, typer.Option("--host", metavar="HOST", help="Listen here; it asks for no key.")] = "127.0.0.1",
    json: Json = False,
) -> None:
    """Tell Prometheus, under /metrics, until interrupted."""
    balancer = _balancer_of(app)
    from prometheus_client import CollectorRegistry, start_http_server

    from fairlead.celery.metrics import LoadCollector

    registry = CollectorRegistry()
    registry.register(LoadCollector(balancer))
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        raise Failure(f"cannot listen on {host}:{port}: {error.strerror}") from None
    url = f"http://{host}:{server.server_port}/metrics"
    if json:
        print_json({"url": url})
    else:
        note(f"metrics on {url}")
    thread.join()


def _balancer_of(path: str) -> LoadBalancer:
    try:
        from celery.app.utils import find_app

        from fairlead.celery.balancer import balancer_of
    except ImportError as error:
        raise Failure(f"{error}: pip install 'fairlead[celery]'", Exit.USAGE) from None
    try:
        app = find_app(path)
    except (ImportError, AttributeError) as error:
        raise Failure(f"--app {path}: {error}", Exit.USAGE) from None
    balancer = balancer_of(app)
    if balancer is None:
        raise Failure(f"--app {path}: has no LoadBalancer; make one where the app is made", Exit.USAGE)
    return balancer


def _table(balancer: LoadBalancer) -> Table:
    rows: list[tuple[Any, ...]] = [
        (queue, load.pending, load.running, load.total) for queue, load in balancer.get_all_queue_loads().items()
    ]
    rows.append(("all", *(sum(row[column] for row in rows) for column in (1, 2, 3))))
    return table(("QUEUE", "PENDING", "RUNNING", "LOAD"), rows)


def _watch(balancer: LoadBalancer) -> None:
    from rich.live import Live

    with Live(_table(balancer), console=stdout(), auto_refresh=False) as live:
        while True:
            time.sleep(LOOK_EVERY_S)
            live.update(_table(balancer), refresh=True)


def _print_lines(balancer: LoadBalancer, watch: bool) -> None:
    while True:
        print_json({queue: load._asdict() for queue, load in balancer.get_all_queue_loads().items()})
        if not watch:
            return
        time.sleep(LOOK_EVERY_S)
