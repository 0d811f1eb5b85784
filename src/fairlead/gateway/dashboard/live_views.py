"""Live views of the dashboard. Each distinct view is computed once for all pages that follow it, and only while a page
follows it.

A `LiveView` is one view with its current state. A `Follower` is one page; it follows one view at a time. A change is
encoded once, and the same bytes go to all followers. A page that falls behind receives the current state instead of the
changes that it missed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Coroutine, Iterator
from typing import TYPE_CHECKING, Any

import orjson
from fastapi import APIRouter
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from fairlead.engine.events import ShuttingDown, SlowConsumer, Subscription
from fairlead.errors import FairleadError, RequestError, Unavailable
from fairlead.gateway.dashboard.views import View, number_of, view_of
from fairlead.gateway.permissions import Caller, caller_of
from fairlead.gateway.problems import problem
from fairlead.gateway.responses import fairlead_of
from fairlead.pacing import DutyCycle

if TYPE_CHECKING:
    from fairlead.app.fairlead import Fairlead

log = logging.getLogger("fairlead.gateway")

SHARE = 0.3
"""Maximum fraction of the time that is spent on computing one view. A view that is slow to compute is therefore updated
less often."""
MAX_BEHIND = 4
PATIENCE_S = 30.0
SEND_WITHIN_S = 10.0
REQUEST_INTERVAL_S = 0.1
"""Minimum time between two requests of a page for a view, since each request costs a query."""
CLOSE_WITHIN_S = 1.0
RESTARTING, LATER = 1012, 1013


class NotMergeable(Exception):
    """The new state contains a null. A JSON merge patch cannot set a field to null: a null in a patch deletes the
    field."""


def merge_patch(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON merge patch that turns `old` into `new`. It is empty if they are equal. A list that differs is
    replaced as a whole. Raises NotMergeable."""
    patch: dict[str, Any] = {}
    for key, value in new.items():
        before = old.get(key)
        if value is before or value == before:
            if value is None and key not in old:
                raise NotMergeable
            continue
        if isinstance(value, dict) and isinstance(before, dict):
            patch[key] = merge_patch(before, value)
        else:
            _check(value)
            patch[key] = value
    for key in old.keys() - new.keys():
        patch[key] = None
    return patch


def _check(value: Any) -> None:
    """Raise NotMergeable if the value is or contains a null. Lists are not searched, since a patch contains them as a
    whole."""
    if value is None:
        raise NotMergeable
    if isinstance(value, dict):
        for each in value.values():
            _check(each)


class Follower:
    """One page that follows a view, with the messages that are to be sent to it."""

    def __init__(self) -> None:
        self._messages: deque[bytes] = deque()
        self._wakeup = asyncio.Event()
        self._missed = False
        self.view: LiveView | None = None
        self.number: int | None = None
        """The number that the page gave its request for the view. Each message repeats it, so that the page recognises
        messages of a view that it has left."""

    def push(self, message: bytes) -> None:
        if len(self._messages) >= MAX_BEHIND:
            self._messages.clear()
            self._missed = True
        else:
            self._messages.append(message)
        self._wakeup.set()

    def clear(self) -> None:
        """Drop the unsent messages. They belong to a view that the page has left."""
        self._messages.clear()
        self._missed = False

    async def next(self) -> bytes:
        while True:
            await self._wakeup.wait()
            if self._missed and self.view is not None:
                self._missed = False
                self._messages = deque(self.view.current_messages())
            if self._messages:
                return self._numbered(self._messages.popleft())
            self._wakeup.clear()

    def _numbered(self, message: bytes) -> bytes:
        return message if self.number is None else b'{"request":%d,' % self.number + message[1:]


class LiveView:
    def __init__(self, app: Fairlead, view: View) -> None:
        self._app = app
        self._view = view
        self._followers: set[Follower] = set()
        self._state: dict[str, Any] | None = None
        self._encoded = b""
        self._refusal = b""
        self._task: asyncio.Task[None] | None = None

    @property
    def key(self) -> bytes:
        return self._view.key

    @property
    def followed(self) -> bool:
        return bool(self._followers)

    def join(self, follower: Follower) -> None:
        self._followers.add(follower)
        follower.view = self
        for message in self.current_messages():
            follower.push(message)
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name=f"fairlead-view-{self._view.name}")

    def leave(self, follower: Follower) -> None:
        self._followers.discard(follower)
        follower.view = None
        follower.clear()
        if not self._followers and self._task is not None:
            self._task.cancel()
            self._task = None

    def current_messages(self) -> list[bytes]:
        """The messages for a page that has received none yet, or has missed some."""
        state = [] if self._state is None else [self._state_message()]
        return [*state, self._refusal] if self._refusal else state

    def _state_message(self) -> bytes:
        now = orjson.dumps(round(self._app.now(), 3))
        rest = b"," + self._encoded[1:] if self._state else b"}"
        return b'{"type":"state","view":' + self._view.request + b',"state":{"now":' + now + rest + b"}"

    # ------------------------------------------------------------ computing

    async def _run(self) -> None:
        clock = asyncio.get_running_loop().time
        pace = DutyCycle(SHARE, self._view.every)
        while True:
            started = clock()
            try:
                async with asyncio.timeout(PATIENCE_S):
                    state = await self._view.query(self._app)
                self._publish(state)
            except TimeoutError:
                self._refuse(Unavailable("computing this view takes too long"))
            except (RequestError, Unavailable) as error:
                self._refuse(error)
            except Exception as error:
                log.exception("computing the view %s failed", self._view.name)
                self._refuse(error)
            await asyncio.sleep(pace.pause(clock() - started))

    def _publish(self, state: dict[str, Any]) -> None:
        """Send the changes since the last state, or the whole state if there was none, if a patch cannot express the
        changes, or if the pages show an error."""
        before, recovered = self._state, bool(self._refusal)
        try:
            patch = None if before is None or recovered else merge_patch(before, state)
        except NotMergeable:
            patch = None
        if patch == {}:
            return
        self._encoded, self._state, self._refusal = _dumps(state), state, b""
        self._push(self._state_message() if patch is None else b'{"type":"patch","patch":' + _dumps(patch) + b"}")

    def _refuse(self, error: BaseException) -> None:
        """Send an error to all followers, unless it is the same as the last one, and keep it for pages that follow the
        view later. After a RequestError, also drop the last state."""
        body = problem(error if isinstance(error, FairleadError) else FairleadError(""), None)
        refusal = _dumps({"type": "error", "code": body["code"], "message": body["detail"]})
        if refusal != self._refusal:
            self._refusal = refusal
            self._push(refusal)
        if isinstance(error, RequestError):
            self._state = None

    def _push(self, message: bytes) -> None:
        for follower in self._followers:
            follower.push(message)


class LiveViews:
    """All live views of a gateway."""

    def __init__(self, app: Fairlead) -> None:
        self._app = app
        self._views: dict[bytes, LiveView] = {}

    @property
    def followed(self) -> int:
        return len(self._views)

    def follow(self, follower: Follower, view: View) -> None:
        """Let the follower leave its current view and follow `view`."""
        self.leave(follower)
        follower.number = view.number
        live = self._views.get(view.key)
        if live is None:
            live = self._views[view.key] = LiveView(self._app, view)
        live.join(follower)

    def leave(self, follower: Follower) -> None:
        live = follower.view
        if live is None:
            return
        live.leave(follower)
        if not live.followed:
            del self._views[live.key]

    @contextlib.contextmanager
    def follower(self) -> Iterator[Follower]:
        follower = Follower()
        try:
            yield follower
        finally:
            self.leave(follower)


def _dumps(value: Any) -> bytes:
    return orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS)


async def dashboard(websocket: WebSocket) -> None:
    views: LiveViews = websocket.app.state.live_views
    await websocket.accept()
    with views.follower() as follower, fairlead_of(websocket).hub.present() as process:
        page = DashboardSocket(websocket, views, follower, caller_of(websocket))
        await page.run(process)


router = APIRouter(routes=[WebSocketRoute("/ws/dashboard", dashboard)])


class DashboardSocket:
    def __init__(self, websocket: WebSocket, views: LiveViews, follower: Follower, caller: Caller) -> None:
        self._websocket = websocket
        self._views = views
        self._follower = follower
        self._caller = caller

    async def run(self, process: Subscription) -> None:
        """Serve the WebSocket of one page until the client disconnects or is too slow, or until this process stops."""
        parts: list[Coroutine[Any, Any, None]] = [self._receive(), self._send_messages(), _until_shutdown(process)]
        tasks = [asyncio.create_task(part) for part in parts]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            ended = next(iter(done)).exception()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if isinstance(ended, ShuttingDown):
            await self._close(RESTARTING, "this gateway is stopping; reconnect")
        elif isinstance(ended, SlowConsumer):
            await self._close(LATER, "too slow; reconnect for the current state")
        elif ended is not None and not isinstance(ended, WebSocketDisconnect):
            raise ended

    async def _receive(self) -> None:
        while True:
            message = await self._websocket.receive()
            if message["type"] == "websocket.disconnect":
                return
            request = _read(message)
            try:
                self._views.follow(self._follower, view_of(request, self._caller))
            except RequestError as error:
                self._views.leave(self._follower)
                self._follower.number = number_of(request)
                body = problem(error, None)
                self._follower.push(orjson.dumps({"type": "error", "code": body["code"], "message": body["detail"]}))
            await asyncio.sleep(REQUEST_INTERVAL_S)

    async def _send_messages(self) -> None:
        while True:
            message = await self._follower.next()
            try:
                async with asyncio.timeout(SEND_WITHIN_S):
                    await self._websocket.send({"type": "websocket.send", "text": message.decode()})
            except TimeoutError:
                raise SlowConsumer from None

    async def _close(self, code: int, reason: str) -> None:
        with contextlib.suppress(TimeoutError, RuntimeError, OSError):
            async with asyncio.timeout(CLOSE_WITHIN_S):
                await self._websocket.close(code, reason)


async def _until_shutdown(process: Subscription) -> None:
    while True:
        await process.next()


def _read(message: Any) -> Any:
    try:
        return orjson.loads(message.get("text") or message.get("bytes") or b"")
    except ValueError:
        return None
