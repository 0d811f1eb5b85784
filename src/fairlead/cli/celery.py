"""celery loads, reconcile, metrics: commands for the queues of a Celery app that has a load balancer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from fairlead.cli.failure import Exit, Failure
from fairlead.cli.options import Json, Watch
from fairlead.cli.output import note, print_json, print_whole, safe, say, table, watch_json, watch_view

if TYPE_CHECKING:
    from rich.table import Table

    from fairlead.celery import LoadBalancer

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
    watch: Watch = False,
    json: Json = False,
) -> None:
    """Show the pending and running tasks of every queue, and how many workers consume it."""
    balancer = _balancer_of(app)

    def read() -> dict[str, Any]:
        workers = balancer.workers()
        return {
            queue: {**load._asdict(), "workers": sum(worker.consumes(queue) for worker in workers)}
            for queue, load in balancer.get_all_queue_loads().items()
        }

    if json:
        watch_json(read) if watch else print_json(read())
    elif watch:
        watch_view(lambda width: [_table(balancer), safe(_problem(balancer) or "", "yellow")])
    else:
        print_whole(_table(balancer))
        if problem := _problem(balancer):
            note(problem, style="yellow")


@celery.command()
def reconcile(app: CeleryApp, json: Json = False) -> None:
    """Compare the counts with the broker and the workers, and repair them."""
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
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, metavar="PORT", help="Port to listen on; 0: any.")
    ] = 9808,
    host: Annotated[
        str, typer.Option("--host", metavar="HOST", help="Address to listen on; no key is required.")
    ] = "127.0.0.1",
    json: Json = False,
) -> None:
    """Serve Prometheus metrics under /metrics until interrupted."""
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
        raise Failure(f"--app {path}: has no LoadBalancer; create one where the app is created", Exit.USAGE)
    return balancer


def _table(balancer: LoadBalancer) -> Table:
    workers = balancer.workers()
    rows: list[tuple[Any, ...]] = [
        (queue, load.pending, load.running, load.total, sum(worker.consumes(queue) for worker in workers))
        for queue, load in balancer.get_all_queue_loads().items()
    ]
    rows.append(("all", *(sum(row[column] for row in rows) for column in (1, 2, 3)), len(workers)))
    return table(("QUEUE", "PENDING", "RUNNING", "LOAD", "WORKERS"), rows)


def _problem(balancer: LoadBalancer) -> str | None:
    """Return a warning if no worker is alive, or if there are queues that no worker consumes; otherwise None."""
    from fairlead.celery.consumption import advice, in_words

    if not balancer.workers():
        return "no worker has sent a heartbeat recently"
    if names := balancer.unconsumed_queues():
        return f"no worker consumes {in_words(balancer.prefix, names)}: {advice(names)}"
    return None
