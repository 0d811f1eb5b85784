"""`fairlead schedules`: recurring jobs."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

import typer

from fairlead.cli.client import client_command, gateway
from fairlead.cli.options import All, Json, Limit
from fairlead.cli.output import local_time, note, print_json, print_table, say
from fairlead.cli.submit import json_object

schedules = typer.Typer(no_args_is_help=True, help="Recurring jobs: create, pause and run them, and see their runs.")
BASE = "/api/v1/schedules"

ScheduleId = Annotated[str, typer.Argument(metavar="SCHEDULE", help="Its id, from `fairlead schedules list`.")]


@schedules.command("list")
@client_command
def list_schedules(
    user: Annotated[str | None, typer.Option("--user", metavar="USER", help="Only of this user.")] = None,
    json: Json = False,
) -> None:
    """List the schedules and when they are due next."""
    rows = gateway().get(BASE, user_id=user)["data"]
    if json:
        print_json(rows)
    elif rows:
        print_table(("ID", "NAME", "FEATURE", "USER", "WHEN", "NEXT"), map(_row, rows))
    else:
        note("no schedules")


@schedules.command()
@client_command
def show(schedule: ScheduleId, json: Json = False) -> None:
    """Show a schedule and its next five times."""
    found = gateway().get(_path(schedule))
    if json:
        print_json(found)
        return
    _show(found)
    for each in found["next_times"]:
        say(f"  {local_time(each)}")


@schedules.command()
@client_command
def create(
    feature: Annotated[str, typer.Argument(metavar="FEATURE", help="A pipeline or a service.")],
    cron: Annotated[
        str | None, typer.Option("--cron", metavar="CRON", help='For example "0 6 * * *"; six fields have seconds.')
    ] = None,
    every: Annotated[
        float | None, typer.Option("--every", metavar="SECONDS", help="Seconds between two runs, instead of --cron.")
    ] = None,
    timezone: Annotated[str | None, typer.Option("--timezone", metavar="ZONE", help="Of --cron; default: UTC.")] = None,
    data: Annotated[
        str | None, typer.Option("--input", metavar="JSON", help="The input_data of its jobs; default: {}.")
    ] = None,
    name: Annotated[str | None, typer.Option("--name", metavar="NAME", help="A name to show.")] = None,
    user: Annotated[
        str | None, typer.Option("--user", metavar="USER", help="Whose jobs they are; default: the user of the key.")
    ] = None,
    missed: Annotated[
        str | None, typer.Option("--missed", metavar="POLICY", help="skip, once or all; default: once.")
    ] = None,
    overlap: Annotated[
        str | None, typer.Option("--overlap", metavar="POLICY", help="allow, skip or wait; default: allow.")
    ] = None,
    json: Json = False,
) -> None:
    """Create a schedule."""
    body: dict[str, Any] = {
        "feature_name": feature,
        "cron": cron,
        "every": every,
        "timezone": timezone,
        "input_data": None if data is None else json_object(data, "--input"),
        "name": name,
        "user_id": user,
        "missed": missed,
        "overlap": overlap,
    }
    created = gateway().post(BASE, {key: value for key, value in body.items() if value is not None})
    print_json(created) if json else _show(created)


@schedules.command()
@client_command
def pause(schedule: ScheduleId, json: Json = False) -> None:
    """Submit nothing until the schedule is resumed."""
    _act(schedule, "pause", json)


@schedules.command()
@client_command
def resume(schedule: ScheduleId, json: Json = False) -> None:
    """Resume a schedule; what was due meanwhile is not submitted."""
    _act(schedule, "resume", json)


@schedules.command()
@client_command
def run(schedule: ScheduleId, json: Json = False) -> None:
    """Submit a job of the schedule now, and print its id."""
    started = gateway().post(f"{_path(schedule)}/run")
    print_json(started) if json else say(started["job_id"])


@schedules.command()
@client_command
def delete(schedule: ScheduleId, json: Json = False) -> None:
    """Delete a schedule; its jobs stay."""
    gateway().delete(_path(schedule))
    print_json({"deleted": schedule}) if json else say(f"{schedule}  deleted")


@schedules.command()
@client_command
def runs(schedule: ScheduleId, limit: Limit = 20, everything: All = False, json: Json = False) -> None:
    """Show what became of the last occurrences, newest first."""
    rows = list(gateway().pages(f"{_path(schedule)}/runs", limit=None if everything else limit))
    if json:
        print_json(rows)
    elif rows:
        print_table(("DUE", "OUTCOME", "JOB", "STATUS"), map(_run_row, rows))
    else:
        note("no runs yet")


def _act(schedule: str, action: str, json: bool) -> None:
    changed = gateway().post(f"{_path(schedule)}/{action}")
    print_json(changed) if json else _show(changed)


def _path(schedule: str) -> str:
    return f"{BASE}/{quote(schedule, safe='')}"


def _when(schedule: dict[str, Any]) -> str:
    if schedule["every"] is not None:
        return f"every {schedule['every']:g} s"
    return f"{schedule['cron']} {schedule['timezone']}"


def _next(schedule: dict[str, Any]) -> str:
    if schedule["paused_at"] is not None:
        return f"paused since {local_time(schedule['paused_at'])}"
    return local_time(schedule["next_at"]) if schedule["next_at"] else "never"


def _row(each: dict[str, Any]) -> tuple[str, ...]:
    return each["id"], each["name"] or "", each["feature_name"], each["user_id"], _when(each), _next(each)


def _run_row(each: dict[str, Any]) -> tuple[str, ...]:
    due = "run now" if each["due_at"] is None else local_time(each["due_at"])
    outcome = f"{each['count']} missed" if each["outcome"] == "missed" else each["outcome"]
    return due, outcome, each["job_id"] or each["detail"] or "", each["status"] or ""


def _show(schedule: dict[str, Any]) -> None:
    say(f"{schedule['id']}  {schedule['feature_name']}  {_when(schedule)}  next: {_next(schedule)}")
