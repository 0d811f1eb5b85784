"""Translation of redis-py's errors, and the pauses between attempts to connect.

Callers of this package see only `Unavailable`. A process has a dozen components that use Redis, and each retries on its
own schedule: every commit relays, every read of a job requests its position. After a failure, only one of the
components tries to connect from time to time, and the others fail at once with the same error. When the server answers,
all of them continue, and those that wait for their next attempt wake up.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from functools import cache

from redis.exceptions import ReadOnlyError, RedisClusterException, RedisError

from fairlead.errors import Unavailable

DOWN_S = (0.5, 1.0)
"""The first and the longest pause, in seconds, while the server cannot be reached."""
READ_ONLY_S = (1.0, 2.0)
"""The first and the longest pause, in seconds, while the server is read-only."""
REFUSED_S = (0.25, 0.5)
"""The first and the longest pause, in seconds, while the database names another server (`servers.check_identity`)."""

_LEAST_WAIT_S = 0.05


class Paused(RedisError):
    """No connection was tried, because another component of this process failed to connect a moment ago."""


class Pause:
    def __init__(self) -> None:
        self._until = self._length = 0.0
        self._lengths = DOWN_S
        self._cause: BaseException | None = None
        self.successes = 0
        """The number of successes. An attempt that began before a success and fails after it begins no pause."""
        self._waiting: set[asyncio.Future[None]] = set()

    def check(self) -> None:
        """Raise `Paused` during a pause. After the pause the first caller may try to connect, and another pause begins
        for all others."""
        if self._cause is None:
            return
        now = time.monotonic()
        if now < self._until:
            raise Paused from self._cause
        self._until = now + self._length

    def begin(self, cause: BaseException, lengths: tuple[float, float]) -> None:
        """Begin a pause. `lengths` are the first and the longest pause in seconds. If nothing has succeeded since the
        previous pause, the new one is twice as long."""
        if isinstance(cause, Paused):
            return
        first, most = self._lengths = lengths
        self._length = first if self._cause is None else max(first, min(most, 2 * self._length))
        self._cause = cause
        self._until = time.monotonic() + self._length

    def connected(self) -> None:
        """End the pause because the server answered. The pause of a read-only server goes on: an answer does not prove
        that the server accepts writes."""
        if self._lengths is not READ_ONLY_S:
            self.end()

    def end(self) -> None:
        self.successes += 1
        if self._cause is None:
            return
        self._cause = None
        for waiting in self._waiting:
            with contextlib.suppress(RuntimeError):  # its event loop is closed
                waiting.get_loop().call_soon_threadsafe(_wake, waiting)

    async def wait(self, most: float) -> None:
        """Wait before the next attempt: until the pause has ended or one caller may connect, but at most `most`
        seconds; outside a pause, for `most` seconds."""
        if self._cause is not None:
            most = min(most, max(_LEAST_WAIT_S, self._until - time.monotonic()))
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(waiting)
        try:
            await asyncio.wait([waiting], timeout=most)
        finally:
            self._waiting.discard(waiting)


def _wake(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)


@cache
def pause_of(url: str, node: tuple[str, int] | None, *, gated: bool = False) -> Pause:
    """The pause that all connections of this process to the server share. Connections that check the server's identity
    (`gated`) share a separate one."""
    return Pause()


ERRORS = (RedisError, RedisClusterException, OSError, EOFError)
"""The exceptions that a Redis client may raise."""

NOT_OURS = "the queue is not built on this Redis server yet; waiting for a manager to build it"


class WrongServer(RedisError):
    """The server's identity is refused. This is not a `ConnectionError`, so redis-py neither retries nor tries another
    node."""


def is_read_only(error: BaseException) -> bool:
    """Whether the error means that the server has become a replica. Up to Redis 6 only the message of a script's error
    shows this, and behind Sentinels redis-py raises an error with a message of its own."""
    if isinstance(error, Paused):
        return False  # no command was sent
    return isinstance(error, ReadOnlyError) or "READONLY" in str(error) or "is now a slave" in str(error)


def is_script_failure(error: Unavailable) -> bool:
    """Whether one of our scripts failed because of a bug or corrupt data, and not because the server refused a
    command."""
    return re.search(r"user_script:\d+: [^-@]", str(error.__cause__ or "")) is not None


def is_refusal(error: BaseException | None) -> bool:
    """Whether a new connection was closed because the server's identity is refused."""
    while error is not None and not isinstance(error, WrongServer):
        error = error.__cause__
    return error is not None


def unavailable(error: BaseException) -> Unavailable:
    if isinstance(error, Paused) and error.__cause__ is not None:
        error = error.__cause__  # the error of the last attempt
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, WrongServer):
            return _from(error, NOT_OURS)
        if isinstance(cause, Unavailable):
            return cause
        cause = cause.__cause__
    if isinstance(error, TimeoutError):
        return _from(error, "Redis does not respond")
    text = str(error).partition(" : <")[0]  # drop the repr of the Sentinel clients, which follows
    return _from(error, f"Redis is unavailable: {text or type(error).__name__}", "Redis is unavailable")


def _from(error: BaseException, text: str, public: str | None = None) -> Unavailable:
    translated = Unavailable(text, public=public)
    translated.__cause__ = error
    return translated
