"""Selects the candidate queues of a call. Among the candidates, `reserve.lua` chooses the queue with the least load."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import lru_cache
from typing import Literal, get_args

Strategy = Literal["least_loaded", "user_hash", "shuffle"]
STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)
DEFAULT_STRATEGY: Strategy = "shuffle"
"""The strategy with the best measured results; see docs/celery.md. For calls without a user it is the same as
least_loaded."""
DEFAULT_SHUFFLE_SIZE = 4

Candidates = Callable[[str | None], tuple[int, ...]]
"""A function that returns the indices of a user's candidate queues. Empty means all queues."""


def candidates_of(strategy: Strategy, queues: int, shuffle_size: int) -> Candidates:
    """Return a function that selects the candidate queues of a user. A call without a user may go to any queue."""

    @lru_cache(10_000)
    def of_user(user: str) -> tuple[int, ...]:
        if strategy == "user_hash":
            return (queue_of_user(user, queues),)
        return hand_of_user(user, queues, min(shuffle_size, queues))

    def candidates(user: str | None) -> tuple[int, ...]:
        return () if user is None or strategy == "least_loaded" else of_user(user)

    return candidates


def queue_of_user(user: str, queues: int) -> int:
    """Return the index of a user's queue. It is the same in every process and every release, as long as the number of
    queues does not change."""
    return _hash(user) % queues


def hand_of_user(user: str, queues: int, size: int) -> tuple[int, ...]:
    """Return the indices of a user's `size` queues (shuffle sharding): two users rarely have exactly the same queues.
    Queues are selected by a hash of user and queue, so adding a queue changes the selection of few users."""
    drawn = sorted(range(queues), key=lambda index: (_hash(f"{index}:{user}"), index))
    return tuple(sorted(drawn[:size]))


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")
