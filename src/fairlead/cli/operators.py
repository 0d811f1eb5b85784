"""pause, unpause, limit, priority, rebuild, audit: what an operator does while all runs."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

import typer

from fairlead.cli.client import gateway
from fairlead.cli.failure import Exit, Failure
from fairlead.cli.options import All, JobId, Json, Limit
from fairlead.cli.output import local_time, note, print_json, print_table, say

Service = Annotated[str, typer.Argument(metavar="SERVICE", help="The service's name, as `status` shows it.")]


def pause(service: Service, json: Json = False) -> None:
    """Start nothing of a service until `unpause`. What runs goes on, and jobs are accepted."""
    _show(gateway().post(f"{_path(service)}/pause"), json)


def unpause(service: Service, json: Json = False) -> None:
    """End the pause of a service."""
    _show(gateway().post(f"{_path(service)}/resume"), json)


def limit(
    service: Service,
    slots: Annotated[int | None, typer.Argument(metavar="[N]", help="Calls at once, over all processes.")] = None,
    lift: Annotated[bool, typer.Option("--lift", help="Go back to what the configuration says.")] = False,
    json: Json = False,
) -> None:
    """Change a service's limit while it runs, or lift the change."""
    if lift == (slots is not None):
        raise Failure("say either how many calls at once, or --lift", Exit.USAGE)
    path = f"{_path(service)}/limit"
    _show(gateway().delete(path) if lift else gateway().put(path, {"limit": slots}), json)


def priority(
    job_id: JobId,
    wanted: Annotated[str, typer.Argument(metavar="PRIORITY", help="high, medium or low.")],
    json: Json = False,
) -> None:
    """Change the priority of a job that has not ended. A call under way goes on."""
    job = gateway().post(f"/admin/jobs/{quote(job_id, safe='')}/priority", {"priority": wanted})
    if json:
        print_json(job)
    else:
        place = f", number {job['position']} in line" if job.get("position") is not None else ""
        say(f"{job['job_id']}  {job['priority']}, {job['status']}{place}")


def rebuild(service: Service, json: Json = False) -> None:
    """Have a service's line built anew from the database. Calls under way keep their slots."""
    answer = gateway().post(f"{_path(service)}/rebuild")
    if json:
        print_json(answer)
    elif answer.get("problem"):
        say(f"asked for: {', '.join(answer['scopes'])}")
        note(answer["problem"], style="yellow")
    else:
        say(f"asked for: {', '.join(answer['scopes'])}; the leader does it within a second, and its log says so")


def audit(
    action: Annotated[
        str | None, typer.Option("--action", metavar="ACTION", help="Only these, e.g. `service.pause`.")
    ] = None,
    limit: Limit = 20,
    everything: All = False,
    json: Json = False,
) -> None:
    """Show what operators did, newest first."""
    rows = list(gateway().pages("/admin/audit", limit=None if everything else limit, action=action))
    if json:
        print_json(rows)
    elif rows:
        print_table(("AT", "WHO", "ACTION", "TARGET", "DETAILS", "OUTCOME"), map(_row, rows))
    else:
        note("nothing was done")


def _path(service: str) -> str:
    if service in ("", ".", ".."):
        raise Failure(f"{service!r} is not a service", Exit.USAGE)
    return f"/admin/services/{quote(service, safe='')}"


def _show(state: dict[str, Any], json: bool) -> None:
    if json:
        print_json(state)
        return
    changed = state["override_limit"] is not None
    override = f" (the configuration says {state['declared_limit']})" if changed else ""
    say(f"{state['service']}  limit {state['limit']}{override}{', paused' if state['paused'] else ''}")


def _row(row: dict[str, Any]) -> tuple[Any, ...]:
    outcome = row["outcome"] or {"status": "not known: under way, or its process died"}
    return (
        local_time(row["at"]),
        row["who"],
        row["action"],
        row["target"],
        _facts(row["details"]),
        " ".join([str(outcome["status"]), _facts({k: v for k, v in outcome.items() if k != "status"})]).strip(),
    )


def _facts(facts: dict[str, Any]) -> str:
    """One line: lists and the like are shown by `--json`."""
    return " ".join(f"{name}={value}" for name, value in facts.items() if not isinstance(value, list | dict))
