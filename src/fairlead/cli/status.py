"""status: shows the services with their slots and queues, and the processes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.text import Text

from fairlead.cli.client import Gateway, client_command, gateway
from fairlead.cli.failure import Failure
from fairlead.cli.operators import WORKER_COLUMNS, seen, worker_rows
from fairlead.cli.options import Json, Watch
from fairlead.cli.output import (
    local_time,
    print_json,
    print_whole,
    safe,
    seconds,
    table,
    terminal_width,
    watch_json,
    watch_view,
)
from fairlead.cli.rates import shown, used, whose

BANDS = ("retry", "high", "medium", "low")


@client_command
def status(watch: Watch = False, json: Json = False) -> None:
    """Show services with their slots and queues, and workers.

    For each service: slots in use, waiting jobs by priority, mean duration, pauses and changed limits.
    """
    target = gateway()

    def read() -> dict[str, Any]:
        return {**target.get("/queue/status"), **_processes(target)}

    if json:
        watch_json(read) if watch else print_json(read())
    elif watch:
        watch_view(lambda width: list(_parts(read(), width)))
    else:
        print_whole(*_parts(read(), terminal_width()))


def _parts(stats: dict[str, Any], width: int | None) -> Iterator[Any]:
    """Yield the parts of the status view, from top to bottom."""
    services = stats["services"]
    if services:
        columns = ("SERVICE", "SLOTS", "HELD", "ORDER", "POOL", *(band.upper() for band in BANDS), "MEAN", "")
        optional, flexible = ("ORDER", "MEAN", "POOL"), ("", "SERVICE")
        yield table(columns, map(_service_row, services), width=width, optional=optional, flexible=flexible)
    else:
        yield safe("no services")
    for service in services:
        yield from _service_lines(service)
    for name, pool in stats.get("pools", {}).items():
        yield safe(f"pool {name}: {known(pool['in_use'])}/{pool['limit']} slots in use")
    yield from _shared_rates(stats)
    yield safe("jobs: " + (", ".join(f"{count} {name}" for name, count in stats["jobs"].items() if count) or "none"))
    yield from _process_parts(stats, width)
    for shard, leader in stats.get("leaders", {}).items():
        if leader["problem"]:
            yield safe(f"{shard}: {leader['problem']}; no calls start there; `fairlead doctor` names the cause", "red")
    if stats.get("unknown"):
        yield safe(f"some or all slots and queues are unknown: {stats['unknown']}", "yellow")
    if stats.get("draining"):
        yield safe("draining: running jobs finish, no new ones start", "yellow")


def _service_lines(service: dict[str, Any]) -> Iterator[Text]:
    regions = service.get("regions", {})
    partly = any(there.get("pool") is None for there in regions.values())
    for region, there in regions.items():
        yield safe(_region_line(service["service"], region, there, partly=partly))
    for group, there in service.get("groups", {}).items():
        yield safe(_group_line(service["service"], group, there))
    for use in service.get("rates", ()):
        if use["of"] != "pool":  # shown once, with the pool
            prefix = "" if use["of"] == "service" else f"{service['service']}, "
            yield safe(f"{prefix}{used(use)}", "cyan" if use["full"] else "")
    if (auto := service.get("auto")) and auto["history"]:
        yield safe(_last_change(service["service"], auto["history"][-1]))


def _shared_rates(stats: dict[str, Any]) -> Iterator[Text]:
    """Yield the use of the rates of pools, and the rates of plans and groups. How much groups use is shown with each
    service."""
    uses = {
        use["name"]: use for service in stats["services"] for use in service.get("rates", ()) if use["of"] == "pool"
    }
    for each in stats.get("shared_rates", ()):
        if each["of"] == "pool" and each["name"] in uses:
            yield safe(used(uses[each["name"]]), "cyan" if uses[each["name"]]["full"] else "")
        else:
            by = ", by an operator" if each["overridden"] else ""
            yield safe(f"{each['of']} {each['name']}: {whose(each['of'])}{shown(each['rate'], each['unit'])}{by}")


def _process_parts(stats: dict[str, Any], width: int | None) -> Iterator[Any]:
    """Yield the table of workers and the lines about managers. Yields nothing if the key may not read them."""
    if stats.get("workers"):
        rows = (row for each in stats["workers"] for row in worker_rows(each))
        yield table(WORKER_COLUMNS, rows, width=width, optional=("VERSION", "BANDS"), flexible=("SERVICES",))
    elif "workers" in stats:
        yield safe("no workers: no calls are made until one is started", "red")
    for manager in stats.get("managers", ()):
        yield safe(_manager_line(manager))


def _processes(target: Gateway) -> dict[str, Any]:
    """Read the workers and managers from the gateway. Returns an empty dict if the key may not read them."""
    try:
        stats = target.get("/admin/runtime/stats")
    except Failure as refused:
        if refused.problem.get("status") not in (401, 403, 404):
            raise
        return {}
    return {"workers": stats["workers"], "managers": stats["managers"]}


def _manager_line(manager: dict[str, Any]) -> str:
    leads = f"leads {', '.join(manager['leads'])}" if manager["leads"] else "on standby"
    return f"manager {manager['name']}: {leads if manager['alive'] else 'gone'}, seen {seen(manager)}"


def _region_line(service: str, region: str, there: dict[str, Any], *, partly: bool) -> str:
    """Describe one region of a service in one line. `partly` is true if only some regions of the service count toward a
    pool; the line then names the region's pool."""
    waiting, breaker = there["waiting"], there["breaker"]
    parts = []
    if breaker is None:
        pass  # the state is unknown, which is reported below
    elif breaker["state"] == "resting":  # first, because a narrow terminal cuts the line off
        parts.append(f"rests until {local_time(breaker['resting_until'])} after {breaker['failures']} failures")
    elif breaker["state"] == "probing":
        parts.append(f"probing with one call after {breaker['failures']} failures")
    parts.append(f"{known(there['running'])}/{there['limit']} slots in use")
    if there.get("pool") and partly:
        parts.append(f"counted in the pool {there['pool']}")
    if any(waiting.values()):
        parts.append(f"{waiting['main']} waiting, {waiting['retry']} to retry")
    if there["latency"] is not None:
        parts.append(f"calls take {seconds(there['latency'])}")
    return f"{service} in {region}: {', '.join(parts)}"


def _group_line(service: str, group: str, there: dict[str, Any]) -> str:
    limit = f"/{there['limit']}" if there["limit"] is not None else ""
    parts = [f"{there['running']}{limit} slots in use", f"{there['members']} members", f"weight {there['weight']:g}"]
    return f"{service}, group {group}: {', '.join(parts)}{', passed over now' if there['parked'] else ''}"


def _last_change(service: str, change: dict[str, Any]) -> str:
    return f"{service}: limit {change['limit']} since {change['at']}: {change['why']}"


def _override(service: dict[str, Any]) -> str:
    """Describe how a service differs from its configuration: whether it is paused, and what has changed its limit."""
    override = service.get("override") or {}
    changes = [f"limit {override['limit']} by an operator"] if override.get("limit") is not None else []
    if any(override.get(name) for name in ("rate", "user_rate", "region_rates")):
        changes.append("rate by an operator")
    if override.get("limit") is None and (auto := service.get("auto")):
        changes.insert(0, f"auto, {auto['min']} to {auto['max']}")
    return ", ".join([*(["paused"] if service.get("paused") else []), *changes])


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
