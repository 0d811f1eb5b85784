"""submit: one job, from the words of a command line."""

from __future__ import annotations

import json as jsonlib
import math
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from fairlead.cli.client import gateway
from fairlead.cli.failure import Exit, Failure
from fairlead.cli.follow import end_of, follow
from fairlead.cli.jobs import show_job, wait_text
from fairlead.cli.options import Json
from fairlead.cli.output import note, print_json, say
from fairlead.domain.job import Priority
from fairlead.runtime.submission import ANONYMOUS

FOREVER = str(math.inf)


class SubmitCommand(TyperCommand):
    """Lets `--wait` stand alone: typer knows options with a value and options without, but not both in one."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, with_wait_value(args))


def with_wait_value(args: list[str]) -> list[str]:
    filled: list[str] = []
    for index, argument in enumerate(args):
        if argument == "--":
            return filled + args[index:]
        following = args[index + 1] if index + 1 < len(args) else ""
        filled.append(f"--wait={FOREVER}" if argument == "--wait" and not _is_number(following) else argument)
    return filled


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def submit(
    feature: Annotated[str, typer.Argument(metavar="FEATURE", help="The pipeline or service to run.")],
    text: Annotated[str | None, typer.Argument(metavar="[JSON]", help="The input, a JSON object.")] = None,
    input_: Annotated[str | None, typer.Option("--input", metavar="JSON", help="The input, a JSON object.")] = None,
    file: Annotated[
        str | None, typer.Option("--file", "-f", metavar="FILE", help="Read the input from a file; `-` is stdin.")
    ] = None,
    param: Annotated[
        list[str] | None,
        typer.Option("--param", "-p", metavar="KEY=VALUE", help="One key of the input; the value is JSON or text."),
    ] = None,
    user: Annotated[
        str, typer.Option("--user", metavar="USER", help="Whose job it is; the user of a user's key.")
    ] = ANONYMOUS,
    priority: Annotated[
        Priority | None, typer.Option("--priority", metavar="PRIORITY", help="high, medium or low.")
    ] = None,
    delay: Annotated[
        float | None, typer.Option("--delay", metavar="SECONDS", help="Start no sooner than this.")
    ] = None,
    at: Annotated[
        str | None, typer.Option("--at", metavar="TIME", help="Start no sooner than this moment (ISO 8601).")
    ] = None,
    deadline: Annotated[
        str | None,
        typer.Option(
            "--deadline", metavar="TIME", help="Fail if not finished by then (ISO 8601, or seconds from now)."
        ),
    ] = None,
    region: Annotated[str | None, typer.Option("--region", metavar="REGION", help="Where the first call goes.")] = None,
    allowed_regions: Annotated[
        str | None,
        typer.Option("--allowed-regions", metavar="A,B", help="The only regions that its calls may go to."),
    ] = None,
    metadata: Annotated[
        str | None, typer.Option("--metadata", metavar="JSON", help="Kept with the job, a JSON object.")
    ] = None,
    key: Annotated[
        str | None,
        typer.Option("--key", metavar="KEY", help="Idempotency key: sent twice, the job is made once."),
    ] = None,
    wait: Annotated[
        float | None,
        typer.Option("--wait", min=0, metavar="[SECONDS]", help="Wait for the result, for ever or this long."),
    ] = None,
    json: Json = False,
) -> None:
    """Submit a job."""
    body = {
        "feature_name": feature,
        "input_data": input_data(text, input_, file, param or []),
        "user_id": user,
        "priority": priority and priority.value,
        "delay": delay,
        "scheduled_at": at,
        "deadline": float(deadline) if deadline and _is_number(deadline) else deadline,
        "region": region,
        "allowed_regions": allowed_regions.split(",") if allowed_regions is not None else None,
        "metadata": _json_object(metadata, "--metadata") if metadata is not None else None,
    }
    target = gateway()
    receipt = target.post(
        "/api/v1/jobs",
        {name: value for name, value in body.items() if value is not None},
        headers={"Idempotency-Key": key} if key else None,
    )
    if wait is not None:
        raise typer.Exit(_waited(receipt["job_id"], wait, json=json))
    if json:
        print_json(receipt)
    else:
        position = receipt.get("position")
        place = f"  position {position}{wait_text(receipt.get('estimated_wait'))}" if position else ""
        say(f"{receipt['job_id']}  {receipt['status']}{place}")
        if sys.stdout.isatty():
            note(f"watch it with: fairlead watch {receipt['job_id']}", style="dim")


def _waited(job_id: str, wait: float, *, json: bool) -> Exit:
    """Follow the job on stderr; its outcome goes to stdout."""
    if not json:
        note(f"{job_id}  submitted", style="dim")
    target = gateway()
    try:
        follow(target, job_id, timeout=wait, on_stderr=True, quiet=json)
    except KeyboardInterrupt:
        note(f"the job goes on; see it with: fairlead watch {job_id}")
        return Exit.INTERRUPTED
    job = target.job(job_id)
    if json:
        print_json(job)
    else:
        show_job(job)
    return end_of(job["status"])


def input_data(text: str | None, option: str | None, file: str | None, params: list[str]) -> dict[str, Any]:
    """The input from wherever it was given, with single keys on top."""
    given = [
        (value, name) for value, name in ((text, "JSON"), (option, "--input"), (file, "--file")) if value is not None
    ]
    if len(given) > 1:
        raise Failure(f"give the input once: {' or '.join(name for _, name in given)}", Exit.USAGE)
    data: dict[str, Any] = {}
    if file is not None:
        data = _json_object(_read(file), file)
    elif given:
        data = _json_object(*given[0])
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


def _json_object(text: str, where: str) -> dict[str, Any]:
    try:
        value = jsonlib.loads(text, parse_constant=_no_constant)
    except ValueError as error:
        raise Failure(f"{where}: this is not JSON: {error}", Exit.USAGE) from None
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
