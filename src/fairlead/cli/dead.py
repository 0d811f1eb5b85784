"""dead: the jobs that FAILED for good, the dead letter queue. For operators."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from fairlead.cli.client import gateway
from fairlead.cli.failure import Exit, Failure
from fairlead.cli.jobs import error_text
from fairlead.cli.options import All, Feature, Json, Limit, User, Yes
from fairlead.cli.output import local_time, note, print_json, print_table, safe, say

PATH = "/admin/queue-dead"

dead = typer.Typer(no_args_is_help=True, help="List, requeue or purge failed jobs.")

JobIds = Annotated[
    list[str] | None, typer.Argument(metavar="[ID]...", help="These jobs; or select them with the options below.")
]
Every = Annotated[bool, typer.Option("--all", help="All failed jobs.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say how many jobs it would be, and show a few.")]
Service = Annotated[str | None, typer.Option("--service", metavar="NAME", help="Only those whose step of it failed.")]
Error = Annotated[str | None, typer.Option("--error", metavar="CODE", help="Only those that ended so, e.g. HTTP_503.")]
Like = Annotated[
    str | None,
    typer.Option(
        "--like", metavar="TEXT", help="Only those whose error's message is this, with # for numbers and ids."
    ),
]
Retryable = Annotated[
    bool | None, typer.Option("--retryable/--permanent", help="Only those that their user may, or may not, resume.")
]
Since = Annotated[str | None, typer.Option("--since", metavar="TIME", help="Only those that failed then or later.")]
Until = Annotated[str | None, typer.Option("--until", metavar="TIME", help="Only those that failed before.")]


@dead.command("list")
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
    """List failed jobs, newest first, with why."""
    where = _filters(user, feature, service, error, like, retryable, since, until)
    if retryable is not None:
        where["retryable"] = "true" if retryable else "false"
    jobs = list(gateway().pages(PATH, limit=None if everything else limit, **where))
    if json:
        print_json(jobs)
    elif jobs:
        print_table(("ID", "FEATURE", "USER", "FAILED", "ATTEMPTS", "RESUMABLE", "ERROR"), map(_row, jobs))
    else:
        note("no failed jobs")


@dead.command()
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
    from_start: Annotated[
        bool, typer.Option("--from-start", help="Run all steps again, not only those from the failed one on.")
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Put failed jobs back in line, with all their attempts afresh."""
    where = _filters(user, feature, service, error, like, retryable, since, until)
    body = {**_selection(job_ids, where, everything), "from_start": from_start}
    # Named jobs are meant; a filter may catch more than was thought.
    _act("requeue", body, ask=not job_ids and not yes, dry_run=dry_run, json=json)


@dead.command()
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
    """Delete failed jobs and everything kept about them, for good."""
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
    """Those that are given, as the gateway calls them."""
    given = {
        "user_id": user,
        "feature_name": feature,
        "service": service,
        "error_code": error,
        "error_like": like,
        "retryable": retryable,
        "since": since,
        "until": until,
    }
    return {name: value for name, value in given.items() if value is not None}


def _selection(job_ids: list[str] | None, where: dict[str, Any], everything: bool) -> dict[str, Any]:
    if sum((bool(job_ids), bool(where), everything)) != 1:
        raise Failure("say which jobs: ids, or filters such as --user and --error, or --all", Exit.USAGE)
    if everything:
        return {"all": True}
    return {"job_ids": job_ids} if job_ids else where


def _act(verb: str, body: dict[str, Any], *, ask: bool, dry_run: bool, json: bool) -> None:
    target, path = gateway(), f"{PATH}/{verb}"
    if ask and not dry_run:
        if not sys.stdin.isatty():
            raise Failure(f"this would {verb} jobs; say --yes, or --dry-run to see how many", Exit.USAGE)
        found = target.post(path, {**body, "dry_run": True})
        count = found[f"{verb}d"]
        if "until" in found:  # what fails while the question stands is left alone
            body = {**{name: value for name, value in body.items() if name != "all"}, "until": found["until"]}
        typer.confirm(f"{verb} {count} failed job{'s' if count != 1 else ''}?", abort=True, err=True)
    answer = target.post(path, {**body, "dry_run": dry_run})
    if json:
        print_json(answer)
    else:
        count = answer[f"{verb}d"]
        say(f"{count} job{'s' if count != 1 else ''} {'would be ' if dry_run else ''}{verb}d")
        if answer.get("sample"):
            print_table(("ID", "FEATURE", "USER", "SERVICE", "FAILED", "ERROR"), map(_sample_row, answer["sample"]))
    if missing := answer.get("missing"):
        for job_id in missing:
            note(f"{job_id}: there is no such job, or it has not failed", style="red")
        raise typer.Exit(Exit.REFUSED)


def _row(job: dict[str, Any]) -> tuple[Any, ...]:
    return (
        job["job_id"],
        job["feature_name"],
        job["user_id"],
        local_time(job["finished_at"]),
        len(job.get("attempts") or ()),
        "yes" if job.get("retryable") else "no",
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
