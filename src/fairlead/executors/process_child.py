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
from queue import SimpleQueue
from typing import Any

import orjson

from fairlead.domain.retry import Failure
from fairlead.executors.call_outcome import encoded, failure_of
from fairlead.executors.function import Handler, imported
from fairlead.executors.port import Call, Success


def main() -> None:
    path, max_result = sys.argv[1], int(sys.argv[2])
    output = os.dup(1)
    os.dup2(2, 1)
    calls: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_read, args=(calls,), daemon=True).start()
    handler = imported(path)
    while True:
        fields = orjson.loads(calls.get())
        call = Call(**fields, report=lambda message: _write(output, {"progress": message}))
        outcome = _outcome(handler, call, max_result)
        if isinstance(outcome, Success):
            _write(output, {"success": outcome.data_json})
        else:
            shown = ("code", "message", "retryable", "retry_after", "traceback")
            _write(output, {"failure": {name: getattr(outcome, name) for name in shown}})


def _outcome(handler: Handler, call: Call, max_result: int) -> Success | Failure:
    try:
        value = handler(call)
        if inspect.iscoroutine(value):
            value = asyncio.run(value)
    except BaseException as error:  # sys.exit() included: the child is kept for the next call
        return failure_of(error)
    return encoded(value, max_result)


def _read(calls: SimpleQueue[bytes]) -> None:
    for line in sys.stdin.buffer:
        calls.put(line)
    os._exit(0)  # the parent is gone


def _write(channel: int, message: dict[str, Any]) -> None:
    line = memoryview(orjson.dumps(message) + b"\n")
    while line:
        line = line[os.write(channel, line) :]


if __name__ == "__main__":
    main()
