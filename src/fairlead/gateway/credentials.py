"""Caches of the valid keys and session cookies in this process. Requests in progress are ended when their key is
revoked or their session is closed.

When a request arrives and the cached keys are about a second old, they are refreshed. So every gateway refuses a
revoked key within about a second, and a busy gateway queries the database about once a second. A refresh reads the
numbers of created and revoked keys, and reads the keys themselves only if one of these numbers has changed or a minute
has passed.

A request with an unknown key id triggers another refresh, since the key may be new. All such requests wait for the same
refresh, and there are at most four refreshes per second. While the database is unreachable, the cached keys stay valid.

The session of a cookie is looked up in the database about once a second. So a session that was closed at another
gateway ends here within about a second, however many requests a page sends.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from hmac import compare_digest

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fairlead.app.api_keys import MAX_SESSION_TEXT, SESSION_LIFE_S
from fairlead.domain.access import Key, key_id_of, secret_hash
from fairlead.errors import FairleadError, RequestError, Unavailable
from fairlead.gateway.fronts.openai.errors import is_front
from fairlead.gateway.permissions import Caller
from fairlead.gateway.problems import Unauthorized, problem_response

log = logging.getLogger("fairlead.gateway")

RENEW_AFTER_S = 0.75  # refresh in the background
STALE_AFTER_S = 1.5  # requests wait for the refresh
AGAIN_AFTER_S = 0.25  # minimum time between two refreshes, for unknown keys
PATIENCE_S = 1.0
ALL_AFTER_S = 60.0  # read the keys even if the numbers are the same, since the database may have been restored

IsLive = Callable[[str | None], bool]
COOKIE = "fairlead_session"
SESSION_KEEP_S = 1.0
SESSION_CHECK_EVERY_S = 2.0
MAX_SESSIONS = 1000

Find = Callable[[str], Awaitable[str | None]]
"""A function that returns the id of the key with which the session of a cookie was opened, or None if there is no
session."""
# Close codes of refused WebSockets, for servers that cannot send an HTTP status.
CLOSE_CODES = {401: 4401, 403: 4403, 404: 4404, 421: 4403, 422: 4422, 503: 1013}

SSE = b"text/event-stream"


class OpenRequest:
    """The request that the current task runs. `end` cancels it from another task. It does what `asyncio.timeout` does
    without a time, at a fraction of the cost: most requests have ended before their key is checked again."""

    __slots__ = ("_cancelling", "_task", "ended")

    def __init__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._cancelling = task.cancelling()
        self.ended = False

    def end(self) -> None:
        if not self.ended:
            self.ended = True
            self._task.cancel()

    def was_cancelled_by_end(self) -> bool:
        """Return whether nothing but `end` cancelled the task, which then continues. Called once, when the task is
        cancelled."""
        return self.ended and self._task.uncancel() <= self._cancelling


class KeyCache:
    """The keys of the database, cached in this process. `is_live` returns whether a stream that was opened with a given
    key id may continue."""

    def __init__(
        self,
        read: Callable[[], Awaitable[Sequence[Key]]],
        count: Callable[[], Awaitable[tuple[int, int]]],
        is_live: IsLive,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read = read
        self._count = count
        self.is_live = is_live
        self._clock = clock
        self._keys: dict[str, Key] | None = None
        self._counted: tuple[int, int] | None = None
        self._all_at = float("-inf")
        self._failure: FairleadError | None = None
        self._began = self._renew_at = self._stale_at = float("-inf")
        self._reading: asyncio.Task[None] | None = None
        self._streams: dict[OpenRequest, str | None] = {}
        self._timer: asyncio.TimerHandle | None = None

    @property
    def empty(self) -> bool:
        """Whether no key was ever created. Revoked keys count as created: revoking the last key must not open the
        gateway to requests without a key."""
        return self._keys is not None and not self._keys

    @property
    def old(self) -> bool:
        return self._keys is None or self._clock() >= self._renew_at

    async def renew(self) -> None:
        """Start a refresh of the cache. Waits for the refresh only if no keys have been read yet, or if the cached keys
        are too old to be used meanwhile."""
        reading = self._start()
        if self._keys is None:
            await asyncio.wait({reading})
            if self._keys is None:
                raise self._failure or Unavailable("the keys have not been read yet")
        elif self._clock() >= self._stale_at:
            await asyncio.wait({reading}, timeout=PATIENCE_S)

    async def reread(self) -> None:
        """Refresh the cache after this process has created or revoked a key."""
        if self._reading is not None:
            await asyncio.wait({self._reading})
        await asyncio.wait({self._start()})

    async def find(self, text: str) -> Key | None:
        """Return the key with this secret text, or None if there is no such key or it was revoked."""
        key_id = key_id_of(text)
        if key_id is None:
            return None
        digest = secret_hash(text)
        key = self.get(key_id)
        if key is None:
            await self._refresh_again()
            key = self.get(key_id)
            if key is None and self._failure is not None:
                raise self._failure
        # A revoked key is compared too, so that the duration of the check does not depend on the key.
        if key is None or not compare_digest(key.hash, digest) or key.revoked_at is not None:
            return None
        return key

    def get(self, key_id: str) -> Key | None:
        return self._keys.get(key_id) if self._keys is not None else None

    # ------------------------------------------------------------ streams

    def watch(self, request: OpenRequest, key_id: str | None) -> None:
        """End the request as soon as the key is revoked, until `unwatch` is called. A timer refreshes the cache, so
        this works even if no other request arrives."""
        self._streams[request] = key_id
        self._schedule_check()

    def unwatch(self, request: OpenRequest) -> None:
        del self._streams[request]

    def _schedule_check(self) -> None:
        """Set a timer for the next check of the open streams' keys. A task would cost more, and most requests have
        ended before the check is due."""
        if self._timer is None and self._streams:
            self._timer = asyncio.get_running_loop().call_later(RENEW_AFTER_S, self._check)

    def _check(self) -> None:
        self._timer = None
        if self._streams and self.old:
            self._start()
        self._schedule_check()

    def _end_streams(self) -> None:
        for request, key_id in self._streams.items():
            if not self.is_live(key_id):
                request.end()

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
            log.exception("cannot read the keys")
            self._failure = Unavailable("the keys cannot be read")
        finally:
            self._began = began
            self._renew_at, self._stale_at = began + RENEW_AFTER_S, began + STALE_AFTER_S
            self._reading = None

    async def _refresh_again(self) -> None:
        """Wait until a refresh that started after this call has ended."""
        called_at = self._clock()
        while self._began < called_at:
            if self._reading is not None:
                await asyncio.wait({self._reading})
            elif (pause := self._began + AGAIN_AFTER_S - self._clock()) > 0:
                await asyncio.sleep(pause)
            else:
                await asyncio.wait({self._start()})


def cookie_in(headers: dict[bytes, bytes]) -> str | None:
    for part in headers.get(b"cookie", b"").split(b";"):
        name, _, value = part.strip().partition(b"=")
        if name == COOKIE.encode():
            return value.decode("latin-1")
    return None


def set_cookie(text: str, *, secure: bool) -> str:
    """Return the Set-Cookie header that stores `text` as the session cookie. An empty `text` deletes the cookie."""
    age = SESSION_LIFE_S if text else 0
    return f"{COOKIE}={text}; Path=/; Max-Age={age}; HttpOnly; SameSite=Strict" + ("; Secure" if secure else "")


class Cookies:
    def __init__(self, find: Find, clock: Callable[[], float] = time.monotonic) -> None:
        self._find = find
        self._clock = clock
        self._cached: dict[str, tuple[float, str | None]] = {}

    async def key_of(self, text: str) -> str | None:
        if len(text) > MAX_SESSION_TEXT:
            return None  # not one of our cookies
        now = self._clock()
        cached = self._cached.get(text)
        if cached is not None and now < cached[0]:
            return cached[1]
        key_id = await self._find(text)
        if len(self._cached) >= MAX_SESSIONS:
            self._cached.clear()
        self._cached[text] = now + SESSION_KEEP_S, key_id
        return key_id

    def forget(self, text: str) -> None:
        self._cached.pop(text, None)

    @contextlib.contextmanager
    def ends(self, request: OpenRequest, text: str) -> Iterator[None]:
        """Context manager around a request. It ends the request as soon as the session of the cookie is closed or
        twelve hours old."""
        watching: asyncio.Task[None] | None = None

        def watch() -> None:
            nonlocal watching
            watching = asyncio.create_task(self._watch(request, text), name="fairlead-session")

        # Most requests have ended before the first check is due.
        timer = asyncio.get_running_loop().call_later(SESSION_CHECK_EVERY_S, watch)
        try:
            yield
        finally:
            timer.cancel()
            if watching is not None:
                watching.cancel()

    async def _watch(self, request: OpenRequest, text: str) -> None:
        while True:
            try:
                if await self.key_of(text) is None:
                    request.end()
                    return
            except FairleadError:
                pass  # open streams stay open while the database is unreachable
            except Exception:
                log.exception("cannot check the session of an open stream")
            await asyncio.sleep(SESSION_CHECK_EVERY_S)


async def run_until_revoked(
    app: ASGIApp, key_cache: KeyCache, cookies: Cookies, caller: Caller, scope: Scope, receive: Receive, send: Send
) -> None:
    """Run the application for one request, and cancel it when the caller's key is revoked or the session is closed.

    If the response has not started, the client gets a 401. Otherwise a WebSocket is closed with 4401, an event stream
    ends with a comment, a stream of the OpenAI front with an error, and any other response is cut off, so that it
    cannot be mistaken for a complete one.
    """
    first: Message | None = None

    def note_start(message: Message) -> Awaitable[None]:
        nonlocal first
        if first is None:
            first = message
        return send(message)

    if not key_cache.is_live(caller.key_id):  # revoked since the request was admitted
        await refuse(Unauthorized(_reason(caller)), scope, receive, send)
        return
    request = OpenRequest()
    key_cache.watch(request, caller.key_id)
    try:
        if caller.cookie is None:
            await app(scope, receive, note_start)
        else:
            with cookies.ends(request, caller.cookie):
                await app(scope, receive, note_start)
    except asyncio.CancelledError:
        if not request.was_cancelled_by_end():
            raise
        await _end_response(first, Unauthorized(_reason(caller)), scope, receive, send)
    finally:
        key_cache.unwatch(request)


async def _end_response(
    first: Message | None, revoked: Unauthorized, scope: Scope, receive: Receive, send: Send
) -> None:
    """End the response of a request that was cancelled. `first` is the first message that was sent."""
    # The client may have disconnected meanwhile.
    if first is None:
        with contextlib.suppress(Exception):
            await refuse(revoked, scope, receive, send)
    elif scope["type"] == "websocket":
        with contextlib.suppress(Exception):
            await send({"type": "websocket.close", "code": CLOSE_CODES[401], "reason": revoked.message})
    elif dict(first.get("headers", ())).get(b"content-type", b"").startswith(SSE):
        error = b"data: " + bytes(problem_response(revoked, scope).body)
        end = error if is_front(scope) else b": ended, unauthorized"
        with contextlib.suppress(Exception):
            await send({"type": "http.response.body", "body": end + b"\n\n", "more_body": False})
    else:
        raise revoked  # the server closes the connection of an incomplete response


async def refuse(error: RequestError | Unavailable, scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "http" or "websocket.http.response" in scope.get("extensions", {}):
        await problem_response(error, scope)(scope, receive, send)
    else:
        await send({"type": "websocket.close", "code": CLOSE_CODES.get(error.status, 1008), "reason": error.code})


def _reason(caller: Caller) -> str:
    if caller.key_id is None:
        return "a key is required now"
    return "the key was revoked" if caller.cookie is None else "the session has ended"
