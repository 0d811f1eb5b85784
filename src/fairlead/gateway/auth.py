"""Who may ask.

With `FAIRLEAD_ADMIN_KEY` every request but the probes' needs it. Without one we listen on loopback only, where the
danger is the user's own browser: a page from elsewhere that posts to us, or whose name was re-pointed to 127.0.0.1
(DNS rebinding). So without a key the Host must be ours, and an Origin must be the same host or an allowed one.
"""

from __future__ import annotations

from collections.abc import Sequence
from hmac import compare_digest
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from fairlead.errors import RequestError
from fairlead.gateway.frame import headers_of
from fairlead.gateway.problems import CrossSite, Unauthorized, WrongHost, problem_response

OPEN_TO_ALL = frozenset({"/livez", "/readyz"})
LOOPBACK_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})


class Guard:
    def __init__(self, app: ASGIApp, *, admin_key: str | None, host: str, allowed_origins: Sequence[str]) -> None:
        self.app = app
        self._key = admin_key.encode() if admin_key else None
        self._hosts = LOOPBACK_HOSTS | {host.lower().strip("[]")}
        self._origins = frozenset(allowed_origins)
        # Host headers that passed; clients repeat the same few, and parsing one costs more than all other checks.
        self._passed: set[bytes] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            refusal = self._refusal(scope)
            if refusal is not None:
                await problem_response(refusal, scope)(scope, receive, send)
                return
        await self.app(scope, receive, send)

    def _refusal(self, scope: Scope) -> RequestError | None:
        headers = headers_of(scope)
        if self._key is not None:
            if scope["path"] in OPEN_TO_ALL or self._has_key(headers.get(b"authorization", b"")):
                return None
            return Unauthorized("send the key as 'Authorization: Bearer <key>'")
        return self._wrong_host(headers.get(b"host", b"")) or self._cross_site(headers)

    def _has_key(self, authorization: bytes) -> bool:
        scheme, _, key = authorization.partition(b" ")
        # compare_digest first: how long the check takes must not tell how much of a key was right.
        return compare_digest(key.strip(), self._key or b"") and scheme.lower() == b"bearer"

    def _wrong_host(self, host: bytes) -> RequestError | None:
        if host in self._passed:
            return None
        if _hostname(f"//{host.decode('latin-1')}") not in self._hosts:
            return WrongHost("without a key this server answers only to its own host name, such as localhost")
        if len(self._passed) < 100:
            self._passed.add(host)
        return None

    def _cross_site(self, headers: dict[bytes, bytes]) -> RequestError | None:
        origin = headers.get(b"origin")
        if origin is None or "*" in self._origins:
            return None
        text = origin.decode("latin-1")
        own_host = headers.get(b"host", b"").decode("latin-1").lower()
        if text in self._origins or text.lower().partition("://")[2] == own_host:
            return None
        return CrossSite("pages of this origin may not use this server; see server.allowed_origins")


def _hostname(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None
