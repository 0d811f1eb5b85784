"""files: uploads, lists, downloads and deletes files."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from fairlead.cli.client import client_command, failures, gateway
from fairlead.cli.failure import Exit, Failure
from fairlead.cli.options import All, Json, Limit, User
from fairlead.cli.output import hint, local_time, note, print_json, print_table, safe, say
from fairlead.client.file_calls import FILES, content_path, file_path
from fairlead.domain.files import UPLOAD, clean_name
from fairlead.errors import InvalidInput

FileId = Annotated[str, typer.Argument(metavar="ID", help="The file's id, as `files list` shows it.")]

files = typer.Typer(no_args_is_help=True, help="Upload, list, download and delete files.")


@files.command()
@client_command
def upload(
    path: Annotated[str, typer.Argument(metavar="PATH", help="The file; `-` is stdin.")],
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="Its name; by default that of PATH.")
    ] = None,
    content_type: Annotated[
        str | None, typer.Option("--type", metavar="TYPE", help="Its content type; by default what its name suggests.")
    ] = None,
    purpose: Annotated[str, typer.Option("--purpose", metavar="NAME", help="What it is for.")] = UPLOAD,
    user: User = None,
    expires_after: Annotated[
        float | None, typer.Option("--expires-after", metavar="SECONDS", help="Delete it after this time.")
    ] = None,
    json: Json = False,
) -> None:
    """Upload a file, and print its id."""
    source: Any = sys.stdin.buffer if path == "-" else Path(path)
    if path != "-" and not source.is_file():
        raise Failure(f"{path}: there is no such file", Exit.USAGE)
    with failures():
        file = gateway().client.upload(
            source,
            name or (None if path != "-" else "stdin"),
            content_type=content_type,
            purpose=purpose,
            user_id=user,
            expires_after=expires_after,
        )
    if json:
        print_json(file)
    else:
        print(file["id"])
        hint(f'name it in an input as {{"$file": "{file["id"]}"}}')


@files.command("list")
@client_command
def list_files(
    user: User = None,
    purpose: Annotated[str | None, typer.Option("--purpose", metavar="NAME", help="Only files for this.")] = None,
    limit: Limit = 20,
    everything: All = False,
    json: Json = False,
) -> None:
    """List uploaded files, newest first."""
    found = list(gateway().pages(FILES, limit=None if everything else limit, user_id=user, purpose=purpose))
    if json:
        print_json(found)
        return
    if not found:
        note("no files")
        return
    names = ("id", "name", "content_type", "size", "user_id")
    rows = [(*(safe(str(each[name])) for name in names), local_time(each["created_at"])) for each in found]
    print_table(("id", "name", "type", "bytes", "user", "created"), rows, flexible=("name",))


@files.command()
@client_command
def get(
    file_id: FileId,
    output: Annotated[
        str | None, typer.Option("--output", "-o", metavar="PATH", help="Where to write it; `-` is stdout.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print what is known of it, without its content.")] = False,
) -> None:
    """Download a file, by default to its own name in this folder. Never overwrites a file."""
    with failures_of_ids():
        about = gateway().get(file_path(file_id))
    if json:
        print_json(about)
        return
    pieces = gateway().stream(content_path(file_id))
    if output == "-":
        for piece in pieces:
            sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()
        return
    target = Path(output or clean_name(about["name"]))
    partial = target.with_name(f"{target.name}.{os.getpid()}.part")
    try:
        if target.exists():
            raise Failure(f"{target} exists already; choose another with --output", Exit.USAGE)
        with partial.open("xb") as file:
            file.writelines(pieces)
        os.link(partial, target)
    except OSError as error:
        raise Failure(f"{target}: {error.strerror or error}", Exit.USAGE) from None
    finally:
        partial.unlink(missing_ok=True)
    say(f"{target} ({about['size']:,} bytes)")


@files.command()
@client_command
def delete(file_id: FileId, json: Json = False) -> None:
    """Delete a file. A file that a job uses cannot be deleted before the job."""
    with failures_of_ids():
        gateway().delete(file_path(file_id))
    if json:
        print_json({"deleted": file_id})
    else:
        say(f"deleted {file_id}")


class failures_of_ids:
    """Reports an id that is none as a usage error, before the gateway is called."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, InvalidInput):
            raise Failure("this is not the id of a file; `fairlead files list` shows ids", Exit.USAGE) from None
