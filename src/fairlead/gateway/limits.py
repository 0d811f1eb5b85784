"""No body over `server.max_body`, or `server.max_batch_body` for a batch, is taken into memory, whether it says its
size or not, and none is waited for that stopped coming."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Mapping
from types import coroutine
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fairlead.errors import TooLarge
from fairlead.gateway.frame import headers_of
from fairlead.gateway.problems import BodyTimeout, problem_response

PATIENCE_S = 30.0


class BodyLimit:
    """`larger` are the paths where more is allowed. `patience` is how long the next piece of a body may take, in
    seconds."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        max_body: int,
        larger: Mapping[str, int] | None = None,
        patience: float = PATIENCE_S,
    ) -> None:
        self.app = app
        self._max = max_body
        self._larger = dict(larger or {})
        self._patience = patience

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        most = self._larger.get(scope["path"], self._max)
        length = headers_of(scope).get(b"content-length")
        # The server reads no more than what was announced.
        if length is None or (length.isdigit() and len(length) < 19 and int(length) <= most):
            await self.app(scope, self._limited(receive, most), send)
        else:
            await problem_response(self._too_large(most), scope)(scope, receive, send)

    def _limited(self, receive: Receive, most: int) -> Receive:
        seen = 0
        more = True

        async def limited() -> Message:
            nonlocal seen, more
            if not more:
                # All that can come now is that the client leaves, which may take as long as it likes.
                return await receive()
            try:
                message = await _within(self._patience, receive)
            except TimeoutError:
                raise BodyTimeout(f"nothing more of the body came for {self._patience:g} seconds") from None
            more = message.get("more_body", False)
            seen += len(message.get("body", b""))
            if seen > most:
                raise self._too_large(most)
            return message

        return limited

    def _too_large(self, most: int) -> TooLarge:
        setting = "max_body" if most == self._max else "max_batch_body"
        return TooLarge(f"the body is over {most} bytes (server.{setting})")


async def _within(seconds: float, receive: Receive) -> Message:
    """The next message. Nearly every body is there when it is asked for, and then no timer is set: one costs more than
    reading the body."""
    waiting = receive().__await__()
    try:
        pause = next(waiting)
    except StopIteration as there:
        message: Message = there.value
        return message
    async with asyncio.timeout(seconds):
        return await _resumed(pause, waiting)


@coroutine
def _resumed(pause: Any, waiting: Generator[Any, Any, Message]) -> Generator[Any, Any, Message]:
    """The rest of an await, after its first `pause`."""
    try:
        yield pause
    except BaseException:
        waiting.close()
        raise
    return (yield from waiting)
