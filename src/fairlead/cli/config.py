"""config: checks and shows the configuration. Works without a gateway."""

from __future__ import annotations

import json as jsonlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import typer

from fairlead.cli import listen
from fairlead.cli.failure import Exit, Failure
from fairlead.cli.loading import load_app
from fairlead.cli.options import AppPath, ConfigFile, Json
from fairlead.cli.output import note, print_json, safe, say, stdout
from fairlead.cli.redact import shown_settings
from fairlead.config import Settings, admin_key_too_short
from fairlead.errors import ConfigError

config = typer.Typer(no_args_is_help=True, help="Check or show the configuration.")


@config.command()
def check(app_path: AppPath = None, file: ConfigFile = None, json: Json = False) -> None:
    """Validate the configuration and list every problem. Exits with 2 if there is one."""
    settings, problems = _read(app_path, file)
    warnings = (
        []
        if settings is None
        else [
            *_of_the_key(settings, problems),
            *_for_turns(settings),
            *_unreachable_delays(settings),
        ]
    )
    if json:
        summary = {"source": settings and settings.source, "ok": not problems, "problems": problems}
        print_json({**summary, "warnings": warnings})
    else:
        for problem in problems:
            note(problem, style="red")
        for warning in warnings:
            note(warning, style="yellow")
        if settings is not None and not problems:
            say(f"{settings.source or 'defaults and environment'}: ok, {_counts(settings)}")
    if problems:
        raise typer.Exit(Exit.USAGE)


@config.command()
def show(app_path: AppPath = None, file: ConfigFile = None, json: Json = False) -> None:
    """Show the effective settings from file, environment and defaults. Secrets are hidden."""
    settings, problems = _read(app_path, file)
    if settings is None:
        raise Failure("\n".join(problems), Exit.USAGE)
    shown = shown_settings(settings)
    if json:
        print_json(shown)
    else:
        console = stdout()
        for line in _toml(shown):
            console.print(safe(line))


def _read(app_path: str | None, file: Path | None) -> tuple[Settings | None, list[str]]:
    """Return the settings that `up` would use, and the problems that would stop `up`."""
    try:
        app = load_app(app_path, file)
    except ConfigError as error:
        return None, list(error.problems)
    return replace(app.settings, config=app.config), app.check()


def _of_the_key(settings: Settings, problems: list[str]) -> list[str]:
    """Check whether the admin key is too short. If the gateway listens on a loopback address, a short key is returned
    as a warning. On a public address it is added to `problems`, since `up` and `api` refuse to listen there with a
    short key."""
    server, problem = settings.config.server, admin_key_too_short(settings.admin_key)
    if problem is None:
        return []
    try:
        local = listen.is_local(server.host, server.port)
    except Failure:
        return []  # `host` is the name of another machine, which reports the short key itself
    if local:
        return [problem]
    problems.append(problem)
    return []


def _for_turns(settings: Settings) -> list[str]:
    """Return a warning for each service that has no function, `url` or Celery task. It may be meant for turns, or its
    `url` may have been forgotten."""
    source = settings.source or "the configuration"
    return [
        f"{source}: services.{name}: nothing executes it, so it is for turns only, and jobs for it are refused"
        for name in sorted(settings.config.turns_only)
    ]


def _unreachable_delays(settings: Settings) -> list[str]:
    """Return a warning for each service whose `backoff` has more delays than there can be retries. `max_attempts`
    includes the first call, so three delays need `max_attempts = 4`."""
    source = settings.source or "the configuration"
    return [
        f"{source}: services.{name}: backoff has {len(delays)} delays, but max_attempts = {service.max_attempts} makes "
        f"at most {_counted(service.max_attempts - 1, 'retry', 'retries')}; for all delays, set max_attempts = "
        f"{len(delays) + 1}"
        for name, service in sorted(settings.config.services.items())
        if isinstance(delays := service.backoff, list) and len(delays) >= service.max_attempts
    ]


def _counted(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"


def _counts(settings: Settings) -> str:
    config = settings.config
    parts = [f"{_s(len(config.services), 'service')}, {_s(len(config.pipelines), 'pipeline')}"]
    parts += [_s(len(each), one) for each, one in ((config.schedules, "schedule"), (config.budgets, "budget")) if each]
    if config.shards:
        parts.append(f"{_s(len(config.shards), 'shard')} beside the main one")
    return ", ".join(parts)


def _s(count: int, one: str) -> str:
    return _counted(count, one, f"{one}s")


def _toml(values: dict[str, Any], section: str = "") -> Iterator[str]:
    """Yield the lines of a `fairlead.toml` with these settings. Settings that are not part of the file, such as the
    database URL, come first, as comments."""
    if not section:
        for name in ("source", "database_url", "redis_url", "admin_key"):
            yield f"# {name}: {values.pop(name) or 'none'}"
    plain = {name: value for name, value in values.items() if not _is_section(value)}
    if section and plain:
        yield from ("", f"[{section}]")
    for name, value in plain.items():
        yield f"{_key(name)} = {_value(value)}"
    for name, value in values.items():
        if _is_section(value):
            yield from _toml(value, f"{section}.{_key(name)}" if section else _key(name))


def _is_section(value: Any) -> bool:
    return isinstance(value, dict) and bool(value)


def _key(name: str) -> str:
    return name if name.replace("_", "").replace("-", "").isalnum() and name.isascii() else _value(name)


def _value(value: Any) -> str:
    # JSON strings, numbers, booleans and lists are valid TOML.
    return jsonlib.dumps(value, ensure_ascii=False)
