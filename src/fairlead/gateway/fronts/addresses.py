"""The address under which a client reaches the gateway, for URLs in responses."""

from __future__ import annotations

from starlette.requests import Request

from fairlead.gateway.request_middleware import headers_of


def origin_of(request: Request) -> str:
    """The address of the gateway as the client wrote it, without a slash at the end. A proxy that ends TLS says so with
    `X-Forwarded-Proto`; whatever a client writes there comes back to that client only."""
    url = request.base_url
    scheme = headers_of(request.scope).get(b"x-forwarded-proto", b"").decode("latin-1").strip().lower()
    if scheme in ("http", "https"):
        url = url.replace(scheme=scheme)
    return str(url).rstrip("/")
