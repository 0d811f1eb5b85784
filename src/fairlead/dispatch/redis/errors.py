"""redis-py's errors end here: what leaves this package is `Unavailable`."""

from __future__ import annotations

from redis.exceptions import ReadOnlyError, RedisClusterException, RedisError

from fairlead.errors import Unavailable

ERRORS = (RedisError, RedisClusterException, OSError, EOFError)
"""What a client may raise."""

NOT_OURS = "this Redis is not, or not yet, the one that the line was built on; waiting for a manager to build it"


class WrongServer(RedisError):
    """Not a `ConnectionError`: redis-py must neither try again nor look for another node by itself."""


def takes_no_writes(error: BaseException) -> bool:
    """Whether the server has become a replica. Up to Redis 6 a script's error says so in its text only, and redis-py
    has words of its own for it behind Sentinels."""
    return isinstance(error, ReadOnlyError) or "READONLY" in str(error) or "is now a slave" in str(error)


def unavailable(error: BaseException) -> Unavailable:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, WrongServer):
            return _from(error, NOT_OURS)
        if isinstance(cause, Unavailable):
            return cause
        cause = cause.__cause__
    if isinstance(error, TimeoutError):
        return _from(error, "Redis does not answer")
    text = str(error).partition(" : <")[0]  # what follows are the Sentinels' clients with all their settings
    return _from(error, f"Redis cannot be used now: {text or type(error).__name__}", "Redis cannot be used now")


def _from(error: BaseException, text: str, public: str | None = None) -> Unavailable:
    translated = Unavailable(text, public=public)
    translated.__cause__ = error
    return translated
