"""What can be asked about a user."""

from __future__ import annotations

from typing import Any, Protocol

from fairlead.domain.job import PrioritySource


class NoAnswer(Exception):
    """Nothing came that could be used.

    `counts`: the asked one is in trouble, and if that goes on, it is left alone for a while. What is wrong with one
    user alone must not count: whoever invents five users would take the others' priorities away.
    `keep`: it would be no better if asked again at once.
    """

    def __init__(self, message: str, *, counts: bool, keep: bool = False) -> None:
        super().__init__(message)
        self.counts = counts
        self.keep = keep


class Asked(Protocol):
    name: str
    source: PrioritySource

    async def ask(self, user_id: str) -> Any:
        """A priority, a mapping with `priority`, `weight` or `plan`, or None: it has no opinion. Raises NoAnswer."""
        ...

    async def close(self) -> None: ...
