"""status: lanes, slots, who waits in which band, and which processes there are."""

from __future__ import annotations

from typing import Any

from fairlead.cli import workers
from fairlead.cli.client import Gateway, gateway
from fairlead.cli.failure import Failure
from fairlead.cli.options import Json
from fairlead.cli.output import note, print_json, print_table, safe, say, seconds

BANDS = ("retry", "high", "medium", "low")


def status(json: Json = False) -> None:
    """Show every service: slots in use, jobs waiting per band, what was overridden; and the workers and managers."""
    target = gateway()
    stats = target.get("/queue/status")
    processes = _processes(target)
    if json:
        print_json({**stats, **processes})
        return
    if stats["services"]:
        columns = ("SERVICE", "SLOTS", "HELD", "ORDER", "POOL", *(band.upper() for band in BANDS), "MEAN", "")
        print_table(columns, map(_service_row, stats["services"]))
    else:
        note("no services")
    for service in stats["services"]:
        regions = service.get("regions", {})
        partly = any(there.get("pool") is None for there in regions.values())
        for region, there in regions.items():
            say(_region_line(service["service"], region, there, partly=partly))
        if (auto := service.get("auto")) and auto["history"]:
            say(_last_change(service["service"], auto["history"][-1]))
    for name, pool in stats.get("pools", {}).items():
        say(f"pool {name}: {known(pool['in_use'])}/{pool['limit']} slots in use")
    say("jobs: " + (", ".join(f"{count} {name}" for name, count in stats["jobs"].items() if count) or "none"))
    if processes.get("workers"):
        print_table(workers.COLUMNS, (row for each in processes["workers"] for row in workers.rows(each)))
    elif processes:
        note("no workers: nothing is called until one is started", style="red")
    for manager in processes.get("managers", ()):
        say(_manager_line(manager))
    for shard, leader in stats.get("leaders", {}).items():
        if leader["problem"]:
            note(f"{shard}: {leader['problem']}; nothing is granted there: see `fairlead manager`", style="red")
    if stats.get("unknown"):
        note(f"slots and lines are not known, all or some: {stats['unknown']}", style="yellow")
    if stats.get("draining"):
        note("draining: running jobs finish, no new ones start", style="yellow")


def _processes(target: Gateway) -> dict[str, Any]:
    """For admins only: others are shown the services alone."""
    try:
        stats = target.get("/admin/runtime/stats")
    except Failure as refused:
        if refused.problem.get("status") not in (401, 403, 404):
            raise
        return {}
    return {"workers": stats["workers"], "managers": stats["managers"]}


def _manager_line(manager: dict[str, Any]) -> str:
    leads = f"leads {', '.join(manager['leads'])}" if manager["leads"] else "stands by"
    return f"manager {manager['name']}: {leads if manager['alive'] else 'gone'}, seen {workers.seen(manager)}"


def _region_line(service: str, region: str, there: dict[str, Any], *, partly: bool) -> str:
    """`partly`: only some regions of the service count in its pool."""
    waiting, breaker = there["waiting"], there["breaker"]
    parts = [f"{known(there['running'])}/{there['limit']} slots in use"]
    if there.get("pool") and partly:
        parts.append(f"which count in the pool {there['pool']}")
    if any(waiting.values()):
        parts.append(f"{waiting['main']} waiting, {waiting['retry']} to retry")
    if there["latency"] is not None:
        parts.append(f"calls take {seconds(there['latency'])}")
    if breaker is None:
        pass  # whoever knows cannot be asked now, which is said below
    elif breaker["state"] == "resting":
        parts.append(f"rests until {breaker['resting_until']} after {breaker['failures']} failures")
    elif breaker["state"] == "probing":
        parts.append(f"one call tries it after {breaker['failures']} failures")
    return f"{service} in {region}: {', '.join(parts)}"


def _last_change(service: str, change: dict[str, Any]) -> str:
    return f"{service}: limit {change['limit']} since {change['at']}: {change['why']}"


def _override(service: dict[str, Any]) -> str:
    """What is not as the configuration says."""
    override = service.get("override") or {}
    said = [f"limit {override['limit']} by an operator"] if override.get("limit") is not None else []
    if not said and (auto := service.get("auto")):
        said = [f"auto, {auto['min']} to {auto['max']}"]
    return ", ".join([*(["paused"] if service.get("paused") else []), *said])


def known(count: int | None) -> str:
    return "?" if count is None else str(count)


def _service_row(service: dict[str, Any]) -> tuple[Any, ...]:
    in_use, limit, mean = service["in_use"], service["limit"], service.get("mean_duration")
    slots = safe(f"{known(in_use)}/{limit}", "cyan" if in_use is not None and in_use >= limit else "")
    waiting = service["waiting"]
    return (
        service["service"],
        slots,
        service.get("held") or "",
        service["order"],
        service.get("pool"),
        *(known(waiting.get(band, 0)) for band in BANDS),
        "" if mean is None else seconds(mean),
        safe(_override(service), "yellow"),
    )
