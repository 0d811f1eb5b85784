"""Files with `Client`, `AsyncClient` and `fairlead files`, against a real gateway over real connections."""

from __future__ import annotations

import asyncio
import io
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from starlette.responses import RedirectResponse, Response

from fairlead import AsyncClient, Client, NotFound, WrongState
from fairlead.cli import certs
from fairlead.cli.failure import Exit
from fairlead.client import file_calls, patience
from tests.integration.cli_process import Done, fairlead
from tests.integration.gateway_site import Site, served

CONTENT = os.urandom(300_000)


@pytest.fixture
async def port(site: Site) -> AsyncIterator[int]:
    async with served(site.gateway) as port:
        yield port


async def test_files_are_uploaded_read_listed_and_deleted(site: Site, port: int, tmp_path: Path) -> None:
    path = tmp_path / "cat.png"
    path.write_bytes(CONTENT)
    async with AsyncClient(f"http://127.0.0.1:{port}") as client:
        file = await client.upload(path, user_id="ada", purpose="art", expires_after=600)
        assert (file["name"], file["content_type"], file["size"]) == ("cat.png", "image/png", len(CONTENT))
        assert await client.read_file(file) == await client.read_file({"$file": file["id"]}) == CONTENT
        other = await client.upload(b"bytes", "notes.html", content_type="text/html")
        assert b"".join([piece async for piece in client.download(other["id"])]) == b"bytes"
        page = await client.list_files(user_id="ada", purpose="art")
        assert [each["id"] for each in page["data"]] == [file["id"]]
        job = await client.submit("echo", {"image": {"$file": file["id"]}}, user_id="ada")
        assert await job.result(timeout=30) == {"echo": {"image": {"$file": file["id"]}}}
        with pytest.raises(WrongState):
            await client.delete_file(file)
        await client.delete_file(other)
        with pytest.raises(NotFound):
            await client.get_file(other["id"])
        with pytest.raises(TypeError):
            await client.upload("a path")  # type: ignore[arg-type]
        site.app.files.config = site.app.files.config.model_copy(update={"max_inline": 1000})
        text = "x" * 300_000
        job = await client.submit("echo", {"text": text}, user_id="ada")
        assert await job.result(timeout=30) == {"echo": {"text": text}}


async def test_a_download_of_this_machine_may_go_on_with_https(authority: Path) -> None:
    """A gateway redirects to its object store, whose authority SSL_CERT_FILE names."""
    tls = {"ssl_certfile": authority / certs.CERTIFICATE, "ssl_keyfile": authority / certs.KEY}
    async with served(Response(CONTENT), **tls) as store:  # type: ignore[arg-type]
        redirect = RedirectResponse(f"https://localhost:{store}/content")
        async with served(redirect) as port, AsyncClient(f"http://127.0.0.1:{port}") as client:  # type: ignore[arg-type]
            assert await client.read_file("/files/1") == CONTENT


async def test_a_large_file_goes_in_parts_over_lost_connections(
    site: Site, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(file_calls, "PART", 50_000)
    for module in ("asynchronous_files", "synchronous_files"):
        monkeypatch.setattr(f"fairlead.client.{module}.PART", 50_000)

    with Client(f"http://127.0.0.1:{port}") as client:
        send, sent = client._http.request, []

        def losing(method: str, *arguments: Any, **options: Any) -> Any:
            sent.append(method)
            if sent.count("PATCH") == 2 and method == "PATCH":
                raise httpx2.ConnectError("the request is lost")
            response = send(method, *arguments, **options)
            if sent.count("PATCH") == 4 and method == "PATCH":
                raise httpx2.ReadError("the response is lost")
            return response

        monkeypatch.setattr(client._http, "request", losing)
        file = await asyncio.to_thread(client.upload, io.BytesIO(CONTENT), "film.mp4")
        assert sent.count("PATCH") == 8  # six parts, of which two were sent again
        assert await asyncio.to_thread(client.read_file, file) == CONTENT


async def test_the_command_line_uploads_and_downloads(site: Site, port: int, tmp_path: Path) -> None:
    (tmp_path / "cat.png").write_bytes(CONTENT)
    environment = {"FAIRLEAD_URL": f"http://127.0.0.1:{port}"}

    async def run(*arguments: str) -> Done:
        return await asyncio.to_thread(fairlead, "files", *arguments, cwd=tmp_path, env=environment)

    done = await run("upload", "cat.png", "--user", "ada", "--purpose", "art", "--json")
    file_id = done.json["id"]
    shown = await run("list", "--user", "ada")
    assert file_id in shown.out
    assert (await run("get", file_id)).code == Exit.USAGE  # cat.png exists
    got = await run("get", file_id, "-o", "copy.png")
    assert got.code == Exit.OK
    assert (tmp_path / "copy.png").read_bytes() == CONTENT
    assert (await run("delete", "nonsense")).code == Exit.USAGE
    assert (await run("delete", file_id)).code == Exit.OK
    assert "there is no file" in (await run("get", file_id)).err
