"""Following one job to its end: events in, one live line out."""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn
from rich.text import Text

from fairlead.cli.client import Gateway
from fairlead.cli.failure import Exit, Failure
from fairlead.cli.jobs import error_text, progress_text, wait_text
from fairlead.cli.output import clean, note, safe, status_text, stderr, stdout

ENDS = {"COMPLETED": Exit.OK, "FAILED": Exit.JOB_FAILED, "CANCELLED": Exit.JOB_CANCELLED}
RECONNECT_FOR_S = 60.0
RECONNECT_PAUSE_S = 0.5

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


def end_of(status: str) -> Exit:
    """The exit code that a job's status stands for."""
    return ENDS.get(status, Exit.NOT_FINISHED)


@dataclass
class JobLine:
    """What the live line shows, folded from the events so far."""

    status: str = "PENDING"
    step: int = 0
    total: int = 1
    service: str = ""
    detail: str = ""
    fraction: float = 0.0

    @property
    def ended(self) -> bool:
        return self.status in ENDS

    @property
    def done(self) -> float:
        """How much of the whole job, from 0 to 1: a step counts as much as another."""
        if self.status == "COMPLETED":
            return 1.0
        return min(1.0, (self.step + self.fraction) / max(1, self.total))

    def take(self, event: dict[str, Any]) -> None:
        kind = event["type"]
        if kind == "SNAPSHOT":
            self._take_snapshot(event["job"])
            return
        self.status = _STATUS_AFTER.get(kind, self.status)
        # Between two steps there is no service to name.
        self.service = "" if kind == "STEP_COMPLETE" else event.get("service", self.service)
        self.total = event.get("total", self.total)
        if kind == "PROGRESS":
            self._take_progress(event)
            return
        if kind in ("STEP_START", "STEP_COMPLETE", "WAITING") and isinstance(event.get("step"), int):
            # Events count steps from 1; while one runs or waits, those before it are done.
            self.step, self.fraction = event["step"] - (kind != "STEP_COMPLETE"), 0.0
        self.detail = _detail(event)

    def _take_snapshot(self, job: dict[str, Any]) -> None:
        self.status = job["status"]
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
    return clean(event.get("message", ""))


def follow(
    gateway: Gateway,
    job_id: str,
    *,
    timeout: float = math.inf,
    on_stderr: bool = False,
    quiet: bool = False,
    on_event: Callable[[dict[str, Any]], None] | None = None,
) -> JobLine:
    """Until the job ends or `timeout` seconds are over. A stream that breaks off is taken up again."""
    line = JobLine()
    with _shown(line, on_stderr=on_stderr, quiet=quiet) as show:
        for event in _events(gateway, job_id, timeout=timeout):
            line.take(event)
            if on_event is not None:
                on_event(event)
            show()
            if line.ended:
                break
    return line


def _events(gateway: Gateway, job_id: str, *, timeout: float) -> Iterator[dict[str, Any]]:
    """Read in a thread: a silent stream must not keep the reader past its time. The thread ends with the process."""
    heard: queue.SimpleQueue[dict[str, Any] | BaseException] = queue.SimpleQueue()

    def read() -> None:
        try:
            for event in _unbroken(gateway, job_id):
                heard.put(event)
        except BaseException as error:
            heard.put(error)

    threading.Thread(target=read, daemon=True, name="fairlead-events").start()
    give_up_at = time.monotonic() + timeout
    while True:
        left = give_up_at - time.monotonic()
        try:
            event = heard.get(timeout=None if math.isinf(left) else max(0.0, left))
        except queue.Empty:
            return
        if isinstance(event, BaseException):
            raise event
        yield event


def _unbroken(gateway: Gateway, job_id: str) -> Iterator[dict[str, Any]]:
    """The stream, taken up again with a new snapshot whenever it breaks off."""
    heard_at: float | None = None
    while True:
        try:
            with gateway.events(job_id) as events:
                for event in events:
                    heard_at = time.monotonic()
                    yield event
        except Failure as failure:
            # Before the first event this is the answer; after it, the gateway is restarting.
            lost = failure.code is Exit.NO_CONNECTION and heard_at is not None
            if not lost or time.monotonic() - (heard_at or 0.0) > RECONNECT_FOR_S:
                raise
            note(f"lost the gateway, trying again: {failure.message}", style="dim")
        time.sleep(RECONNECT_PAUSE_S)


@contextmanager
def _shown(line: JobLine, *, on_stderr: bool, quiet: bool) -> Iterator[Callable[[], None]]:
    """On a terminal one line that moves; behind a pipe one line per change."""
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
    """The job's line as `Text`: what a job said is never parsed as markup."""

    def __init__(self) -> None:
        super().__init__("")

    def render(self, task: Any) -> Text:
        line: JobLine = task.fields["line"]
        return line.text()
