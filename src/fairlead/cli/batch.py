"""batch: many jobs as one, from a file with one item a line."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer

from fairlead.cli.client import Gateway, gateway
from fairlead.cli.failure import Exit, Failure
from fairlead.cli.options import All, Json, Limit
from fairlead.cli.output import local_time, note, print_json, print_table, safe, say, stdout
from fairlead.domain.job import Priority

BATCHES = "/api/v1/batches"
WAIT_AT_A_TIME = 30
_FAILED = ("FAILED", "CANCELLED")

BatchId = Annotated[str, typer.Argument(metavar="ID", help="The batch's id, as `batch submit` printed it.")]

batch = typer.Typer(no_args_is_help=True, help="Submit many jobs as one, and see to them.")


@batch.command()
def submit(
    file: Annotated[str, typer.Argument(metavar="FILE", help="One item a line, as JSON; `-` is stdin.")],
    user: Annotated[str | None, typer.Option("--user", metavar="USER", help="Whose batch it is.")] = None,
    name: Annotated[str | None, typer.Option("--name", metavar="NAME", help="What lists call it.")] = None,
    feature: Annotated[
        str | None,
        typer.Option("--feature", metavar="NAME", help="The pipeline or service of items that name none."),
    ] = None,
    priority: Annotated[
        Priority | None,
        typer.Option("--priority", metavar="PRIORITY", help="Of items that say none: high, medium or low."),
    ] = None,
    region: Annotated[
        str | None, typer.Option("--region", metavar="REGION", help="Where the first calls go of items that say none.")
    ] = None,
    allowed_regions: Annotated[
        str | None,
        typer.Option("--allowed-regions", metavar="A,B", help="The only regions for calls of items that say none."),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option("--key", metavar="KEY", help="Idempotency key: sent twice, the batch is made once."),
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until every item has ended.")] = False,
    json: Json = False,
) -> None:
    """Submit a batch from a file of JSON Lines: all items or none."""
    target = gateway()
    said = {
        "user_id": user,
        "name": name,
        "feature_name": feature,
        "priority": priority and priority.value,
        "region": region,
        "allowed_regions": allowed_regions,
    }
    receipt = target.post_lines(
        BATCHES,
        _read(file),
        params={name: value for name, value in said.items() if value is not None},
        headers={"Idempotency-Key": key} if key else {},
    )
    if wait:
        if not json:
            note(f"{receipt['batch_id']}  {receipt['total']} items submitted", style="dim")
        raise typer.Exit(_waited(target, receipt["batch_id"], json=json))
    if json:
        print_json(receipt)
    else:
        say(f"{receipt['batch_id']}  {receipt['total']} items")


@batch.command()
def get(
    batch_id: BatchId,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until every item has ended.")] = False,
    json: Json = False,
) -> None:
    """Show one batch: its counts and its progress."""
    target = gateway()
    if wait:
        raise typer.Exit(_waited(target, batch_id, json=json))
    _show(target.get(path_of(batch_id)), json=json)


@batch.command("list")
def list_batches(
    user: Annotated[str | None, typer.Option("--user", metavar="USER", help="Only this user's batches.")] = None,
    limit: Limit = 20,
    everything: All = False,
    json: Json = False,
) -> None:
    """List batches, newest first."""
    found = gateway().pages(BATCHES, limit=None if everything else limit, user_id=user)
    if json:
        print_json(list(found))
        return
    rows = [
        (
            each["batch_id"],
            each.get("name"),
            each["user_id"],
            each["total"],
            f"{each['progress']:.0%}",
            sum(each["counts"][status] for status in _FAILED),
            local_time(each["created_at"]),
            local_time(each["finished_at"]) if each.get("finished_at") else None,
        )
        for each in found
    ]
    if rows:
        print_table(("ID", "NAME", "USER", "ITEMS", "ENDED", "FAILED", "CREATED", "FINISHED"), rows)
    else:
        note("no batches")


@batch.command()
def results(
    batch_id: BatchId,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write here instead of to stdout.")
    ] = None,
    json: Json = False,
) -> None:
    """Print every item with its result, one line of JSON for each, in their order."""
    pieces = gateway().stream(f"{path_of(batch_id)}/results")
    if output is None:
        _write(pieces, sys.stdout.buffer)
        return
    first = next(pieces, b"")  # a batch that is not there makes no file
    try:
        with output.open("wb") as file:
            file.write(first)
            _write(pieces, file)
    except OSError as error:
        raise Failure(f"{output}: cannot be written: {error.strerror or error}", Exit.USAGE) from None
    if json:
        print_json({"batch_id": batch_id, "output": str(output)})


@batch.command()
def cancel(batch_id: BatchId, json: Json = False) -> None:
    """Cancel every item that has not ended. Running calls are stopped."""
    _acted(gateway().post(f"{path_of(batch_id)}/cancel"), "cancelled", json=json)


@batch.command()
def resume(batch_id: BatchId, json: Json = False) -> None:
    """Put every failed item that is marked retryable back in line, at the step that failed."""
    _acted(gateway().post(f"{path_of(batch_id)}/resume"), "resumed", json=json)


@batch.command()
def retry(
    batch_id: BatchId,
    item: Annotated[str, typer.Argument(metavar="ITEM", help="Its custom_id, or its number from 0.")],
    json: Json = False,
) -> None:
    """Put one failed item back in line, at the step that failed, whether it is marked retryable or not."""
    if item in ("", ".", "..") or "/" in item:
        raise Failure(f"{item!r} cannot be part of a path; use the item's number", Exit.USAGE)
    retried = gateway().post(f"{path_of(batch_id)}/items/{quote(item, safe='')}/retry")
    if json:
        print_json(retried)
    else:
        say(f"{retried['job_id']}  {retried['status']}")


def path_of(batch_id: str) -> str:
    if batch_id in ("", ".", ".."):
        raise Failure(f"{batch_id!r} is not a batch id", Exit.USAGE)
    return f"{BATCHES}/{quote(batch_id, safe='')}"


def _read(file: str) -> bytes:
    try:
        return sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as error:
        raise Failure(f"{file}: cannot be read: {error.strerror or error}", Exit.USAGE) from None


def _write(pieces: Iterator[bytes], file: Any) -> None:
    for piece in pieces:
        file.write(piece)
    file.flush()


def _waited(target: Gateway, batch_id: str, *, json: bool) -> Exit:
    """Its end goes to stdout, the way there to stderr."""
    shown = -1.0
    while True:
        found = target.get(path_of(batch_id), headers={"Prefer": f"wait={WAIT_AT_A_TIME}"})
        if found["finished_at"] is not None:
            break
        if not json and found["progress"] != shown:
            shown = found["progress"]
            note(f"{shown:.0%} of {found['total']} items have ended", style="dim")
    _show(found, json=json)
    return Exit.JOB_FAILED if any(found["counts"][status] for status in _FAILED) else Exit.OK


def _acted(said: dict[str, Any], what: str, *, json: bool) -> None:
    if json:
        print_json(said)
    else:
        say(f"{said['batch']['batch_id']}  {said[what]} items {what}")


def _show(found: dict[str, Any], *, json: bool) -> None:
    if json:
        print_json(found)
        return
    facts = [("batch", found["batch_id"]), ("name", found.get("name")), ("user", found["user_id"])]
    facts.append(("items", f"{found['total']}, {found['progress']:.0%} have ended"))
    facts += [(status.lower(), str(count)) for status, count in found["counts"].items() if count]
    moments = (("created", "created_at"), ("finished", "finished_at"), ("expected", "estimated_end"))
    facts += [(name, local_time(found[field])) for name, field in moments if found.get(field)]
    for name, value in facts:
        if value is not None:
            line = safe(f"{name:<12}", "bold")
            line.append_text(safe(str(value)))
            stdout().print(line)
