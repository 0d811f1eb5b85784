"""Which queues a call may go to. Among those, the least loaded is chosen where it is reserved (`reserve.lua`)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import lru_cache
from typing import Literal, get_args

Strategy = Literal["least_loaded", "user_hash", "shuffle"]
STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)
DEFAULT_STRATEGY: Strategy = "shuffle"
"""By measurement: docs/celery.md. Without a `user_of` it is least_loaded."""
DEFAULT_SHUFFLE_SIZE = 4

Candidates = Callable[[str | None], tuple[int, ...]]
"""Indices of queues for a user; none for all queues."""


def candidates_of(strategy: Strategy, queues: int, shuffle_size: int) -> Candidates:
    """A call whose user is not known may go anywhere."""

    @lru_cache(10_000)
    def of_user(user: str) -> tuple[int, ...]:
        if strategy == "user_hash":
            return (queue_of_user(user, queues),)
        return hand_of_user(user, queues, min(shuffle_size, queues))

    def candidates(user: str | None) -> tuple[int, ...]:
        return () if user is None or strategy == "least_loaded" else of_user(user)

    return candidates


def queue_of_user(user: str, queues: int) -> int:
    """The same in every process and at every time, as long as there are that many queues."""
    return _hash(user) % queues


def hand_of_user(user: str, queues: int, size: int) -> tuple[int, ...]:
    """The queues dealt to a user (shuffle sharding): two users seldom share all of theirs. Each queue is drawn by a
    hash of its own, so that one more queue changes few hands."""
    drawn = sorted(range(queues), key=lambda index: (_hash(f"{index}:{user}"), index))
    return tuple(sorted(drawn[:size]))


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")
