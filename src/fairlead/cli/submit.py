"""submit: submits one job."""

from __future__ import annotations

import json as jsonlib
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from fairlead.cli.client import client_command, gateway
from fairlead.cli.failure import Exit, Failure
from fairlead.cli.follow import Raw, end_of, follow, print_output
from fairlead.cli.jobs import hint_next, show_job, wait_text
from fairlead.cli.options import (
    FOREVER,
    IdempotencyKey,
    Json,
    OldIdempotencyKey,
    complete_features,
    duration,
    duration_or_forever,
    future,
    moment,
    seconds_in,
)
from fairlead.cli.output import hint, note, print_json, say
from fairlead.domain.job import Priority
from fairlead.domain.submission import ANONYMOUS


class SubmitCommand(TyperCommand):
    """The command class of `submit`. It allows `--wait` without a value, which typer does not support."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, with_wait_value(args))


def with_wait_value(args: list[str]) -> list[str]:
    filled: list[str] = []
    for index, argument in enumerate(args):
        if argument == "--":
            return filled + args[index:]
        following = args[index + 1] if index + 1 < len(args) else ""
        filled.append(f"--wait={FOREVER}" if argument == "--wait" and not _is_wait(following) else argument)
    return filled


def _is_wait(text: str) -> bool:
    # A negative number is a wrong value of --wait, not the name of a feature.
    return seconds_in(text.removeprefix("-")) is not None


FeatureName = Annotated[
    str,
    typer.Argument(metavar="FEATURE", help="The pipeline or service to run.", autocompletion=complete_features),
]
InputText = Annotated[str | None, typer.Argument(metavar="JSON", help="The input, a JSON object.")]
InputOption = Annotated[str | None, typer.Option("--input", metavar="JSON", help="The input, a JSON object.")]
InputFile = Annotated[
    str | None, typer.Option("--file", "-f", metavar="FILE", help="Read the input from a file; `-` is stdin.")
]
InputParams = Annotated[
    list[str] | None,
    typer.Option("--param", "-p", metavar="KEY=VALUE", help="One key of the input; the value is JSON or text."),
]
UserId = Annotated[
    str, typer.Option("--user", metavar="USER", help="The user; with a user's key, the user of the key.")
]
JobPriority = Annotated[Priority | None, typer.Option("--priority", metavar="PRIORITY", help="high, medium or low.")]
Delay = Annotated[
    float | None,
    typer.Option("--delay", metavar="DURATION", parser=duration, help="Start no sooner than in 90s, 5m, 1h30m."),
]
At = Annotated[
    str | None,
    typer.Option("--at", metavar="TIME", parser=moment, help="Start no sooner than 2026-12-31T18:00 (ISO 8601)."),
]
Deadline = Annotated[
    str | None,
    typer.Option("--deadline", metavar="TIME", parser=future, help="Fail if not finished by this time, or in 2h."),
]
Region = Annotated[
    str | None, typer.Option("--region", metavar="REGION", help="The preferred region of the first call.")
]
AllowedRegions = Annotated[
    str | None, typer.Option("--allowed-regions", metavar="A,B", help="The only regions that its calls may go to.")
]
Metadata = Annotated[str | None, typer.Option("--metadata", metavar="JSON", help="Stored with the job, a JSON object.")]
Wait = Annotated[
    float | None,
    typer.Option(
        "--wait", metavar="[DURATION]", parser=duration_or_forever, help="Wait for the result, at most this long."
    ),
]

Stream = Annotated[bool, typer.Option("--stream", help="Print the job's output as it is made, until the job ends.")]


@client_command
def submit(
    feature: FeatureName,
    text: InputText = None,
    input_: InputOption = None,
    file: InputFile = None,
    param: InputParams = None,
    user: UserId = ANONYMOUS,
    priority: JobPriority = None,
    delay: Delay = None,
    at: At = None,
    deadline: Deadline = None,
    region: Region = None,
    allowed_regions: AllowedRegions = None,
    metadata: Metadata = None,
    idempotency_key: IdempotencyKey = None,
    old_key: OldIdempotencyKey = None,
    wait: Wait = None,
    stream: Stream = False,
    raw: Raw = False,
    json: Json = False,
) -> None:
    """Submit a job to a pipeline or service.

    The input is a JSON object: an argument, `--input` or `--file`; `--param` sets single keys.
    """
    body = {
        "feature_name": feature,
        "input_data": input_data(text, input_, file, param or []),
        "user_id": user,
        "priority": priority and priority.value,
        "delay": delay,
        "scheduled_at": at,
        "deadline": deadline,
        "region": region,
        "allowed_regions": allowed_regions.split(",") if allowed_regions is not None else None,
        "metadata": json_object(metadata, "--metadata") if metadata is not None else None,
    }
    target = gateway()
    receipt = target.post(
        "/api/v1/jobs",
        {name: value for name, value in body.items() if value is not None},
        headers={"Idempotency-Key": key} if (key := idempotency_key or old_key) else None,
    )
    if stream or wait is not None:
        raise typer.Exit(_followed(receipt["job_id"], wait, stream=stream, raw=raw, json=json))
    if json:
        print_json(receipt)
    else:
        position = receipt.get("position")
        queued = f"  position {position}{wait_text(receipt.get('estimated_wait'))}" if position else ""
        say(f"{receipt['job_id']}  {receipt['status']}{queued}")
        if sys.stdout.isatty():
            hint(f"follow it with: fairlead watch {receipt['job_id']}")


def _followed(job_id: str, wait: float | None, *, stream: bool, raw: bool, json: bool) -> Exit:
    if wait is not None and not stream:
        return _waited(job_id, wait, json=json)
    try:
        return print_output(gateway(), job_id, raw=raw, json=json)
    except KeyboardInterrupt:
        note(f"the job continues; follow it with: fairlead watch --output {job_id}")
        return Exit.INTERRUPTED


def _waited(job_id: str, wait: float, *, json: bool) -> Exit:
    """Follow the job until it ends or `wait` seconds have passed, with its progress on stderr. Then print the job to
    stdout, and return the exit code for its status."""
    if not json:
        note(f"{job_id}  submitted", style="dim")
    target = gateway()
    try:
        follow(target, job_id, timeout=wait, on_stderr=True, quiet=json)
    except KeyboardInterrupt:
        note(f"the job continues; follow it with: fairlead watch {job_id}")
        return Exit.INTERRUPTED
    job = target.job(job_id)
    end = end_of(job["status"])
    if json:
        print_json(job)
        return end
    show_job(job)
    if end is Exit.NOT_FINISHED:
        hint(f"not finished yet; follow it with: fairlead watch {job_id}")
    hint_next(job)
    return end


def input_data(text: str | None, option: str | None, file: str | None, params: list[str]) -> dict[str, Any]:
    """Return the input of a job: the JSON object from the argument, `--input` or `--file`, of which only one may be
    used, with the keys from `--param` added."""
    sources = [
        (value, name) for value, name in ((text, "JSON"), (option, "--input"), (file, "--file")) if value is not None
    ]
    if len(sources) > 1:
        raise Failure(f"pass the input only once: {' or '.join(name for _, name in sources)}", Exit.USAGE)
    data: dict[str, Any] = {}
    if file is not None:
        data = json_object(_read(file), file)
    elif sources:
        data = json_object(*sources[0])
    for param in params:
        name, equals, value = param.partition("=")
        if not name or not equals:
            raise Failure(f"--param {param}: should be KEY=VALUE", Exit.USAGE)
        data[name] = _json_or_text(value)
    return data


def _read(file: str) -> str:
    try:
        return sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Failure(f"{file}: cannot be read: {error}", Exit.USAGE) from None


def json_object(text: str, where: str) -> dict[str, Any]:
    try:
        value = jsonlib.loads(text, parse_constant=_no_constant)
    except ValueError as error:
        raise Failure(f"{where}: not JSON: {error}", Exit.USAGE) from None
    if not isinstance(value, dict):
        raise Failure(f'{where}: should be a JSON object such as {{"prompt": "..."}}', Exit.USAGE)
    return value


def _json_or_text(text: str) -> Any:
    try:
        return jsonlib.loads(text, parse_constant=_no_constant)
    except ValueError:
        return text


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
