"""workers: the processes that run calls. For operators."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any
from urllib.parse import quote

import typer

from fairlead.cli.client import gateway
from fairlead.cli.failure import Exit, Failure
from fairlead.cli.options import Json
from fairlead.cli.output import note, print_json, print_table, safe, say, seconds

PATH = "/admin/workers"
COLUMNS = ("NAME", "SEEN", "RUNNING", "SERVICES", "BANDS", "VERSION", "")

workers = typer.Typer(invoke_without_command=True, help="List the workers, or drain one of them.")


@workers.callback()
def without_a_command(context: typer.Context, json: Json = False) -> None:
    if context.invoked_subcommand is None:
        list_workers(json)


@workers.command("list")
def list_workers(json: Json = False) -> None:
    """List the workers: when each was seen last, and how much it runs."""
    found = gateway().get(PATH)["data"]
    if json:
        print_json(found)
    elif found:
        print_table(COLUMNS, (line for worker in found for line in rows(worker)))
    else:
        note("no workers: start one with `fairlead worker`, or everything with `fairlead up`", style="yellow")


@workers.command()
def drain(
    name: Annotated[str, typer.Argument(metavar="NAME", help="As `fairlead workers` shows it.")],
    undo: Annotated[bool, typer.Option("--undo", help="Let it claim again.")] = False,
    json: Json = False,
) -> None:
    """Let a worker start no new calls; those under way finish. Its process goes on."""
    if name in ("", ".", ".."):
        raise Failure(f"{name!r} is not a worker's name", Exit.USAGE)
    worker = gateway().post(f"{PATH}/{quote(name, safe='')}/drain", {"on": not undo})
    if json:
        print_json(worker)
    elif undo:
        say(f"{name} claims again within two seconds")
    else:
        running = worker["running"]
        say(f"{name} claims no more within two seconds; {running} call{'s' if running != 1 else ''} under way")


def rows(worker: dict[str, Any]) -> Iterator[tuple[Any, ...]]:
    """The process, and below it its workers, if it has several."""
    yield row(worker)
    for pool in worker["pools"]:
        bands = ", ".join([*pool["bands"], *(f"in {region}" for region in pool["regions"] or ())])
        load = f"{pool['running']}/{pool['concurrency']}"
        yield (f"  /{pool['name']}", "", load, ", ".join(pool["services"]), bands, "", "")


def row(worker: dict[str, Any]) -> tuple[Any, ...]:
    return (
        worker["name"],
        seen(worker),
        f"{worker['running']}/{worker['concurrency'] or '?'}",
        ", ".join(worker["services"]),
        ", ".join(worker["bands"]),
        worker["version"],
        condition(worker),
    )


def seen(process: dict[str, Any]) -> str:
    silent = process["silent_for"]
    return "never" if silent is None else f"{seconds(silent)} ago"


def condition(worker: dict[str, Any]) -> Any:
    """What is out of the ordinary."""
    if not worker["alive"]:
        return safe("gone", "red")
    if worker["draining"]:
        return safe("drained" if not worker["running"] else "draining", "yellow")
    return safe("asked to drain", "yellow") if worker["drain_asked"] else ""
