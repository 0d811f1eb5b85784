"""How a command fails: with one line of text and an exit code that scripts can distinguish."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Any


class Exit(IntEnum):
    OK = 0
    REFUSED = 1  # refused by the gateway or by this machine
    USAGE = 2  # the command or the configuration is wrong
    JOB_FAILED = 3
    JOB_CANCELLED = 4
    NO_CONNECTION = 5
    NOT_FINISHED = 6  # --wait ended before the job
    INTERRUPTED = 130


class Failure(Exception):
    """The error of a command: a message and an exit code. `problem` is the error response of the gateway; `--json`
    prints it."""

    def __init__(self, message: str, code: Exit = Exit.REFUSED, *, problem: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.problem = dict(problem) if problem else {"detail": message}
