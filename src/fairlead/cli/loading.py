"""Finding the Fairlead object that a command is to work on."""

from __future__ import annotations

import asyncio
import importlib
import sys
from dataclasses import replace
from pathlib import Path

from fairlead.app import Fairlead
from fairlead.cli.failure import Exit, Failure
from fairlead.config import Settings, sqlite_options
from fairlead.domain.config import Config
from fairlead.engines import POSTGRES
from fairlead.runtime.keys import is_live_admin


def load_app(app_path: str | None, config: Path | None) -> Fairlead:
    """The object that `module:name` names, or one made from the configuration alone."""
    # Both modules of the project and `function = "module:name"` are found from where the command is run.
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    if app_path is None:
        return Fairlead(config)
    if config is not None:
        raise Failure(f"{app_path} has its own configuration; --config is for when no app is given", Exit.USAGE)
    return _imported(app_path)


def database_of(settings: Settings) -> Fairlead:
    """An app that knows where the database is, and nothing else: neither services nor a dispatcher."""
    return Fairlead(replace(settings, config=Config(), redis_url=None))


def has_admin_key(settings: Settings) -> bool:
    """Whether an admin's key guards the gateways of this database. One that is not there yet is not made."""
    if settings.admin_key is not None:
        return True
    if not settings.database_url.startswith(POSTGRES) and not Path(sqlite_options(settings.database_url)[0]).exists():
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
        # A module that the project itself imports in vain is a mistake in its code, and wants its traceback.
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise Failure(f"{app_path}: there is no module {error.name!r} in {Path.cwd()}", Exit.USAGE) from None
    app = getattr(module, name, None)
    if not isinstance(app, Fairlead):
        found = "nothing of that name" if app is None else f"a {type(app).__name__}"
        raise Failure(f"{app_path}: should be a Fairlead object, but there is {found}", Exit.USAGE)
    return app
