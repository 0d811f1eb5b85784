"""The child process of `process.py`: `python -m fairlead.executors.process_child module:function max_result`.

Reads calls and writes outcomes, one line of JSON each. Whatever the handler prints is written to stderr, because stdout
carries the outcomes. The child exits when its parent is gone, even in the middle of a call.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import sys
import threading
from contextlib import nullcontext
from queue import SimpleQueue
from typing import Any

import orjson

from fairlead.domain.retry import Failure
from fairlead.executors.call_outcome import encoded, failure_of
from fairlead.executors.function import Handler, emit_each, emitting, imported
from fairlead.executors.port import Call, CallOutput, Success
from fairlead.executors.process_files import ANSWER, PipeFiles
from fairlead.executors.trace_scope import current_trace


class _Reporter:
    """Writes the progress and the chunks of a call to the parent."""

    def __init__(self, channel: int, max_output: int) -> None:
        self._channel = channel
        self._lock = threading.Lock()
        self._read = 0
        self._ended = False
        self.max_output = max_output

    def __call__(self, progress: dict[str, Any]) -> None:
        with self._lock:
            if not self._ended:
                _write(self._channel, {"progress": progress})

    def emitted(self, output: CallOutput) -> None:
        with self._lock:
            if not self._ended:
                chunks = output.read(self._read)
                self._read += len(chunks)
                _write(self._channel, {"chunks": chunks})

    def check_long(self, chunk_json: str) -> None:
        """The parent checks it."""

    def ended(self) -> None: ...

    def ask(self, request: dict[str, Any]) -> None:
        """Send a request about a file to the parent."""
        with self._lock:
            if self._ended:
                raise RuntimeError("the call has ended")
            _write(self._channel, {"file": request})

    def end(self, call: Call, outcome: Success | Failure) -> None:
        """Write the remaining chunks and then the outcome. A thread that the handler left behind writes nothing after
        it: that would be taken for output of the next call."""
        if call.output is not None:
            call.output.closed = True
            self.emitted(call.output)
            if call.output.error is not None:
                outcome = failure_of(call.output.error)
        if isinstance(outcome, Success):
            message: dict[str, Any] = {"success": outcome.data_json}
        else:
            shown = ("code", "message", "retryable", "retry_after", "traceback")
            message = {"failure": {name: getattr(outcome, name) for name in shown}}
        if call.usage is not None:
            message["usage"] = call.usage.as_dict()
        with self._lock:
            _write(self._channel, message)
            self._ended = True


def main() -> None:
    path, max_result = sys.argv[1], int(sys.argv[2])
    output = os.dup(1)
    os.dup2(2, 1)
    calls: SimpleQueue[bytes] = SimpleQueue()
    answers: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_read, args=(calls, answers), daemon=True).start()
    handler = imported(path)
    while True:
        fields = orjson.loads(calls.get())
        reporter = _Reporter(output, max_result)
        trace, run = fields.pop("trace"), fields.pop("run")
        call = Call(**fields, report=reporter)
        call.trace, call.run = trace, run
        call.files = PipeFiles(reporter.ask, answers)
        with nullcontext() if trace is None else current_trace(trace):
            outcome = _outcome(handler, call, max_result)
        reporter.end(call, outcome)


def _outcome(handler: Handler, call: Call, max_result: int) -> Success | Failure:
    try:
        value = emitting(handler(call), call)
        if inspect.isasyncgen(value):
            value = emit_each(value, call)
        if inspect.iscoroutine(value):
            value = asyncio.run(value)
    except BaseException as error:  # sys.exit() included: the child is kept for the next call
        return failure_of(error)
    return encoded(value, max_result)


def _read(calls: SimpleQueue[bytes], answers: SimpleQueue[bytes]) -> None:
    for line in sys.stdin.buffer:
        (answers if line.startswith(ANSWER) else calls).put(line)
    os._exit(0)  # the parent is gone


def _write(channel: int, message: dict[str, Any]) -> None:
    line = memoryview(orjson.dumps(message) + b"\n")
    while line:
        line = line[os.write(channel, line) :]


if __name__ == "__main__":
    main()
