"""Executes Python functions in child processes, for code that holds the GIL, or that must stop at once when its call is
abandoned.

A child process (`process_child.py`) runs one call at a time and is reused for the next. Parent and child exchange lines
of JSON over pipes; nothing is pickled. When a call is abandoned, its child is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import sys
from asyncio.subprocess import PIPE, Process
from typing import Any

import orjson

from fairlead.domain.retry import WORKER_DIED, Failure
from fairlead.domain.usage import Usage
from fairlead.executors.call_outcome import failure_of, with_output
from fairlead.executors.port import Call, OutputTooLarge, Success
from fairlead.executors.process_files import file_request

SLACK = 65536
_SENT = tuple(name for name in inspect.signature(Call).parameters if name != "report")
"""The attributes of a call that the child makes its own call from."""


class ProcessExecutor:
    def __init__(self, path: str, *, max_result: int) -> None:
        self._path = path
        self._max_result = max_result
        self._idle: list[Process] = []
        self._all: set[Process] = set()
        self._dying: set[asyncio.Task[Any]] = set()

    async def execute(self, call: Call) -> Success | Failure:
        child = self._idle.pop() if self._idle else await self._start()
        try:
            outcome = await self._exchange(child, call)
        except OutputTooLarge as error:
            self._kill(child)
            return failure_of(error)
        except BaseException:
            self._kill(child)
            raise
        if outcome is None:
            self._kill(child)
            return Failure(WORKER_DIED, "the process that ran the call died", retryable=True)
        self._idle.append(child)
        if "usage" in outcome:
            call.usage = Usage(**outcome["usage"])
        result = Success(outcome["success"]) if "success" in outcome else Failure(**outcome["failure"])
        return result if call.output is None else with_output(call.output, result)

    async def _exchange(self, child: Process, call: Call) -> dict[str, Any] | None:
        """Send the call to the child, and read its progress reports and chunks until the outcome. Returns None if the
        child died."""
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            child.stdin.write(orjson.dumps(_portable(call)) + b"\n")
            await child.stdin.drain()
            while line := await child.stdout.readline():
                message: dict[str, Any] = orjson.loads(line)
                if "progress" in message:
                    call.progress(**message["progress"])
                elif "file" in message:
                    child.stdin.write(orjson.dumps({"file": await file_request(call, message["file"])}) + b"\n")
                    await child.stdin.drain()
                elif "chunks" in message:
                    output = call.open_output()
                    for chunk in message["chunks"]:
                        output.append(chunk)
                else:
                    return message
        except (ConnectionError, ValueError):
            pass
        return None

    async def _start(self) -> Process:
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "fairlead.executors.process_child", self._path, str(self._max_result),
            stdin=PIPE, stdout=PIPE, limit=2 * self._max_result + SLACK,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, ["", *sys.path]))},
        )  # fmt: skip
        self._all.add(child)
        return child

    def _kill(self, child: Process) -> None:
        self._all.discard(child)
        with contextlib.suppress(ProcessLookupError):
            child.kill()
        # Wait until its pipes are closed too: transports that are left over warn when the loop is closed.
        dying = asyncio.get_running_loop().create_task(child.communicate())
        self._dying.add(dying)
        dying.add_done_callback(self._dying.discard)

    async def close(self) -> None:
        for child in list(self._all):
            self._kill(child)
        if self._dying:
            await asyncio.wait(self._dying)


def _portable(call: Call) -> dict[str, Any]:
    """The fields of the call that are sent to the child, as plain values."""
    return {**{name: getattr(call, name) for name in _SENT}, "trace": call.trace, "run": call.run}
