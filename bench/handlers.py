"""The work of a job, the same for every system, and how the benchmark observes it.

A job is a kind and a number. When it ends it appends one byte to the file `done`; kinds whose start matters append
(number, nanoseconds since the epoch) to the file `starts` first. An append is atomic over threads and processes and
costs a microsecond or two.
"""

from __future__ import annotations

import asyncio
import os
import struct
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path

START = struct.Struct("<qq")


@dataclass(frozen=True)
class Kind:
    seconds: float = 0.0
    stamped: bool = False
    ends: bool = True
    """False for a step of a pipeline that is not its last."""


KINDS = {
    "noop": Kind(),
    "stamp": Kind(stamped=True),
    "sleep": Kind(0.1),
    "turn": Kind(0.01, stamped=True),
    "long": Kind(5.0, stamped=True),
    "step": Kind(0.02, ends=False),
    "last": Kind(0.02),
}


def folder() -> Path:
    return Path(os.environ["BENCH_FOLDER"])


@cache
def _file(name: str) -> int:
    return os.open(folder() / name, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644)


def run(kind: str, number: int) -> None:
    what = KINDS[kind]
    _begin(what, number)
    if what.seconds:
        time.sleep(what.seconds)
    _end(what)


async def run_async(kind: str, number: int) -> None:
    what = KINDS[kind]
    _begin(what, number)
    if what.seconds:
        await asyncio.sleep(what.seconds)
    _end(what)


def _begin(what: Kind, number: int) -> None:
    if what.stamped:
        os.write(_file("starts"), START.pack(number, time.time_ns()))


def _end(what: Kind) -> None:
    if what.ends:
        os.write(_file("done"), b".")


def done(where: Path) -> int:
    """The number of jobs that have ended."""
    try:
        return (where / "done").stat().st_size
    except FileNotFoundError:
        return 0


def started(where: Path) -> int:
    """The number of stamped jobs that have started."""
    try:
        return (where / "starts").stat().st_size // START.size
    except FileNotFoundError:
        return 0


def starts(where: Path) -> list[tuple[int, int]]:
    """(number, nanoseconds), in the order of the starts."""
    try:
        return sorted(START.iter_unpack((where / "starts").read_bytes()), key=lambda start: start[1])
    except FileNotFoundError:
        return []
