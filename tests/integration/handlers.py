"""Handlers that another process can import."""

import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

from fairlead import Call, Permanent


def own_pid(call: Call) -> dict[str, Any]:
    return {"pid": os.getpid(), "params": call.params}


def endless(call: Call) -> None:
    Path(call.params["entered"]).write_text(str(os.getpid()), encoding="utf-8")
    while True:
        time.sleep(60)


def odd(call: Call) -> Any:
    print("what a handler prints is no answer")
    match call.params["kind"]:
        case "exit":
            sys.exit(3)
        case "die":
            os._exit(3)
        case "set":
            return {1, 2}
        case kind:
            return kind


def emits(call: Call) -> None:
    for word in call.params["words"]:
        call.emit(word)


def yields(call: Call) -> Iterator[str]:
    yield from call.params["words"]


async def yields_async(call: Call) -> AsyncIterator[str]:
    for word in call.params["words"]:
        yield word


def redraw(call: Call) -> dict[str, Any]:
    """Reads and saves files, in a child process."""
    content = call.read(call.params["file"])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "notes.txt"
        path.write_text("from a path")
        saved = call.save("notes.txt", path)
    try:
        call.open("file-" + "0" * 32)
    except Permanent as error:
        missing = str(error)
    return {"bytes": call.save("upper.txt", content.upper()), "path": saved, "missing": missing}
