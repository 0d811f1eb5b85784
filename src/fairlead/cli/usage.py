"""usage: who used what."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from fairlead.cli.client import client_command, gateway
from fairlead.cli.failure import Exit, Failure
from fairlead.cli.options import Json, past
from fairlead.cli.output import note, print_json, print_table, seconds, stdout

USAGE = "/api/v1/usage"
_Filter = str | None


@client_command
def usage(
    by: Annotated[
        str,
        typer.Option(
            "--by",
            metavar="NAMES",
            help="One row for each of these: user,plan,group,feature,service,model,region,outcome.",
        ),
    ] = "user,service",
    interval: Annotated[str, typer.Option("--interval", help="hour, day, month or total.")] = "total",
    since: Annotated[
        str | None, typer.Option("--from", metavar="TIME", parser=past, help="From this time on, or since e.g. 7d ago.")
    ] = None,
    until: Annotated[
        str | None, typer.Option("--to", metavar="TIME", parser=past, help="Before this time, or e.g. 1d ago.")
    ] = None,
    user: Annotated[_Filter, typer.Option("--user", metavar="ID", help="Only this user.")] = None,
    group: Annotated[_Filter, typer.Option("--group", metavar="PATH", help="Only this group, with its teams.")] = None,
    service: Annotated[_Filter, typer.Option("--service", metavar="NAME", help="Only this service.")] = None,
    model: Annotated[_Filter, typer.Option("--model", metavar="NAME", help="Only this model.")] = None,
    outcome: Annotated[_Filter, typer.Option("--outcome", metavar="NAME", help="Only calls that ended so.")] = None,
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    json: Json = False,
) -> None:
    """Show who used what: calls, time, tokens, units and prices.

    Without --from, the last 30 days. Days and months are in UTC.
    """
    if csv and json:
        raise Failure("pass either --csv or --json", Exit.USAGE)
    filters = {"user": user, "group": group, "service": service, "model": model, "outcome": outcome}
    query = {"group_by": by, "interval": interval, "from": since, "to": until, **filters}
    if csv:
        _print_csv(query)
        return
    rows = list(gateway().pages(USAGE, limit=None, **query))
    if json:
        print_json(rows)
    elif rows:
        names = [name for name in rows[0] if name in ("start", *by.split(","))]
        heads = ("CALLS", "TIME", "TOKENS IN", "TOKENS OUT", "UNITS", "PRICE")
        print_table((*map(str.upper, names), *heads), (_cells(row, names) for row in rows), optional=("UNITS",))
    else:
        note("no calls have ended in this time")


def _print_csv(query: dict[str, Any]) -> None:
    from urllib.parse import urlencode

    given = {name: value for name, value in {**query, "format": "csv"}.items() if value is not None}
    out = stdout().file
    for piece in gateway().stream(f"{USAGE}?{urlencode(given)}"):
        out.write(piece.decode("utf-8", "replace"))


def _cells(row: dict[str, Any], names: list[str]) -> tuple[Any, ...]:
    return (
        *(_name(row, name) for name in names),
        row["calls"],
        seconds(row["seconds"]),
        row["tokens_in"],
        row["tokens_out"],
        f"{row['units']:g}",
        f"{row['price']:.4f}",
    )


def _name(row: dict[str, Any], name: str) -> str:
    if name == "start":
        return str(row[name])[:16].replace("T", " ").removesuffix(" 00:00")
    return row[name] or "-"
