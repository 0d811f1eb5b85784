"""Settings, read once: `fairlead.toml`, then the environment on top. All mistakes are reported at once."""

from __future__ import annotations

import importlib.util
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fairlead import adminkey
from fairlead.addresses import engine_problems, resolved
from fairlead.domain.config import (
    BRANCHES,
    MEANING,
    Config,
    contradictions,
    too_many_ways,
    unknown_in_worker_pools,
    unknown_plans,
)
from fairlead.errors import ConfigError

DEFAULT_FILE = "fairlead.toml"
DEFAULT_DATABASE_URL = "sqlite:///fairlead.db"
PREFIX = "FAIRLEAD_"
SHOWN = 100
BACKOFF = "should be a table such as { base = 2, factor = 2, max = 60, jitter = 0.2 } or a list of seconds"

# Names that the seeds' users and Celery's have in their environments already.
ALIASES = {
    "PRIORITY_API_URL": ("priority", "url"),
    "PROMOTE_LOW_TO_MEDIUM_AFTER": ("promotion", "low_to_medium_after"),
    "PROMOTE_MEDIUM_TO_HIGH_AFTER": ("promotion", "medium_to_high_after"),
    "CELERY_BROKER_URL": ("celery", "broker_url"),
    "CELERY_RESULT_BACKEND": ("celery", "result_backend"),
}


@dataclass(frozen=True)
class Settings:
    """The configuration and where everything is. Without a `redis_url`, one process dispatches from its memory."""

    config: Config
    database_url: str = DEFAULT_DATABASE_URL
    admin_key: str | None = None
    source: str | None = None
    redis_url: str | None = None

    @property
    def shards(self) -> dict[str, str]:
        """The URL of every shard but the main one, which `redis_url` is."""
        found = {name: resolved(said, os.environ) for name, said in self.config.shards.items()}
        return {name: url for name, url in found.items() if url is not None}

    def problems(self) -> list[str]:
        """What is wrong with where the engines are, and with how they are combined."""
        return list(engine_problems(self.database_url, self.redis_url, self.config.shards, self.source, os.environ))


def load(path: str | Path | None = None, environ: Mapping[str, str] | None = None) -> Settings:
    """Read `path` (or `fairlead.toml` here, if there is one) and the environment."""
    environ = os.environ if environ is None else environ
    raw, source = _read(path)
    problems: list[str] = []
    variables: dict[tuple[str, ...], str] = {}
    for variable, key, value in _overrides(environ):
        variables[key] = variable
        _put(raw, key, value, problems)
    database_url = environ.get("DATABASE_URL") or DEFAULT_DATABASE_URL
    redis_url = environ.get("REDIS_URL") or None
    admin_key = adminkey.read(environ, problems)
    try:
        config = _validated(raw, source or "the environment", variables, problems)
    except ConfigError as error:
        # With what `Settings.problems` would say later, so that all is told at once.
        engines = engine_problems(database_url, redis_url, _section(raw, "shards"), source, environ)
        raise ConfigError([*error.problems, *engines]) from None
    return Settings(
        config=config,
        database_url=database_url,
        admin_key=admin_key,
        source=source,
        redis_url=redis_url,
    )


def problems_of(config: Config, source: str) -> list[str]:
    """What contradicts itself, and what the environment lacks; asked once all services are known, code's included."""
    problems = [f"{source}: {key}: {text}" for key, text in config.contradictions()]
    sent = {f"services.{name}": service.headers for name, service in config.services.items()}
    for section, headers in {**sent, "priority": config.priority.headers}.items():
        for header, value in headers.items():
            variable = value.removeprefix("env:")
            if value.startswith("env:") and variable not in os.environ:
                problems.append(
                    f"{source}: {section}.headers.{header}: the environment has no {variable}; "
                    f"set it, or write the value itself"
                )
    if config.priority.url is not None and importlib.util.find_spec("aiohttp") is None:
        problems.append(f"{source}: priority.url: it needs an HTTP client: pip install 'fairlead[server]'")
    return problems


def _read(path: str | Path | None) -> tuple[dict[str, Any], str | None]:
    if path is None:
        if not Path(DEFAULT_FILE).exists():
            return {}, None
        path = DEFAULT_FILE
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8")), str(path)
    except FileNotFoundError:
        raise ConfigError([f"{path}: there is no such file"]) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError([f"{path}: cannot be read: {error}"]) from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError([f"{path}: this is not TOML: {error}"]) from None


def _overrides(environ: Mapping[str, str]) -> Iterator[tuple[str, tuple[str, ...], str]]:
    """`FAIRLEAD_SERVER__PORT=8123` is `[server] port = 8123`; a double underscore goes one level down."""
    for name, text in sorted(environ.items()):
        if name in ALIASES and not text:
            continue  # how compose files say that a variable is not set
        if name in ALIASES:
            yield name, ALIASES[name], text
        elif name.startswith(PREFIX) and "__" in name:
            yield name, tuple(part.lower() for part in name.removeprefix(PREFIX).split("__")), text


def _put(raw: dict[str, Any], key: tuple[str, ...], text: str, problems: list[str]) -> None:
    target: Any = raw
    for part in key[:-1]:
        target = target.setdefault(part, {})
        if not isinstance(target, dict):
            problems.append(f"the environment: {'.'.join(key)}: {part} is a value, not a section")
            return
    target[key[-1]] = _toml_value(text)


def _toml_value(text: str) -> Any:
    """Numbers, lists and tables as TOML writes them; anything else is a string."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _validated(
    raw: dict[str, Any], source: str, variables: Mapping[tuple[str, ...], str], problems: list[str]
) -> Config:
    try:
        config = Config.model_validate(raw)
    except ValidationError as error:
        problems += explained(error, source, variables=variables)
        problems += [f"{source}: {key}: {text}" for key, text in _contradictions(raw)]
    if problems:
        raise ConfigError(list(dict.fromkeys(problems)))
    return config


def _contradictions(raw: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Those of a file that has other mistakes too, so that all are told at once."""
    services = _section(raw, "services")
    yield from contradictions(services, *(_section(raw, name) for name in ("pipelines", "pools", "shards")))
    yield from unknown_plans(_section(raw, "users"), _section(raw, "plans"))
    yield from unknown_in_worker_pools(_section(raw, "worker_pools"), services)
    # The service's own check is only made when all its values are valid.
    for name, said in services.items():
        if isinstance(said, dict) and (problem := too_many_ways(said)):
            yield f"services.{name}", problem


def _section(raw: dict[str, Any], name: str) -> dict[str, Any]:
    section = raw.get(name)
    return section if isinstance(section, dict) else {}


def explained(
    error: ValidationError,
    source: str,
    section: str | None = None,
    variables: Mapping[tuple[str, ...], str] | None = None,
) -> list[str]:
    """Each mistake as `where: key: what is allowed`; where is the file, or the variable that said it."""
    prefix = f"{section}." if section else ""
    said = []
    for issue in error.errors():
        text = _explain(issue)
        if text is not None:
            key = _key(issue["loc"])
            variable = (variables or {}).get(tuple(key.split(".")))
            said.append(f"{variable or source}: {prefix}{key}: {text}")
    return list(dict.fromkeys(said))


def sqlite_options(url: str) -> tuple[str, str]:
    """(path, synchronous) of `sqlite:///fairlead.db` (relative to the working directory) or `sqlite:////var/lib/f.db`.

    `?synchronous=normal` trades the last few commits before a power loss for speed; a killed process loses nothing.
    """
    base, _, query = url.partition("?")
    scheme, _, rest = base.partition("://")
    path = rest.removeprefix("/")
    if scheme != "sqlite" or not rest.startswith("/") or not path:
        shown = f"{scheme}://..." if "://" in url else url[:20]
        raise ConfigError(
            [
                f"DATABASE_URL: {shown!r} is not supported; "
                "use sqlite:///path/to/fairlead.db or postgresql://user@host/database"
            ]
        )
    options = dict(part.partition("=")[::2] for part in query.split("&")) if query else {}
    mode = options.pop("synchronous", "full").upper()
    if options or mode not in ("FULL", "NORMAL"):
        raise ConfigError([f"DATABASE_URL: ?{query} is not understood; only synchronous=full or normal is allowed"])
    return path, mode


def _key(location: tuple[int | str, ...]) -> str:
    # pydantic names the branch of a union it tried; a reader knows only the key.
    branches = {"BackoffConfig", "list[constrained-float]", "[key]", *BRANCHES}
    return ".".join(str(part) for part in location if part not in branches and not str(part).startswith("list["))


def _explain(issue: Any) -> str | None:
    """None: nothing that would help."""
    match issue["type"]:
        case "model_type" | "list_type" if "backoff" in issue["loc"]:
            # Both forms were tried; whoever wrote one of them wants to hear of that one.
            written = isinstance(issue["input"], dict | list)
            return None if written else f"{BACKOFF}, not {_shown(issue['input'])}"
        case "missing":
            return "is required"
        case "extra_forbidden":
            return "there is no such key; see docs/configuration.md"
        case "string_pattern_mismatch":
            pattern = issue["ctx"]["pattern"]
            return f"{MEANING.get(pattern, f'must match {pattern}')}, not {_shown(issue['input'])}"
        case "value_error":
            return str(issue["ctx"]["error"])
        case _:
            text = issue["msg"].removeprefix("Input should be ")
            if BRANCHES[0] in issue["loc"]:
                text += ', or "auto"'
            return f"should be {text}, not {_shown(issue['input'])}"


def _shown(value: Any) -> str:
    """A wrong value as the user wrote it, shortened, and without the password that a URL may carry."""
    text = re.sub(r"//\S*@", "//***@", repr(value))
    return text if len(text) <= SHOWN else text[:SHOWN] + "…"
