"""Views that are followed: each distinct one is looked at once for all its followers, and only while there are any.

A `Channel` is one such view, with its present state. A `Follower` is one page; it is in one channel at a time. What
changed is put into bytes once, and the same bytes go to everybody. A page that does not keep up is not sent all that it
missed, but the state as it then is.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import orjson

from fairlead.errors import FairleadError, RequestError, Unavailable
from fairlead.gateway.dashboard.patch import Inexpressible, diff
from fairlead.gateway.dashboard.views import View
from fairlead.gateway.problems import problem

if TYPE_CHECKING:
    from fairlead.app import Fairlead

log = logging.getLogger("fairlead.gateway")

SHARE = 0.3
"""Of the time, a view is under way at most this much: what takes long, on a busy machine, is looked at less often."""
MOST_BEHIND = 4
PATIENCE_S = 30.0


class Follower:
    """One page's end of a channel."""

    def __init__(self) -> None:
        self._due: deque[bytes] = deque()
        self._news = asyncio.Event()
        self._missed = False
        self.channel: Channel | None = None

    def push(self, message: bytes) -> None:
        if len(self._due) >= MOST_BEHIND:
            self._due.clear()
            self._missed = True
        else:
            self._due.append(message)
        self._news.set()

    def clear(self) -> None:
        """What is due of a view that was left is no news any more."""
        self._due.clear()
        self._missed = False

    async def next(self) -> bytes:
        while True:
            await self._news.wait()
            if self._missed and self.channel is not None:
                self._missed = False
                self._due.clear()
                state = self.channel.state_message()
                if state is not None:
                    return state
            if self._due:
                return self._due.popleft()
            self._news.clear()


class Channel:
    def __init__(self, app: Fairlead, view: View) -> None:
        self._app = app
        self._view = view
        self._followers: set[Follower] = set()
        self._state: dict[str, Any] | None = None
        self._packed = b""
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
        follower.channel = self
        for message in (self.state_message(), self._refusal):
            if message:
                follower.push(message)
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name=f"fairlead-view-{self._view.name}")

    def leave(self, follower: Follower) -> None:
        self._followers.discard(follower)
        follower.channel = None
        follower.clear()
        if not self._followers and self._task is not None:
            self._task.cancel()
            self._task = None

    def state_message(self) -> bytes | None:
        if self._state is None:
            return None
        now = orjson.dumps(round(self._app.now(), 3))
        rest = b"," + self._packed[1:] if self._state else b"}"
        return b'{"type":"state","view":' + self._view.said + b',"state":{"now":' + now + rest + b"}"

    # ------------------------------------------------------------ looking

    async def _run(self) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            begun = clock()
            try:
                async with asyncio.timeout(PATIENCE_S):
                    found = await self._view.look(self._app)
                self._refusal = b""
                self._tell(found)
            except TimeoutError:
                self._refuse(Unavailable("this takes too long now"))
            except (RequestError, Unavailable) as error:
                self._refuse(error)
            except Exception as error:
                log.exception("the view %s cannot be shown", self._view.name)
                self._refuse(error)
            await asyncio.sleep(max(self._view.every, (clock() - begun) * (1 / SHARE - 1)))

    def _tell(self, state: dict[str, Any]) -> None:
        before, self._state = self._state, state
        if before is None:
            self._pack()
            self._push(self.state_message())
            return
        try:
            patch = diff(before, state)
        except Inexpressible:
            self._pack()
            self._push(self.state_message())
            return
        if patch:
            self._pack()
            self._push(b'{"type":"patch","patch":' + _dumps(patch) + b"}")

    def _pack(self) -> None:
        self._packed = _dumps(self._state)

    def _refuse(self, error: BaseException) -> None:
        """Said once, and again to whoever comes. The state that was shown last is no longer how it is."""
        said = problem(error if isinstance(error, FairleadError) else FairleadError(""), None)
        refusal = _dumps({"type": "error", "code": said["code"], "message": said["detail"]})
        if refusal != self._refusal:
            self._refusal = refusal
            self._push(refusal)
        if isinstance(error, RequestError):
            self._state = None

    def _push(self, message: bytes | None) -> None:
        if message is not None:
            for follower in self._followers:
                follower.push(message)


class Board:
    """All channels of a gateway."""

    def __init__(self, app: Fairlead) -> None:
        self._app = app
        self._channels: dict[bytes, Channel] = {}

    @property
    def followed(self) -> int:
        return len(self._channels)

    def follow(self, follower: Follower, view: View) -> None:
        """Instead of what it followed so far."""
        self.leave(follower)
        channel = self._channels.get(view.key)
        if channel is None:
            channel = self._channels[view.key] = Channel(self._app, view)
        channel.join(follower)

    def leave(self, follower: Follower) -> None:
        channel = follower.channel
        if channel is None:
            return
        channel.leave(follower)
        if not channel.followed:
            del self._channels[channel.key]

    @contextlib.contextmanager
    def follower(self) -> Iterator[Follower]:
        follower = Follower()
        try:
            yield follower
        finally:
            self.leave(follower)


def _dumps(value: Any) -> bytes:
    return orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS)
