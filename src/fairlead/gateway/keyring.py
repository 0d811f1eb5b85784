"""The keys of the truth, as this process knows them.

They are read again when a request comes and the last reading is about a second old, so a revoked key is refused
everywhere within about a second, and a busy gateway asks the truth once a second however many requests it has: how
many keys were made and revoked, and for the keys themselves only when these numbers are others than before. An id
that is not known is looked for once more, since its key may be new; all such requests wait for the next reading
together, and there are at most four in a second, whatever anyone sends. While the truth cannot be asked, the keys that
were known last go on.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from hmac import compare_digest

from fairlead.domain import keytext
from fairlead.domain.keys import Key
from fairlead.errors import FairleadError, Unavailable

log = logging.getLogger("fairlead.gateway")

RENEW_AFTER_S = 0.75  # then it is read again while requests go on
STALE_AFTER_S = 1.5  # then they wait for it
AGAIN_AFTER_S = 0.25  # at least so long between two readings, however many unknown keys are sent
PATIENCE_S = 1.0
ALL_AFTER_S = 60.0  # a database that was restored may have the same numbers of other keys

IsLive = Callable[[str | None], bool]


class Keyring:
    """`is_live` says of a caller's key id whether a stream that it opened may go on."""

    def __init__(
        self,
        read: Callable[[], Awaitable[Sequence[Key]]],
        count: Callable[[], Awaitable[tuple[int, int]]],
        is_live: IsLive,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read = read
        self._count = count
        self._is_live = is_live
        self._clock = clock
        self._keys: dict[str, Key] | None = None
        self._counted: tuple[int, int] | None = None
        self._all_at = float("-inf")
        self._failure: FairleadError | None = None
        self._began = self._renew_at = self._stale_at = float("-inf")
        self._reading: asyncio.Task[None] | None = None
        self._streams: dict[asyncio.Timeout, str | None] = {}
        self._tending: asyncio.Task[None] | None = None

    @property
    def empty(self) -> bool:
        """There is no key and never was one: a revoked one opens nothing, least of all the door."""
        return self._keys is not None and not self._keys

    @property
    def old(self) -> bool:
        return self._keys is None or self._clock() >= self._renew_at

    async def renew(self) -> None:
        """Called when it is `old`: returns at once if what is known will do, else when the truth was asked."""
        reading = self._start()
        if self._keys is None:
            await asyncio.wait({reading})
            if self._keys is None:
                raise self._failure or Unavailable("the keys are not known yet")
        elif self._clock() >= self._stale_at:
            await asyncio.wait({reading}, timeout=PATIENCE_S)

    async def reread(self) -> None:
        """For whoever just changed the keys, and wants to find it so."""
        if self._reading is not None:
            await asyncio.wait({self._reading})
        await asyncio.wait({self._start()})

    async def find(self, text: str) -> Key | None:
        """The live key with this text."""
        key_id = keytext.id_of(text)
        if key_id is None:
            return None
        digest = keytext.hash_of(text)
        key = self.get(key_id)
        if key is None:
            await self._look_again()
            key = self.get(key_id)
            if key is None and self._failure is not None:
                raise self._failure
        # Compared even if it is revoked: how long it takes must not tell what was wrong.
        if key is None or not compare_digest(key.hash, digest) or key.revoked_at is not None:
            return None
        return key

    def get(self, key_id: str) -> Key | None:
        return self._keys.get(key_id) if self._keys is not None else None

    # ------------------------------------------------------------ streams

    @contextlib.contextmanager
    def ends(self, stream: asyncio.Timeout, key_id: str | None) -> Iterator[None]:
        """While within, `stream` expires when the key is revoked, though no request comes that would look."""
        self._streams[stream] = key_id
        if not self._is_live(key_id):  # since it was admitted
            stream.reschedule(asyncio.get_running_loop().time())
        if self._tending is None:
            self._tending = asyncio.create_task(self._tend(), name="fairlead-keyring")
        try:
            yield
        finally:
            del self._streams[stream]
            if not self._streams and self._tending is not None:
                self._tending.cancel()
                self._tending = None

    async def _tend(self) -> None:
        while True:
            await asyncio.sleep(RENEW_AFTER_S)
            if self.old:
                await asyncio.wait({self._start()})

    def _end_streams(self) -> None:
        now = asyncio.get_running_loop().time()
        for stream, key_id in self._streams.items():
            if not self._is_live(key_id) and not stream.expired():
                stream.reschedule(now)

    # ------------------------------------------------------------ reading

    def _start(self) -> asyncio.Task[None]:
        if self._reading is None:
            self._reading = asyncio.create_task(self._read_all(), name="fairlead-keys")
        return self._reading

    async def _read_all(self) -> None:
        began = self._clock()
        try:
            counted = await self._count()
            if counted != self._counted or began >= self._all_at:
                self._keys = {key.id: key for key in await self._read()}
                self._counted, self._all_at = counted, began + ALL_AFTER_S
                self._end_streams()
            self._failure = None
        except FairleadError as error:
            self._failure = error
        except Exception:
            log.exception("the keys cannot be read")
            self._failure = Unavailable("the keys cannot be read")
        finally:
            self._began = began
            self._renew_at, self._stale_at = began + RENEW_AFTER_S, began + STALE_AFTER_S
            self._reading = None

    async def _look_again(self) -> None:
        """Until a reading that began after this call has ended."""
        asked = self._clock()
        while self._began < asked:
            if self._reading is not None:
                await asyncio.wait({self._reading})
            elif (pause := self._began + AGAIN_AFTER_S - self._clock()) > 0:
                await asyncio.sleep(pause)
            else:
                await asyncio.wait({self._start()})
