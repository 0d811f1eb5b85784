"""status: lanes, slots, and who waits in which band."""

from __future__ import annotations

from typing import Any

from fairlead.cli.client import gateway
from fairlead.cli.options import Json
from fairlead.cli.output import note, print_json, print_table, safe, say, seconds

BANDS = ("retry", "high", "medium", "low")


def status(json: Json = False) -> None:
    """Show every service: slots in use, jobs waiting per band, and what runs now."""
    stats = gateway().get("/queue/status")
    if json:
        print_json(stats)
        return
    if stats["services"]:
        columns = ("SERVICE", "SLOTS", "HELD", "ORDER", "POOL", *(band.upper() for band in BANDS), "MEAN", "")
        print_table(columns, map(_service_row, stats["services"]))
    else:
        note("no services")
    for name, pool in stats.get("pools", {}).items():
        say(f"pool {name}: {pool['in_use']}/{pool['limit']} slots in use")
    say("jobs: " + (", ".join(f"{count} {name}" for name, count in stats["jobs"].items() if count) or "none"))
    for shard, leader in stats.get("leaders", {}).items():
        if leader["problem"]:
            note(f"{shard}: {leader['problem']}; nothing is granted there: see `fairlead manager`", style="red")
    if stats.get("unknown"):
        note(f"slots and lines are not known here: {stats['unknown']}", style="yellow")
    if stats.get("draining"):
        note("draining: running jobs finish, no new ones start", style="yellow")


def _service_row(service: dict[str, Any]) -> tuple[Any, ...]:
    in_use, limit, mean = service["in_use"], service["limit"], service.get("mean_duration")
    slots = safe(f"{in_use}/{limit}", "cyan" if in_use >= limit else "")
    waiting = service["waiting"]
    return (
        service["service"],
        slots,
        service.get("held") or "",
        service["order"],
        service.get("pool"),
        *(waiting.get(band, 0) for band in BANDS),
        "" if mean is None else seconds(mean),
        safe("paused", "yellow") if service.get("paused") else "",
    )
