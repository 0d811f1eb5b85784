"""Loads the Fairlead object of a command."""

from __future__ import annotations

import asyncio
import importlib
import os
import sys
from dataclasses import replace
from pathlib import Path

from fairlead.app.api_keys import is_live_admin
from fairlead.app.fairlead import Fairlead
from fairlead.backends import POSTGRES
from fairlead.cli.failure import Exit, Failure
from fairlead.config import PREFIX, Settings, load, sqlite_options
from fairlead.domain.config import Config

UPSTREAM = "openai"
"""The service of `fairlead up --openai URL`."""


def load_app(app_path: str | None, config: Path | None) -> Fairlead:
    """Load the Fairlead object that `module:name` names or, without `module:name`, create one from the configuration
    alone."""
    # All modules, including those of `function = "module:name"`, are imported from the working directory.
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    if app_path is None:
        return Fairlead(config)
    if config is not None:
        raise Failure(f"{app_path} has its own configuration; use --config only without an app", Exit.USAGE)
    return _imported(app_path)


def load_with_upstream(app_path: str | None, config: Path | None, url: str, limit: int | None) -> Fairlead:
    """Create a Fairlead object from the configuration, with a server with OpenAI's protocol as one more service. The
    environment may set further keys of this service, and its limit if `limit` is None."""
    if app_path is not None:
        raise Failure(f'--openai: {app_path} declares its own services; add openai = "{url}" to one', Exit.USAGE)
    given = {"openai"} if limit is None else {"openai", "limit"}
    overridden = {f"{PREFIX}SERVICES__{UPSTREAM}__{key}".upper() for key in given}
    environ = {name: value for name, value in os.environ.items() if name.upper() not in overridden}
    return Fairlead(load(config, environ, service=(UPSTREAM, {"openai": url, "limit": limit or 1})))


def database_of(settings: Settings) -> Fairlead:
    """Return a Fairlead object that has only the database: no services and no Redis."""
    return Fairlead(replace(settings, config=Config(), redis_url=None))


def has_admin_key(settings: Settings) -> bool:
    """Return whether there is an admin key. Does not create the database if it does not exist yet."""
    if settings.admin_key is not None:
        return True
    if not settings.database_url.startswith(POSTGRES) and not Path(sqlite_options(settings.database_url).path).exists():
        return False

    async def look() -> bool:
        async with database_of(settings) as app:
            return any(map(is_live_admin, await app.keys()))

    return asyncio.run(look())


def _imported(app_path: str) -> Fairlead:
    module_name, colon, name = app_path.partition(":")
    if not module_name or not colon or not name:
        raise Failure(f"{app_path}: should be module:name, for example myproject.jobs:app", Exit.USAGE)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        # A missing module that the project imports is an error in its code, and needs the traceback.
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise Failure(f"{app_path}: no module {error.name!r} in {Path.cwd()}", Exit.USAGE) from None
    app = getattr(module, name, None)
    if not isinstance(app, Fairlead):
        actual = "nothing of that name" if app is None else f"a {type(app).__name__}"
        raise Failure(f"{app_path}: should be a Fairlead object, but there is {actual}", Exit.USAGE)
    return app
