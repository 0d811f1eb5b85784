"""What a process says first: what it runs, on which engines, and where to ask it."""

from __future__ import annotations

from typing import Any

from rich.text import Text

from fairlead.app import Fairlead
from fairlead.cli.output import print_json, print_whole, safe, table
from fairlead.cli.redact import without_secrets
from fairlead.domain.config import ServiceConfig
from fairlead.domain.job import Priority
from fairlead.domain.limits import MAIN_SHARD
from fairlead.runtime.pools import pools_of, services_of
from fairlead.runtime.roles import Roles
from fairlead.version import __version__

IN_MEMORY = "memory"
NO_SERVICES = {
    "manager": "no services here: it manages those that the database knows",
    "api": "no services here, so it accepts no jobs: add [services.NAME] to fairlead.toml, or give a MODULE:APP",
}


def facts(process: str, app: Fairlead, roles: Roles, urls: list[str]) -> dict[str, Any]:
    """For `--json` as well. `dispatcher` is null in a gateway beside a process that dispatches from memory."""
    config, settings = app.config, app.settings
    pools = pools_of(roles, config)
    served = services_of(pools) if pools else None
    said: dict[str, Any] = {
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
    if roles.worker:
        bands = sorted(frozenset().union(*(pool.bands for pool in pools)))
        said["bands"] = [str(Priority.of_band(band)) for band in bands]
        said["concurrency"] = sum(pool.concurrency for pool in pools)
        if any(pool.name or pool.regions for pool in pools):
            said["pools"] = [pool.told(said["services"]) for pool in pools]
    if urls:
        said["key_needed"] = settings.admin_key is not None
        said["pipelines"] = {name: list(steps) for name, steps in config.pipelines.items()}
        said["urls"] = {
            "gateway": urls,
            "dashboard": f"{urls[0]}/",
            "jobs": f"{urls[0]}/api/v1/jobs",
            "openapi": f"{urls[0]}/openapi.json",
            "ready": f"{urls[0]}/readyz",
        }
    return said


def _dispatcher(app: Fairlead, roles: Roles) -> str | None:
    if app.settings.redis_url is not None:
        return without_secrets(app.settings.redis_url)
    return IN_MEMORY if roles.worker or roles.manager else None


def _where(service: ServiceConfig) -> str:
    if service.url:
        return without_secrets(service.url)
    if service.regions:
        return ", ".join(f"{region} {without_secrets(there.url)}" for region, there in service.regions.items())
    if service.celery:
        return f"the Celery task {service.celery}"
    return "turns alone" if service.turns_only else service.function or "a function of this process"


def _shard(service: ServiceConfig) -> str:
    """The shard, or what each of several has: `redis_high high (2), redis_low medium+low (6)`."""
    if not service.shards:
        return service.shard or MAIN_SHARD
    return ", ".join(f"{name} {'+'.join(each.bands)} ({each.limit})" for name, each in service.shards.items())


def show(said: dict[str, Any], *, json: bool) -> None:
    if json:
        print_json(said)
    else:
        print_whole(*_drawn(said))


def _drawn(said: dict[str, Any]) -> list[Any]:
    process = said["process"]
    heading = Text("fairlead ", style="bold cyan").append(said["version"])
    if process != "up":
        heading.append(f" {process}", style="bold")
    where = table(("", ""), _places(said))
    where.show_header = False
    parts: list[Any] = [heading, where, Text()]
    if said["services"]:
        parts.append(_services(said))
    else:
        advice = "no services: add [services.NAME] to fairlead.toml, or give a MODULE:APP"
        parts.append(safe(NO_SERVICES.get(process, advice), "" if process == "manager" else "yellow"))
    if said.get("pipelines"):
        steps = [(name, " > ".join(services)) for name, services in said["pipelines"].items()]
        parts += [Text(), table(("PIPELINE", "STEPS"), steps)]
    return [*parts, Text()]


def _places(said: dict[str, Any]) -> list[tuple[str, str]]:
    dispatcher = {
        None: "not here: a `fairlead up` on the same database dispatches",
        IN_MEMORY: "in memory, in this process",
    }.get(said["dispatcher"], said["dispatcher"])
    rows = [
        ("config", said["config"] or "none; defaults and environment"),
        ("database", said["database"]),
        ("dispatcher", dispatcher),
        *((f"shard {name}", url) for name, url in said["shards"].items()),
    ]
    rows += [(f"pool {pool['name']}" if pool["name"] else "runs", _pool(pool, said)) for pool in said.get("pools", ())]
    if said["process"] == "worker" and "pools" not in said:
        rows.append(("runs", f"{', '.join(said['bands'])}; {said['concurrency']} calls at once"))
    if urls := said.get("urls"):
        key = "needs a key" if said["key_needed"] else "no key needed: loopback only"
        rows.append(("gateway", f"{', '.join(urls['gateway'])}  ({key})"))
        rows.append(("dashboard", urls["dashboard"]))
        rows.append(("API", f"{urls['jobs']}  ({urls['openapi']})"))
    if "metrics" in said:
        rows.append(("metrics", said["metrics"]))
    return rows


def _pool(pool: dict[str, Any], said: dict[str, Any]) -> str:
    """`high; llm, tts; region us; 5 calls at once`: services only if they are not all there are, so with regions."""
    parts = [", ".join(pool["bands"])]
    if len(pool["services"]) < len(said["services"]):
        parts.append(", ".join(pool["services"]))
    if pool["regions"] is not None:
        parts.append(f"region{'s' if len(pool['regions']) > 1 else ''} {', '.join(pool['regions'])}")
    return "; ".join([*parts, f"{pool['concurrency']} calls at once"])


def _services(said: dict[str, Any]) -> Any:
    columns, keys = ["SERVICE", "LIMIT", "ORDER", "POOL"], ["limit", "order", "pool"]
    if said["shards"]:
        columns, keys = [*columns, "SHARD"], [*keys, "shard"]
    rows = [(name, *(each[key] for key in keys), each["runs"]) for name, each in said["services"].items()]
    return table((*columns, "RUNS"), rows)
