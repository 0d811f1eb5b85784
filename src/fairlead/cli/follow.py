"""watch: follows a job until it ends. Reads the events of the job and draws one live line, or prints its output."""

from __future__ import annotations

import json as jsonlib
import math
import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn
from rich.text import Text

from fairlead.cli.client import Gateway, client_command, gateway
from fairlead.cli.failure import Exit
from fairlead.cli.jobs import after_failure, error_text, progress_text, wait_text
from fairlead.cli.options import JobId, Json
from fairlead.cli.output import clean, hint, note, print_json, safe, status_text, stderr, stdout, with_local_times
from fairlead.client.stream import Stream
from fairlead.domain.openai import is_streamed_request, text_of_events

ENDS = {"COMPLETED": Exit.OK, "FAILED": Exit.JOB_FAILED, "CANCELLED": Exit.JOB_CANCELLED}
RECONNECT_FOR_S = 60.0

_STATUS_AFTER = {
    "WAITING": "PENDING",
    "POSITION": "PENDING",
    "STEP_START": "RUNNING",
    "PROGRESS": "RUNNING",
    "JOB_RETRYING": "RETRYING",
    "JOB_FAILED": "FAILED",
    "JOB_CANCELLED": "CANCELLED",
    "JOB_COMPLETE": "COMPLETED",
}
KNOWN = _STATUS_AFTER.keys() | {"STEP_COMPLETE", "JOB_PROMOTED"}


def end_of(status: str) -> Exit:
    """Return the exit code of a command that followed a job. `status` is the job's last status."""
    return ENDS.get(status, Exit.NOT_FINISHED)


Output = Annotated[bool, typer.Option("--output", help="Print the job's output as it is made, not its progress.")]


Raw = Annotated[bool, typer.Option("--raw", help="The output of an OpenAI request as its events, not only their text.")]


@client_command
def watch(job_id: JobId, output: Output = False, raw: Raw = False, json: Json = False) -> None:
    """Follow a job live until it ends.

    Exits with 0 if it completes, 3 if it fails, 4 if it is cancelled.
    """
    if output:
        raise typer.Exit(print_output(gateway(), job_id, raw=raw, json=json))
    line = follow(gateway(), job_id, quiet=json, on_event=print_json if json else None)
    if line.status == "FAILED" and not json:
        hint_after(line)
    raise typer.Exit(end_of(line.status))


def hint_after(line: JobLine) -> None:
    """Suggest the next command for a job that has failed."""
    if then := after_failure(line.job):
        hint(f"see its attempts with: fairlead get {line.job['job_id']}; {then}")


def print_output(target: Gateway, job_id: str, *, raw: bool, json: bool) -> Exit:
    """Print the output of a job to stdout while it runs: text as it is, anything else as lines of JSON. Of an OpenAI
    request, only the text of its events is printed, unless `raw`. Returns the exit code for the status of the job."""
    job = target.job(job_id)  # fails at once without a gateway or the job
    has_events = not raw and is_streamed_request(job.get("input_data"))
    status, line_is_open = "", False
    for event in target.output(job_id, RECONNECT_FOR_S):
        status = event.get("status", status)
        if json:
            print_json(event)
        elif event["type"] == "chunk":
            data = event["data"]
            if isinstance(data, str):
                text = clean(text_of_events(data) if has_events else data, keep_lines=True)
            else:
                text = jsonlib.dumps(data) + "\n"
            typer.echo(text, nl=False)
            line_is_open = not text.endswith("\n") if text else line_is_open
        else:
            if line_is_open:
                typer.echo()
                line_is_open = False
            if event["type"] == "restart":
                note("the job runs again, and its output starts again", style="dim")
            elif event.get("error"):
                note(error_text(event["error"]))
    return end_of(status)


@dataclass
class JobLine:
    """The text of the live line about a job. Each event of the job updates it."""

    status: str = "PENDING"
    step: int = 0
    total: int = 1
    service: str = ""
    detail: str = ""
    fraction: float = 0.0
    job: dict[str, Any] = field(default_factory=dict)
    """The job as it was read last, with the error of a later failure."""

    @property
    def ended(self) -> bool:
        return self.status in ENDS

    @property
    def done(self) -> float:
        """The progress of the job from 0 to 1. All steps have the same weight."""
        if self.status == "COMPLETED":
            return 1.0
        return min(1.0, (self.step + self.fraction) / max(1, self.total))

    def take(self, event: dict[str, Any]) -> None:
        kind = event["type"]
        if kind == "SNAPSHOT":
            self._take_snapshot(event["job"])
            return
        if kind not in KNOWN:  # published by another program, with any fields
            self.detail = clean(str(event.get("message", "")))
            return
        self.status = _STATUS_AFTER.get(kind, self.status)
        # Between two steps there is no service to name.
        self.service = "" if kind == "STEP_COMPLETE" else event.get("service", self.service)
        self.total = event.get("total", self.total)
        if kind == "PROGRESS":
            self._take_progress(event)
            return
        if kind in ("STEP_START", "STEP_COMPLETE", "WAITING") and isinstance(event.get("step"), int):
            # Events count steps from 1. While a step runs or waits, the steps before it are done.
            self.step, self.fraction = event["step"] - (kind != "STEP_COMPLETE"), 0.0
        if kind == "JOB_FAILED":
            self.job["error"] = event.get("error")
        self.detail = _detail(event)

    def _take_snapshot(self, job: dict[str, Any]) -> None:
        self.job, self.status = dict(job), job["status"]
        self.step, self.total = job["current_step_index"], job["total_steps"]
        steps = job.get("steps") or ()
        self.service = steps[self.step] if self.step < len(steps) else ""
        self.detail = ""
        if job.get("error"):
            self.detail = error_text(job["error"])
        elif job.get("position") is not None:
            self.detail = f"position {job['position']}{wait_text(job.get('estimated_wait'))}"
        elif job.get("progress") and self.status == "RUNNING":
            self._take_progress(job["progress"])

    def _take_progress(self, progress: dict[str, Any]) -> None:
        fraction = progress.get("fraction")
        if isinstance(fraction, int | float):
            self.fraction = min(1.0, max(0.0, float(fraction)))
        self.detail = progress_text(progress)

    def text(self) -> Text:
        line = status_text(f"{self.status:<9}")
        if self.service and not self.ended:
            line.append_text(safe(f"  step {min(self.step + 1, self.total)}/{self.total} {self.service}"))
        if self.detail:
            line.append_text(safe(f"  {self.detail}"))
        return line


def _detail(event: dict[str, Any]) -> str:
    if event.get("position") is not None:
        return f"position {event['position']}{wait_text(event.get('estimated_wait'))}"
    if event["type"] == "JOB_FAILED" and event.get("error"):
        return error_text(event["error"])
    if event["type"] in ("STEP_START", "JOB_COMPLETE"):
        return ""
    return with_local_times(clean(event.get("message", "")))


def follow(
    target: Gateway,
    job_id: str,
    *,
    timeout: float = math.inf,
    on_stderr: bool = False,
    quiet: bool = False,
    on_event: Callable[[dict[str, Any]], None] | None = None,
) -> JobLine:
    """Follow a job and show its progress, until the job ends or `timeout` seconds have passed. If the event stream is
    interrupted, it is resumed. Returns the line with the job's last state."""
    line = JobLine(job=target.job(job_id))  # fails at once without a gateway or the job
    with _shown(line, on_stderr=on_stderr, quiet=quiet) as show:
        for event in _events(target, job_id, timeout=timeout):
            line.take(event)
            if on_event is not None:
                on_event(event)
            show()
            if line.ended:
                break
    return line


def _events(target: Gateway, job_id: str, *, timeout: float) -> Iterator[dict[str, Any]]:
    """Yield the events of a job for at most `timeout` seconds. They are read in a daemon thread, because a read from a
    silent stream would block past the timeout."""
    events: queue.SimpleQueue[dict[str, Any] | BaseException] = queue.SimpleQueue()

    def read() -> None:
        try:
            for event in target.events(job_id, _NotedStream, RECONNECT_FOR_S):
                events.put(event)
        except BaseException as error:
            events.put(error)

    threading.Thread(target=read, daemon=True, name="fairlead-events").start()
    give_up_at = time.monotonic() + timeout
    while True:
        left = give_up_at - time.monotonic()
        try:
            event = events.get(timeout=None if math.isinf(left) else max(0.0, left))
        except queue.Empty:
            return
        if isinstance(event, BaseException):
            raise event
        yield event


class _NotedStream(Stream):
    """A stream of events that prints a note whenever the connection is lost, before it reconnects."""

    def broke_off(self, error: Exception | None, url: str) -> float:
        pause = super().broke_off(error, url)
        if not self.ended:
            note(f"connection to the gateway lost, trying again: {error or 'the stream ended early'}", style="dim")
        return pause


@contextmanager
def _shown(line: JobLine, *, on_stderr: bool, quiet: bool) -> Iterator[Callable[[], None]]:
    """Context manager that shows the progress of a job: on a terminal as one line that is redrawn, otherwise as one
    line per change. Yields the function that shows the current progress."""
    console = stderr() if on_stderr else stdout()
    if quiet:
        yield lambda: None
    elif console.is_terminal:
        bar = Progress(
            SpinnerColumn(),
            BarColumn(bar_width=24),
            TextColumn("{task.percentage:>3.0f}%"),
            _LineColumn(),
            console=console,
        )
        with bar:
            task = bar.add_task("", total=1.0, line=line)
            yield lambda: bar.update(task, completed=line.done, refresh=True)
    else:
        last: list[str] = [""]

        def show() -> None:
            text = line.text()
            if text.plain != last[0]:
                console.print(text)
            last[0] = text.plain

        yield show


class _LineColumn(TextColumn):
    """The column of rich's progress display that shows the `JobLine`. It renders a `Text`, so that rich does not parse
    values of the job as markup."""

    def __init__(self) -> None:
        super().__init__("")

    def render(self, task: Any) -> Text:
        line: JobLine = task.fields["line"]
        return line.text()
