"""Checks of where a request comes from: the address, the proxy, and the origin of the page.

While there is no key, everyone who reaches the gateway may do everything. A request must then come from a program on
this machine. It must arrive over a loopback address, and its Host header must name this gateway; with DNS rebinding,
the header names another host. It must not come from a page of another origin, nor through a proxy, which would forward
requests from the whole network.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from urllib.parse import urlsplit

from starlette.types import Scope

from fairlead.gateway.problems import CrossSite, Unauthorized, WrongHost

LOOPBACK_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})
MAX_CACHED = 100
_NOT_A_HOST = frozenset("@/?#\\")

# Headers that proxies, load balancers and tunnels add, besides X-Forwarded-*.
_PROXY_HEADERS = frozenset(
    {
        b"forwarded",
        b"via",
        b"x-real-ip",
        b"x-client-ip",
        b"x-cluster-client-ip",
        b"x-original-forwarded-for",
        b"x-original-host",
        b"x-envoy-external-address",
        b"cf-connecting-ip",
        b"fly-client-ip",
        b"true-client-ip",
    }
)
_FORWARDED = b"x-forwarded"


class Origins:
    """Checks requests by their origin. `host` is the address that the gateway listens on. `allowed` are the origins of
    other servers whose pages may send requests to the gateway."""

    def __init__(self, host: str, allowed: Sequence[str]) -> None:
        self._hosts = LOOPBACK_HOSTS | {host.lower().strip("[]")}
        self._allowed = frozenset(allowed)
        # Host headers that passed the check. Clients send the same few, and parsing one costs more than all other
        # checks.
        self._passed: set[tuple[bytes, str | None]] = set()

    def check_keyless(self, scope: Scope, headers: dict[bytes, bytes]) -> None:
        """Raise unless a request comes from a program on this machine. Called while no key exists: every caller may
        then do everything."""
        _refuse_proxied(headers)
        self._check_address(scope, headers)
        self.check_page(headers, wildcard=False)

    def check_page(self, headers: dict[bytes, bytes], *, needed: bool = False, wildcard: bool = True) -> None:
        """Raise unless the Origin header of a request names the gateway itself or an allowed origin.

        With `needed`, a request without an Origin is refused too. With `wildcard`, a `*` in the allowed origins matches
        any origin. Pass `wildcard` only for callers that authenticate with a key, which a page of another site cannot
        have.
        """
        origin = headers.get(b"origin")
        if needed and origin is None:
            raise CrossSite("a request with a session cookie that changes something needs the header Origin")
        if origin is None or (wildcard and "*" in self._allowed):
            return
        text = origin.decode("latin-1")
        own_host = headers.get(b"host", b"").decode("latin-1").lower()
        if text not in self._allowed and text.lower().partition("://")[2] != own_host:
            raise CrossSite("this origin may not use this server; see server.allowed_origins")

    def _check_address(self, scope: Scope, headers: dict[bytes, bytes]) -> None:
        host = headers.get(b"host", b"")
        server = scope.get("server")
        # A Unix domain socket has no port and is local.
        address = server[0] if server is not None and server[1] is not None else None
        if (host, address) in self._passed:
            return
        if address is not None and not _is_loopback(address):
            raise Unauthorized("without keys only this machine is served; create one with: fairlead keys create")
        if _hostname(host.decode("latin-1")) not in self._hosts:
            raise WrongHost("without a key this server responds only to its own host name, such as localhost")
        if len(self._passed) < MAX_CACHED:
            self._passed.add((host, address))


def refuse_embedded(headers: dict[bytes, bytes]) -> None:
    """Refuse a request that a browser sends because a page of another origin embeds this address, for example as an
    image or a frame. Such a request has no Origin header.

    Call this for requests that are authenticated by a cookie, or only by coming from this machine. The embedding page
    cannot read the response, but the request itself may have an effect: a GET may take the slot of a turn.
    """
    site = headers.get(b"sec-fetch-site")
    if site in (b"cross-site", b"same-site") and b"origin" not in headers:
        opened = headers.get(b"sec-fetch-mode") == b"navigate" and headers.get(b"sec-fetch-dest") == b"document"
        if not opened:  # `opened`: the user followed a link
            raise CrossSite("a page of another origin may not embed this address")


def network_of(scope: Scope) -> str:
    """Return the client address under which attempts to sign in are counted. For IPv6, return the /64 network, because
    one client has many addresses."""
    client = scope.get("client")
    address = str(client[0]) if client else ""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address[:100]
    if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped is None:
        return str(ipaddress.ip_network((parsed, 64), strict=False))
    return address


def _refuse_proxied(headers: dict[bytes, bytes]) -> None:
    if _PROXY_HEADERS.isdisjoint(headers) and _FORWARDED not in b" ".join(headers):
        return
    header = next(name for name in headers if name in _PROXY_HEADERS or _FORWARDED in name)
    raise Unauthorized(
        f"this request came through a proxy ({header.decode('latin-1')[:50]}), and without keys everyone behind it "
        "could do everything: create a key with 'fairlead keys create --role admin', or call the gateway directly"
    )


def _is_loopback(address: str) -> bool:
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address == "localhost"
    # A dual-stack socket reports IPv4 addresses as mapped ones.
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return (mapped or parsed).is_loopback


def _hostname(host: str) -> str | None:
    """Return the host name in a Host header, without the port. Returns None if the header contains characters that no
    host has: for `evil.example@localhost`, for example, `urlsplit` would return `localhost`."""
    if not _NOT_A_HOST.isdisjoint(host):
        return None
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None
