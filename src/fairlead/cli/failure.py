"""How a command says that it did not work: one clear line and an exit code that scripts can tell apart."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Any


class Exit(IntEnum):
    OK = 0
    REFUSED = 1  # the gateway or this machine said no
    USAGE = 2  # the command or the configuration is wrong
    JOB_FAILED = 3
    JOB_CANCELLED = 4
    NO_CONNECTION = 5
    NOT_FINISHED = 6  # --wait was over before the job was
    INTERRUPTED = 130


class Failure(Exception):
    """`problem` is what the gateway answered, for `--json`."""

    def __init__(self, message: str, code: Exit = Exit.REFUSED, *, problem: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.problem = dict(problem) if problem else {"detail": message}
