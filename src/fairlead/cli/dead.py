"""dead: commands of operators for dead letters, the jobs that are FAILED."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from fairlead.cli.client import Gateway, client_command, gateway
from fairlead.cli.failure import Exit, Failure
from fairlead.cli.jobs import error_text
from fairlead.cli.options import All, Feature, FromStart, Json, Limit, User, Yes, complete_services, past
from fairlead.cli.output import local_time, note, print_json, print_table, safe, say
from fairlead.domain.config_checks import known

PATH = "/admin/queue-dead"

dead = typer.Typer(no_args_is_help=True, help="List, requeue or purge failed jobs.")

JobIds = Annotated[
    list[str] | None, typer.Argument(metavar="ID", help="These jobs; or select them with the options below.")
]
Every = Annotated[bool, typer.Option("--all", help="All failed jobs.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show how many jobs are affected, and a few of them.")]
Service = Annotated[
    str | None,
    typer.Option(
        "--service",
        metavar="NAME",
        help="Only jobs that failed in a step of this service.",
        autocompletion=complete_services,
    ),
]
Error = Annotated[
    str | None, typer.Option("--error", metavar="CODE", help="Only jobs with this error code, e.g. HTTP_503.")
]
Like = Annotated[
    str | None,
    typer.Option("--like", metavar="TEXT", help="Only jobs with this error message, with # for numbers and ids."),
]
Retryable = Annotated[
    bool | None, typer.Option("--retryable/--permanent", help="Only jobs with a temporary, or a permanent, error.")
]
Since = Annotated[
    str | None,
    typer.Option(
        "--since",
        metavar="TIME",
        parser=past,
        help="Only jobs that failed since this time, or in the last 90s, 1h, 2d.",
    ),
]
Until = Annotated[
    str | None,
    typer.Option("--until", metavar="TIME", parser=past, help="Only jobs that failed before this time, or 1h ago."),
]


@dead.command("list")
@client_command
def list_dead(
    user: User = None,
    feature: Feature = None,
    service: Service = None,
    error: Error = None,
    like: Like = None,
    retryable: Retryable = None,
    since: Since = None,
    until: Until = None,
    limit: Limit = 20,
    everything: All = False,
    json: Json = False,
) -> None:
    """List failed jobs with their errors, newest first."""
    where = _filters(user, feature, service, error, like, retryable, since, until)
    if retryable is not None:
        where["retryable"] = "true" if retryable else "false"
    jobs = list(gateway().pages(PATH, limit=None if everything else limit, **where))
    if not jobs:
        _check_service(gateway(), where)
    if json:
        print_json(jobs)
    elif jobs:
        columns = ("ID", "FEATURE", "USER", "FAILED", "ATTEMPTS", "KIND", "ERROR")
        print_table(columns, map(_row, jobs), optional=("ATTEMPTS", "KIND", "FAILED", "USER"))
    else:
        note("no failed jobs")


@dead.command()
@client_command
def requeue(
    job_ids: JobIds = None,
    user: User = None,
    feature: Feature = None,
    service: Service = None,
    error: Error = None,
    like: Like = None,
    retryable: Retryable = None,
    since: Since = None,
    until: Until = None,
    everything: Every = False,
    from_start: FromStart = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Requeue failed jobs, with all their attempts available again."""
    where = _filters(user, feature, service, error, like, retryable, since, until)
    body = {**_selection(job_ids, where, everything), "from_start": from_start}
    # Ids need no confirmation. A filter may match more jobs than expected.
    _act("requeue", body, ask=not job_ids and not yes, dry_run=dry_run, json=json)


@dead.command()
@client_command
def purge(
    job_ids: JobIds = None,
    user: User = None,
    feature: Feature = None,
    service: Service = None,
    error: Error = None,
    like: Like = None,
    retryable: Retryable = None,
    since: Since = None,
    until: Until = None,
    everything: Every = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Delete failed jobs permanently, with everything that is stored about them."""
    where = _filters(user, feature, service, error, like, retryable, since, until)
    _act("purge", _selection(job_ids, where, everything), ask=not yes, dry_run=dry_run, json=json)


def _filters(
    user: str | None,
    feature: str | None,
    service: str | None,
    error: str | None,
    like: str | None,
    retryable: bool | None,
    since: str | None,
    until: str | None,
) -> dict[str, Any]:
    """Return the filters that the user has set, under the names that the HTTP API uses."""
    filters = {
        "user_id": user,
        "feature_name": feature,
        "service": service,
        "error_code": error,
        "error_like": like,
        "retryable": retryable,
        "since": since,
        "until": until,
    }
    return {name: value for name, value in filters.items() if value is not None}


def _selection(job_ids: list[str] | None, where: dict[str, Any], everything: bool) -> dict[str, Any]:
    if sum((bool(job_ids), bool(where), everything)) != 1:
        raise Failure("select jobs by id, by filters such as --user and --error, or with --all", Exit.USAGE)
    if everything:
        return {"all": True}
    return {"job_ids": job_ids} if job_ids else where


def _check_service(target: Gateway, where: dict[str, Any]) -> None:
    """Raise a Failure if no service has the name of the filter. Call this only if the filters match no job: failed
    jobs of a service that was removed can still be selected."""
    if (service := where.get("service")) is None:
        return
    services = {each["service"] for each in target.get("/queue/status")["services"]}
    if service not in services:
        raise Failure(f"there is no service {service!r}; {known(services)}")


def _act(verb: str, body: dict[str, Any], *, ask: bool, dry_run: bool, json: bool) -> None:
    target, path = gateway(), f"{PATH}/{verb}"
    if ask and not dry_run:
        if not sys.stdin.isatty():
            raise Failure(f"this would {verb} jobs; pass --yes to confirm, or --dry-run to see how many", Exit.USAGE)
        preview = target.post(path, {**body, "dry_run": True})
        count = preview[f"{verb}d"]
        if not count:
            _check_service(target, body)
        if "until" in preview:  # exclude jobs that fail after the question
            body = {**{name: value for name, value in body.items() if name != "all"}, "until": preview["until"]}
        typer.confirm(f"{verb} {count} failed job{'s' if count != 1 else ''}?", abort=True, err=True)
    answer = target.post(path, {**body, "dry_run": dry_run})
    if not answer[f"{verb}d"]:
        _check_service(target, body)
    if json:
        print_json(answer)
    else:
        count = answer[f"{verb}d"]
        say(f"{count} job{'s' if count != 1 else ''} {'would be ' if dry_run else ''}{verb}d")
        if answer.get("sample"):
            print_table(("ID", "FEATURE", "USER", "SERVICE", "FAILED", "ERROR"), map(_sample_row, answer["sample"]))
    if skipped := answer.get("skipped"):
        note(
            f"{skipped} request{'s' if skipped != 1 else ''} of the OpenAI front skipped: their clients are gone; "
            "to run them anyway, select them by id, --service or --feature"
        )
    if missing := answer.get("missing"):
        for job_id in missing:
            note(f"{job_id}: no such job, or it has not failed", style="red")
        raise typer.Exit(Exit.REFUSED)


def _row(job: dict[str, Any]) -> tuple[Any, ...]:
    return (
        job["job_id"],
        job["feature_name"],
        job["user_id"],
        local_time(job["finished_at"]),
        len(job.get("attempts") or ()),
        "temporary" if job.get("retryable") else "permanent",
        safe(error_text(job.get("error")), "red"),
    )


def _sample_row(job: dict[str, Any]) -> tuple[Any, ...]:
    return (
        job["job_id"],
        job["feature_name"],
        job["user_id"],
        job["service"],
        local_time(job["finished_at"]),
        safe(error_text(job.get("error")), "red"),
    )
