"""migrate: bring the database to this version's schema, without starting anything else."""

from __future__ import annotations

import asyncio
import time

from fairlead.cli.options import ConfigFile, Json
from fairlead.cli.output import print_json, say
from fairlead.cli.redact import without_secrets
from fairlead.config import load, sqlite_options
from fairlead.engines import POSTGRES, store_of
from fairlead.store.port import Store


def migrate(config: ConfigFile = None, json: Json = False) -> None:
    """Open the database and apply what is missing of its schema. `up` does the same when it starts."""
    from fairlead.store.sqlite import connect

    url = load(config).database_url
    if url.startswith(POSTGRES):
        asyncio.run(_open_and_close(store_of(url, time.time)))
        shown = without_secrets(url)
        if json:
            print_json({"database": shown})
        else:
            say(f"{shown}: its schema is the one this version knows")
        return
    path, _ = sqlite_options(url)
    before = connect.version_of(path)
    connect.prepare(path)
    after = connect.known_version()
    if json:
        print_json({"database": path, "from": before, "to": after})
    elif before == after:
        say(f"{path}: schema version {after}, nothing to do")
    elif before == 0:
        say(f"{path}: created with schema version {after}")
    else:
        say(f"{path}: schema version {before} brought to {after}")


async def _open_and_close(store: Store) -> None:
    await store.open()
    await store.close()
