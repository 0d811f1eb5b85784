"""The order of users and groups beside each other in a lane: a heap whose keys may be out of date.

A sort key that rises, as with every grant, changes nothing in the heap: it is corrected there when it reaches the top.
Only a key that falls is pushed.
"""

from __future__ import annotations

from collections.abc import Collection
from heapq import heapify, heappop, heappush, heapreplace
from typing import Any

STALE_KEYS = 64
UNRANKED = -(1 << 60)


class Node:
    """A user or group in one band. `tag` is its virtual time. `key` is the number by which it is sorted: that of a
    newcomer until its first grant, then the tag. `time` is the virtual time of a group's members."""

    __slots__ = ("id", "key", "places", "tag", "time")

    def __init__(self, node_id: str) -> None:
        self.id = node_id
        self.key = self.tag = self.time = 0
        self.places: list[Place] = []

    @property
    def is_new(self) -> bool:
        return self.key != self.tag


class Place:
    """The place of a node in the `ranking` of those beside it in a lane. `number` is the key in the heap that counts,
    or UNRANKED: others there are older and higher. `below` ranks the members of a group."""

    __slots__ = ("below", "node", "number", "ranking")

    def __init__(self, node: Node, ranking: Ranking, below: Ranking | None) -> None:
        self.node = node
        self.ranking = ranking
        self.below = below
        self.number = UNRANKED
        node.places.append(self)

    def __lt__(self, other: Place) -> bool:
        return False  # an earlier place of the same node, with the same key


class Ranking:
    """Users or groups beside each other in a lane, in a heap by sort keys that are at most as high as the real ones.
    The places are in the heap too, because to find each by its id takes most of the time."""

    __slots__ = ("heap", "places")

    def __init__(self) -> None:
        self.heap: list[tuple[int, str, Place]] = []
        self.places: dict[str, Place] = {}

    def first(self, parked: Collection[str]) -> tuple[Any, ...] | None:
        """The lowest sort key of those that are not parked. If it is that of a group, the lowest one of its members
        follows, down to a user."""
        heap = self.heap
        found: tuple[Any, ...] = ()
        while heap:
            number, node_id, place = heap[0]
            if place.number != number:
                heappop(heap)
            elif (real := place.node.key) != number:
                place.number = real
                heapreplace(heap, (real, node_id, place))
            elif parked and node_id in parked:
                place.number = UNRANKED
                heappop(heap)
            else:
                found += (number, node_id)
                below = place.below
                if below is None:
                    return found
                heap = below.heap
        assert not found  # active groups have active members
        return None

    def push(self, node: Node, below: Ranking | None = None) -> None:
        """The sort key of a node is new, or may have fallen."""
        place, number = self.places.get(node.id), node.key
        if place is None:
            place = self.places[node.id] = Place(node, self, below)
        if number < place.number or place.number == UNRANKED:
            place.number = number
            heappush(self.heap, (number, node.id, place))
            if len(self.heap) > 2 * len(self.places) + STALE_KEYS:
                self.fill()  # most keys are useless; the cost is spread over the pushes since the last time

    def drop(self, node_id: str) -> None:
        """A node is no longer in the lane."""
        if (place := self.places.pop(node_id, None)) is not None:
            place.number = UNRANKED
            place.node.places.remove(place)

    def fill(self) -> None:
        """Rank all by their real sort keys."""
        for place in self.places.values():
            place.number = place.node.key
        self.heap = [(place.node.key, node_id, place) for node_id, place in self.places.items()]
        heapify(self.heap)
