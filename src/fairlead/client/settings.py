"""The URL and the key of the gateway, and the options of the HTTP client."""

from __future__ import annotations

import ipaddress
import os
import ssl
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx2

from fairlead.errors import ConfigError

DEFAULT_URL = "http://127.0.0.1:8000"
URL_VARIABLE = "FAIRLEAD_URL"
KEY_VARIABLE = "FAIRLEAD_API_KEY"
CONNECT_TIMEOUT = 5.0
READ_TIMEOUT = 60.0
"""Seconds without data after which a request fails. A working gateway never takes so long: streams have heartbeats, and
waits are shorter."""


@dataclass(frozen=True, slots=True)
class GatewayAddress:
    """The URL and the key of a gateway, from arguments or else from the environment."""

    url: str
    key: str | None

    @classmethod
    def of(cls, url: str | None, key: str | None) -> GatewayAddress:
        where = "the URL of the gateway" if url else URL_VARIABLE
        url = (url or os.environ.get(URL_VARIABLE) or DEFAULT_URL).rstrip("/")
        try:
            httpx2.URL(url)
            parts = urlsplit(url)
            fine = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
        except (ValueError, httpx2.InvalidURL):
            fine = False
        if not fine:
            raise ConfigError([f"{where}: should be a URL such as {DEFAULT_URL}"])
        key = key or os.environ.get(KEY_VARIABLE) or None
        if key is not None and not (key.isascii() and key.isprintable()):
            raise ConfigError([f"{KEY_VARIABLE}: not a key; keys are printable ASCII"])
        return cls(url, key)

    @property
    def shown(self) -> str:
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"

    def options(self, version: str) -> dict[str, Any]:
        """Return the keyword arguments for the clients of httpx2."""
        headers = {"User-Agent": f"fairlead/{version}", "Accept": "application/json"}
        if self.key:
            headers["Authorization"] = f"Bearer {self.key}"
        parts = urlsplit(self.url)
        local = is_loopback(parts.hostname or "")
        return {
            "base_url": self.url,
            "headers": headers,
            "timeout": httpx2.Timeout(READ_TIMEOUT, connect=CONNECT_TIMEOUT),
            # Connections to this machine do not use the proxies of the environment, but its SSL_CERT_FILE.
            "trust_env": not local,
            **({"verify": ssl.create_default_context()} if local else {}),
        }


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
