"""pause, unpause, limit, priority, rebuild, audit, workers: commands for operators."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any
from urllib.parse import quote

import typer

from fairlead.cli import rates
from fairlead.cli.client import Url, checked_id, choose, client_command, gateway
from fairlead.cli.failure import Exit, Failure
from fairlead.cli.options import All, JobId, Json, Limit, Service, complete_workers
from fairlead.cli.output import hint, local_time, note, print_json, print_table, safe, say, seconds
from fairlead.domain.config_checks import known
from fairlead.domain.rates import UNITS

WORKERS = "/admin/workers"
WORKER_COLUMNS = ("NAME", "SEEN", "RUNNING", "SERVICES", "BANDS", "VERSION", "")


@client_command
def pause(service: Service, json: Json = False) -> None:
    """Pause a service: no new calls until `unpause`.

    Running calls continue, and jobs are accepted.
    """
    _show(gateway().post(f"{_path(service)}/pause"), json)
    if not json:
        hint(f"end the pause with: fairlead unpause {service}")


@client_command
def unpause(service: Service, json: Json = False) -> None:
    """End the pause of a service."""
    _show(gateway().post(f"{_path(service)}/resume"), json)


@client_command
def limit(
    service: Service,
    slots: Annotated[
        int | None,
        typer.Argument(metavar="N", help="Concurrent calls over all processes. Omit it to see the limit."),
    ] = None,
    lift: Annotated[bool, typer.Option("--lift", help="Return to the configured limit.")] = False,
    json: Json = False,
) -> None:
    """Show or override the limit of a service."""
    if lift and slots is not None:
        raise Failure("pass either the number of concurrent calls or --lift", Exit.USAGE)
    path = f"{_path(service)}/limit"
    if lift:
        _show(gateway().delete(path), json)
    elif slots is not None:
        _show(gateway().put(path, {"limit": slots}), json)
    else:
        _show_use(service, json)


def _show_use(service: str, json: bool) -> None:
    services = {each["service"]: each for each in gateway().get("/queue/status")["services"]}
    if service not in services:
        raise Failure(f"there is no service {service!r}; {known(services)}")
    state = services[service]
    if json:
        print_json(state)
        return
    override, auto = (state.get("override") or {}).get("limit"), state.get("auto")
    origin = f" (auto, {auto['min']} to {auto['max']})" if auto else ""
    if override is not None:
        origin = " (set by an operator)"
    in_use = "?" if state["in_use"] is None else state["in_use"]
    counts = state["waiting"].values()
    waiting = "?" if None in counts else sum(counts)
    paused = ", paused" if state["paused"] else ""
    say(f"{service}  limit {state['limit']}{origin}{paused}, {in_use} in use, {waiting} waiting")


@client_command
def priority(
    job_id: JobId,
    new: Annotated[str, typer.Argument(metavar="PRIORITY", help="high, medium or low.")],
    json: Json = False,
) -> None:
    """Change the priority of a job that has not ended.

    A running call continues; the next step waits with the new priority.
    """
    job = gateway().post(f"/admin/jobs/{checked_id(job_id, 'job', 'fairlead list')}/priority", {"priority": new})
    if json:
        print_json(job)
    else:
        position = f", position {job['position']}" if job.get("position") is not None else ""
        say(f"{job['job_id']}  {job['priority']}, {job['status']}{position}")


@client_command
def rebuild(service: Service, json: Json = False) -> None:
    """Rebuild the queue of a service from the database.

    Running calls keep their slots.
    """
    response = gateway().post(f"{_path(service)}/rebuild")
    if json:
        print_json(response)
    elif response.get("problem"):
        say(f"requested: {', '.join(response['scopes'])}")
        note(response["problem"], style="yellow")
    else:
        say(f"requested: {', '.join(response['scopes'])}; the leader rebuilds within a second and logs it")


@client_command
def audit(
    action: Annotated[
        str | None, typer.Option("--action", metavar="ACTION", help="Only this action, e.g. `service.pause`.")
    ] = None,
    limit: Limit = 20,
    everything: All = False,
    json: Json = False,
) -> None:
    """Show the audit log of operators' actions, newest first."""
    rows = list(gateway().pages("/admin/audit", limit=None if everything else limit, action=action))
    if json:
        print_json(rows)
    elif rows:
        print_table(("AT", "WHO", "ACTION", "TARGET", "DETAILS", "OUTCOME"), map(_row, rows))
    else:
        note("no actions")


def _path(service: str) -> str:
    if service in ("", ".", ".."):
        raise Failure(f"{service!r} is not a service", Exit.USAGE)
    return f"/admin/services/{quote(service, safe='')}"


def _show(state: dict[str, Any], json: bool) -> None:
    if json:
        print_json(state)
        return
    changed = state["override_limit"] is not None
    override = f" (configured: {state['declared_limit']})" if changed else ""
    say(f"{state['service']}  limit {state['limit']}{override}{', paused' if state['paused'] else ''}")


def _row(row: dict[str, Any]) -> tuple[Any, ...]:
    outcome = row["outcome"] or {"status": "unknown: in progress, or its process died"}
    return (
        local_time(row["at"]),
        row["who"],
        row["action"],
        row["target"],
        _inline(row["details"]),
        " ".join([str(outcome["status"]), _inline({k: v for k, v in outcome.items() if k != "status"})]).strip(),
    )


def _inline(details: dict[str, Any]) -> str:
    """Return the details of an audit entry as one line. Lists and objects other than rates are left out; `--json`
    prints them."""
    unit = details.get("unit", UNITS)
    shown = {name: rates.shown(value, unit) if _is_rate(value) else value for name, value in details.items()}
    return " ".join(f"{name}={value}" for name, value in shown.items() if not isinstance(value, list | dict))


def _is_rate(value: Any) -> bool:
    return isinstance(value, dict) and value.keys() == {"requests", "units", "per"}


workers = typer.Typer(invoke_without_command=True, help="List workers, or drain one.")


@workers.callback()
def without_a_command(context: typer.Context, json: Json = False, url: Url = None) -> None:
    choose(url)
    if context.invoked_subcommand is None:
        list_workers(json)


@workers.command("list")
@client_command
def list_workers(json: Json = False) -> None:
    """List the workers with their last heartbeat and running calls."""
    found = gateway().get(WORKERS)["data"]
    if json:
        print_json(found)
    elif found:
        rows = (line for worker in found for line in worker_rows(worker))
        print_table(WORKER_COLUMNS, rows, optional=("VERSION",))
    else:
        note("no workers: start one with `fairlead worker`, or everything with `fairlead up`", style="yellow")


@workers.command()
@client_command
def drain(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="The worker's name, as `fairlead workers` shows it.",
            autocompletion=complete_workers,
        ),
    ],
    undo: Annotated[bool, typer.Option("--undo", help="Let it start calls again.")] = False,
    json: Json = False,
) -> None:
    """Drain a worker: it starts no new calls, and running ones finish.

    Its process keeps running.
    """
    if name in ("", ".", ".."):
        raise Failure(f"{name!r} is not a worker's name", Exit.USAGE)
    worker = gateway().post(f"{WORKERS}/{quote(name, safe='')}/drain", {"on": not undo})
    if json:
        print_json(worker)
    elif undo:
        say(f"{name} starts calls again within two seconds")
    else:
        running = worker["running"]
        say(f"{name} starts no new calls within two seconds; {running} call{'s' if running != 1 else ''} running")


def worker_rows(worker: dict[str, Any]) -> Iterator[tuple[Any, ...]]:
    """Yield the table row of a process, followed by one row for each of its worker pools."""
    yield _worker_row(worker)
    for pool in worker["pools"]:
        bands = ", ".join([*pool["bands"], *(f"in {region}" for region in pool["regions"] or ())])
        load = f"{pool['running']}/{pool['concurrency']}"
        yield (f"  /{pool['name']}", "", load, ", ".join(pool["services"]), bands, "", "")


def _worker_row(worker: dict[str, Any]) -> tuple[Any, ...]:
    return (
        worker["name"],
        seen(worker),
        f"{worker['running']}/{worker['concurrency'] or '?'}",
        ", ".join(worker["services"]),
        ", ".join(worker["bands"]),
        worker["version"],
        _condition(worker),
    )


def seen(process: dict[str, Any]) -> str:
    silent = process["silent_for"]
    return "never" if silent is None else f"{seconds(silent)} ago"


def _condition(worker: dict[str, Any]) -> Any:
    """Return the unusual state of a worker, such as draining, or an empty text."""
    if not worker["alive"]:
        return safe("gone", "red")
    if worker["draining"]:
        return safe("drained" if not worker["running"] else "draining", "yellow")
    return safe("drain requested", "yellow") if worker["drain_asked"] else ""
