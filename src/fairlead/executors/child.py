"""The other end of `process.py`: `python -m fairlead.executors.child module:function max_result`.

Reads calls and writes answers, a line of JSON each. What the handler prints goes to stderr. When the parent is gone, so
is this process, even in the middle of a call.
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
from fairlead.executors.failure import failure_of
from fairlead.executors.function import Handler, imported
from fairlead.executors.port import Call, Success
from fairlead.executors.result import encoded


def main() -> None:
    path, max_result = sys.argv[1], int(sys.argv[2])
    answers = os.dup(1)
    os.dup2(2, 1)
    calls: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_read, args=(calls,), daemon=True).start()
    handler = imported(path)
    while True:
        fields = orjson.loads(calls.get())
        call = Call(**fields, report=lambda said: _write(answers, {"progress": said}))
        outcome = _outcome(handler, call, max_result)
        if isinstance(outcome, Success):
            _write(answers, {"success": outcome.data_json})
        else:
            shown = ("code", "message", "retryable", "retry_after")
            _write(answers, {"failure": {name: getattr(outcome, name) for name in shown}})


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


def _write(channel: int, said: dict[str, Any]) -> None:
    line = memoryview(orjson.dumps(said) + b"\n")
    while line:
        line = line[os.write(channel, line) :]


if __name__ == "__main__":
    main()
