"""Images by URL, with the unmodified client: the upstream sends base64 or bytes, and the client downloads a file."""

from __future__ import annotations

from base64 import b64encode
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
import orjson
import pytest

from tests.integration.openai_site import ADMIN, Front, open_front
from tests.openai_upstream import error, sending

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 40
LARGE = b"\x89PNG\r\n" + bytes(3_000_000)


def answer(*images: bytes, **more: Any) -> Any:
    data = [{"b64_json": b64encode(image).decode(), "revised_prompt": f"{n}"} for n, image in enumerate(images)]
    return sending(orjson.dumps({"created": 1700000000, "data": data, **more}))


async def download(url: str | None) -> httpx2.Response:
    assert url is not None
    async with httpx2.AsyncClient(trust_env=False) as http:
        return await http.get(url)


async def test_images_are_downloaded_by_their_urls(tmp_path: Path, engines: dict[str, str]) -> None:
    sections = {"artifacts": {"url": str(tmp_path / "files")}}
    async with (
        open_front(tmp_path, engines=engines, admin_key=ADMIN, **sections) as front,
        front.client(ADMIN) as client,
    ):
        front.upstream.script.append(answer(PNG, LARGE, usage={"total_tokens": 5}))
        ask: Any = {"model": "llama", "prompt": "a cat", "response_format": "url"}
        made = await client.images.generate(**ask)
        assert made.data is not None
        assert [image.revised_prompt for image in made.data] == ["0", "1"]
        assert [image.b64_json for image in made.data] == [None, None]
        for image, content in zip(made.data, (PNG, LARGE), strict=True):
            got = await download(image.url)  # without a key
            assert (got.status_code, got.content, got.headers["content-type"]) == (200, content, "image/png")
        assert str(made.data[0].url).startswith(front.base)
        ticket = parse_qs(urlsplit(str(made.data[0].url)).query)["ticket"][0]
        for other in ("", ticket[:-1] + "x", "1" + ticket):
            assert (await download(str(made.data[0].url).replace(ticket, other))).status_code == 401
        # The client's own retry gets the same images, with URLs that work.
        retry = {"x-stainless-retry-count": "1"}
        tls = await client.images.generate(**ask, extra_headers={**retry, "X-Forwarded-Proto": "https"})
        assert tls.data is not None
        assert str(tls.data[0].url).startswith(front.base.replace("http:", "https:"))
        again = await client.images.generate(**ask, extra_headers=retry)
        assert again.data is not None
        assert (await download(again.data[1].url)).content == LARGE
        assert len(front.upstream.calls) == 1
        await delete_all(front)
        assert (await download(made.data[0].url)).status_code == 404


async def delete_all(front: Front) -> None:
    """Delete all jobs, and sweep their files."""
    for job in (await front.app.list_jobs()).data:
        await front.app.delete(job.job_id)
    while await front.app.files.sweep(100):
        pass


async def test_base64_stays_base64_and_an_upstreams_own_url_its_own(tmp_path: Path) -> None:
    async with open_front(tmp_path) as front, front.client() as client:
        front.upstream.script.append(answer(PNG))
        made = await client.images.generate(model="llama", prompt="a cat", response_format="b64_json")
        assert made.data is not None
        assert made.data[0].b64_json == b64encode(PNG).decode()
        front.upstream.script.append(sending(b'{"created": 1, "data": [{"url": "https://cdn.example/1.png"}]}'))
        made = await client.images.generate(model="llama", prompt="a cat", response_format="url")
        assert made.data is not None
        assert made.data[0].url == "https://cdn.example/1.png"


async def test_an_upstream_that_refuses_the_format_is_asked_without_it(tmp_path: Path) -> None:
    async def strict(upstream: Any, request: Any, fields: dict[str, Any]) -> Any:
        if b"response_format" in upstream.calls[-1].body:
            return error(400, "Unknown parameter: 'response_format'.")
        return await answer(PNG)(upstream, request, fields)

    async with open_front(tmp_path, "llama", "other") as front, front.client() as client:
        front.upstream.script += [strict] * 5
        for _ in range(2):
            made = await client.images.generate(model="llama", prompt="a cat", response_format="url")
            assert made.data is not None
            assert (await download(made.data[0].url)).content == PNG
        assert len(front.upstream.calls) == 3, "the refusal is remembered"
        image = ("cat.png", PNG, "image/png")
        edited = await client.images.edit(model="other", prompt="a hat", image=image, response_format="url")
        assert edited.data is not None
        assert (await download(edited.data[0].url)).content == PNG
        assert len(front.upstream.calls) == 5
        assert PNG in front.upstream.calls[-1].body
        assert b"a hat" in front.upstream.calls[-1].body


async def test_a_binary_image_becomes_a_url(tmp_path: Path) -> None:
    async with open_front(tmp_path) as front, front.client() as client:
        front.upstream.script.append(sending(PNG, "image/png"))
        made = await client.images.generate(model="llama", prompt="a cat", response_format="url")
        assert made.data is not None
        assert (await download(made.data[0].url)).content == PNG


@pytest.mark.parametrize("body", [b'{"data": [{"b64_json": "not base64!"}]}', b'{"data": "no"}', b'{"data": [1]}'])
async def test_an_odd_answer_passes_as_it_is(tmp_path: Path, body: bytes) -> None:
    async with open_front(tmp_path) as front, front.http() as http:
        front.upstream.script.append(sending(body))
        ask = {"model": "llama", "prompt": "a cat", "response_format": "url"}
        assert (await http.post("/images/generations", json=ask)).content == body
