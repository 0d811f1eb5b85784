"""The `fairlead` command: all groups put together, and how any error leaves it."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from fairlead.cli import api, jobs, manager, migrate, operators, status, submit, turn, up, watch, why, worker
from fairlead.cli.batch import batch
from fairlead.cli.celery import celery
from fairlead.cli.config import config
from fairlead.cli.dead import dead
from fairlead.cli.doctor import doctor
from fairlead.cli.failure import Exit, Failure
from fairlead.cli.keys import keys
from fairlead.cli.logs import log_to_stderr
from fairlead.cli.options import LogLevel
from fairlead.cli.output import note, print_problem
from fairlead.cli.workers import workers
from fairlead.errors import ConfigError, FairleadError
from fairlead.version import __version__

app = typer.Typer(
    name="fairlead",
    help="The line in front of scarce AI endpoints: a durable, fair job queue and gateway.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(up.up)
app.command()(api.api)
app.command()(worker.worker)
app.command()(manager.manager)
app.command(cls=submit.SubmitCommand)(submit.submit)
app.command()(jobs.get)
app.command("list")(jobs.list_jobs)
app.command()(watch.watch)
app.command()(why.why)
app.command()(jobs.cancel)
app.command()(jobs.resume)
app.add_typer(batch, name="batch")
app.command(context_settings=turn.CONTEXT)(turn.turn)
app.command()(jobs.retry)
app.add_typer(dead, name="dead")
app.command()(status.status)
app.command()(operators.pause)
app.command()(operators.unpause)
app.command()(operators.limit)
app.command()(operators.priority)
app.command()(operators.rebuild)
app.command()(operators.audit)
app.add_typer(workers, name="workers")
app.add_typer(celery, name="celery")
app.add_typer(keys, name="keys")
app.command()(doctor)
app.command()(migrate.migrate)
app.add_typer(config, name="config")


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"fairlead {__version__}")
        raise typer.Exit


@app.callback()
def root(
    context: typer.Context,
    log_level: LogLevel = None,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    context.obj = log_level
    log_to_stderr(log_level or "warning")


def run() -> int:
    """The exit code. Every expected error is told in words; only a bug shows a traceback."""
    # Not an option's value, since the error may be that the options cannot be parsed.
    as_json = "--json" in sys.argv
    try:
        app()
    except Failure as failure:
        return _told(failure, as_json)
    except ConfigError as error:
        return _told(Failure(str(error), Exit.USAGE, problem={"code": error.code, "problems": error.problems}), as_json)
    except FairleadError as error:
        return _told(Failure(str(error), problem={"code": error.code, "detail": str(error)}), as_json)
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    except BrokenPipeError:
        # The reader of our pipe has seen enough (`fairlead list --all | head`). Nothing is left to say.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.OK
    return Exit.OK


def _told(failure: Failure, as_json: bool) -> Exit:
    if as_json:
        print_problem(failure.problem)
    else:
        for line in failure.message.splitlines():
            note(line, style="red")
    return failure.code
