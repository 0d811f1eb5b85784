"""The cookie of a browser that signed in to the dashboard, and the sessions behind such cookies.

What a cookie stands for is asked of the truth about once a second: so a session that was closed at another gateway ends
here within about a second, and a page that asks much costs no more than one that asks little.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator

from fairlead.errors import FairleadError
from fairlead.runtime.sessions import LIFE_S

COOKIE = "fairlead_session"
KEEP_S = 1.0
LOOK_EVERY_S = 2.0
MANY = 1000

Find = Callable[[str], Awaitable[str | None]]
"""The id of the key that a cookie stands for."""


def cookie_in(headers: dict[bytes, bytes]) -> str | None:
    for part in headers.get(b"cookie", b"").split(b";"):
        name, _, value = part.strip().partition(b"=")
        if name == COOKIE.encode():
            return value.decode("latin-1")
    return None


def set_cookie(text: str, *, secure: bool) -> str:
    """The header's value. An empty text takes the cookie away."""
    age = LIFE_S if text else 0
    return f"{COOKIE}={text}; Path=/; Max-Age={age}; HttpOnly; SameSite=Strict" + ("; Secure" if secure else "")


class Cookies:
    def __init__(self, find: Find, clock: Callable[[], float] = time.monotonic) -> None:
        self._find = find
        self._clock = clock
        self._known: dict[str, tuple[float, str | None]] = {}

    async def key_of(self, text: str) -> str | None:
        now = self._clock()
        known = self._known.get(text)
        if known is not None and now < known[0]:
            return known[1]
        found = await self._find(text)
        if len(self._known) >= MANY:
            self._known.clear()
        self._known[text] = now + KEEP_S, found
        return found

    def forget(self, text: str) -> None:
        self._known.pop(text, None)

    @contextlib.contextmanager
    def ends(self, stream: asyncio.Timeout, text: str | None) -> Iterator[None]:
        """While within, `stream` expires when its session ends: closed, or twelve hours old."""
        if text is None:
            yield
            return
        watching = asyncio.create_task(self._watch(stream, text), name="fairlead-session")
        try:
            yield
        finally:
            watching.cancel()

    async def _watch(self, stream: asyncio.Timeout, text: str) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            # While the truth cannot be asked, what was open stays open.
            with contextlib.suppress(FairleadError):
                if await self.key_of(text) is None:
                    stream.reschedule(asyncio.get_running_loop().time())
                    return
