"""Where the gateway is, and how to speak to it."""

from __future__ import annotations

import ipaddress
import os
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
"""Seconds; the gateway is never silent for so long: streams have heartbeats, and no request waits longer."""


@dataclass(frozen=True, slots=True)
class Address:
    """What was given, else what the environment says."""

    url: str
    key: str | None

    @classmethod
    def of(cls, url: str | None, key: str | None) -> Address:
        url = (url or os.environ.get(URL_VARIABLE) or DEFAULT_URL).rstrip("/")
        try:
            parts = urlsplit(url)
            fine = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
        except ValueError:
            fine = False
        if not fine:
            raise ConfigError([f"{URL_VARIABLE}: a gateway's URL is such as {DEFAULT_URL}"])
        key = key or os.environ.get(KEY_VARIABLE) or None
        if key is not None and not (key.isascii() and key.isprintable()):
            raise ConfigError([f"{KEY_VARIABLE}: a key is of printable ASCII characters"])
        return cls(url, key)

    @property
    def shown(self) -> str:
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"

    def options(self, version: str) -> dict[str, Any]:
        """For httpx2's clients."""
        headers = {"User-Agent": f"fairlead/{version}", "Accept": "application/json"}
        if self.key:
            headers["Authorization"] = f"Bearer {self.key}"
        return {
            "base_url": self.url,
            "headers": headers,
            "timeout": httpx2.Timeout(READ_TIMEOUT, connect=CONNECT_TIMEOUT),
            # A proxy of the environment must not come between us and our own machine.
            "trust_env": not is_loopback(urlsplit(self.url).hostname or ""),
        }


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
