"""keys, migrate: commands that access the database directly. `keys` does not call a gateway, because a gateway listens
on a public address only once a key exists."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from fairlead.backends import POSTGRES, store_of
from fairlead.cli.options import ConfigFile, Json
from fairlead.cli.output import local_time, note, print_json, print_table, safe, say
from fairlead.cli.redact import without_secrets
from fairlead.config import load, sqlite_options
from fairlead.store.port import Store

if TYPE_CHECKING:
    from fairlead.app.fairlead import Fairlead

T = TypeVar("T")

WHO = "cli"

keys = typer.Typer(no_args_is_help=True, help="Create, list or revoke API keys.")


@keys.command()
def create(
    role: Annotated[
        str,
        typer.Option(
            "--role",
            metavar="ROLE",
            help="admin: everything; viewer: sees everything; service: acts for any user; user: its own jobs only.",
        ),
    ],
    user: Annotated[
        str | None, typer.Option("--user", metavar="USER", help="The user of the key, for the role user.")
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="A name for lists and the audit log.")
    ] = None,
    config: ConfigFile = None,
    json: Json = False,
) -> None:
    """Create a key and print it once. As soon as an admin key exists, every request needs a key."""
    from fairlead.app.api_keys import shown

    new = _on_database(config, lambda app: app.create_key(role, user_id=user, name=name, who=WHO))
    if json:
        print_json({**shown(new.key), "key": new.text})
        return
    say(new.text)
    whose = f"{new.key.role}, {new.key.name}" if new.key.name != new.key.role else new.key.role
    note(f"key {new.key.id} ({whose}): store it now, it is not shown again")


@keys.command("list")
def list_keys(config: ConfigFile = None, json: Json = False) -> None:
    """List all keys, revoked ones too, oldest first."""
    from fairlead.app.api_keys import shown

    rows = [shown(key) for key in _on_database(config, lambda app: app.keys())]
    if json:
        print_json(rows)
    elif rows:
        print_table(("ID", "ROLE", "USER", "NAME", "CREATED", "REVOKED"), map(_row, rows))
    else:
        note("no keys: requests need none, and gateways listen on loopback only")


@keys.command()
def revoke(
    key_id: Annotated[str, typer.Argument(metavar="ID", help="The key's id, as `list` shows it.")],
    config: ConfigFile = None,
    json: Json = False,
) -> None:
    """Revoke a key. All gateways refuse it within about a second."""
    _on_database(config, lambda app: app.revoke_key(key_id, who=WHO))
    if json:
        print_json({"revoked": key_id})
    else:
        say(f"key {key_id} is revoked")


def _row(key: dict[str, Any]) -> tuple[Any, ...]:
    revoked = key["revoked_at"]
    return (
        key["id"],
        key["role"],
        key["user_id"],
        key["name"],
        local_time(key["created_at"]),
        safe(local_time(revoked), "red") if revoked else "",
    )


def _on_database(config: Path | None, act: Callable[[Fairlead], Awaitable[T]]) -> T:
    from fairlead.cli.loading import database_of

    async def opened() -> T:
        async with database_of(load(config)) as app:
            return await act(app)

    return asyncio.run(opened())


def migrate(config: ConfigFile = None, json: Json = False) -> None:
    """Migrate the database to the schema of this version.

    `up` does the same when it starts.
    """
    from fairlead.store.sqlite import connect

    url = load(config).database_url
    if url.startswith(POSTGRES):
        asyncio.run(_open_and_close(store_of(url, time.time)))
        shown = without_secrets(url)
        if json:
            print_json({"database": shown})
        else:
            say(f"{shown}: the schema is up to date")
        return
    path = sqlite_options(url).path
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
        say(f"{path}: migrated from schema version {before} to {after}")


async def _open_and_close(store: Store) -> None:
    await store.open()
    await store.close()
