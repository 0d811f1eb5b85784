"""`/fal/proxy`, for clients whose hosts are constants: `@fal-ai/client` sends every request to its `proxyUrl`, and the
URL that it wants in a header.

Nothing is forwarded to another host. If the URL has one of fal's hosts, the request becomes one to the route of this
gateway that has the same purpose, before the caller's access is checked. Otherwise the route of `/fal/proxy` refuses
it.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable
from urllib.parse import unquote

from starlette.types import ASGIApp, Receive, Scope, Send

from fairlead.gateway.fronts.fal.errors import PREFIX
from fairlead.gateway.fronts.openai.errors import path_of
from fairlead.gateway.request_middleware import headers_of

TARGET = "x-fal-target-url"
PROXY = f"{PREFIX}proxy"
RUN = f"{PREFIX}run/"
# The characters that a URL may have, without a user, a port, a fragment, or anything that parsers disagree about.
_URL = re.compile(r"https://(fal\.run|queue\.fal\.run|rest\.fal\.ai)/([\w.~!$&'()*+,;=:@%/-]*)(?:\?([^#\s\\]*))?", re.A)
_REST = ("storage/upload/", "tokens")


def target_of(url: str) -> tuple[str, bytes] | None:
    """The path and the query here for a URL of fal; None if it is not one that is served here."""
    match = _URL.fullmatch(url)
    if match is None:
        return None
    host, path, query = match[1], unquote(match[2]), match[3] or ""
    if not path.isprintable() or (host == "rest.fal.ai" and not path.startswith(_REST)):
        return None
    prefix = RUN if host == "fal.run" else PREFIX
    return prefix + path, query.encode()


class FalProxy:
    """ASGI middleware that redirects requests of `/fal/proxy` to their routes."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        if scope["type"] == "http" and scope["path"].endswith(PROXY) and path_of(scope) == PROXY:
            target = target_of(headers_of(scope).get(TARGET.encode(), b"").decode("latin-1"))
            if target is not None:
                path, scope["query_string"] = target
                scope["path"] = scope.get("root_path", "") + path
                scope["raw_path"] = scope["path"].encode()
        return self.app(scope, receive, send)
