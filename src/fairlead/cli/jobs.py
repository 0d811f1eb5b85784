"""submit, get, list, cancel, resume, retry: what a user does with jobs."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from fairlead.cli.client import gateway, job_path
from fairlead.cli.failure import Exit, Failure
from fairlead.cli.options import All, Feature, JobId, Json, Limit, User
from fairlead.cli.output import (
    clean,
    local_time,
    note,
    pretty_json,
    print_json,
    print_table,
    safe,
    say,
    seconds,
    status_text,
    stdout,
)
from fairlead.domain.job import JobStatus


def get(job_id: JobId, json: Json = False) -> None:
    """Show one job: its state, where it stands, its steps' results and every failed attempt."""
    job = gateway().job(job_id)
    if json:
        print_json(job)
    else:
        show_job(job)


def list_jobs(
    user: User = None,
    status: Annotated[
        JobStatus | None,
        typer.Option("--status", metavar="STATUS", case_sensitive=False, help=f"One of {', '.join(JobStatus)}."),
    ] = None,
    feature: Feature = None,
    since: Annotated[
        str | None, typer.Option("--since", metavar="TIME", help="Only those that were accepted then or later.")
    ] = None,
    until: Annotated[
        str | None, typer.Option("--until", metavar="TIME", help="Only those that were accepted before.")
    ] = None,
    limit: Limit = 20,
    everything: All = False,
    json: Json = False,
) -> None:
    """List jobs, newest first."""
    jobs = gateway().pages(
        "/api/v1/jobs",
        limit=None if everything else limit,
        user_id=user,
        status=status and status.value,
        feature_name=feature,
        since=since,
        until=until,
    )
    if json:
        print_json(list(jobs))
        return
    rows = [_row(job) for job in jobs]
    if rows:
        print_table(("ID", "FEATURE", "USER", "STATUS", "PRIORITY", "STEP", "POSITION", "CREATED"), rows)
    else:
        note("no jobs")


def cancel(
    job_ids: Annotated[list[str], typer.Argument(metavar="ID...", help="One or more jobs.")], json: Json = False
) -> None:
    """Cancel jobs that have not finished. A running call is stopped."""
    target, cancelled, refused = gateway(), [], []
    for job_id in job_ids:
        try:
            cancelled.append(job := target.post(f"{job_path(job_id)}/cancel"))
        except Failure as failure:
            # The others may still be cancelled; without a connection, none can.
            if failure.code is Exit.NO_CONNECTION:
                raise
            refused.append({"job_id": job_id, "problem": failure.problem})
            note(f"{job_id}: {failure.message}", style="red")
        else:
            if not json:
                again = "" if job["status"] == "CANCELLED" else f" (its re-run; the job is {job['status']} as before)"
                say(f"{job_id}  cancelled{again}")
    if json:
        print_json({"cancelled": cancelled, "refused": refused})
    if refused:
        raise typer.Exit(Exit.REFUSED)


def resume(job_id: JobId, json: Json = False) -> None:
    """Put a failed job back in line at the step that failed. Steps that are done stay done."""
    job = gateway().post(f"{job_path(job_id)}/resume")
    if json:
        print_json(job)
    else:
        say(f"{job['job_id']}  {job['status']}")


def retry(
    job_id: JobId,
    step: Annotated[int, typer.Argument(metavar="STEP", min=0, help="Which one, counted from 0.")],
    json: Json = False,
) -> None:
    """Run one step of a finished job again. Later steps are not run again; the earlier result stays in its history."""
    job = gateway().post(f"{job_path(job_id)}/steps/{step}/retry")
    if json:
        print_json(job)
    else:
        say(f"{job['job_id']}  {job['status']}")


def _row(job: dict[str, Any]) -> tuple[Any, ...]:
    return (
        job["job_id"],
        job["feature_name"],
        job["user_id"],
        status_text(job["status"]),
        job["priority"],
        f"{job['current_step_index']}/{job['total_steps']}",
        job.get("position"),
        local_time(job["created_at"]),
    )


def show_job(job: dict[str, Any]) -> None:
    console = stdout()
    for name, value in _facts(job):
        line = safe(f"{name:<12}", "bold")
        line.append_text(value if not isinstance(value, str) else safe(value))
        console.print(line)
    for attempt in job.get("attempts") or ():
        where = f"{attempt['service']}, attempt {attempt['attempt']}"
        console.print(safe(f"  {local_time(attempt['ended_at'])}  {where}: {error_text(attempt['error'])}", "red"))
    if job.get("result") is not None:
        console.print(safe("result", "bold"))
        console.print(pretty_json(job["result"]))


def _facts(job: dict[str, Any]) -> list[tuple[str, Any]]:
    """What there is to say, leaving out what does not apply."""
    facts: list[tuple[str, Any]] = [
        ("job", job["job_id"]),
        ("feature", f"{job['feature_name']} ({' > '.join(job['steps'])})" if job.get("steps") else job["feature_name"]),
        ("user", job["user_id"]),
        ("status", status_text(job["status"])),
        ("priority", _priority(job)),
        ("step", f"{job['current_step_index']} of {job['total_steps']} done"),
    ]
    if job.get("position") is not None:
        facts.append(("position", f"{job['position']}{wait_text(job.get('estimated_wait'))}"))
    if job.get("progress"):
        facts.append(("progress", progress_text(job["progress"])))
    moments = ("created_at", "scheduled_at", "started_at", "finished_at")
    facts += [(name.removesuffix("_at"), local_time(job[name])) for name in moments if job.get(name)]
    if job.get("metadata"):
        facts.append(("metadata", pretty_json(job["metadata"])))
    if job.get("error"):
        how = "; it may be resumed" if job.get("retryable") else ""
        facts.append(("error", safe(f"{error_text(job['error'])}{how}", "red")))
    return facts


def _priority(job: dict[str, Any]) -> str:
    if job["priority"] == job.get("original_priority", job["priority"]):
        return str(job["priority"])
    return f"{job['priority']} (promoted from {job['original_priority']})"


def error_text(error: Any) -> str:
    if not isinstance(error, dict):
        return clean(error)
    message, code = error.get("message"), error.get("code")
    return clean(f"{message} ({code})" if message and code else message or code or error)


def wait_text(wait: dict[str, float] | None) -> str:
    """`, in 5 to 12 s`."""
    if not wait:
        return ""
    low, high = seconds(wait["low"]), seconds(wait["high"])
    return f", in about {high}" if low == high else f", in {low} to {high}"


def progress_text(progress: dict[str, Any]) -> str:
    fraction, message = progress.get("fraction"), progress.get("message")
    parts = [f"{fraction:.0%}"] if isinstance(fraction, int | float) else []
    return clean(" ".join([*parts, str(message)] if message else parts))
