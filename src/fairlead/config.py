"""Reads the settings from `fairlead.toml` and from environment variables, which override the file. All problems are
reported at once."""

from __future__ import annotations

import difflib
import importlib.util
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError

from fairlead.domain.config import BRANCHES, MEANING, Config
from fairlead.domain.config_checks import contradictions, too_many_ways, unknown_in_worker_pools, unknown_plans
from fairlead.domain.rate_config import POOL_BRANCHES
from fairlead.domain.redaction import redacted
from fairlead.errors import ConfigError
from fairlead.urls import engine_problems, resolved

DEFAULT_FILE = "fairlead.toml"
DEFAULT_DATABASE_URL = "sqlite:///fairlead.db"
PREFIX = "FAIRLEAD_"
SHOWN = 100
ADMIN_KEY = "FAIRLEAD_ADMIN_KEY"
SHORTEST_ADMIN_KEY = 16
_MAKE_ADMIN_KEY = "create one with: openssl rand -hex 32"
BACKOFF = "should be a table such as { base = 2, factor = 2, max = 60, jitter = 0.2 } or a list of seconds"

# Variables that existing deployments and Celery already use.
ALIASES = {
    "ARTIFACTS_URL": ("artifacts", "url"),
    "PRIORITY_API_URL": ("priority", "url"),
    "PROMOTE_LOW_TO_MEDIUM_AFTER": ("promotion", "low_to_medium_after"),
    "PROMOTE_MEDIUM_TO_HIGH_AFTER": ("promotion", "medium_to_high_after"),
    "CELERY_BROKER_URL": ("celery", "broker_url"),
    "CELERY_RESULT_BACKEND": ("celery", "result_backend"),
}


@dataclass(frozen=True)
class Settings:
    """The configuration, and the URLs of the database and of Redis. Without a `redis_url`, a single process dispatches
    from memory."""

    config: Config
    database_url: str = DEFAULT_DATABASE_URL
    admin_key: str | None = None
    source: str | None = None
    redis_url: str | None = None

    @property
    def shards(self) -> dict[str, str]:
        """The URL of every shard except the main one, which is `redis_url`."""
        urls = {name: resolved(url, os.environ) for name, url in self.config.shards.items()}
        return {name: url for name, url in urls.items() if url is not None}

    def problems(self) -> list[str]:
        """What is wrong with the URLs of the database and Redis, or with their combination."""
        return list(engine_problems(self.database_url, self.redis_url, self.config.shards, self.source, os.environ))


def load(
    path: str | Path | None = None,
    environ: Mapping[str, str] | None = None,
    *,
    service: tuple[str, Mapping[str, Any]] | None = None,
) -> Settings:
    """Read the settings from the file at `path` and from the environment. Without `path`, `fairlead.toml` in the
    working directory is read, if it exists. `service` is the name and the table of a service that the options of a
    command declare, each key by the option of the same name; the environment overrides the table. The file must not
    have this service."""
    environ = os.environ if environ is None else environ
    raw, source = _read(path)
    problems: list[str] = []
    variables: dict[tuple[str, ...], str] = {}
    if service is not None:
        variables.update(_declare(raw, *service))
    for variable, key, value in _overrides(environ):
        variables[key] = variable
        _put(raw, key, value, problems)
    database_url = environ.get("DATABASE_URL") or DEFAULT_DATABASE_URL
    redis_url = environ.get("REDIS_URL") or None
    admin_key = _read_admin_key(environ, problems)
    try:
        config = _validated(raw, source or "the environment", variables, problems)
    except ConfigError as error:
        # Add the problems that `Settings.problems` would report later, so that all problems are shown at once.
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
    """The problems that validation of the file alone cannot find: contradictions, unset environment variables, a
    missing HTTP client. Called once all services are known, including those declared in code."""
    problems = [f"{source}: {key}: {text}" for key, text in config.contradictions()]
    sent = {f"services.{name}": service.headers for name, service in config.services.items()}
    for section, headers in {**sent, "priority": config.priority.headers}.items():
        for header, value in headers.items():
            variable = value.removeprefix("env:")
            if value.startswith("env:") and variable not in os.environ:
                problems.append(
                    f"{source}: {section}.headers.{header}: the environment variable {variable} is not set; "
                    f"set it, or write the value here"
                )
    if config.priority.url is not None and importlib.util.find_spec("aiohttp") is None:
        problems.append(f"{source}: priority.url: needs an HTTP client: pip install 'fairlead[server]'")
    return problems


def _declare(raw: dict[str, Any], name: str, table: Mapping[str, Any]) -> dict[tuple[str, ...], str]:
    """Add a service to the sections of the file. Returns the option of each of its keys."""
    services = raw.setdefault("services", {})
    if isinstance(services, dict):  # the validation reports what it is otherwise
        if name in services:
            raise ConfigError([f"--{name}: the configuration has a service {name!r} already"])
        services[name] = dict(table)
    return {("services", name, key): f"--{key}" for key in table}


def _read_admin_key(environ: Mapping[str, str], problems: list[str]) -> str | None:
    """Read the admin key from the environment, without surrounding whitespace: files with secrets usually end with a
    newline, which a header cannot contain."""
    value = environ.get(ADMIN_KEY)
    if not value:
        return None
    key = value.strip()
    if not key:
        problems.append(f"{ADMIN_KEY}: is blank; {_MAKE_ADMIN_KEY}, or unset it")
    elif not (key.isascii() and key.isprintable()):
        problems.append(f"{ADMIN_KEY}: contains characters that a header cannot carry; {_MAKE_ADMIN_KEY}")
    return key


def admin_key_too_short(key: str | None) -> str | None:
    """An error message if the key is too short; None if it is long enough. Callers treat a short key as a warning if
    the gateway listens on loopback only, and as an error otherwise."""
    if key is None or len(key) >= SHORTEST_ADMIN_KEY:
        return None
    return f"{ADMIN_KEY}: has {len(key)} characters and can be guessed; {_MAKE_ADMIN_KEY}"


def _read(path: str | Path | None) -> tuple[dict[str, Any], str | None]:
    if path is None:
        if not Path(DEFAULT_FILE).exists():
            return {}, None
        path = DEFAULT_FILE
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8")), str(path)
    except FileNotFoundError:
        raise ConfigError([f"{path}: no such file"]) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError([f"{path}: cannot be read: {error}"]) from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError([f"{path}: is not valid TOML: {error}"]) from None


def _overrides(environ: Mapping[str, str]) -> Iterator[tuple[str, tuple[str, ...], str]]:
    """The settings in environment variables. `FAIRLEAD_SERVER__PORT=8123` means `[server] port = 8123`: a double
    underscore separates a section from its key."""
    for name, text in sorted(environ.items()):
        if name in ALIASES and not text:
            continue  # compose files pass unset variables as empty
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
    """Convert the text of an environment variable to a value: numbers, booleans, lists and tables are parsed as TOML;
    any other text is a string."""
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
    """The contradictions in a configuration that could not be parsed because of other errors."""
    services = _section(raw, "services")
    yield from contradictions(services, *(_section(raw, name) for name in ("pipelines", "pools", "shards")))
    yield from unknown_plans(_section(raw, "users"), _section(raw, "plans"))
    yield from unknown_in_worker_pools(_section(raw, "worker_pools"), services)
    # Pydantic runs the check of a whole service only if all values of the service are valid.
    for name, table in services.items():
        if isinstance(table, dict) and (problem := too_many_ways(table)):
            yield f"services.{name}", problem


def _section(raw: dict[str, Any], name: str) -> dict[str, Any]:
    section = raw.get(name)
    return section if isinstance(section, dict) else {}


def explained(
    error: ValidationError,
    source: str,
    section: str | None = None,
    variables: Mapping[tuple[str, ...], str] | None = None,
    model: type[BaseModel] = Config,
) -> list[str]:
    """Format each error as `source: key: what is allowed`. The source is the file or the environment variable with the
    error. `model` is what was validated."""
    prefix = f"{section}." if section else ""
    messages = []
    for issue in error.errors():
        text = _explain(issue, model)
        if text is not None:
            key = _key(issue["loc"])
            messages.append(f"{_variable(key, variables or {}) or source}: {prefix}{key}: {text}")
    return list(dict.fromkeys(messages))


def _variable(key: str, variables: Mapping[tuple[str, ...], str]) -> str | None:
    """The environment variable that set a key, or the table or list that contains it."""
    parts = tuple(key.split("."))
    return next((variables[parts[:end]] for end in range(len(parts), 0, -1) if parts[:end] in variables), None)


@dataclass(frozen=True, slots=True)
class SqliteOptions:
    """The path and the options in a SQLite URL. `short_switch_interval` allows Fairlead to call
    `sys.setswitchinterval`."""

    path: str
    synchronous: str
    short_switch_interval: bool


def sqlite_options(url: str) -> SqliteOptions:
    """Parse a SQLite URL: `sqlite:///fairlead.db` is relative to the working directory, `sqlite:////var/lib/f.db` is
    absolute.

    With `?synchronous=normal` commits are faster, but a power loss may undo the last few of them; a killed process
    loses nothing. With `?switch_interval=short` the commits of a busy process are faster, because threads switch more
    often in the whole interpreter.
    """
    base, _, query = url.partition("?")
    scheme, _, rest = base.partition("://")
    path = rest.removeprefix("/")
    if scheme != "sqlite" or not rest.startswith("/") or not path:
        shown = f"{scheme}://..." if "://" in url and scheme.isalpha() else "this"
        raise ConfigError(
            [
                f"DATABASE_URL: {shown} is not supported; "
                "use sqlite:///path/to/fairlead.db or postgresql://user@host/database"
            ]
        )
    options = dict(part.partition("=")[::2] for part in query.split("&")) if query else {}
    mode = options.pop("synchronous", "full").upper()
    interval = options.pop("switch_interval", "default")
    if options or mode not in ("FULL", "NORMAL") or interval not in ("default", "short"):
        valid = "synchronous=full or normal, and switch_interval=default or short"
        raise ConfigError([f"DATABASE_URL: the options after the ? are {valid}"])
    return SqliteOptions(path, mode, interval == "short")


def _key(location: tuple[int | str, ...]) -> str:
    # Drop the branch names of unions that pydantic adds to the location.
    branches = {"BackoffConfig", "[key]", *BRANCHES, *POOL_BRANCHES}
    types = ("list[", "function-before[", "function-after[")
    return ".".join(str(part) for part in location if part not in branches and not str(part).startswith(types))


def _explain(issue: Any, model: type[BaseModel]) -> str | None:
    """One validation error in words; None if other errors already report it."""
    match issue["type"]:
        case "model_type" | "list_type" if "backoff" in issue["loc"]:
            # Both forms were tried; report only the one that was written.
            written = isinstance(issue["input"], dict | list)
            return None if written else f"{BACKOFF}, not {_shown(issue['input'])}"
        case "string_type" if issue["loc"][-2:] == ("cost", "str"):
            return None  # the other form, a number, is reported
        case "int_parsing_size":
            return f"is too large: {_shown(issue['input'])}"
        case "missing":
            return "is required"
        case "extra_forbidden":
            return f"unknown key; {_similar(issue['loc'], model)}see docs/configuration.md"
        case "string_pattern_mismatch":
            pattern = issue["ctx"]["pattern"]
            return f"{MEANING.get(pattern, f'must match {pattern}')}, not {_shown(issue['input'])}"
        case "value_error":
            return str(issue["ctx"]["error"])
        case _:
            _, should, rest = issue["msg"].partition("should ")  # "Input should be ...", "String should have ..."
            text = f"{should}{rest}" if rest else f"should be {issue['msg']}"
            if BRANCHES[0] in issue["loc"]:
                text += ', or "auto"'
            return f"{text}, not {_shown(issue['input'])}"


def _similar(location: tuple[int | str, ...], model: type[BaseModel]) -> str:
    """The question `did you mean ...?`, if the same section has a key with a similar name; otherwise empty."""
    *section, written = map(str, location)
    matches = difflib.get_close_matches(written, _keys_of(section, model), n=1, cutoff=0.75)
    return f"did you mean {matches[0]!r}? " if matches else ""


def _keys_of(section: list[str], model: type[BaseModel]) -> list[str]:
    """The keys that a section within the model may have."""
    parts = iter(section)
    for part in parts:
        field = model.model_fields.get(part)  # None: the branch of a union, which pydantic adds
        inner = None if field is None else _model_in(field.annotation)
        if field is not None and inner is not None:
            model = inner
            if get_origin(field.annotation) is dict:
                next(parts, None)  # the name of the section
    return sorted(model.model_fields)


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_model_in, get_args(annotation))), None)


def _shown(value: Any) -> str:
    """The invalid value as it is shown in messages: shortened, and without the secrets of a URL."""
    text = re.sub(r"//\S*@", "//***@", redacted(repr(value)))
    text = re.sub(r"\?.*", "?***'", text) if "://" in text else text
    return text if len(text) <= SHOWN else text[:SHOWN] + "…"
