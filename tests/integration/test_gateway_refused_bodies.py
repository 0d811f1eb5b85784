"""Clients can read the response to a refused body, even if they send the whole body first."""

from __future__ import annotations

import asyncio
import http.client
import json
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import pytest

from fairlead.gateway import connections
from tests.integration.cli_process import Up, up
from tests.integration.gateway_site import Site, served

SIZE = 24 * 1024 * 1024
Answer = tuple[int, str]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with up(tmp_path_factory.mktemp("gateway")) as server:
        yield server


@pytest.fixture(scope="module")
def body(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("body") / "body.json"
    path.write_bytes(b'{"user_id": "' + b"x" * SIZE + b'"}')
    return path


def by_urllib(url: str, body: Path) -> Answer:
    request = urllib.request.Request(url, body.read_bytes(), {"Content-Type": "application/json"})
    with pytest.raises(urllib.error.HTTPError) as error:
        urllib.request.urlopen(request)
    return error.value.code, json.loads(error.value.read())["code"]


def by_urllib_in_chunks(url: str, body: Path) -> Answer:
    host, _, path = url.removeprefix("http://").partition("/")
    link = http.client.HTTPConnection(host)
    data = body.read_bytes()
    pieces = (data[start : start + 100_000] for start in range(0, len(data), 100_000))
    link.request("POST", f"/{path}", pieces, {"Content-Type": "application/json"}, encode_chunked=True)
    response = link.getresponse()
    return response.status, json.loads(response.read())["code"]


def by_requests(url: str, body: Path) -> Answer:
    requests = pytest.importorskip("requests")
    response = requests.post(url, data=body.read_bytes(), headers={"Content-Type": "application/json"})
    return response.status_code, response.json()["code"]


def by_httpx(url: str, body: Path) -> Answer:
    response = httpx2.post(url, content=body.read_bytes(), headers={"Content-Type": "application/json"}, timeout=30)
    return response.status_code, response.json()["code"]


def _by(*command: str) -> Answer:
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    done = subprocess.run(command, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr.decode()
    text, _, status = done.stdout.decode().rpartition("\n")
    return int(status), json.loads(text)["code"]


def by_curl(url: str, body: Path) -> Answer:
    options = ("-sS", "-H", "Content-Type: application/json", "-w", "\n%{http_code}", "--data-binary", f"@{body}")
    return _by("curl", *options, url)


def by_curl_without_asking(url: str, body: Path) -> Answer:
    options = ("-sS", "-H", "Content-Type: application/json", "-H", "Expect:", "-w", "\n%{http_code}")
    return _by("curl", *options, "--data-binary", f"@{body}", url)


def by_node(url: str, body: Path) -> Answer:
    script = (
        "const [url, path] = process.argv.slice(1);"
        "const body = require('fs').readFileSync(path);"
        "fetch(url, {method: 'POST', body, headers: {'Content-Type': 'application/json'}})"
        ".then(async (answer) => console.log(await answer.text() + '\\n' + answer.status))"
        ".catch((error) => {console.error(error); process.exit(1)});"
    )
    if shutil.which("node") is None:
        pytest.skip("node is not installed")
    done = subprocess.run(["node", "-e", script, url, str(body)], capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr.decode()
    text, status = done.stdout.decode().split("\n")[:2]
    return int(status), json.loads(text)["code"]


CLIENTS = [
    by_urllib,
    by_urllib_in_chunks,
    by_requests,
    by_httpx,
    by_curl,
    by_curl_without_asking,
    by_node,
]


@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_can_read_the_response_to_a_body_that_is_too_large(
    gateway: Up, body: Path, client: Callable[[str, Path], Answer]
) -> None:
    assert client(f"{gateway.url}/api/v1/jobs", body) == (413, "too_large")


async def test_a_refused_body_gets_no_100_continue(still_site: Site) -> None:
    refusals = {
        b"POST /api/v1/jobs HTTP/1.1\r\nContent-Length: 2000000000": b"413",
        b"POST /nowhere HTTP/1.1\r\nContent-Length: 2000": b"404",
        b"POST /api/v1/jobs HTTP/1.1\r\nOrigin: http://evil.example\r\nContent-Length: 2000": b"403",
    }
    async with served(still_site.gateway) as port, asyncio.timeout(20):
        for head, status in refusals.items():
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            rest = b"\r\nHost: localhost\r\nContent-Type: application/json\r\nExpect: 100-continue\r\n\r\n"
            writer.write(head + rest)
            answer = await reader.read()
            assert answer.startswith(b"HTTP/1.1 " + status), answer
            assert answer.lower().count(b"connection: close") == 1
            writer.close()


async def test_reading_the_rest_of_a_refused_body_is_bounded(still_site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairlead.gateway.http_protocol.DISCARD_BYTES", 1_000_000)
    async with served(still_site.gateway) as port, asyncio.timeout(20):
        for length in (b"Content-Length: 2000000000", b"Origin: http://evil.example\r\nContent-Length: 2000000000"):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"POST /api/v1/jobs HTTP/1.1\r\nHost: localhost\r\n" + length + b"\r\n\r\n")
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 4")
            with pytest.raises(ConnectionError):
                await send_without_end(writer)


async def test_a_client_that_keeps_a_refused_connection_open_is_disconnected(
    still_site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "DISCARD_IDLE_S", 0.1)
    monkeypatch.setattr(connections, "CHECK_EVERY_S", 0.05)
    async with served(still_site.gateway) as port, asyncio.timeout(20):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /api/v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2000000000\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 413 ")
        # The server has closed its side only, until the timeout.
        with pytest.raises(ConnectionError):
            await send_without_end(writer, pause=0.3)


async def send_without_end(writer: asyncio.StreamWriter, pause: float = 0.0) -> None:
    while True:
        writer.write(b" " * 10_000)
        await writer.drain()
        await asyncio.sleep(pause)
