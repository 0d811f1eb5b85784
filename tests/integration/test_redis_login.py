"""Logins given by the URL: users with few permissions, passwords with special characters, and TLS."""

from __future__ import annotations

import asyncio
import secrets
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
import uvloop

from fairlead.dispatch.port import Renewal
from fairlead.dispatch.redis import RedisDispatcher, RedisLeadership, RedisPubSub
from fairlead.dispatch.redis.client import ScriptClient
from fairlead.dispatch.redis.servers import parse
from fairlead.domain.rules import Rules, ServiceRules
from fairlead.errors import Unavailable
from tests.contract.dispatchers import FakeClock, QueueHarness
from tests.redis_servers import Server

PASSWORD = "p@ss/w:rd%41?#&"


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server().start()
    yield server
    server.kill()


async def everything_works(url: str) -> None:
    dispatcher = RedisDispatcher(url, prefix=f"test-{secrets.token_hex(6)}", admit=lambda server: True)
    await dispatcher.start()
    await asyncio.wait_for(dispatcher._wakeups.subscribed.wait(), 10)
    queue = QueueHarness(dispatcher, FakeClock())
    await queue.open(ServiceRules("s", limit=1))
    await queue.offer("a")
    lease = await queue.take(worker="w")
    assert await asyncio.to_thread(dispatcher.renew, "w", [lease.name]) == Renewal()
    assert (await dispatcher.states([lease.scope]))[lease.scope].open
    await queue.end(lease)
    await dispatcher.close()
    leadership = RedisLeadership(url, prefix="p", holder="a")
    assert await leadership.acquire(1)
    await leadership.resign()
    await leadership.close()
    messages = asyncio.Queue[bytes]()
    bus = RedisPubSub(url)
    await bus.start(["ws:1"], lambda channel, message: messages.put_nowait(message))
    await asyncio.wait_for(bus.subscribed.wait(), 10)
    assert await bus.active_channels("ws:*") == {"ws:1"}
    bus.send("ws:1", b"x")
    assert await asyncio.wait_for(messages.get(), 10) == b"x"
    await bus.close()


async def nothing_works(url: str) -> Unavailable:
    dispatcher = RedisDispatcher(url)
    with pytest.raises(Unavailable) as refused:
        await dispatcher.states(["service:s"])
    with pytest.raises(Unavailable):
        await dispatcher.configure(Rules({"s": ServiceRules("s", limit=1)}, version=1))
    with pytest.raises(Unavailable):
        await asyncio.to_thread(dispatcher.renew, "w", [])
    await dispatcher.close()
    return refused.value


async def test_a_database_a_client_name_and_keepalive_are_set_by_the_url(server: Server) -> None:
    client = ScriptClient(f"redis://127.0.0.1:{server.port}/3?client_name=fair&socket_keepalive=yes")
    fields = dict(field.split("=", 1) for field in (await client.command("CLIENT", "LIST")).decode().split())
    await client.close()
    assert (fields["name"], fields["db"]) == ("fair", "3")


async def test_a_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "redis.sock"
    server = Server("--unixsocket", str(path)).start()
    await everything_works(f"unix://{path}?db=1")
    server.kill()
    assert "cannot connect to" in str(await nothing_works(f"unix://{tmp_path / 'absent.sock'}"))


async def test_the_redis_user_needs_no_dangerous_command_but_info(server: Server) -> None:
    server.client.execute_command(
        "ACL", "SETUSER", "the@line", "on", f">{PASSWORD}", "~*", "&*", "+@all", "-@dangerous", "-@admin", "+info"
    )
    server.client.execute_command("ACL", "SETUSER", "default", "off")
    at = f"127.0.0.1:{server.port}/0"
    await everything_works(f"redis://{quote('the@line')}:{quote(PASSWORD, safe='')}@{at}")
    assert "password" in str(await nothing_works(f"redis://{quote('the@line')}:wrong@{at}"))
    await nothing_works(f"redis://{at}")


def test_login_tls_and_options_are_part_of_every_kind_of_url() -> None:
    login = f"line:{quote(PASSWORD, safe='')}"
    target = parse(f"rediss+cluster://{login}@one:7000,two:7001?ssl_ca_certs=/ca.pem&ssl_check_hostname=false")
    assert (target.kind, target.hosts) == ("cluster", [("one", 7000), ("two", 7001)])
    assert target.options == {
        "username": "line",
        "password": PASSWORD,
        "ssl": True,
        "ssl_ca_certs": "/ca.pem",
        "ssl_check_hostname": False,
    }
    target = parse(f"redis+sentinel://:{quote(PASSWORD, safe='')}@one,two:7001/mymaster/3")
    assert (target.hosts, target.path) == ([("one", 26379), ("two", 7001)], ["mymaster", "3"])
    assert target.options == {"password": PASSWORD}


@pytest.mark.parametrize("url", ["redis+sentinel://host", "redis+other://host", "http+cluster://host"])
def test_an_invalid_url_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="invalid Redis URL"):
        RedisDispatcher(url)


# -- TLS: Redis itself is often built without it, so it runs behind a TLS proxy ------------------------


class TlsFront:
    def __init__(self, server: Server, certificate: Path, key: Path) -> None:
        self._server = server
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate, key)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                raw, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(raw,), daemon=True).start()

    def _serve(self, raw: socket.socket) -> None:
        try:
            with (
                self._context.wrap_socket(raw, server_side=True) as client,
                socket.create_connection(("127.0.0.1", self._server.port)) as server,
            ):
                client.settimeout(0.02)
                server.settimeout(0.02)
                while _passed(client, server) and _passed(server, client):
                    pass
        except OSError:
            raw.close()

    def close(self) -> None:
        self._listener.close()


def _passed(source: socket.socket, sink: socket.socket) -> bool:
    """Whether the source is still readable."""
    try:
        data = source.recv(65536)
    except TimeoutError:
        return True
    if data:
        sink.sendall(data)
    return bool(data)


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("no openssl")
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    command = f"{openssl} req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext".split()
    files = ["subjectAltName=IP:127.0.0.1", "-out", str(certificate), "-keyout", str(key)]
    subprocess.run([*command, *files], check=True, capture_output=True)
    return certificate, key


async def test_tls_with_a_client_certificate(server: Server, certificate: tuple[Path, Path]) -> None:
    front = TlsFront(server, *certificate)
    url = f"rediss://127.0.0.1:{front.port}/0"
    await everything_works(f"{url}?ssl_ca_certs={quote(str(certificate[0]))}")
    await everything_works(f"{url}?ssl_cert_reqs=none&ssl_check_hostname=false")
    await nothing_works(url)  # the certificate is not trusted
    front.close()


def test_tls_and_plain_connections_on_uvloop(server: Server, certificate: tuple[Path, Path]) -> None:
    front = TlsFront(server, *certificate)
    for url in (server.url, f"rediss://127.0.0.1:{front.port}/0?ssl_ca_certs={quote(str(certificate[0]))}"):
        uvloop.run(everything_works(url))
    front.close()
