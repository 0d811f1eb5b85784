"""turn: runs a command while holding a slot, as flock(1) does with a lock."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from fairlead.cli.client import client_command, failures, gateway_url
from fairlead.cli.failure import Exit, Failure
from fairlead.cli.options import Json, Service, duration
from fairlead.cli.output import note, print_json
from fairlead.client import Client, ClientTurn
from fairlead.domain.job import Priority

LOOK_EVERY_S = 0.2
STOP_WITHIN_S = 10.0
ENDS = (signal.SIGTERM, signal.SIGHUP)


class TurnCommand(TyperCommand):
    """The command class of `turn`. It accepts the options of `turn` before the service and directly after it. The first
    argument after these options, or after `--`, is the command to run. All later options belong to that command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        flags = ("--json", "--help", "-h")
        valued = {name for each in self.params for name in each.opts if name.startswith("-")} - {*flags}
        return super().parse_args(ctx, options_first(args, valued))


def options_first(args: list[str], valued: Collection[str]) -> list[str]:
    """Reorder the arguments of `turn`: first its own options, then `--`, the service, and the command to run. `valued`
    has the names of the options that take a value."""
    options: list[str] = []
    service: list[str] = []
    rest = list(args)
    while rest:
        if rest[0] == "--":
            rest.pop(0)
            if service:
                break
            service, rest = rest[:1], rest[1:]
        elif rest[0].startswith("-") and not (service and rest[0] == "-"):
            options.append(rest.pop(0))
            if options[-1] in valued:
                options += rest[:1]
                del rest[:1]
        elif not service:
            service.append(rest.pop(0))
        else:
            break
    return [*options, "--", *service, *rest] if service else options


class _Failed(Exception):
    """Raised inside the turn if the command fails, so that the turn ends as failed. `code` is the exit code of the
    command."""

    def __init__(self, code: int) -> None:
        super().__init__(f"the command ended with {code}")
        self.code = code


@client_command
def turn(
    service: Service,
    command: Annotated[list[str], typer.Argument(metavar="COMMAND", help="The command to run while the slot is held.")],
    user: Annotated[
        str | None, typer.Option("--user", metavar="USER", help="The user; with a user's key, the user of the key.")
    ] = None,
    priority: Annotated[
        Priority | None, typer.Option("--priority", metavar="PRIORITY", help="high, medium or low.")
    ] = None,
    wait_timeout: Annotated[
        float | None,
        typer.Option("--wait-timeout", metavar="DURATION", parser=duration, help="Give up after waiting 90s, 5m, 1h."),
    ] = None,
    cost: Annotated[
        float | None,
        typer.Option("--cost", metavar="N", help="The expected cost in the unit of the service, else in seconds."),
    ] = None,
    json: Json = False,
) -> None:
    """Wait for a slot of a service, and run a command in it.

    Options come before or right after SERVICE; `--` or the command ends them.
    Exits with the exit code of the command.
    """

    def moved(position: int) -> None:
        if not json:
            note(f"position {position} in the queue of {service}")

    try:
        with (
            failures(),
            _handled(dict.fromkeys(ENDS, _leave)),
            Client(gateway_url()) as client,
            client.turn(
                service,
                user,
                on_position=moved,
                wait_timeout=wait_timeout,
                priority=priority,
                cost=cost,
                metadata={"command": command[0][:200]},
            ) as held,
        ):
            code = _run(command, held)
            if code:
                raise _Failed(code)
            held.result = {"exit_code": 0}
    except _Failed as failed:
        code = failed.code
    if json:
        print_json({"turn_id": held.id, "exit_code": code})
    raise typer.Exit(code)


def _run(command: list[str], held: ClientTurn) -> int:
    """Run the command and return its exit code, as a shell would. If the slot is lost, the command is stopped."""
    environment = {**os.environ, "FAIRLEAD_TURN_ID": held.id}
    try:
        process = subprocess.Popen(command, env=environment)
    except OSError as error:
        raise Failure(f"{command[0]} cannot be run: {error.strerror or error}", Exit.USAGE) from None
    # The terminal sends an interrupt to the command too; other signals are forwarded to it. Either way, the command
    # ends before this process.
    ends = dict.fromkeys(ENDS, lambda number, frame: process.send_signal(number))
    with _handled({**ends, signal.SIGINT: lambda number, frame: None}):
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = process.wait(LOOK_EVERY_S)
                return code if code >= 0 else 128 - code
            if held.lost.is_set():
                note("the slot is lost: stopping the command", style="red")
                _stop(process)


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_WITHIN_S)
    except subprocess.TimeoutExpired:
        process.kill()


def _leave(number: int, frame: object) -> None:
    """Signal handler: exit with an exception, so that the turn is cancelled at once. Otherwise the gateway would notice
    the end of this process only after the heartbeat timeout."""
    raise SystemExit(128 + number)


@contextlib.contextmanager
def _handled(handlers: Mapping[signal.Signals, Callable[[int, Any], None]]) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
