"""How many steps this process may still take. The workers of several shards share it."""

from __future__ import annotations

from collections.abc import Callable


class Room:
    """A worker takes room before it claims, and gives back what the claim left of it and what has ended."""

    def __init__(self, capacity: int) -> None:
        self._free = capacity
        self._members = 0
        self._short: set[Callable[[], None]] = set()

    def join(self) -> None:
        self._members += 1

    def take(self, on_room: Callable[[], None], *, at_most: int) -> int:
        """A fair part of what is free; `on_room` is called when there was none and there is some again."""
        part = min(at_most, -(-self._free // max(1, self._members)))
        if part == 0:
            self._short.add(on_room)
        self._free -= part
        return part

    def give_back(self, count: int) -> None:
        if not count:
            return
        self._free += count
        if self._short:
            short, self._short = self._short, set()
            for on_room in short:
                on_room()
