"""Predictions of Replicate: jobs in another shape (docs/adr/0039-replicate-front.md)."""

from __future__ import annotations

import hashlib
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from fairlead.domain.events import iso, utc
from fairlead.domain.files import with_files
from fairlead.domain.job import JobStatus
from fairlead.domain.output import Position
from fairlead.domain.retry import DEADLINE_PASSED
from fairlead.domain.webhooks import COMPLETED, ENDS, JOB_EVENTS, STARTED
from fairlead.errors import InvalidInput

PREFIX = "/replicate/v1"
MARK = "replicate"
"""The key of a `Mark` in the metadata of a job."""
BAR = 10
MIN_CANCEL_AFTER = 5.0
MAX_CANCEL_AFTER = 7 * 86400.0
STARTING, PROCESSING, SUCCEEDED, FAILED, CANCELED = "starting", "processing", "succeeded", "failed", "canceled"
_ENDS = {JobStatus.COMPLETED: SUCCEEDED, JobStatus.FAILED: FAILED, JobStatus.CANCELLED: CANCELED}
_EVENTS = {"start": (STARTED,), "output": (COMPLETED,), "logs": (), "completed": ENDS}
_DURATION = re.compile(r"(?:(\d{1,6})h)?(?:(\d{1,6})m)?(?:(\d{1,6})s?)?", re.IGNORECASE | re.ASCII)
_EVENT_ID = re.compile(r"(\d{1,18}-\d{1,18})\.(\d{1,18})\.([0-9a-f]{1,8})", re.ASCII)


def version_of(feature: str) -> str:
    """The id of the one version that a feature has."""
    return hashlib.sha256(f"fairlead:{feature}".encode()).hexdigest()


def status_of(status: JobStatus, error: Mapping[str, Any] | None, *, started: bool) -> str:
    if status is JobStatus.FAILED and error is not None and error.get("code") == DEADLINE_PASSED:
        return CANCELED
    return _ENDS.get(status) or (PROCESSING if started else STARTING)


class Mark(NamedTuple):
    """What the metadata of a job says of the request: the model and version as the caller named them, and the address
    of the front. All are None for a job that came another way."""

    model: str | None = None
    version: str | None = None
    url: str | None = None

    @classmethod
    def of(cls, metadata: Mapping[str, Any] | None) -> Mark:
        mark = (metadata or {}).get(MARK)
        found = [mark.get(name) for name in cls._fields] if isinstance(mark, Mapping) else []
        return cls(*(each if isinstance(each, str) else None for each in found))

    def as_metadata(self) -> dict[str, Any]:
        return {MARK: self._asdict()}


@dataclass(frozen=True, slots=True)
class Prediction:
    """`base` is the address of the front, which ends in `/replicate/v1`. `stream` is the URL of the stream, if there is
    one to show. Times are seconds since 1970."""

    id: str
    model: str
    version: str
    status: str
    base: str
    input: Any = None
    output: Any = None
    error: str | None = None
    logs: str = ""
    created_at: float | None = None
    started_at: float | None = None
    completed_at: float | None = None
    stream: str | None = None

    def as_dict(self) -> dict[str, Any]:
        get = f"{self.base}/predictions/{self.id}"
        urls = {"get": get, "cancel": f"{get}/cancel"}
        return {
            "id": self.id,
            "model": self.model,
            "version": self.version,
            "status": self.status,
            "input": self.input,
            "output": self.output,
            "logs": self.logs,
            "error": self.error,
            "metrics": self._metrics(),
            "created_at": _iso(self.created_at),
            "started_at": _iso(self.started_at),
            "completed_at": _iso(self.completed_at),
            "urls": urls if self.stream is None else {**urls, "stream": self.stream},
            "source": "api",
            "data_removed": False,
        }

    def _metrics(self) -> dict[str, float]:
        ended = self.completed_at
        if ended is None:
            return {}
        times = {"predict_time": self.started_at, "total_time": self.created_at}
        return {name: round(max(0.0, ended - begun), 3) for name, begun in times.items() if begun is not None}


def _iso(moment: float | None) -> str | None:
    return iso(utc(moment))


def seconds(moment: datetime | None) -> float | None:
    return None if moment is None else moment.timestamp()


def error_text(error: Mapping[str, Any] | None) -> str | None:
    return None if error is None else str(error.get("message", "the prediction failed"))


# ---------------------------------------------------------------- logs


def progress_lines(progress: Mapping[str, Any] | None) -> str:
    """A report of progress as lines of a log. The fraction is a bar as tqdm draws it, which the clients read."""
    if not progress:
        return ""
    message, fraction = progress.get("message"), progress.get("fraction")
    lines = [message] if isinstance(message, str) and message else []
    if isinstance(fraction, int | float):
        percent = round(max(0.0, min(1.0, fraction)) * 100)
        full = percent * BAR // 100
        lines.append(f"{percent:3d}%|{'#' * full}{' ' * (BAR - full)}| {percent}/100")
    return "".join(f"{line}\n" for line in lines)


def queue_line(position: int | None, wait: Mapping[str, float] | None) -> str:
    """The place in the queue as a line of a log; empty if the job is not in the queue."""
    if position is None:
        return ""
    about = ""
    if wait:
        low, high = f"{wait['low']:.0f}", f"{wait['high']:.0f}"
        about = f", about {low} s" if low == high else f", about {low}-{high} s"
    return f"queued, position {position}{about}\n"


# ---------------------------------------------------------------- files


def with_urls(value: Any, url_of: Callable[[str], str]) -> Any:
    """The value with each reference to a file replaced by the file's URL."""
    return with_files(value, lambda reference: url_of(reference["$file"]))


# ---------------------------------------------------------------- requests


def webhook_events(wanted: Sequence[str] | None) -> tuple[str, ...]:
    """The events of a job for `webhook_events_filter`. There are no events for output and logs while a job runs: the
    output is complete when the job is."""
    if wanted is None:
        return (STARTED, *ENDS)
    chosen = {event for each in wanted for event in _EVENTS[each]}
    return tuple(event for event in JOB_EVENTS if event in chosen)


def cancel_after(text: str) -> float:
    """The seconds of a `Cancel-After` header, such as `90`, `30s` or `1h30m`."""
    match = _DURATION.fullmatch(text.replace(" ", ""))
    parts = match.groups() if match is not None else ()
    if not any(parts):
        raise InvalidInput("Cancel-After must be a duration, such as 30s, 5m or 1h30m", pointer="/Cancel-After")
    found = sum(int(part or 0) * unit for part, unit in zip(parts, (3600, 60, 1), strict=True))
    if not MIN_CANCEL_AFTER <= found <= MAX_CANCEL_AFTER:
        raise InvalidInput("Cancel-After must be 5 seconds to 7 days", pointer="/Cancel-After")
    return float(found)


# ---------------------------------------------------------------- streams


@dataclass(slots=True)
class Received:
    """What a client has received of an output: up to which position, how many characters, and their checksum. The id of
    each event says so, as `12-40.1800.9f86d081`, so that a client can continue with another gateway, and even if the
    output begins again."""

    position: Position | None = None
    size: int = 0
    checksum: int = 0

    def add(self, text: str, position: Position | None) -> None:
        self.position = position
        self.size += len(text)
        self.checksum = zlib.crc32(text.encode("utf-8", "surrogatepass"), self.checksum)

    def __str__(self) -> str:
        return f"{self.position or Position(0, 0)}.{self.size}.{self.checksum:x}"

    @classmethod
    def parse(cls, text: str) -> Received:
        match = _EVENT_ID.fullmatch(text)
        if match is None:
            raise InvalidInput("Last-Event-ID must be the id of an event of this stream", pointer="/Last-Event-ID")
        position = Position.parse(match[1])
        return cls(None if position.run == 0 else position, int(match[2]), int(match[3], 16))


class Diverged(Exception):
    """The output began again, and is not the output that the client has received."""


class Resumption:
    """Passes on the texts of an output, without those that the client has received already."""

    def __init__(self, received: Received) -> None:
        self.received = received
        self._again: Received | None = None
        """While the output is repeated: how much of it was repeated."""

    def restart(self) -> None:
        if self.received.size:
            self._again = Received()

    def take(self, text: str, position: Position) -> str:
        """The part of this text that is new to the client. Raises Diverged."""
        again = self._again
        if again is not None:
            missing = self.received.size - again.size
            again.add(text[:missing], position)
            if again.size < self.received.size:
                return ""
            if again.checksum != self.received.checksum:
                raise Diverged
            self._again = None
            self.received.position = position
            text = text[missing:]
        self.received.add(text, position)
        return text

    def finish(self) -> None:
        """Raises Diverged if the output ended before it was as long as what the client has received."""
        if self._again is not None:
            raise Diverged
