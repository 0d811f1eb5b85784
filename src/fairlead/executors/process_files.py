"""Files of calls that run in child processes. The child names a file on the disk, and the parent saves it; or the
parent writes a file to the disk, and the child opens it. The bytes never go through the pipes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import tempfile
import threading
from collections.abc import AsyncIterable, Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any, BinaryIO

import orjson

from fairlead.errors import Permanent
from fairlead.executors.port import Call, Reference, Source

PIECE = 1024 * 1024
ANSWER = b'{"file":'
"""How the parent's answers begin, and no call."""


async def file_request(call: Call, request: dict[str, Any]) -> dict[str, Any]:
    """Do in the parent what the child asks for, and return the answer."""
    try:
        if "save" in request:
            name, path, content_type = request["save"]
            return {"reference": await call.save(name, Path(path), content_type)}
        with await call.open(request["open"]) as file:
            return {"path": await asyncio.to_thread(_copied, file)}
    except asyncio.CancelledError:
        raise
    except Exception as error:
        return {"error": str(error), "permanent": isinstance(error, Permanent)}


def _copied(file: BinaryIO) -> str:
    descriptor, path = tempfile.mkstemp(prefix="fairlead-")
    with os.fdopen(descriptor, "wb") as copy:
        shutil.copyfileobj(file, copy, PIECE)
    return path


class PipeFiles:
    """Saves and opens files in the child, by asking the parent."""

    def __init__(self, ask: Callable[[dict[str, Any]], None], answers: SimpleQueue[bytes]) -> None:
        self._ask = ask
        self._answers = answers
        self._lock = threading.Lock()

    def save(self, call: Call, name: str, source: Source, content_type: str | None) -> Any:
        return _here_or_in_thread(lambda: self._save(name, source, content_type))

    def open(self, call: Call, reference: Reference) -> Any:
        return _here_or_in_thread(lambda: self._open(reference))

    def read(self, call: Call, reference: Reference) -> Any:
        return _here_or_in_thread(lambda: self._read(reference))

    async def urls(self, call: Call, value_json: str) -> str:
        return value_json  # only HTTP services ask for URLs, and they run in the parent

    def _save(self, name: str, source: Source, content_type: str | None) -> Any:
        if isinstance(source, str | AsyncIterable):
            raise TypeError("in a process, save() takes bytes, a pathlib.Path or a binary file")
        if isinstance(source, os.PathLike):
            return self._answer({"save": [name, os.path.abspath(source), content_type]})["reference"]
        descriptor, path = tempfile.mkstemp(prefix="fairlead-")
        try:
            with os.fdopen(descriptor, "wb") as file:
                if isinstance(source, bytes | bytearray | memoryview):
                    file.write(source)
                else:
                    read: Any = getattr(source, "read", None)
                    file.writelines(iter(lambda: read(PIECE), b"") if read is not None else source)
            return self._answer({"save": [name, path, content_type]})["reference"]
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)

    def _open(self, reference: Reference) -> BinaryIO:
        path = self._answer({"open": reference if isinstance(reference, str) else dict(reference)})["path"]
        try:
            return open(path, "rb")
        finally:
            os.unlink(path)

    def _read(self, reference: Reference) -> bytes:
        with self._open(reference) as file:
            return file.read()

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            self._ask(request)
            answer: dict[str, Any] = orjson.loads(self._answers.get())["file"]
        if "error" in answer:
            raise (Permanent if answer["permanent"] else OSError)(answer["error"])
        return answer


def _here_or_in_thread(work: Callable[[], Any]) -> Any:
    """The result, or an awaitable where an event loop runs."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return work()
    return asyncio.to_thread(work)
