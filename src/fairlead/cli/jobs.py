"""get, list, why, cancel, resume, retry: commands for jobs."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from fairlead.cli.client import client_command, gateway, job_path
from fairlead.cli.failure import Exit, Failure
from fairlead.cli.options import All, Feature, FromStart, JobId, Json, Limit, User, Watch, complete_jobs, past
from fairlead.cli.output import (
    clean,
    hint,
    local_time,
    note,
    pretty_json,
    print_json,
    print_table,
    print_whole,
    safe,
    say,
    seconds,
    status_text,
    stdout,
    table,
    terminal_width,
    watch_json,
    watch_view,
    with_local_times,
)
from fairlead.domain.job import JobStatus
from fairlead.domain.retry import DEADLINE_PASSED


@client_command
def get(job_id: JobId, json: Json = False) -> None:
    """Show a job: status, position, results, failed attempts."""
    job = gateway().job(job_id)
    if json:
        print_json(job)
    else:
        show_job(job)
        hint_next(job)


@client_command
def list_jobs(
    user: User = None,
    status: Annotated[
        JobStatus | None,
        typer.Option("--status", metavar="STATUS", case_sensitive=False, help=f"One of {', '.join(JobStatus)}."),
    ] = None,
    feature: Feature = None,
    since: Annotated[
        str | None,
        typer.Option(
            "--since",
            metavar="TIME",
            parser=past,
            help="Only jobs submitted since this time, or in the last 90s, 1h, 2d.",
        ),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option("--until", metavar="TIME", parser=past, help="Only jobs submitted before this time, or 1h ago."),
    ] = None,
    limit: Limit = 20,
    everything: All = False,
    watch: Watch = False,
    json: Json = False,
) -> None:
    """List jobs, newest first."""
    target = gateway()

    def read() -> list[dict[str, Any]]:
        return list(
            target.pages(
                "/api/v1/jobs",
                limit=None if everything else limit,
                user_id=user,
                status=status and status.value,
                feature_name=feature,
                since=since,
                until=until,
            )
        )

    if json:
        watch_json(read) if watch else print_json(read())
    elif watch:
        watch_view(lambda width: [_table(read(), width)])
    elif jobs := read():
        print_whole(_table(jobs, terminal_width()))
    else:
        note("no jobs")


@client_command
def why(job_id: JobId, json: Json = False) -> None:
    """Explain why a job is waiting.

    Shows the jobs ahead of it, full limits and the holders of their slots, pauses, missing workers.
    """
    explanation = gateway().get(f"{job_path(job_id)}/why")
    if json:
        print_json(explanation)
        return
    say(with_local_times(explanation["summary"]))
    if explanation["position"] is not None:
        say(f"position {explanation['position']}{wait_text(explanation['estimated_wait'])}")
    reasons = explanation["reasons"]
    if len(reasons) > 1:
        for reason in reasons:
            say(with_local_times(f"- {reason['message']}"))
    for estimate in filter(None, (reason["details"].get("estimate") for reason in reasons)):
        say(_estimate_text(estimate))
    for reason in reasons:
        _show_holders(reason["details"])


@client_command
def cancel(
    job_ids: Annotated[list[str], typer.Argument(metavar="ID", help="One or more jobs.", autocompletion=complete_jobs)],
    json: Json = False,
) -> None:
    """Cancel jobs that have not ended, and stop running calls."""
    target, cancelled, refused = gateway(), [], []
    for job_id in job_ids:
        try:
            cancelled.append(job := target.post(f"{job_path(job_id)}/cancel"))
        except Failure as failure:
            # Continue with the other jobs, unless there is no connection.
            if failure.code is Exit.NO_CONNECTION:
                raise
            refused.append({"job_id": job_id, "problem": failure.problem})
            note(f"{job_id}: {failure.message}", style="red")
        else:
            if not json:
                again = "" if job["status"] == "CANCELLED" else f" (the rerun; the job is {job['status']} as before)"
                say(f"{job_id}  cancelled{again}")
    if json:
        print_json({"cancelled": cancelled, "refused": refused})
    if refused:
        raise typer.Exit(Exit.REFUSED)


@client_command
def resume(job_id: JobId, json: Json = False) -> None:
    """Resume a failed job that is marked retryable.

    It continues at the step that failed. `retry` works after any error.
    """
    job = gateway().post(f"{job_path(job_id)}/resume")
    if json:
        print_json(job)
    else:
        say(f"{job['job_id']}  {job['status']}")


@client_command
def retry(
    job_id: JobId,
    step: Annotated[
        int | None,
        typer.Argument(metavar="STEP", min=0, help="Rerun only this step, counted from 0, of a job that has ended."),
    ] = None,
    from_start: FromStart = False,
    json: Json = False,
) -> None:
    """Retry a failed job, at the step that failed.

    Works after any error. Completed steps are not run again.
    With STEP, only that step is run again, and its earlier result is kept.
    """
    if step is not None and from_start:
        raise Failure("pass either STEP or --from-start", Exit.USAGE)
    if step is not None:
        job = gateway().post(f"{job_path(job_id)}/steps/{step}/retry")
    else:
        job = gateway().post(f"{job_path(job_id)}/retry", {"from": "start" if from_start else "step"})
    if json:
        print_json(job)
        return
    say(f"{job['job_id']}  {job['status']}")
    if job.get("warning"):
        note(job["warning"], style="yellow")
    if sys.stdout.isatty():
        hint(f"follow it with: fairlead watch {job_id}")


def _table(jobs: list[dict[str, Any]], width: int | None) -> Any:
    if not jobs:
        return safe("no jobs")
    columns = ("ID", "FEATURE", "USER", "STATUS", "PRIORITY", "STEP", "POSITION", "CREATED")
    optional, flexible = ("PRIORITY", "CREATED", "STEP"), ("FEATURE", "USER")
    return table(columns, map(_row, jobs), width=width, optional=optional, flexible=flexible)


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


def _show_holders(details: dict[str, Any]) -> None:
    if not details.get("holders"):
        return
    say("")
    print_table(
        ("HELD BY", "SERVICE", "USER", "WORKER", "LEASE", "SINCE", "UNTIL"), map(_holder_row, details["holders"])
    )
    if details["more_holders"]:
        say(f"and {details['more_holders']} more")


def _holder_row(holder: dict[str, Any]) -> tuple[Any, ...]:
    """Return the table row of a slot's holder. Its last column is the deadline of the call, if known, and not the
    expiry of the lease: a lease is renewed as long as its worker is alive."""
    until = holder.get("ends_by") or holder["until"]
    return (
        holder["job_id"],
        holder["service"],
        holder.get("user_id"),
        holder.get("worker"),
        holder.get("lease") or "held",
        local_time(holder.get("since")),
        local_time(until),
    )


def show_job(job: dict[str, Any]) -> None:
    console = stdout()
    for name, value in _facts(job):
        line = safe(f"{name:<12}", "bold")
        line.append_text(value if not isinstance(value, str) else safe(value))
        console.print(line)
    shown = None
    for attempt in job.get("attempts") or ():
        where = f"{attempt['service']}, attempt {attempt['attempt']}"
        console.print(safe(f"  {local_time(attempt['ended_at'])}  {where}: {error_text(attempt['error'])}", "red"))
        traceback = attempt.get("traceback") or ""
        for traced in ["the same traceback"] if traceback and traceback == shown else traceback.splitlines():
            console.print(safe(f"    {traced}", "dim"), soft_wrap=True)
        shown = traceback
    if job.get("result") is not None:
        console.print(safe("result", "bold"))
        console.print(pretty_json(job["result"]))


def hint_next(job: dict[str, Any]) -> None:
    """Suggest the next command for a job that has failed or is waiting."""
    if job["status"] == "FAILED":
        if then := after_failure(job):
            hint(then)
    elif job["status"] in ("PENDING", "RETRYING"):
        hint(f"see what it waits for with: fairlead why {job['job_id']}")


def after_failure(job: dict[str, Any]) -> str:
    """Return what the user can do about a failed job; empty for a turn, because only its caller could do the work."""
    if job.get("turn"):
        return ""
    error = job.get("error")
    if isinstance(error, dict) and error.get("code") == DEADLINE_PASSED:
        return "its deadline has passed, so it cannot be retried; submit it again"
    return f"run it again with: fairlead retry {job['job_id']}"


def _facts(job: dict[str, Any]) -> list[tuple[str, Any]]:
    """Return the labels and values to show about a job, without values that do not apply to it."""
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
    if job.get("kept_until"):
        facts.append(("set aside", f"its caller is absent; it keeps its place until {local_time(job['kept_until'])}"))
    if job.get("trace_id"):
        facts.append(("trace", job["trace_id"]))
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


_SOURCES = {
    "stated": "its stated cost",
    "input": "the cost of its input",
    "user_mean": "the mean of its user",
    "service_mean": "the mean of the service",
    "default": "nothing measured yet",
}


def _estimate_text(estimate: dict[str, Any]) -> str:
    source = _SOURCES.get(estimate["source"], estimate["source"])
    units = f", {estimate['cost']:g} {estimate['unit']}" if "cost" in estimate else ""
    return f"its call is expected to take {seconds(estimate['seconds'])} ({source}{units})"


def wait_text(wait: dict[str, float] | None) -> str:
    """Format an estimated wait, for example as `, in 5 to 12 s`."""
    if not wait:
        return ""
    low, high = seconds(wait["low"]), seconds(wait["high"])
    return f", in about {high}" if low == high else f", in {low} to {high}"


def progress_text(progress: dict[str, Any]) -> str:
    fraction, message = progress.get("fraction"), progress.get("message")
    parts = [f"{fraction:.0%}"] if isinstance(fraction, int | float) else []
    return clean(" ".join([*parts, str(message)] if message else parts))
