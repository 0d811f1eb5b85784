"""The interface of object stores. `artifacts/directory.py` and `artifacts/remote.py` implement it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Mapping, Sequence
from typing import Protocol

from fairlead.errors import FairleadError, Unavailable

PIECE = 1024 * 1024
"""The size of the pieces in which objects are read, in bytes."""


class ObjectsUnavailable(Unavailable):
    """The object store cannot be reached, or does not accept writes now."""

    def __init__(self, message: str) -> None:
        super().__init__(message, retry_after=5.0, public="the object store cannot be reached; try again later")


class ObjectMissing(FairleadError):
    """The object store has no object with this key."""


class ObjectStore(Protocol):
    """Keeps objects under keys of 32 hexadecimal digits, each written once. Methods raise ObjectsUnavailable if the
    store does not work now. `tests/contract/test_objects.py` tests it."""

    shown: str
    """Where the objects are, without credentials."""

    async def check(self) -> None:
        """Check that the store can be reached. Creates nothing."""
        ...

    async def put(self, key: str, chunks: AsyncIterable[bytes], headers: Mapping[str, str]) -> None:
        """Write an object. When this returns, the object survives a power loss; until then it does not exist. At most a
        few chunks are in memory at a time. `headers` are sent by stores that clients read directly."""
        ...

    def get(self, key: str, start: int = 0, end: int | None = None) -> AsyncGenerator[bytes, None]:
        """Read an object, from byte `start` up to, and without, byte `end`. Raises ObjectMissing."""
        ...

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete objects. Objects that do not exist are ignored."""
        ...

    def pages(self) -> AsyncIterator[list[tuple[str, float]]]:
        """All objects, each with the time at which it was written, in seconds since 1970 by the store's clock. Also the
        remains of writes that were cut off."""
        ...

    async def url(self, key: str, seconds: float) -> str | None:
        """A URL with which anyone can read the object for this time; None if the store has none."""
        ...

    async def close(self) -> None: ...
