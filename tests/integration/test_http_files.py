"""HTTP endpoints that answer with files, and that fetch files by URL."""

from __future__ import annotations

import base64
import gzip
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from fairlead import Config, Fairlead, JobFailed
from fairlead.artifacts.files import NewFile
from fairlead.gateway.app import create_gateway
from tests.integration.gateway_site import client_of

PNG = b"\x89PNG\r\n\x1a\n" + os.urandom(1_500_000)
PATIENCE = 30.0


class Endpoint:
    """Answers as the test says, and keeps what it was sent."""

    def __init__(self) -> None:
        self.answer: Any = None
        self.bodies: list[Any] = []

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.bodies.append(await request.json())
        return await self.answer(request) if callable(self.answer) else self.answer


@asynccontextmanager
async def running(tmp_path: Path, **options: Any) -> AsyncIterator[tuple[Fairlead, Endpoint]]:
    endpoint = Endpoint()
    application = web.Application()
    application.router.add_post("/", endpoint.handle)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    artifacts = options.pop("artifacts", {})
    service = {"url": f"http://{host}:{port}/", "limit": 2, "max_attempts": 1, **options}
    config = Config.model_validate({"services": {"gpu": service}, "artifacts": artifacts})
    app = Fairlead(config, database_url=f"sqlite:///{tmp_path}/fairlead.db")
    try:
        async with app.running():
            yield app, endpoint
    finally:
        await runner.cleanup()


async def result_of(app: Fairlead, given: Any = None) -> Any:
    return await (await app.submit("gpu", given or {}, user_id="ada")).result(timeout=PATIENCE)


async def content(app: Fairlead, reference: dict[str, Any]) -> bytes:
    return await app.files.read_all(await app.files.get(reference["$file"]))


async def test_a_binary_body_becomes_a_file(tmp_path: Path) -> None:
    async with running(tmp_path) as (app, endpoint):
        headers = {"Content-Disposition": 'attachment; filename="../../a cat.png"'}
        endpoint.answer = web.Response(body=PNG, content_type="image/png", headers=headers)
        reference = await result_of(app)
        assert (reference["name"], reference["content_type"], reference["size"]) == ("a cat.png", "image/png", len(PNG))
        assert await content(app, reference) == PNG


async def test_the_parts_of_a_multipart_body_become_values_and_files(tmp_path: Path) -> None:
    parts = [
        ('form-data; name="about"', "application/json", b'{"seed": 7}'),
        ('form-data; name="caption"', "text/plain", b"a cat"),
        ('form-data; name="image"; filename="cat.png"', "image/png", PNG),
    ]
    body = b"".join(
        f"--x\r\nContent-Disposition: {where}\r\nContent-Type: {type_}\r\n\r\n".encode() + value + b"\r\n"
        for where, type_, value in parts
    )
    async with running(tmp_path) as (app, endpoint):
        endpoint.answer = web.Response(
            body=body + b"--x--\r\n", headers={"Content-Type": "multipart/mixed; boundary=x"}
        )
        result = await result_of(app)
        assert (result["about"], result["caption"]) == ({"seed": 7}, "a cat")
        assert result["image"]["name"] == "cat.png"
        assert await content(app, result["image"]) == PNG
        endpoint.answer = web.Response(body=b"nonsense", headers={"Content-Type": "multipart/mixed; boundary=x"})
        with pytest.raises(JobFailed, match="cannot be read"):
            await result_of(app)


async def test_large_base64_is_taken_out_of_json(tmp_path: Path) -> None:
    encoded = base64.b64encode(PNG).decode()
    data = {
        "images": [{"b64_json": encoded}, f"data:image/png;base64,{encoded}"],
        "small": f"data:image/png;base64,{base64.b64encode(PNG[:100]).decode()}",
        "text": "x" * 1_200_000,
        "image_base64": "not base64! " * 100_000,
    }
    async with running(tmp_path) as (app, endpoint):
        endpoint.answer = web.json_response({"data": data, "metrics": {"steps": 3}})
        job = await app.submit("gpu", {}, user_id="ada")
        result = await job.result(timeout=PATIENCE)
        named, uri = result["images"][0]["b64_json"], result["images"][1]
        assert (named["content_type"], uri["content_type"]) == ("image/png", "image/png")
        assert await content(app, named) == await content(app, uri) == PNG
        assert {name: result[name] for name in ("small", "text", "image_base64")} == {
            name: data[name] for name in ("small", "text", "image_base64")
        }
        assert (await job.get()).context["step_0_gpu"]["metrics"]["steps"] == 3
    async with running(tmp_path, extract=0) as (app, endpoint):
        endpoint.answer = web.json_response({"data": data})
        assert await result_of(app) == data


async def test_a_bomb_is_refused(tmp_path: Path) -> None:
    packed = gzip.compress(b"\0" * 3_000_000)
    async with running(tmp_path, artifacts={"max_file": 1_000_000}) as (app, endpoint):
        for type_ in ("image/png", "multipart/mixed; boundary=x"):
            body = packed if type_ == "image/png" else b"--x\r\nContent-Type: image/png\r\n\r\n" + b"\0" * 3_000_000
            headers = {"Content-Type": type_} | ({"Content-Encoding": "gzip"} if type_ == "image/png" else {})
            endpoint.answer = web.Response(body=body, headers=headers)
            with pytest.raises(JobFailed, match="too large"):
                await result_of(app)


async def test_an_endpoint_fetches_files_by_their_url(tmp_path: Path) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        yield b"sketch"

    async with running(tmp_path, artifacts={"public_url": "http://gateway:8000"}) as (app, endpoint):
        endpoint.answer = web.json_response({"data": {}})
        file = await app.files.save(NewFile("ada", "a.png"), chunks())
        await result_of(app, {"deep": [{"image": {"$file": file.id, "alt": "x"}}], "text": "y"})
        sent = endpoint.bodies[0]["payload"]["params"]
        url = sent["deep"][0]["image"].pop("url")
        assert sent == {"deep": [{"image": {"$file": file.id, "alt": "x"}}], "text": "y"}
        assert url.startswith(f"http://gateway:8000/files/{file.id}?ticket=")
        async with client_of(create_gateway(app)) as client:
            assert (await client.get(url.removeprefix("http://gateway:8000"))).content == b"sketch"
