"""batch: submits and manages batches. The items of a batch are read from a file, one per line."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer

from fairlead.cli.client import Gateway, checked_id, client_command, gateway
from fairlead.cli.failure import Exit, Failure
from fairlead.cli.options import (
    All,
    FromStart,
    IdempotencyKey,
    Json,
    Limit,
    OldIdempotencyKey,
    complete_batches,
    complete_features,
)
from fairlead.cli.output import hint, local_time, note, print_json, print_table, safe, say, stdout
from fairlead.domain.job import Priority

BATCHES = "/api/v1/batches"
WAIT_AT_A_TIME = 30
_FAILED = ("FAILED", "CANCELLED")

BatchId = Annotated[
    str,
    typer.Argument(metavar="ID", help="The batch's id, as `batch submit` prints it.", autocompletion=complete_batches),
]
ItemFeature = Annotated[
    str | None,
    typer.Option(
        "--feature",
        metavar="NAME",
        help="The pipeline or service of items that do not set one.",
        autocompletion=complete_features,
    ),
]
ItemPriority = Annotated[
    Priority | None,
    typer.Option("--priority", metavar="PRIORITY", help="high, medium or low, for items that do not set one."),
]
ItemRegion = Annotated[
    str | None,
    typer.Option("--region", metavar="REGION", help="The preferred region of items that do not set one."),
]
ItemAllowedRegions = Annotated[
    str | None,
    typer.Option("--allowed-regions", metavar="A,B", help="The only regions for items that do not set them."),
]
Wait = Annotated[bool, typer.Option("--wait", help="Wait until every item has ended.")]

batch = typer.Typer(no_args_is_help=True, help="Submit and manage batches: many jobs as one.")


@batch.command()
@client_command
def submit(
    file: Annotated[str, typer.Argument(metavar="FILE", help="One JSON item per line; `-` is stdin.")],
    user: Annotated[
        str | None, typer.Option("--user", metavar="USER", help="The user that the batch belongs to.")
    ] = None,
    name: Annotated[str | None, typer.Option("--name", metavar="NAME", help="A name for lists.")] = None,
    feature: ItemFeature = None,
    priority: ItemPriority = None,
    region: ItemRegion = None,
    allowed_regions: ItemAllowedRegions = None,
    idempotency_key: IdempotencyKey = None,
    old_key: OldIdempotencyKey = None,
    wait: Wait = False,
    json: Json = False,
) -> None:
    """Submit a batch from a JSON Lines file: all items or none."""
    target, key = gateway(), idempotency_key or old_key
    fields = {
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
        params={name: value for name, value in fields.items() if value is not None},
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
@client_command
def get(
    batch_id: BatchId,
    wait: Wait = False,
    json: Json = False,
) -> None:
    """Show a batch with its counts and progress."""
    target = gateway()
    if wait:
        raise typer.Exit(_waited(target, batch_id, json=json))
    _show(target.get(path_of(batch_id)), json=json)


@batch.command("list")
@client_command
def list_batches(
    user: Annotated[str | None, typer.Option("--user", metavar="USER", help="Only this user's batches.")] = None,
    limit: Limit = 20,
    everything: All = False,
    json: Json = False,
) -> None:
    """List batches, newest first."""
    batches = gateway().pages(BATCHES, limit=None if everything else limit, user_id=user)
    if json:
        print_json(list(batches))
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
        for each in batches
    ]
    if rows:
        columns = ("ID", "NAME", "USER", "ITEMS", "ENDED", "FAILED", "CREATED", "FINISHED")
        print_table(columns, rows, optional=("FINISHED", "CREATED"), flexible=("NAME", "USER"))
    else:
        note("no batches")


@batch.command()
@client_command
def results(
    batch_id: BatchId,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write to this file instead of stdout.")
    ] = None,
    json: Json = False,
) -> None:
    """Print every item with its result in order, one line of JSON each."""
    pieces = gateway().stream(f"{path_of(batch_id)}/results")
    if output is None:
        _write(pieces, sys.stdout.buffer)
        return
    first = next(pieces, b"")  # no file is created for an unknown batch
    try:
        with output.open("wb") as file:
            file.write(first)
            _write(pieces, file)
    except OSError as error:
        raise Failure(f"{output}: cannot be written: {error.strerror or error}", Exit.USAGE) from None
    if json:
        print_json({"batch_id": batch_id, "output": str(output)})


@batch.command()
@client_command
def cancel(batch_id: BatchId, json: Json = False) -> None:
    """Cancel every item that has not ended. Running calls are stopped."""
    _acted(gateway().post(f"{path_of(batch_id)}/cancel"), "cancelled", json=json)


@batch.command()
@client_command
def resume(batch_id: BatchId, json: Json = False) -> None:
    """Resume every failed item that is marked retryable."""
    _acted(gateway().post(f"{path_of(batch_id)}/resume"), "resumed", json=json)


@batch.command()
@client_command
def retry(
    batch_id: BatchId,
    item: Annotated[
        str | None, typer.Argument(metavar="ITEM", help="Only this item: its custom_id, or its number from 0.")
    ] = None,
    from_start: FromStart = False,
    json: Json = False,
) -> None:
    """Retry every failed item, or only ITEM, after any error."""
    if item is None:
        body = {"from": "start" if from_start else "step"}
        _acted(gateway().post(f"{path_of(batch_id)}/retry", body), "retried", json=json)
        return
    if from_start:
        raise Failure("--from-start is for all failed items; omit ITEM", Exit.USAGE)
    if item in ("", ".", "..") or "/" in item:
        raise Failure(f"{item!r} cannot be part of a URL path; use the item's number", Exit.USAGE)
    retried = gateway().post(f"{path_of(batch_id)}/items/{quote(item, safe='')}/retry")
    if json:
        print_json(retried)
    else:
        say(f"{retried['job_id']}  {retried['status']}")


def path_of(batch_id: str) -> str:
    return f"{BATCHES}/{checked_id(batch_id, 'batch', 'fairlead batch list')}"


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
    """Wait for a batch to end, and return the exit code. Prints progress to stderr meanwhile, and the batch to stdout
    at the end."""
    shown = -1.0
    while True:
        state = target.get(path_of(batch_id), headers={"Prefer": f"wait={WAIT_AT_A_TIME}"})
        if state["finished_at"] is not None:
            break
        if not json and state["progress"] != shown:
            shown = state["progress"]
            note(f"{shown:.0%} of {state['total']} items have ended", style="dim")
    _show(state, json=json)
    return Exit.JOB_FAILED if any(state["counts"][status] for status in _FAILED) else Exit.OK


def _acted(response: dict[str, Any], what: str, *, json: bool) -> None:
    if json:
        print_json(response)
    else:
        count = response[what]
        say(f"{response['batch']['batch_id']}  {count} item{'' if count == 1 else 's'} {what}")


def _show(state: dict[str, Any], *, json: bool) -> None:
    if json:
        print_json(state)
        return
    facts = [("batch", state["batch_id"]), ("name", state.get("name")), ("user", state["user_id"])]
    facts.append(("items", f"{state['total']}, {state['progress']:.0%} have ended"))
    facts += [(status.lower(), str(count)) for status, count in state["counts"].items() if count]
    moments = (("created", "created_at"), ("finished", "finished_at"), ("expected", "estimated_end"))
    facts += [(name, local_time(state[field])) for name, field in moments if state.get(field)]
    for name, value in facts:
        if value is not None:
            line = safe(f"{name:<12}", "bold")
            line.append_text(safe(str(value)))
            stdout().print(line)
    if state["counts"]["FAILED"]:
        hint(f"run the failed items again with: fairlead batch retry {state['batch_id']}")
