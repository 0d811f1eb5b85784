"""The banner, which a process prints when it starts: its services, its backends and its URLs."""

from __future__ import annotations

from typing import Any

from rich.text import Text

from fairlead.app.fairlead import Fairlead
from fairlead.cli.output import print_json, print_whole, safe, table
from fairlead.cli.redact import without_secrets
from fairlead.domain.config import ServiceConfig
from fairlead.domain.job import Priority
from fairlead.domain.rules import MAIN_SHARD
from fairlead.engine.roles import Roles, pools_of, services_of
from fairlead.version import __version__

IN_MEMORY = "memory"
MOST_NAMED = 5
NO_SERVICES = {
    "manager": "no services configured here: it manages those that are declared in the database",
    "api": "no services, so it accepts no jobs: add [services.NAME] to fairlead.toml, or pass MODULE:APP",
}


def facts(process: str, app: Fairlead, roles: Roles, urls: list[str]) -> dict[str, Any]:
    """Return the fields of the banner; `--json` prints them unchanged. `dispatcher` is None if another process has the
    in-memory dispatcher."""
    config, settings = app.config, app.settings
    pools = pools_of(roles, config)
    served = services_of(pools) if pools else None
    fields: dict[str, Any] = {
        "version": __version__,
        "process": process,
        "config": settings.source,
        "database": without_secrets(settings.database_url),
        "dispatcher": _dispatcher(app, roles),
        "shards": {name: without_secrets(url) for name, url in settings.shards.items()},
        "services": {
            name: {
                "limit": service.limit,
                "runs": _where(service),
                "order": service.order,
                "pool": service.rules(name).pool,
                "shard": _shard(service),
            }
            for name, service in config.services.items()
            if served is None or name in served
        },
    }
    if roles.manager:
        named = {"schedules": sorted(config.schedules), "budgets": sorted(config.budgets)}
        fields |= {kind: names for kind, names in named.items() if names}
    if roles.worker:
        bands = sorted(frozenset().union(*(pool.bands for pool in pools)))
        fields["bands"] = [str(Priority.of_band(band)) for band in bands]
        fields["concurrency"] = sum(pool.concurrency for pool in pools)
        if any(pool.name or pool.regions for pool in pools):
            fields["pools"] = [pool.describe(fields["services"]) for pool in pools]
    if urls:
        fields["key_needed"] = settings.admin_key is not None
        fields["pipelines"] = {name: list(steps) for name, steps in config.pipelines.items()}
        fields["urls"] = {
            "gateway": urls,
            "dashboard": f"{urls[0]}/",
            "jobs": f"{urls[0]}/api/v1/jobs",
            "openapi": f"{urls[0]}/openapi.json",
            "ready": f"{urls[0]}/readyz",
        }
        if any(service.speaks_openai or service.models for service in config.services.values()):
            fields["urls"]["openai"] = f"{urls[0]}/v1"
    return fields


def _dispatcher(app: Fairlead, roles: Roles) -> str | None:
    if app.settings.redis_url is not None:
        return without_secrets(app.settings.redis_url)
    return IN_MEMORY if roles.worker or roles.manager else None


def _where(service: ServiceConfig) -> str:
    if url := service.url or service.openai:
        return without_secrets(url)
    if service.regions:
        return ", ".join(f"{region} {without_secrets(there.url)}" for region, there in service.regions.items())
    if service.celery:
        return f"the Celery task {service.celery}"
    return "turns only" if service.turns_only else service.function or "a function in this process"


def _shard(service: ServiceConfig) -> str:
    """Return the name of a service's shard. For a service that is split between shards, return the name, the bands and
    the limit of each share: `redis_high high (2), redis_low medium+low (6)`."""
    if not service.shards:
        return service.shard or MAIN_SHARD
    return ", ".join(f"{name} {'+'.join(each.bands)} ({each.limit})" for name, each in service.shards.items())


def show(fields: dict[str, Any], *, json: bool) -> None:
    if json:
        print_json(fields)
    else:
        print_whole(*_drawn(fields))


def _drawn(fields: dict[str, Any]) -> list[Any]:
    process = fields["process"]
    heading = Text("fairlead ", style="bold cyan").append(fields["version"])
    if process != "up":
        heading.append(f" {process}", style="bold")
    where = table(("", ""), _locations(fields))
    where.show_header = False
    parts: list[Any] = [heading, where, Text()]
    if fields["services"]:
        parts.append(_services(fields))
    else:
        advice = "no services: add [services.NAME] to fairlead.toml, or pass MODULE:APP"
        parts.append(safe(NO_SERVICES.get(process, advice), "" if process == "manager" else "yellow"))
    if fields.get("pipelines"):
        steps = [(name, " > ".join(services)) for name, services in fields["pipelines"].items()]
        parts += [Text(), table(("PIPELINE", "STEPS"), steps)]
    return [*parts, Text()]


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return f"{len(names)}: {', '.join(names[:MOST_NAMED])}{more}"


def _locations(fields: dict[str, Any]) -> list[tuple[str, str]]:
    dispatcher = {
        None: "none: a `fairlead up` on the same database dispatches",
        IN_MEMORY: "in memory, in this process",
    }.get(fields["dispatcher"], fields["dispatcher"])
    rows = [
        ("config", fields["config"] or "none; defaults and environment"),
        ("database", fields["database"]),
        ("dispatcher", dispatcher),
        *((f"shard {name}", url) for name, url in fields["shards"].items()),
        *((kind, _listed(fields[kind])) for kind in ("schedules", "budgets") if kind in fields),
    ]
    rows += [
        (f"pool {pool['name']}" if pool["name"] else "runs", _pool(pool, fields)) for pool in fields.get("pools", ())
    ]
    if fields["process"] == "worker" and "pools" not in fields:
        rows.append(("runs", f"{', '.join(fields['bands'])}; {fields['concurrency']} calls at once"))
    if urls := fields.get("urls"):
        key = "needs a key" if fields["key_needed"] else "no key needed: loopback only"
        rows.append(("gateway", f"{', '.join(urls['gateway'])}  ({key})"))
        rows.append(("dashboard", urls["dashboard"]))
        rows.append(("API", f"{urls['jobs']}  ({urls['openapi']})"))
    if "metrics" in fields:
        rows.append(("metrics", fields["metrics"]))
    return rows


def _pool(pool: dict[str, Any], fields: dict[str, Any]) -> str:
    """Describe a worker pool (one of several workers in this process), for example as `high; llm, tts; region us; 5
    calls at once`. Services and regions are named only if the pool is restricted to them."""
    parts = [", ".join(pool["bands"])]
    if len(pool["services"]) < len(fields["services"]):
        parts.append(", ".join(pool["services"]))
    if pool["regions"] is not None:
        parts.append(f"region{'s' if len(pool['regions']) > 1 else ''} {', '.join(pool['regions'])}")
    return "; ".join([*parts, f"{pool['concurrency']} calls at once"])


def _services(fields: dict[str, Any]) -> Any:
    columns, keys = ["SERVICE", "LIMIT", "ORDER", "POOL"], ["limit", "order", "pool"]
    if fields["shards"]:
        columns, keys = [*columns, "SHARD"], [*keys, "shard"]
    rows = [(name, *(each[key] for key in keys), each["runs"]) for name, each in fields["services"].items()]
    return table((*columns, "RUNS"), rows)
