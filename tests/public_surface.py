"""Collects every name that users, databases and other processes rely on.

`python -m tests.public_surface` rewrites `tests/data/public_surface.json`. Run it only to add something: a removed
or changed line breaks a user's code, configuration, dashboard or database.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer.main
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.routing import WebSocketRoute

import fairlead
import fairlead.errors
from fairlead import Fairlead
from fairlead.cli.root import app as cli
from fairlead.dispatch.redis import keys
from fairlead.domain import events
from fairlead.errors import FairleadError
from fairlead.gateway import problems
from fairlead.gateway.app import ROUTERS
from fairlead.gateway.metrics import METRICS
from fairlead.observe.doctor import KINDS

FILE = Path(__file__).parent / "data" / "public_surface.json"
PACKAGES = ("fairlead", "fairlead.client", "fairlead.celery")


def collect() -> dict[str, list[str]]:
    return {
        "python": sorted(_python()),
        "routes": sorted(_routes()),
        "config": sorted(set(_config(fairlead.Config))),
        "cli": sorted(_commands(typer.main.get_command(cli), "fairlead")),
        "errors": sorted(set(_error_codes())),
        "events": sorted(value for name, value in vars(events).items() if name == value),
        "findings": sorted(KINDS),
        "metrics": sorted(f"{name} {' '.join(metric.labels)}".strip() for name, metric in METRICS.items()),
        "columns": sorted(_columns()),
        "redis": sorted(_redis_keys()),
    }


def _python() -> Iterator[str]:
    for package in PACKAGES:
        module = importlib.import_module(package)
        for name in module.__all__:
            value = getattr(module, name)
            yield f"{package}.{name}"
            if inspect.isfunction(value):
                yield f"{package}.{name}{_parameters(value)}"
            elif inspect.isclass(value) and not issubclass(value, BaseModel):
                yield from (f"{package}.{name}.{member}" for member in _members(value))


def _members(owner: type) -> Iterator[str]:
    for name in dir(owner):
        if name.startswith("_") and name != "__init__":
            continue
        member = inspect.getattr_static(owner, name)
        if isinstance(member, (staticmethod, classmethod)):
            member = member.__func__
        if inspect.isfunction(member):
            if member.__module__.startswith("fairlead"):
                yield f"{name}{_parameters(member)}"
        elif not inspect.isbuiltin(member) and not inspect.ismethoddescriptor(member):
            yield name


def _parameters(function: Any) -> str:
    """The names, kinds and defaults of the parameters. Annotations may become more precise."""
    kinds = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    shown = []
    keyword_only = False
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and not keyword_only:
            keyword_only = True
            shown.append("*")
        default = "" if parameter.default is inspect.Parameter.empty else "=..."
        shown.append(kinds.get(parameter.kind, "") + parameter.name + default)
    return f"({', '.join(shown)})"


def _routes() -> Iterator[str]:
    for router in ROUTERS:
        for route in router.routes:
            if isinstance(route, APIRoute):
                yield from (f"{method} {route.path}" for method in route.methods)
            elif isinstance(route, WebSocketRoute):
                yield f"WS {route.path}"


def _config(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    schema = model.model_json_schema()
    yield from _properties(schema, schema.get("$defs", {}), prefix)


def _properties(schema: Any, definitions: Any, prefix: str) -> Iterator[str]:
    if "$ref" in schema:
        schema = definitions[schema["$ref"].rpartition("/")[2]]
    for name, value in schema.get("properties", {}).items():
        yield f"{prefix}{name}"
        yield from _properties(value, definitions, f"{prefix}{name}.")
    for named in schema.get("patternProperties", {}).values():
        yield from _properties(named, definitions, f"{prefix}NAME.")
    for choice in schema.get("anyOf", ()):
        yield from _properties(choice, definitions, prefix)


def _commands(command: Any, path: str) -> Iterator[str]:
    if hasattr(command, "commands"):
        for name, child in command.commands.items():
            yield from _commands(child, f"{path} {name}")
        return
    yield path
    for parameter in command.params:
        options = [*parameter.opts, *parameter.secondary_opts]
        yield from (f"{path} {option}" for option in options if parameter.param_type_name == "option")


def _error_codes() -> Iterator[str]:
    for module in (fairlead.errors, problems):
        for value in vars(module).values():
            if isinstance(value, type) and issubclass(value, FairleadError):
                yield f"{value.code} {value.status}"


def _columns() -> Iterator[str]:
    """The columns of SQLite. A contract test requires PostgreSQL to have the same."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "surface.db"
        asyncio.run(_create(path))
        database = sqlite3.connect(path)
        tables = database.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'")
        for (table,) in tables.fetchall():
            for row in database.execute(f"PRAGMA table_info({table})"):
                yield f"{table}.{row[1]}"
        database.close()


async def _create(path: Path) -> None:
    async with Fairlead(fairlead.Config(), database_url=f"sqlite:///{path}"):
        pass


def _redis_keys() -> Iterator[str]:
    yield from keys.keys_of("fairlead", "service:NAME", ["NAME"])
    yield keys.scopes_key("fairlead")
    yield keys.leader_key("fairlead")
    yield keys.wake_channel("fairlead", "PROCESS")
    yield "ws:JOB_ID"


if __name__ == "__main__":
    FILE.write_text(json.dumps(collect(), indent=1) + "\n")
