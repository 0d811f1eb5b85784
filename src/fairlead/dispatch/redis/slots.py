"""Which node of a Cluster has which keys. Any node may be asked, also one that is refused: the map is not the line."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Sequence
from typing import Any

from redis.crc import key_slot
from redis.exceptions import MovedError

from fairlead.dispatch.redis.clients import Address

LOOK_AGAIN_S = 0.5
"""While something is wrong, the nodes are asked no more often than that."""


class Slots:
    """The map as it was last heard, with what was heard to have moved since."""

    def __init__(self, seeds: Sequence[Address]) -> None:
        self._seeds = seeds
        self._ranges: list[tuple[int, int, Address]] = []
        self._moved: dict[int, Address] = {}
        self._all: set[Address] = set()
        self._doubted = True
        self._looked_at = float("-inf")

    def in_doubt(self) -> bool:
        """Whether it is time to ask the nodes (again)."""
        return self._doubted and (not self._ranges or time.monotonic() - self._looked_at > LOOK_AGAIN_S)

    def doubt(self) -> None:
        """A node did not answer, or is not what it was."""
        self._doubted = True

    def to_ask(self) -> list[Address]:
        """Not always the same one first: it may be the one that is lost."""
        nodes = list(self._all.union(self._seeds))
        random.shuffle(nodes)
        return nodes

    def learn(self, answer: Iterable[Sequence[Any]], asked: Address) -> None:
        """What CLUSTER SLOTS says. A node that does not know its own name is the one that was asked."""
        self._ranges, self._moved, self._all = [], {}, set()
        for first, last, *nodes in answer:
            addresses = [(node[0].decode() if node[0] else asked[0], int(node[1])) for node in nodes]
            self._ranges.append((first, last, addresses[0]))
            self._all.update(addresses)
        self._doubted, self._looked_at = False, time.monotonic()

    def learn_move(self, moved: MovedError, asked: Address) -> None:
        self._moved[moved.slot_id] = (moved.host or asked[0], moved.port)
        self._doubted = True

    def node_of(self, key: str) -> Address | None:
        """None: no node has it now."""
        slot = key_slot(key.encode())
        if slot in self._moved:
            return self._moved[slot]
        return next((node for first, last, node in self._ranges if first <= slot <= last), None)

    @property
    def primaries(self) -> list[Address]:
        return sorted({node for _, _, node in self._ranges} | set(self._moved.values()))
