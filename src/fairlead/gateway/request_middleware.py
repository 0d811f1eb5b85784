"""The middleware around every request: request id, log line, security headers, responses to exceptions, and limits on
the size and the speed of bodies.

No body over `server.max_body` (`server.max_batch_body` for a batch) is read into memory, with or without a
Content-Length. A request whose body stalls or arrives too slowly gets a 408.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import Awaitable, Generator, Mapping
from time import monotonic, perf_counter
from types import coroutine
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uuid_utils import uuid7

from fairlead import log_fields
from fairlead.domain.trace_context import of_headers
from fairlead.errors import RequestError, TooLarge, Unavailable
from fairlead.gateway.problems import REQUEST_ID, BodyTimeout, problem_response

log = logging.getLogger("fairlead.gateway")

_T = TypeVar("_T")

HEADERS = "fairlead.headers"
KEY_IN_URL = "fairlead.key_in_url"
"""Name of the entry in the ASGI scope that marks a request with a key in its URL. Such a URL must not be logged."""
CLIENT_GONE = 499
SOCKET_GONE = 1006
CONNECTION = "fairlead.connection"
"""Name of the entry in the ASGI scope that holds the connection, if it passes on whole bodies and responses."""
BODY = "fairlead.body"
"""Name of the entry in a message `http.response.start` that holds the whole body of the response. No other message
follows."""
POLLED_PATHS = frozenset({"/livez", "/readyz", "/metrics"})

# Responses are data: browsers must not sniff, store, frame or run them. Pages set their own policy.
POLICY = b"content-security-policy"
SAFE_HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
    (POLICY, b"default-src 'none'; frame-ancestors 'none'"),
]
CLOSE = (b"connection", b"close")
STRICT_TRANSPORT = (b"strict-transport-security", b"max-age=31536000")
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
PATIENCE_S = 30.0
MIN_BYTES_PER_S = 1024
"""Minimum speed of a body, after the first `PATIENCE_S` seconds."""


def _is_local(scope: Scope) -> bool:
    """Whether the client uses the name localhost. A browser would apply a strict transport policy of localhost to the
    servers on all other ports of the machine too."""
    host = headers_of(scope).get(b"host", b"").rpartition(b":")[0] or headers_of(scope).get(b"host", b"")
    return host == b"localhost" or host.endswith(b".localhost")


def headers_of(scope: Scope) -> dict[bytes, bytes]:
    """Return the request headers as a dict, built once per request."""
    headers: dict[bytes, bytes] | None = scope.get(HEADERS)
    if headers is None:
        headers = scope[HEADERS] = dict(scope["headers"])
    return headers


class RequestMiddleware:
    """With `outermost`, no other middleware changes responses after this one."""

    def __init__(self, app: ASGIApp, *, outermost: bool = True) -> None:
        self.app = app
        self._outermost = outermost

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        if scope["type"] not in ("http", "websocket"):
            return self.app(scope, receive, send)
        scope[REQUEST_ID] = _request_id(scope)
        answer = self._http if scope["type"] == "http" else self._websocket
        if log_fields.wanted():
            return _with_log_fields(answer, scope, receive, send)
        return answer(scope, receive, send)

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        began = perf_counter()
        request_id = scope[REQUEST_ID]
        status = 0

        def send_framed(message: Message) -> Awaitable[None]:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = message["headers"]
                safe = () if POLICY in dict(headers) else SAFE_HEADERS
                message["headers"] = [*headers, *safe, (b"x-request-id", request_id.encode())]
                if scope.get("scheme") == "https" and not _is_local(scope):
                    message["headers"].append(STRICT_TRANSPORT)
                if not body_requested and CLOSE not in headers:
                    message["headers"].append(CLOSE)
                if BODY in message:
                    return self._send_whole(scope, message, send)
            return send(message)

        # A client that waits for "100 Continue" and receives a final response instead may or may not send its body, so
        # the connection cannot be reused.
        body_requested = b"expect" not in headers_of(scope)

        def receive_framed() -> Awaitable[Message]:
            nonlocal body_requested
            body_requested = True
            return receive()

        received = receive if body_requested else receive_framed

        try:
            await self.app(scope, received, send_framed)
        except ClientDisconnect:
            status = status or CLIENT_GONE
        except Exception as error:
            if not isinstance(error, RequestError | Unavailable):
                log.exception("request %s: %s %s failed", request_id, scope["method"], _safe_path(scope))
            if not status:
                await problem_response(error, scope)(scope, receive, send_framed)
        finally:
            _write_log(scope["method"], scope, status, perf_counter() - began)

    async def _send_whole(self, scope: Scope, message: Message, send: Send) -> None:
        """Send a response with its body at once. uvicorn takes several times as long for its head and its body."""
        body = message.pop(BODY)
        connection = scope.get(CONNECTION) if self._outermost else None
        if connection is None or not connection.send_whole(scope, message["status"], message["headers"], body):
            await send(message)
            await send({"type": "http.response.body", "body": body})

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the application for a WebSocket, and log its close code when it ends."""
        began = perf_counter()
        request_id = scope[REQUEST_ID]
        code = 0
        gone = False

        async def receive_framed() -> Message:
            nonlocal code
            message = await receive()
            if message["type"] == "websocket.disconnect":
                code = code or message.get("code", 1005)
            return message

        async def send_framed(message: Message) -> None:
            nonlocal code, gone
            if message["type"] == "websocket.http.response.start":
                code = message["status"]
                message["headers"] = [*message["headers"], *SAFE_HEADERS, (b"x-request-id", request_id.encode())]
            elif message["type"] == "websocket.close":
                code = code or message.get("code", 1000)
            try:
                await send(message)
            except OSError:
                gone = True
                raise

        try:
            await self.app(scope, receive_framed, send_framed)
        except Exception:
            # Clients may disconnect at any time, even during the handshake. The log line about the end of the WebSocket
            # is enough.
            if gone:
                code = code or SOCKET_GONE
                return
            log.exception("request %s: WS %s failed", request_id, _safe_path(scope))
            if not code:
                with contextlib.suppress(Exception):
                    await send_framed({"type": "websocket.close", "code": 1011})
        finally:
            _write_log("WS", scope, code, perf_counter() - began)


async def _with_log_fields(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    with log_fields.within(_request_fields(scope)):
        await app(scope, receive, send)


def _request_id(scope: Scope) -> str:
    """Return the caller's request id if it is safe to log, else a new one."""
    request_id = headers_of(scope).get(b"x-request-id")
    if request_id is not None and _REQUEST_ID.fullmatch(request_id):
        return request_id.decode()
    return uuid7().hex


def _write_log(method: str, scope: Scope, status: int, seconds: float) -> None:
    # The query and the body are not logged: they may contain private data.
    failed = 500 <= status < 600 and scope["path"] not in POLLED_PATHS
    level = logging.WARNING if failed else logging.DEBUG
    if log.isEnabledFor(level):
        log.log(
            level,
            "%s %s %d %.1f ms request_id=%s",
            method,
            _safe_path(scope),
            status,
            seconds * 1000,
            scope[REQUEST_ID],
            extra=log_fields.with_fields(
                **_request_fields(scope),
                method=method,
                path=_safe_path(scope),
                status=status,
                duration_ms=round(seconds * 1000, 1),
            ),
        )


def _request_fields(scope: Scope) -> dict[str, Any]:
    """The fields of log lines about a request."""
    headers = headers_of(scope)
    parent = headers.get(b"traceparent")
    trace = None if parent is None else of_headers(parent.decode("latin-1"))
    fields: dict[str, Any] = {"request_id": scope[REQUEST_ID]}
    return fields if trace is None else {**fields, "trace_id": trace.trace_id}


def _safe_path(scope: Scope) -> str:
    """Return the path without control characters, which could forge log lines."""
    if KEY_IN_URL in scope:
        return "(a URL with a key)"
    path: str = scope["path"]
    if not (path.isascii() and path.isprintable()):
        path = path.encode("unicode_escape").decode()
    return path[:300]


class BodyLimit:
    """Middleware that limits the size and the speed of request bodies. `max_body` is the maximum size; `of_paths` maps
    paths to a different maximum, and `below` all paths below a path. `patience` is the maximum number of seconds
    between two chunks of a body."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        max_body: int,
        of_paths: Mapping[str, int] | None = None,
        below: Mapping[str, int] | None = None,
        patience: float = PATIENCE_S,
    ) -> None:
        self.app = app
        self._max = max_body
        self._of_paths = dict(of_paths or {})
        self._below = {f"{path}/": most for path, most in (below or {}).items()}
        self._prefixes = tuple(self._below)
        self._patience = patience

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        if scope["type"] != "http":
            return self.app(scope, receive, send)
        most = self._most(scope["path"])
        length = headers_of(scope).get(b"content-length")
        # The server reads no more than Content-Length.
        if length is None or (length.isdigit() and len(length) < 19 and int(length) <= most):
            connection = None if length is None else scope.get(CONNECTION)
            if connection is None or not connection.has_body(scope):
                receive = self._limited(receive, most)
            return self.app(scope, receive, send)
        return problem_response(self._too_large(most), scope)(scope, receive, send)

    def _most(self, path: str) -> int:
        most = self._of_paths.get(path)
        if most is not None:
            return most
        if path.startswith(self._prefixes):
            return next(most for prefix, most in self._below.items() if path.startswith(prefix))
        return self._max

    def _limited(self, receive: Receive, most: int) -> Receive:
        seen = 0
        more = True
        began: float | None = None

        async def limited() -> Message:
            nonlocal seen, more, began
            if not more:
                # Only a disconnect can follow, possibly much later.
                return await receive()
            seconds = self._patience if began is None else self._seconds_left(began, seen)
            try:
                message = await within(seconds, receive())
            except TimeoutError:
                raise self._too_slow(seconds) from None
            more = message.get("more_body", False)
            seen += len(message.get("body", b""))
            if seen > most:
                raise self._too_large(most)
            if more and began is None:
                began = monotonic()
            return message

        return limited

    def _seconds_left(self, began: float, seen: int) -> float:
        """How long to wait for the next chunk of a body that began to arrive at `began`, and of which `seen` bytes have
        arrived."""
        return max(0.0, min(self._patience, began + self._patience + seen / MIN_BYTES_PER_S - monotonic()))

    def _too_slow(self, seconds: float) -> BodyTimeout:
        if seconds < self._patience:
            return BodyTimeout(f"the body arrived at less than {MIN_BYTES_PER_S} bytes per second")
        return BodyTimeout(f"no data of the body arrived for {self._patience:g} seconds")

    def _too_large(self, most: int) -> TooLarge:
        setting = " (server.max_body)" if most == self._max else ""
        if most == self._of_paths.get("/api/v1/batches") and most > self._max:
            setting = " (server.max_batch_body)"
        return TooLarge(f"the body is over {most} bytes{setting}")


async def within(seconds: float, work: Awaitable[_T]) -> _T:
    """Return the result of `work`, or raise TimeoutError after `seconds`. Most messages are received or sent at once,
    and then no timer is set: a timer costs more than the message."""
    waiting = work.__await__()
    try:
        pause = next(waiting)
    except StopIteration as stop:
        result: _T = stop.value
        return result
    async with asyncio.timeout(seconds):
        return await _resumed(pause, waiting)


@coroutine
def _resumed(pause: Any, waiting: Generator[Any, Any, _T]) -> Generator[Any, Any, _T]:
    """Finish awaiting `waiting`, which has already been advanced once with `next`. `pause` is the value that it yielded
    then."""
    try:
        yield pause
    except BaseException:
        waiting.close()
        raise
    return (yield from waiting)
