"""The `fairlead` command: registers all commands and handles their errors."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from fairlead.cli import budgets, follow, jobs, operators, process, rates, status, submit, turn
from fairlead.cli.batch import batch
from fairlead.cli.celery import celery
from fairlead.cli.certs import certs
from fairlead.cli.client import Url, choose
from fairlead.cli.config import config
from fairlead.cli.database import keys, migrate
from fairlead.cli.dead import dead
from fairlead.cli.docs import docs
from fairlead.cli.doctor import doctor
from fairlead.cli.failure import Exit, Failure
from fairlead.cli.files import files
from fairlead.cli.init import init
from fairlead.cli.logs import choose_format, log_to_stderr
from fairlead.cli.options import LogFormat, LogLevel
from fairlead.cli.output import note, print_problem
from fairlead.cli.schedules import schedules
from fairlead.cli.usage import usage
from fairlead.cli.webhooks import webhooks
from fairlead.errors import ConfigError, FairleadError
from fairlead.version import __version__

SYNONYMS = {
    "add": "submit", "cron": "schedules", "enqueue": "submit", "explain": "why", "health": "doctor", "history": "audit",
    "job": "get", "jobs": "list", "kill": "cancel", "logs": "watch", "ls": "list", "new": "init", "ps": "list",
    "queue": "status", "queues": "status", "requeue": "dead requeue", "run": "up", "serve": "up", "services": "status",
    "show": "get", "start": "up", "stats": "status", "stop": "cancel", "tail": "watch",
}  # fmt: skip
"""Names that other tools use for a command, and the command here."""


class Commands(TyperGroup):
    """Suggests the command for a name that other tools use. Similar names are suggested by Typer."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] in SYNONYMS:
            ctx.fail(f"No such command {args[0]!r}. Did you mean {SYNONYMS[args[0]]!r}?")
        return super().resolve_command(ctx, args)


app = typer.Typer(
    name="fairlead",
    cls=Commands,
    help="The line in front of scarce AI endpoints: a durable, fair job queue and gateway.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
JOBS, QUEUE, OPERATE, RUN, SET_UP = "Jobs", "Queue", "Operate", "Run", "Set up"
WITHOUT_GATEWAY = frozenset(
    {"up", "api", "worker", "manager", "migrate", "keys", "config", "celery", "init", "docs", "certs"}
)

app.command(cls=submit.SubmitCommand, rich_help_panel=JOBS)(submit.submit)
app.command("list", rich_help_panel=JOBS)(jobs.list_jobs)
app.command(rich_help_panel=JOBS)(jobs.get)
app.command(rich_help_panel=JOBS)(follow.watch)
app.command(rich_help_panel=JOBS)(jobs.why)
app.command(rich_help_panel=JOBS)(jobs.cancel)
app.command(rich_help_panel=JOBS)(jobs.retry)
app.command(rich_help_panel=JOBS)(jobs.resume)
app.command(cls=turn.TurnCommand, rich_help_panel=JOBS)(turn.turn)
app.add_typer(batch, name="batch", rich_help_panel=JOBS)
app.add_typer(files, name="files", rich_help_panel=JOBS)
app.command(rich_help_panel=QUEUE)(status.status)
app.command(rich_help_panel=QUEUE)(operators.limit)
app.command(rich_help_panel=QUEUE)(rates.rate)
app.command(rich_help_panel=QUEUE)(budgets.budget)
app.command(rich_help_panel=QUEUE)(operators.pause)
app.command(rich_help_panel=QUEUE)(operators.unpause)
app.command(rich_help_panel=QUEUE)(operators.priority)
app.add_typer(dead, name="dead", rich_help_panel=QUEUE)
app.command(rich_help_panel=OPERATE)(doctor)
app.command(rich_help_panel=OPERATE)(usage)
app.command(rich_help_panel=OPERATE)(operators.audit)
app.command(rich_help_panel=OPERATE)(operators.rebuild)
app.add_typer(operators.workers, name="workers", rich_help_panel=OPERATE)
app.add_typer(webhooks, name="webhooks", rich_help_panel=OPERATE)
app.add_typer(schedules, name="schedules", rich_help_panel=OPERATE)
app.add_typer(celery, name="celery", rich_help_panel=OPERATE)
app.command(rich_help_panel=RUN)(process.up)
app.command(rich_help_panel=RUN)(process.api)
app.command(rich_help_panel=RUN)(process.worker)
app.command(rich_help_panel=RUN)(process.manager)
app.command(rich_help_panel=SET_UP)(init)
app.command(rich_help_panel=SET_UP)(docs)
app.command(rich_help_panel=SET_UP)(migrate)
app.add_typer(certs, name="certs", rich_help_panel=SET_UP)
app.add_typer(keys, name="keys", rich_help_panel=SET_UP)
app.add_typer(config, name="config", rich_help_panel=SET_UP)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"fairlead {__version__}")
        raise typer.Exit


@app.callback()
def root(
    context: typer.Context,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
    url: Url = None,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    if url is not None and context.invoked_subcommand in WITHOUT_GATEWAY:
        raise Failure(f"`fairlead {context.invoked_subcommand}` calls no gateway; omit --url", Exit.USAGE)
    choose(url)
    context.obj = log_level
    choose_format(log_format)
    log_to_stderr(log_level or "warning")


def run() -> int:
    """Run a command and return its exit code. Expected errors are printed as one line of text; a traceback is printed
    only for a bug."""
    # Search the raw arguments: an error may have occurred while the options were parsed.
    as_json = "--json" in sys.argv
    try:
        app(prog_name="fairlead")
    except Failure as failure:
        return _report(failure, as_json)
    except ConfigError as error:
        return _report(
            Failure(str(error), Exit.USAGE, problem={"code": error.code, "problems": error.problems}), as_json
        )
    except FairleadError as error:
        return _report(Failure(str(error), problem={"code": error.code, "detail": str(error)}), as_json)
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    except BrokenPipeError:
        # The reader of the pipe has exited (`fairlead list --all | head`).
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.OK
    return Exit.OK


def _report(failure: Failure, as_json: bool) -> Exit:
    if as_json:
        print_problem(failure.problem)
    else:
        for line in failure.message.splitlines():
            note(line, style="red")
    return failure.code
