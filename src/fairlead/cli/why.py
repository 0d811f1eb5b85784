"""why: what holds a job now, in words."""

from __future__ import annotations

from typing import Any

from fairlead.cli.client import gateway, job_path
from fairlead.cli.jobs import wait_text
from fairlead.cli.options import JobId, Json
from fairlead.cli.output import local_time, print_json, print_table, say


def why(job_id: JobId, json: Json = False) -> None:
    """Say what holds a job now: who is ahead of it, which limit is full and who has its slots, what is paused."""
    said = gateway().get(f"{job_path(job_id)}/why")
    if json:
        print_json(said)
        return
    say(said["summary"])
    if said["position"] is not None:
        say(f"position {said['position']}{wait_text(said['estimated_wait'])}")
    reasons = said["reasons"]
    if len(reasons) > 1:
        for reason in reasons:
            say(f"- {reason['message']}")
    for reason in reasons:
        _show_holders(reason["details"])


def _show_holders(details: dict[str, Any]) -> None:
    if not details.get("holders"):
        return
    say("")
    print_table(("HELD BY", "SERVICE", "USER", "WORKER", "LEASE", "SINCE", "UNTIL"), map(_row, details["holders"]))
    if details["more_holders"]:
        say(f"and {details['more_holders']} more")


def _row(holder: dict[str, Any]) -> tuple[Any, ...]:
    """A lease is renewed while its worker lives: what ends it is the call's own end, at the latest its deadline."""
    until = holder.get("ends_by") or holder["until"]
    return (
        holder["job_id"],
        holder["service"],
        holder.get("user_id"),
        holder.get("worker"),
        holder.get("lease") or "held",
        local_time(holder.get("since")),
        local_time(until),
    )
