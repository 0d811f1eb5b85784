"""Services that are Python functions in processes of their own: for code that holds the interpreter or must be stopped.

A child (`child.py`) makes one call at a time and is kept for the next. They speak lines of JSON over pipes, so nothing
is ever pickled. A call that is given up is really stopped: its child is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from asyncio.subprocess import PIPE, Process
from typing import Any

import orjson

from fairlead.domain.retry import WORKER_DIED, Failure
from fairlead.executors.port import Call, Success

SLACK = 65536


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
            answer = await self._ask(child, call)
        except BaseException:
            self._kill(child)
            raise
        if answer is None:
            self._kill(child)
            return Failure(WORKER_DIED, "the process that ran the call died", retryable=True)
        self._idle.append(child)
        if "success" in answer:
            return Success(answer["success"])
        return Failure(**answer["failure"])

    async def _ask(self, child: Process, call: Call) -> dict[str, Any] | None:
        """None if the child died."""
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            child.stdin.write(orjson.dumps(_portable(call)) + b"\n")
            await child.stdin.drain()
            while line := await child.stdout.readline():
                said: dict[str, Any] = orjson.loads(line)
                if "progress" not in said:
                    return said
                call.progress(**said["progress"])
        except (ConnectionError, ValueError):
            pass
        return None

    async def _start(self) -> Process:
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "fairlead.executors.child", self._path, str(self._max_result),
            stdin=PIPE, stdout=PIPE, limit=2 * self._max_result + SLACK,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, ["", *sys.path]))},
        )  # fmt: skip
        self._all.add(child)
        return child

    def _kill(self, child: Process) -> None:
        self._all.discard(child)
        with contextlib.suppress(ProcessLookupError):
            child.kill()
        # Until its pipes are closed too: what is left of it when the loop is closed complains.
        dying = asyncio.get_running_loop().create_task(child.communicate())
        self._dying.add(dying)
        dying.add_done_callback(self._dying.discard)

    async def close(self) -> None:
        for child in list(self._all):
            self._kill(child)
        if self._dying:
            await asyncio.wait(self._dying)


def _portable(call: Call) -> dict[str, Any]:
    """What crosses to the child: plain values only."""
    return {name: value for name, value in vars(call).items() if name[0] != "_" and name != "lingering"}
