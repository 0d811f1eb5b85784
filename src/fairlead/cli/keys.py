"""keys: who may ask. Works on the database itself: a gateway may listen beyond this machine only once there is one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from fairlead.cli.options import ConfigFile, Json
from fairlead.cli.output import local_time, note, print_json, print_table, safe, say

if TYPE_CHECKING:
    from fairlead.app import Fairlead

T = TypeVar("T")

WHO = "cli"

keys = typer.Typer(no_args_is_help=True, help="Make, list or revoke keys.")


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
        str | None, typer.Option("--user", metavar="USER", help="Whose key it is, for the role user.")
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="What lists and the audit call it.")
    ] = None,
    config: ConfigFile = None,
    json: Json = False,
) -> None:
    """Make a key and print it, this once. From the first one on, an admin's, every request needs a key."""
    from fairlead.runtime.keys import shown

    new = _on_database(config, lambda app: app.create_key(role, user_id=user, name=name, who=WHO))
    if json:
        print_json({**shown(new.key), "key": new.text})
        return
    say(new.text)
    whose = f"{new.key.role}, {new.key.name}" if new.key.name != new.key.role else new.key.role
    note(f"key {new.key.id} ({whose}): keep it now, it is not shown again")


@keys.command("list")
def list_keys(config: ConfigFile = None, json: Json = False) -> None:
    """List all keys, revoked ones too, oldest first."""
    from fairlead.runtime.keys import shown

    found = [shown(key) for key in _on_database(config, lambda app: app.keys())]
    if json:
        print_json(found)
    elif found:
        print_table(("ID", "ROLE", "USER", "NAME", "CREATED", "REVOKED"), map(_row, found))
    else:
        note("no keys: requests need none, and gateways listen on loopback only")


@keys.command()
def revoke(
    key_id: Annotated[str, typer.Argument(metavar="ID", help="The key's id, as `list` shows it.")],
    config: ConfigFile = None,
    json: Json = False,
) -> None:
    """Revoke a key. Within about a second no gateway takes it any more."""
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
    from fairlead.config import load

    async def opened() -> T:
        async with database_of(load(config)) as app:
            return await act(app)

    return asyncio.run(opened())
