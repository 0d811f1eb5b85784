"""Where webhooks connect: to public addresses only, whatever the URL looks like and whatever its host resolves to."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import pytest

from fairlead.domain.config_webhooks import WebhooksConfig
from fairlead.engine.webhooks.sender import HttpSender

PUBLIC = "93.184.215.14"
BAD = [
    "https://127.0.0.1/",
    "https://127.1/",
    "https://2130706433/",
    "https://0x7f000001/",
    "https://0x7f.1/",
    "https://017700000001/",
    "https://0/",
    "https://0.0.0.0/",
    "https://127.0.0.1:8000/",
    "https://127.0.0.1.:443/",
    "https://localhost/",
    "https://LOCALHOST/",
    "https://localhost./",
    "https://a.localhost/",
    "https://printer.local/",
    "https://metadata.google.internal/",
    "https://metadata/",
    "https://10.0.0.1/",
    "https://10.255.255.255/",
    "https://172.16.0.1/",
    "https://172.31.255.254/",
    "https://192.168.1.1/",
    "https://169.254.169.254/latest/meta-data/",
    "https://169.254.170.2/",
    "https://100.64.0.1/",
    "https://100.100.100.200/",
    "https://168.63.129.16/",
    "https://192.0.0.192/",
    "https://192.0.2.1/",
    "https://198.18.0.1/",
    "https://198.51.100.7/",
    "https://203.0.113.9/",
    "https://224.0.0.1/",
    "https://240.0.0.1/",
    "https://255.255.255.255/",
    "https://[::1]/",
    "https://[::]/",
    "https://[::ffff:127.0.0.1]/",
    "https://[::ffff:7f00:1]/",
    "https://[::ffff:10.0.0.1]/",
    "https://[::127.0.0.1]/",
    "https://[64:ff9b::7f00:1]/",
    "https://[64:ff9b::10.0.0.1]/",
    "https://[64:ff9b:1::1]/",
    "https://[2002:7f00:1::]/",
    "https://[2002:a00:1::1]/",
    "https://[2001:0:1::1]/",
    "https://[fe80::1]/",
    "https://[fe80::1%25eth0]/",
    "https://[fec0::1]/",
    "https://[fc00::1]/",
    "https://[fd00:ec2::254]/",
    "https://[ff02::1]/",
    "https://[2001:db8::1]/",
    "https://[2606:4700::5efe:7f00:1]/",
    "https://[3fff::1]/",
    "https://[100::1]/",
    "http://example.com/",
    "ftp://example.com/",
    "file:///etc/passwd",
    "https:///x",
    "https://user@example.com/",
    "https://example.com@127.0.0.1/",
    "https://127.0.0.1#@example.com/",
    "https://example.com\\@127.0.0.1/",
    "https://rebound.example/",
    "https://both.example/",
    "https://inside.example/",
    "https://nat64.example/",
    "https://①②⑦.⓪.⓪.①/",
    "gopher://127.0.0.1:6379/_INFO",
]
HOSTS: dict[str, list[str]] = {
    "good.example": [PUBLIC, "2606:2800:21f:cb07:6820:80da:af6b:8b2c"],
    "both.example": [PUBLIC, "10.0.0.5"],
    "inside.example": ["192.168.0.7"],
    "nat64.example": ["64:ff9b::a9fe:a9fe"],
}

Fake = Callable[..., Any]


class Network:
    """Resolves hosts from a table, and records where connections go without making them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        loop = asyncio.get_running_loop()
        self.connected: list[str] = []
        self.resolved: list[str] = []
        self._real = loop.getaddrinfo
        monkeypatch.setattr(loop, "getaddrinfo", self._resolve)
        monkeypatch.setattr(loop, "sock_connect", self._connect)

    async def _resolve(self, host: str, port: int, **options: Any) -> list[Any]:
        self.resolved.append(host)
        if host == "rebound.example":
            # The first answer is public, later ones are not.
            addresses = [PUBLIC] if self.resolved.count(host) == 1 else ["127.0.0.1"]
        elif host in HOSTS:
            addresses = HOSTS[host]
        else:  # what the system makes of an odd address, without asking a name server
            try:
                return list(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST))
            except OSError as error:
                raise socket.gaierror(str(error)) from None
        families = [socket.AF_INET6 if ":" in each else socket.AF_INET for each in addresses]
        return [
            (family, socket.SOCK_STREAM, 6, "", (address, port) if "." in address else (address, port, 0, 0))
            for family, address in zip(families, addresses, strict=True)
        ]

    async def _connect(self, sock: Any, address: Any) -> None:
        self.connected.append(address[0])
        raise ConnectionRefusedError


async def test_no_request_goes_to_an_address_that_is_not_public(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(set(BAD)) >= 60
    network = Network(monkeypatch)
    sender = HttpSender(WebhooksConfig(timeout=2))
    try:
        for url in BAD:
            sent = await sender.send(url, "{}", {})
            assert sent.status is None, url
        # The one whose first answer was public; its second answer was never asked for.
        assert network.connected == [PUBLIC]
        assert network.resolved.count("rebound.example") == 1
        assert (await sender.send("https://rebound.example/", "{}", {})).status is None
        assert network.connected == [PUBLIC]
    finally:
        await sender.close()


async def test_the_connection_goes_to_the_addresses_that_were_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    network = Network(monkeypatch)
    sender = HttpSender(WebhooksConfig(timeout=2))
    try:
        sent = await sender.send("https://good.example/x", "{}", {})
        assert (sent.status, sent.text) == (None, "the connection was refused or failed")
        assert set(network.connected) <= set(HOSTS["good.example"])
        assert network.connected
    finally:
        await sender.close()


async def test_private_addresses_can_be_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    network = Network(monkeypatch)
    sender = HttpSender(WebhooksConfig(timeout=2, allow_private=True, allow_http=True))
    try:
        for url in ("http://127.0.0.1/", "https://inside.example/"):
            await sender.send(url, "{}", {})
        assert network.connected == ["127.0.0.1", "192.168.0.7"]
    finally:
        await sender.close()
