"""Sends one webhook over HTTP, to public addresses only.

The host of a URL is resolved for each request. All its addresses are checked, and the connection is made to these very
addresses: a name that resolves to another address a moment later changes nothing.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Callable, Mapping
from typing import Any

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from fairlead.domain.config_webhooks import WebhooksConfig
from fairlead.domain.webhook_addresses import is_public
from fairlead.domain.webhooks import url_problem
from fairlead.engine.webhooks.port import Sent
from fairlead.executors.upstream_limits import retry_after_of

MAX_RESPONSE = 16384
"""Bytes of a response that are read. The rest is not waited for."""
SHOWN = 500
"""Characters of a response that the log keeps."""
NOT_PUBLIC = "the host has an address that is not public; see webhooks.allow_private"


class Refused(OSError):
    """The request would have gone to an address that is not allowed. Nothing was sent."""


class GuardedResolver(AbstractResolver):
    """Resolves hosts, and refuses a host with any address that is not public."""

    def __init__(self, *, allow_private: bool) -> None:
        self._allow_private = allow_private

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        infos = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM, family=family)
        found: list[ResolveResult] = []
        for address_family, _, proto, _, address in infos:
            text = str(address[0])
            if not self._allow_private:
                check_address(text)
            found.append(
                ResolveResult(
                    hostname=host,
                    host=text,
                    port=port,
                    family=address_family,
                    proto=proto,
                    flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
                )
            )
        return found

    async def close(self) -> None:
        pass


def check_address(text: str) -> None:
    """Raise `Refused` unless this is a public address."""
    try:
        public = "%" not in text and is_public(ipaddress.ip_address(text))
    except ValueError:
        public = False
    if not public:
        raise Refused(NOT_PUBLIC)


class HttpSender:
    """Posts webhooks. Each request has its own connection, so that the address is checked each time. Redirects are not
    followed, and proxies of the environment are not used."""

    def __init__(
        self,
        config: WebhooksConfig,
        resolver: Callable[[], AbstractResolver] | None = None,
    ) -> None:
        self._config = config
        self._resolver = resolver or (lambda: GuardedResolver(allow_private=config.allow_private))
        self._session: aiohttp.ClientSession | None = None

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(
                resolver=self._resolver(), use_dns_cache=False, force_close=True, limit=self._config.concurrency * 2
            )
            self._session = aiohttp.ClientSession(
                connector=connector,
                timeout=aiohttp.ClientTimeout(total=self._config.timeout),
                cookie_jar=aiohttp.DummyCookieJar(),
                trust_env=False,
                auto_decompress=False,
                max_line_size=8190,
                max_field_size=8190,
            )
        return self._session

    async def send(self, url: str, body: str, headers: Mapping[str, str]) -> Sent:
        config = self._config
        if problem := url_problem(url, allow_http=config.allow_http, allow_private=config.allow_private):
            return Sent(None, f"the URL {problem}")
        try:
            target = URL(url)
            self._check_literal(target)
            async with self._open().post(
                target, data=body.encode(), headers=dict(headers), allow_redirects=False
            ) as response:
                text = await _beginning(response)
                response.close()  # the rest of a long response is not read
                return Sent(response.status, text, retry_after_of(response.headers))
        except TimeoutError:
            return Sent(None, f"no response within {config.timeout:g} s")
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return Sent(None, _reason(error))

    def _check_literal(self, url: URL) -> None:
        """aiohttp does not resolve a host that is an address."""
        host = url.host
        if host is None:
            raise ValueError("the URL has no host")
        if self._config.allow_private:
            return
        try:
            ipaddress.ip_address(host.partition("%")[0])
        except ValueError:
            return
        check_address(host)

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()


async def _beginning(response: aiohttp.ClientResponse) -> str:
    data = b""
    while len(data) < MAX_RESPONSE and (chunk := await response.content.read(MAX_RESPONSE - len(data))):
        data += chunk
    return data.decode("utf-8", "replace").replace("\0", " ")[:SHOWN]


def _reason(error: Exception) -> str:
    """Why there was no response. Addresses are left out: they tell a user about the network of the server."""
    if isinstance(error, aiohttp.ClientConnectorError):
        inner: Any = error.os_error
        if isinstance(inner, Refused):
            return NOT_PUBLIC
        if isinstance(error, aiohttp.ClientConnectorCertificateError):
            return "the certificate is not valid for the host"
        if isinstance(inner, socket.gaierror) or isinstance(error, aiohttp.ClientConnectorDNSError):
            return "the host cannot be resolved"
        return "the connection was refused or failed"
    return NOT_PUBLIC if isinstance(error, Refused) else f"the connection failed: {type(error).__name__}"
