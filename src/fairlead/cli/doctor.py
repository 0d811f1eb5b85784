"""doctor: shows problems, with evidence and the command that fixes each. The gateway runs the checks. If the gateway
does not answer or refuses the request, this process runs the checks."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from fairlead.cli.client import Gateway, client_command, gateway
from fairlead.cli.failure import Exit, Failure
from fairlead.cli.options import AppPath, ConfigFile, Json
from fairlead.cli.output import clean, hint, note, print_json, safe, say
from fairlead.errors import ConfigError, FairleadError

if TYPE_CHECKING:
    from fairlead.app.fairlead import Fairlead
    from fairlead.observe.doctor.finding import Finding

STYLES = {"error": "bold red", "warning": "yellow", "note": "blue"}
INDENT = " " * 9


@client_command
def doctor(app_path: AppPath = None, config: ConfigFile = None, json: Json = False) -> None:
    """Show problems, their causes and how to fix them.

    Exits with 1 if there is an error or a warning.
    """
    report = _report(gateway(), app_path, config)
    if json:
        print_json(report)
    else:
        _show(report)
    if not report["well"]:
        raise typer.Exit(Exit.REFUSED)


def _report(target: Gateway, app_path: str | None, config: Path | None) -> dict[str, Any]:
    try:
        return {"asked": target.shown, **target.get("/admin/doctor")}
    except Failure as failure:
        if failure.code is Exit.USAGE:
            raise
        # Imported here: the engines are slow to load, and not needed if a gateway answers.
        from fairlead.observe.doctor import report, settings

        status = failure.problem.get("status")
        say_why = settings.refused if status in (401, 403) else settings.unreachable
        try:
            findings = [say_why(target.shown, failure.message), *asyncio.run(_looked(app_path, config))]
        except FairleadError as error:
            raise Failure(f"cannot check: {error}", Exit.USAGE) from None
        return {"asked": None, **report(findings)}


async def _looked(app_path: str | None, config: Path | None) -> list[Finding]:
    """Run the checks in this process. They cover what this machine can reach: the configuration, the database, and
    every Redis."""
    from fairlead.app.fairlead import Fairlead
    from fairlead.cli.loading import load_app
    from fairlead.config import DEFAULT_DATABASE_URL, Settings
    from fairlead.domain.config import Config
    from fairlead.observe.doctor import settings

    try:
        return await _examined(load_app(app_path, config))
    except ConfigError as error:
        # The environment names the backends, so these can be checked even if the configuration is invalid.
        url, redis_url = os.environ.get("DATABASE_URL"), os.environ.get("REDIS_URL")
        bare = Fairlead(Settings(Config(), url or DEFAULT_DATABASE_URL, redis_url=redis_url or None))
        report = await bare.doctor(outside=True)
        return [
            settings.invalid(error.problems),
            *(each for each in report if each.code != settings.CONFIG_INVALID.code),
        ]


async def _examined(app: Fairlead) -> list[Finding]:
    """Run the doctor's checks. Open the app for them only if the schema of its database is current: opening the app
    would migrate the database, and the doctor must not change anything."""
    from fairlead.app.doctor_sources import schema_of

    try:
        schema = await schema_of(app.settings.database_url)
        if schema.found == schema.known and not app.check():
            async with app:
                return await app.doctor(outside=True)
    except FairleadError:
        pass  # the findings include this error
    return await app.doctor(outside=True)


def _show(report: dict[str, Any]) -> None:
    for finding in report["findings"]:
        severity = finding["severity"]
        about = f" ({clean(finding['about'])})" if finding["about"] else ""
        say(safe(f"{severity:<9}", STYLES[severity]) + safe(f"{finding['code']}: {finding['title']}{about}"))
        say(f"{INDENT}{finding['cause']}")
        if evidence := ", ".join(f"{name} {_value(value)}" for name, value in finding["evidence"].items()):
            say(safe(f"{INDENT}seen: {evidence}", "dim"))
        say(safe(f"{INDENT}fix:  {finding['fix']}", "green"))
    counts = [f"{report[what]} {what[:-1] if report[what] == 1 else what}" for what in ("errors", "warnings", "notes")]
    if report["well"]:
        note(f"all is well{f'; {counts[2]}' if report['notes'] else ''}", style="green")
    else:
        note(", ".join(counts), style="red" if report["errors"] else "yellow")
        hint(f"more about a finding: fairlead docs {report['findings'][0]['code']}")


def _value(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    if isinstance(value, dict):
        return ", ".join(f"{name}={_value(each)}" for name, each in value.items()) or "none"
    return str(value)
