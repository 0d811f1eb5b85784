"""The outermost layer: every request gets an id, a log line, safe headers, and an answer whatever happens."""

from __future__ import annotations

import contextlib
import logging
import re
from time import perf_counter

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uuid_utils import uuid7

from fairlead.errors import RequestError, Unavailable
from fairlead.gateway.problems import REQUEST_ID, problem_response

log = logging.getLogger("fairlead.gateway")

HEADERS = "fairlead.headers"
CLIENT_GONE = 499
SOCKET_GONE = 1006
QUIET = frozenset({"/livez", "/readyz", "/metrics"})
QUIET_BELOW = "/static/"  # a page of the dashboard has dozens of parts

# Answers are data and no pages: nothing may sniff, store, frame or run them. What is a page says itself what it may.
POLICY = b"content-security-policy"
_SAFE_HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
    (POLICY, b"default-src 'none'; frame-ancestors 'none'"),
]
_A_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")


def headers_of(scope: Scope) -> dict[bytes, bytes]:
    """The request's headers, looked through once however many layers ask."""
    headers: dict[bytes, bytes] | None = scope.get(HEADERS)
    if headers is None:
        headers = scope[HEADERS] = dict(scope["headers"])
    return headers


class Frame:
    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await self._carry(scope, receive, send)
            return
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began = perf_counter()
        request_id = scope[REQUEST_ID] = _request_id(scope)
        status = 0

        async def send_framed(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                given = message["headers"]
                safe = () if POLICY in dict(given) else _SAFE_HEADERS
                message["headers"] = [*given, *safe, (b"x-request-id", request_id.encode())]
            await send(message)

        try:
            await self.app(scope, receive, send_framed)
        except ClientDisconnect:
            status = status or CLIENT_GONE
        except Exception as error:
            if not isinstance(error, RequestError | Unavailable):
                log.exception("request %s: %s %s failed", request_id, scope["method"], _shown(scope["path"]))
            if not status:
                await problem_response(error, scope)(scope, receive, send_framed)
        finally:
            _write_log(scope["method"], scope, status, perf_counter() - began)

    async def _carry(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A WebSocket: its line is written when it ends, with the code that it was closed with."""
        began = perf_counter()
        request_id = scope[REQUEST_ID] = _request_id(scope)
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
                message["headers"] = [*message["headers"], *_SAFE_HEADERS, (b"x-request-id", request_id.encode())]
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
            # Clients leave when they like, in the middle of the handshake too: the line of the end says enough.
            if gone:
                code = code or SOCKET_GONE
                return
            log.exception("request %s: WS %s failed", request_id, _shown(scope["path"]))
            if not code:
                with contextlib.suppress(Exception):
                    await send_framed({"type": "websocket.close", "code": 1011})
        finally:
            _write_log("WS", scope, code, perf_counter() - began)


def _request_id(scope: Scope) -> str:
    """The caller's own, if it is harmless, so that its log and ours can be read together."""
    given = headers_of(scope).get(b"x-request-id")
    if given is not None and _A_REQUEST_ID.fullmatch(given):
        return given.decode()
    return uuid7().hex


def _write_log(method: str, scope: Scope, status: int, seconds: float) -> None:
    # The query and the body stay out: they hold what users typed.
    path = scope["path"]
    level = logging.DEBUG if path in QUIET or path.startswith(QUIET_BELOW) else logging.INFO
    if log.isEnabledFor(level):
        log.log(
            level,
            "%s %s %d %.1f ms request_id=%s",
            method,
            _shown(path),
            status,
            seconds * 1000,
            scope[REQUEST_ID],
        )


def _shown(path: str) -> str:
    """A path is whatever the client sent: no control character may begin a line of our log."""
    if not (path.isascii() and path.isprintable()):
        path = path.encode("unicode_escape").decode()
    return path[:300]
