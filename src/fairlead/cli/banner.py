"""What `up` says first: what runs, where, and where to ask it."""

from __future__ import annotations

from typing import Any

from rich.text import Text

from fairlead import __version__
from fairlead.app import Fairlead
from fairlead.cli.output import print_json, print_whole, safe, table
from fairlead.cli.redact import without_secrets
from fairlead.domain.config import ServiceConfig


def facts(app: Fairlead, urls: list[str]) -> dict[str, Any]:
    config = app.config
    return {
        "version": __version__,
        "config": app.settings.source,
        "database": without_secrets(app.settings.database_url),
        "dispatcher": "memory",
        "key_needed": app.settings.admin_key is not None,
        "services": {
            name: {"limit": service.limit, "runs": _where(service), "order": service.order, "pool": service.pool}
            for name, service in config.services.items()
        },
        "pipelines": {name: list(steps) for name, steps in config.pipelines.items()},
        "urls": {
            "gateway": urls,
            "jobs": f"{urls[0]}/api/v1/jobs",
            "openapi": f"{urls[0]}/openapi.json",
            "ready": f"{urls[0]}/readyz",
        },
    }


def _where(service: ServiceConfig) -> str:
    if service.url:
        return without_secrets(service.url)
    if service.regions:
        return ", ".join(f"{region} {without_secrets(there.url)}" for region, there in service.regions.items())
    return service.function or "a function of this process"


def show(said: dict[str, Any], *, json: bool) -> None:
    if json:
        print_json(said)
    else:
        print_whole(*_drawn(said))


def _drawn(said: dict[str, Any]) -> list[Any]:
    urls = said["urls"]
    key = "needs the key of FAIRLEAD_ADMIN_KEY" if said["key_needed"] else "no key needed: loopback only"
    heading = Text("fairlead ", style="bold cyan").append(said["version"])
    where = table(
        ("", ""),
        [
            ("config", said["config"] or "none; defaults and environment"),
            ("database", said["database"]),
            ("dispatcher", "in memory, in this process"),
            ("gateway", f"{', '.join(urls['gateway'])}  ({key})"),
            ("API", f"{urls['jobs']}  ({urls['openapi']})"),
        ],
    )
    where.show_header = False
    services = [
        (name, each["limit"], each["order"], each["pool"], each["runs"]) for name, each in said["services"].items()
    ]
    parts: list[Any] = [heading, where, Text()]
    if services:
        parts.append(table(("SERVICE", "LIMIT", "ORDER", "POOL", "RUNS"), services))
    else:
        parts.append(safe("no services: add [services.NAME] to fairlead.toml, or give a MODULE:APP", "yellow"))
    if said["pipelines"]:
        steps = [(name, " > ".join(services)) for name, services in said["pipelines"].items()]
        parts += [Text(), table(("PIPELINE", "STEPS"), steps)]
    return [*parts, Text()]
