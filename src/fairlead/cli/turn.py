"""turn: run a command while holding a slot, as flock does with a lock."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any

import typer

from fairlead.cli.failure import Exit, Failure
from fairlead.cli.options import Json
from fairlead.cli.output import note, print_json
from fairlead.client import Client, ClientTurn, NoConnection
from fairlead.domain.job import Priority

LOOK_EVERY_S = 0.2
STOP_WITHIN_S = 10.0
ENDS = (signal.SIGTERM, signal.SIGHUP)
CONTEXT: dict[str, Any] = {"allow_interspersed_args": False}
"""What follows the service is the command, with options of its own."""


class _Failed(Exception):
    """Leaves the turn as a failure; the command's own exit code becomes ours."""

    def __init__(self, code: int) -> None:
        super().__init__(f"the command ended with {code}")
        self.code = code


def turn(
    service: Annotated[str, typer.Argument(metavar="SERVICE", help="Whose slot to wait for.")],
    command: Annotated[list[str], typer.Argument(metavar="COMMAND...", help="What to run while it is held.")],
    user: Annotated[
        str | None, typer.Option("--user", metavar="USER", help="Whose turn it is; the user of a user's key.")
    ] = None,
    priority: Annotated[
        Priority | None, typer.Option("--priority", metavar="PRIORITY", help="high, medium or low.")
    ] = None,
    wait_timeout: Annotated[
        float | None, typer.Option("--wait-timeout", metavar="SECONDS", help="Give up waiting after so long.")
    ] = None,
    json: Json = False,
) -> None:
    """Wait in line for a slot of a service, and run a command while it is held. Its exit code is the command's."""

    def moved(position: int) -> None:
        if not json:
            note(f"number {position} in line for {service}")

    try:
        with (
            _handled(dict.fromkeys(ENDS, _leave)),
            Client() as client,
            client.turn(
                service,
                user,
                on_position=moved,
                wait_timeout=wait_timeout,
                priority=priority,
                metadata={"command": command[0][:200]},
            ) as held,
        ):
            code = _run(command, held)
            if code:
                raise _Failed(code)
            held.result = {"exit_code": 0}
    except _Failed as failed:
        code = failed.code
    except NoConnection as error:
        raise Failure(str(error), Exit.NO_CONNECTION) from None
    if json:
        print_json({"turn_id": held.id, "exit_code": code})
    raise typer.Exit(code)


def _run(command: list[str], held: ClientTurn) -> int:
    """Its exit code, as a shell has it. Without the slot it may not go on."""
    environment = {**os.environ, "FAIRLEAD_TURN_ID": held.id}
    try:
        process = subprocess.Popen(command, env=environment)
    except OSError as error:
        raise Failure(f"{command[0]} cannot be run: {error.strerror or error}", Exit.USAGE) from None
    # The terminal sends an interrupt to the command too; who ends us means the command. Either way it ends first.
    ends = dict.fromkeys(ENDS, lambda number, frame: process.send_signal(number))
    with _handled({**ends, signal.SIGINT: lambda number, frame: None}):
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = process.wait(LOOK_EVERY_S)
                return code if code >= 0 else 128 - code
            if held.lost.is_set():
                note("the slot is lost: the command is stopped", style="red")
                _stop(process)


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_WITHIN_S)
    except subprocess.TimeoutExpired:
        process.kill()


def _leave(number: int, frame: object) -> None:
    """Who waits leaves the line, rather than be missed after a while."""
    raise SystemExit(128 + number)


@contextlib.contextmanager
def _handled(handlers: Mapping[signal.Signals, Callable[[int, Any], None]]) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
