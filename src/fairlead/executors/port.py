"""The interface of executors: an executor makes a `Call` of a function, an endpoint or a task, and returns a `Success`
or a `Failure`."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterable, Iterable, Mapping
from time import monotonic
from typing import Any, BinaryIO, Protocol

import orjson

from fairlead.dispatch.rates import Rest
from fairlead.domain.fast_dataclass import fast_dataclass
from fairlead.domain.json_codec import NotJson, to_json
from fairlead.domain.retry import Failure
from fairlead.domain.usage import Usage, merged, reported

TIMED_OUT, CANCELLED = "timed out", "cancelled"
GIVEN_UP = frozenset({TIMED_OUT, CANCELLED})

MAX_CHUNKS = 200_000
"""The number of chunks that one call may emit."""
LONG_CHUNK = 64 << 10
"""The number of characters above which a chunk may have to be saved as a file."""


class OutputTooLarge(Exception):
    """The chunks that a call has emitted are together larger than a result may be, or too many, or one of them is
    larger than a file may be. `setting` has the limit."""

    def __init__(self, size: int, limit: int, setting: str = "worker.max_result") -> None:
        super().__init__(f"the output is too large: {size}, and {limit} are allowed")
        self.size = size
        self.limit = limit
        self.setting = setting


class Reporter(Protocol):
    """Takes the progress and the output of a call, from any thread."""

    @property
    def max_output(self) -> int:
        """The size of the output that the call may have, in characters of JSON."""
        ...

    def check_long(self, chunk_json: str) -> None:
        """Raises OutputTooLarge if a chunk of more than `LONG_CHUNK` characters cannot be kept."""
        ...

    def __call__(self, progress: dict[str, Any]) -> None: ...

    def emitted(self, output: CallOutput) -> None:
        """Called when a chunk was appended to an output that had no unread chunks."""
        ...

    def ended(self) -> None:
        """Called on the event loop when the call has ended and had an output."""
        ...


Source = bytes | bytearray | memoryview | os.PathLike[str] | BinaryIO | Iterable[bytes] | AsyncIterable[bytes]
"""What a file can be saved from."""
Reference = Mapping[str, Any] | str
"""A reference to a file, or its id."""


class CallFiles(Protocol):
    """Saves and reads files for a call. The methods return the value itself in a thread, and an awaitable where an
    event loop runs."""

    def save(self, call: Call, name: str, source: Source, content_type: str | None) -> Any: ...

    def open(self, call: Call, reference: Reference) -> Any: ...

    def read(self, call: Call, reference: Reference) -> Any: ...

    async def urls(self, call: Call, value_json: str) -> str:
        """The JSON text with a `url` in each reference, if files have URLs that services can fetch."""
        ...


class CallOutput:
    """The chunks that a call has emitted, each as JSON text. They are kept until the call ends, because they become
    its result. Any thread may append; one reader takes the chunks."""

    __slots__ = ("_lock", "_reporter", "_unread", "chunks", "closed", "error", "first_at", "is_text", "size")

    def __init__(self, reporter: Reporter | None) -> None:
        self.chunks: list[str] = []
        self.size = 0
        self.first_at: float | None = None
        """When the first chunk was emitted, on the monotonic clock."""
        self.is_text = True
        """All chunks are text."""
        self.closed = False
        """The call has ended, or nothing waits for it any more. Further chunks are ignored."""
        self.error: OutputTooLarge | None = None
        self._unread = False
        self._lock = threading.Lock()
        self._reporter = reporter

    def append(self, chunk_json: str) -> None:
        if self.closed or chunk_json == '""':
            return
        with self._lock:
            self._check(chunk_json)
            if not self.chunks:
                self.first_at = monotonic()
            self.size += len(chunk_json)
            self.is_text = self.is_text and chunk_json[0] == '"'
            self.chunks.append(chunk_json)
            first, self._unread = not self._unread, True
        if first and self._reporter is not None:
            self._reporter.emitted(self)

    def read(self, start: int) -> list[str]:
        """The chunks from the number `start` on. The next chunk after them is reported again."""
        with self._lock:
            self._unread = False
            return self.chunks[start:]

    def close(self) -> None:
        self.closed = True
        if self._reporter is not None:
            self._reporter.ended()

    def result_json(self) -> str:
        """The texts concatenated, or the list of all chunks if one of them is not text."""
        if self.is_text:
            return f'"{"".join(chunk[1:-1] for chunk in self.chunks)}"'
        return f"[{','.join(self.chunks)}]"

    def _check(self, chunk_json: str) -> None:
        reporter, size = self._reporter, self.size + len(chunk_json)
        if reporter is not None and size > reporter.max_output:
            self.error = OutputTooLarge(size, reporter.max_output)
        elif len(self.chunks) >= MAX_CHUNKS:
            self.error = OutputTooLarge(len(self.chunks) + 1, MAX_CHUNKS)
        elif reporter is not None and len(chunk_json) > LONG_CHUNK:
            try:
                reporter.check_long(chunk_json)
            except OutputTooLarge as error:
                self.error = error
        if self.error is not None:
            raise self.error


_opening = threading.Lock()


class Call:
    """One call of one service by a job: everything that a handler needs.

    `params` is the job's input. `context` has the results of the job's earlier steps by key, such as
    `step_0_prompt_enhancer`. `idempotency_key` is the same for all attempts of this step, so that an endpoint can do
    the work only once.
    """

    run = 1
    """The job's run while this call is made: greater for each further call."""

    def __init__(
        self,
        *,
        job_id: str,
        step_index: int,
        total_steps: int,
        service: str,
        feature_name: str,
        user_id: str,
        attempt: int,
        idempotency_key: str,
        params_json: str,
        context_json: str,
        timeout: float,
        region: str | None = None,
        report: Reporter | None = None,
    ) -> None:
        self.job_id = job_id
        self.step_index = step_index
        self.total_steps = total_steps
        self.service = service
        self.feature_name = feature_name
        self.user_id = user_id
        self.attempt = attempt
        self.idempotency_key = idempotency_key
        self.params_json = params_json
        self.context_json = context_json
        self.timeout = timeout
        self.region = region
        self._report = report
        self._params: dict[str, Any] | None = None
        self._context: dict[str, Any] | None = None
        # Set if an abandoned call cannot be stopped: its slot is freed when this future is done.
        self.lingering: asyncio.Future[Any] | None = None
        # None until the first chunk is emitted.
        self.output: CallOutput | None = None
        # What the handler has reported so far.
        self.usage: Usage | None = None
        # What saves and reads files for this call; None where there is no object store.
        self.files: CallFiles | None = None
        # The ids of the files that this call has saved, or None.
        self.saved: list[str] | None = None
        # The call waits for an object store that cannot be reached.
        self.stalled = False
        # When the request was sent, by the monotonic clock. None: not known.
        self.sent_at: float | None = None
        self.counts_sent = False
        # What the upstream said about its limits, for the dispatcher.
        self.rests: list[Rest] | None = None
        # The trace of the call (see `domain.trace_context`), or None.
        self.trace: str | None = None
        # What an executor adds to the span of the call.
        self.span_attributes: dict[str, Any] | None = None

    # `params` and `context` are parsed on first use and kept, since a handler may change them. A `cached_property`
    # would take a lock.

    @property
    def params(self) -> dict[str, Any]:
        if self._params is None:
            self._params = orjson.loads(self.params_json)
        return self._params

    @property
    def context(self) -> dict[str, Any]:
        if self._context is None:
            self._context = orjson.loads(self.context_json)
        return self._context

    @property
    def meta(self) -> dict[str, Any]:
        """The fields that a remote service receives besides the input."""
        return {
            "job_id": self.job_id,
            "step_index": self.step_index,
            "service_name": self.service,
            "attempt": self.attempt,
        }

    @property
    def traceparent(self) -> str | None:
        """The W3C `traceparent` of this call, to pass on to other services; None if the job has no trace."""
        return None if self.trace is None else self.trace.partition(" ")[0]

    def annotate(self, attributes: Mapping[str, Any]) -> None:
        """Add attributes to the span of this call, if it has one."""
        if self.trace is not None:
            self.span_attributes = {**(self.span_attributes or {}), **attributes}

    def result_of(self, service: str) -> Any:
        """The data that this service returned in an earlier step of the job. Raises KeyError if no earlier step called
        this service."""
        for key, entry in reversed(self.context.items()):
            if key.split("_", 2)[2] == service:
                return entry["data"]
        raise KeyError(service)

    def progress(self, fraction: float | None = None, message: str | None = None, **details: Any) -> None:
        """Publish to watchers of the job how far this step is, from 0 to 1. Never blocks, and can be called from any
        thread."""
        fields: dict[str, Any] = {}
        if fraction is not None:
            fields["fraction"] = min(1.0, max(0.0, float(fraction)))
        if message is not None:
            fields["message"] = str(message)[:500].encode("utf-8", "replace").decode()
        try:
            to_json(details)
            fields = {**details, **fields}
        except NotJson as error:
            raise ValueError(f"the details of a progress report must be JSON: {error}") from None
        if self._report is not None:
            self._report(fields)

    def report_usage(
        self,
        *,
        tokens_in: int | None = None,
        tokens_out: int | None = None,
        tokens_cached: int | None = None,
        units: float | None = None,
        model: str | None = None,
    ) -> None:
        """Report what this call has used so far. A later report replaces the values that it names. A value that is
        negative, absurd or not a number is ignored and counted. The report counts even if the call fails later."""
        report = {
            "tokens_in": tokens_in,
            "tokens_out": tokens_out,
            "tokens_cached": tokens_cached,
            "units": units,
            "model": model,
        }
        self.usage = merged(self.usage, reported(report))

    def sent(self) -> None:
        """Report that the request of this call has been sent. A service with a rate then counts the call from now on,
        and not from its end, which lets more calls through if calls take long. May be called again: the last time
        counts."""
        self.sent_at = monotonic()

    def rest(
        self,
        seconds: float,
        *,
        requests: int | None = None,
        units: float | None = None,
        tokens: float | None = None,
    ) -> None:
        """Report that the upstream takes no more calls for this many seconds; or only this many `requests` and
        `units`. `tokens` are ignored if the service counts in another unit. This holds for the service, or its region,
        and for all workers."""
        if self.rests is None:
            self.rests = []
        self.rests.append(Rest(self.service, self.region, seconds, requests, units, tokens))

    def emit(self, chunk: Any) -> None:
        """Append a chunk, text or any JSON value, to the output of this step, for readers of the job's output. If the
        handler returns None, the output becomes its result: the concatenated text, or the list of chunks if one of
        them is not text. Never blocks, and can be called from any thread. Raises an error if the output is larger than
        a result may be."""
        try:
            chunk_json = to_json(chunk)
        except NotJson as error:
            raise ValueError(f"a chunk must be text or JSON: {error}") from None
        self.open_output().append(chunk_json)

    def save(self, name: str, source: Source, content_type: str | None = None) -> Any:
        """Save a file, and return a reference to it, which may be part of the result. `source` is bytes, a `Path`, an
        open binary file, or an iterator over bytes. The file is kept as long as the job, if this call succeeds. In an
        `async def`, await it. While the object store cannot be reached, this waits."""
        return self._own_files.save(self, name, source, content_type)

    def open(self, reference: Reference) -> Any:
        """Open a file that the input or the result of an earlier step names, as a binary file object. In an `async
        def`, await it."""
        return self._own_files.open(self, reference)

    def read(self, reference: Reference) -> Any:
        """The bytes of a file that the input or the result of an earlier step names. In an `async def`, await it."""
        return self._own_files.read(self, reference)

    @property
    def _own_files(self) -> CallFiles:
        if self.files is None:
            raise RuntimeError("files can be used only while the call is run by a worker")
        return self.files

    def open_output(self) -> CallOutput:
        """The output of this call. A call with an output has a result even if it emits no chunk: the empty text."""
        if self.output is None:
            with _opening:
                if self.output is None:
                    self.output = CallOutput(self._report)
        return self.output


@fast_dataclass
class Success:
    """The result of a successful call. `metrics` are measurements that the service reported, if any, and `usage` is
    what it reported to have used."""

    data_json: str
    metrics: Mapping[str, Any] | None = None
    usage: Usage | None = None


class Executor(Protocol):
    async def execute(self, call: Call) -> Success | Failure:
        """Make the call. If the call is cancelled, stop the work. If the work cannot be stopped, set `call.lingering`
        to a future that is done when the work has ended.

        A cancellation with a message in `GIVEN_UP` means that the call is abandoned. If it has timed out, the executor
        may return a failure with the code TIMEOUT, which says whether the call can be retried. After any other
        cancellation, for example at a shutdown, the work may continue, and the next worker may take it over.
        """
        ...

    async def close(self) -> None: ...
