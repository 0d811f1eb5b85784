"""doctor: what is wrong, how one can tell, and which command mends it. Asks the gateway, or looks itself."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from fairlead.cli.client import Gateway, gateway
from fairlead.cli.failure import Exit, Failure
from fairlead.cli.options import AppPath, ConfigFile, Json
from fairlead.cli.output import clean, note, print_json, safe, say
from fairlead.errors import ConfigError, FairleadError

if TYPE_CHECKING:
    from fairlead.app import Fairlead
    from fairlead.runtime.doctor.finding import Finding

STYLES = {"error": "bold red", "warning": "yellow", "note": "blue"}
INDENT = " " * 9


def doctor(app_path: AppPath = None, config: ConfigFile = None, json: Json = False) -> None:
    """Say what is wrong, why, and what mends it. Exits with 1 if there is an error or a warning."""
    found = _asked(gateway(), app_path, config)
    if json:
        print_json(found)
    else:
        _show(found)
    if not found["well"]:
        raise typer.Exit(Exit.REFUSED)


def _asked(target: Gateway, app_path: str | None, config: Path | None) -> dict[str, Any]:
    try:
        return {"asked": target.shown, **target.get("/admin/doctor")}
    except Failure as failure:
        if failure.code is Exit.USAGE:
            raise
        # Imported here: the engines take a while to load, and a gateway that answers does without them.
        from fairlead.runtime.doctor import report, unreached

        status = failure.problem.get("status")
        say_why = unreached.refused if status in (401, 403) else unreached.unreachable
        try:
            findings = [say_why(target.shown, failure.message), *asyncio.run(_looked(app_path, config))]
        except FairleadError as error:
            raise Failure(f"could not look: {error}", Exit.USAGE) from None
        return {"asked": None, **report(findings)}


async def _looked(app_path: str | None, config: Path | None) -> list[Finding]:
    """What can be seen from here: the configuration, the database, and every Redis."""
    from fairlead.app import Fairlead
    from fairlead.cli.loading import load_app
    from fairlead.config import DEFAULT_DATABASE_URL, Settings
    from fairlead.domain.config import Config
    from fairlead.runtime.doctor import settings

    try:
        return await _examined(load_app(app_path, config))
    except ConfigError as error:
        # The engines are named by the environment, and can be looked at all the same.
        url, redis_url = os.environ.get("DATABASE_URL"), os.environ.get("REDIS_URL")
        bare = Fairlead(Settings(Config(), url or DEFAULT_DATABASE_URL, redis_url=redis_url or None))
        found = await bare.doctor(outside=True)
        return [
            settings.invalid(error.problems),
            *(each for each in found if each.code != settings.CONFIG_INVALID.code),
        ]


async def _examined(app: Fairlead) -> list[Finding]:
    """Opening a database would bring its schema up to date: that is not for a doctor to do."""
    from fairlead.examination import schema_of

    try:
        schema = await schema_of(app.settings.database_url)
        if schema.found == schema.known and not app.check():
            async with app:
                return await app.doctor(outside=True)
    except FairleadError:
        pass  # the findings say so
    return await app.doctor(outside=True)


def _show(found: dict[str, Any]) -> None:
    for finding in found["findings"]:
        severity = finding["severity"]
        about = f" ({clean(finding['about'])})" if finding["about"] else ""
        say(safe(f"{severity:<9}", STYLES[severity]) + safe(f"{finding['code']}: {finding['title']}{about}"))
        say(f"{INDENT}{finding['cause']}")
        if evidence := ", ".join(f"{name} {_value(value)}" for name, value in finding["evidence"].items()):
            say(safe(f"{INDENT}seen: {evidence}", "dim"))
        say(safe(f"{INDENT}fix:  {finding['fix']}", "green"))
    counts = [f"{found[what]} {what[:-1] if found[what] == 1 else what}" for what in ("errors", "warnings", "notes")]
    if found["well"]:
        note(f"all is well{f'; {counts[2]}' if found['notes'] else ''}", style="green")
    else:
        note(", ".join(counts), style="red" if found["errors"] else "yellow")


def _value(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    if isinstance(value, dict):
        return ", ".join(f"{name}={_value(each)}" for name, each in value.items()) or "none"
    return str(value)
