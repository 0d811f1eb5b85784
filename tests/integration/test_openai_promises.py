"""What holds for every answer of the front: it names its job and its request, and errors have OpenAI's shape."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx2
import openai
import orjson
import pytest
from aiohttp import web

from fairlead.app.output_stream import OutputStream
from fairlead.domain.job import JobStatus
from fairlead.gateway.fronts.openai.answers import SOON_S, SUBSCRIBE_AFTER_S
from tests.integration.openai_site import ADMIN, HELLO, open_front
from tests.openai_upstream import PATIENCE_S, chunks, event, hanging, refusing, sending, streaming

ASK = {"model": "llama", "messages": HELLO}
STREAM = {**ASK, "stream": True}
ERROR = event({"error": {"message": "CUDA out of memory"}})


ANSWERS: dict[str, tuple[dict[str, Any], list[Any], int]] = {
    "an answer": (ASK, [], 200),
    "a stream": (STREAM, [], 200),
    "a stream that breaks": (STREAM, [streaming(chunks(ASK)[0], ERROR)], 200),
    "a stream that is an error": (STREAM, [streaming(ERROR)], 502),
    "a stream that is refused": (STREAM, [refusing(400)], 400),
    "an error of the upstream": (ASK, [refusing(404)], 404),
    "garbage": (ASK, [sending(b"<html>", "text/html")], 502),
    "a failure": (ASK, [refusing(500)], 500),
    "no answer in time": (ASK, [hanging], 504),
}


@pytest.mark.parametrize("name", ANSWERS)
async def test_every_answer_names_its_job_and_its_request(tmp_path: Path, name: str) -> None:
    body, script, status = ANSWERS[name]
    async with open_front(tmp_path, service={"max_attempts": 1, "timeout": 1.0}) as front, front.http() as client:
        front.upstream.script.extend(script)
        answer = await client.post("/chat/completions", json=body)
        assert answer.status_code == status
        assert answer.headers["x-request-id"]
        job_id = answer.headers["x-fairlead-job"]
        assert (await front.app.get(job_id)).status.finished
        assert (await front.app.why(job_id)).job_id == job_id
        again = await client.post("/chat/completions", json=body, headers={"x-stainless-retry-count": "1"})
        assert again.headers["x-fairlead-job"] == job_id
        if status >= 400:
            assert set(again.json()["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize("size", [2_000, 20_000])
@pytest.mark.parametrize("is_held", [False, True])
async def test_a_large_answer_passes_unchanged(tmp_path: Path, size: int, is_held: bool) -> None:
    """It is kept in the object store, and the largest ones are too large to be shown with their jobs."""
    body = orjson.dumps({"content": "x" * size})
    artifacts = {"url": str(tmp_path / "files"), "threshold": 1024, "max_inline": 8_000}

    async def answer(upstream: Any, *request: Any) -> Any:
        await upstream.gate.wait()
        return await sending(body)(upstream, *request)

    async with open_front(tmp_path, artifacts=artifacts) as front, front.http() as client:
        front.upstream.script.append(answer)
        if is_held:
            front.upstream.gate.clear()
            asyncio.get_running_loop().call_later(SUBSCRIBE_AFTER_S + SOON_S + 0.1, front.upstream.gate.set)
        assert (await client.post("/chat/completions", json=ASK)).content == body
        again = await client.post("/chat/completions", json=ASK, headers={"x-stainless-retry-count": "1"})
        assert again.content == body
        assert len(front.upstream.calls) == 1


async def test_a_large_stream_whose_log_is_lost_goes_on_from_the_object_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing(*_: Any) -> AsyncIterator[Any]:
        return
        yield

    pieces = [event({"choices": [{"index": 0, "delta": {"content": "x" * 3_000}}]}) for _ in range(5)]
    artifacts = {"url": str(tmp_path / "files"), "threshold": 1024, "max_inline": 8_000}
    async with open_front(tmp_path, artifacts=artifacts) as front, front.http() as client:
        front.upstream.gate.clear()
        front.upstream.script.append(streaming(pieces[0], None, *pieces[1:], b"data: [DONE]\n\n"))
        async with client.stream("POST", "/chat/completions", json=STREAM) as streamed:
            received = streamed.aiter_text()
            text = await anext(received)
            for read in ("_react", "_catch_up"):
                monkeypatch.setattr(OutputStream, read, nothing)
            front.upstream.gate.set()
            text += "".join([each async for each in received])
        assert text.count("x" * 3_000) == 5
        assert text.endswith("[DONE]\n\n")


async def test_an_answer_that_was_kept_alive_names_its_job_too(tmp_path: Path) -> None:
    async with open_front(tmp_path, openai={"keepalive_after": 0.05}) as front, front.http() as client:
        front.upstream.gate.clear()
        async with client.stream("POST", "/chat/completions", json=ASK) as answer:
            job_id = answer.headers["x-fairlead-job"]
            assert answer.headers["x-request-id"]
            front.upstream.gate.set()
            assert (await answer.aread()).lstrip().startswith(b"{")
        assert (await front.app.get(job_id)).status is JobStatus.COMPLETED


async def test_the_answer_of_a_cancelled_job_names_it_too(tmp_path: Path) -> None:
    async with open_front(tmp_path) as front, front.http() as client:
        front.upstream.gate.clear()
        asked = asyncio.create_task(client.post("/chat/completions", json=ASK))
        await front.upstream.reaches(open=1)
        [job] = (await front.app.list_jobs()).data
        await front.app.cancel(job.job_id)
        cancelled = await asked
        assert (cancelled.status_code, cancelled.headers["x-fairlead-job"]) == (409, job.job_id)
        assert cancelled.json()["error"]["code"] == "cancelled"


@pytest.mark.parametrize(
    ("limits", "code"),
    [
        ({"max_waiting_per_user": 1}, "too_many_waiting"),
        ({"submits_per_minute": 2}, "rate_limited"),
    ],
)
async def test_a_cap_is_a_rate_limit_error_of_the_client(tmp_path: Path, limits: dict[str, int], code: str) -> None:
    async with open_front(tmp_path, service={"limit": 1}, server=limits) as front, front.client() as client:
        front.upstream.gate.clear()
        create: Callable[..., Awaitable[Any]] = client.chat.completions.create
        waiting = [asyncio.create_task(create(model="llama", messages=HELLO, user="ada"))]
        await front.upstream.reaches(open=1)
        waiting.append(asyncio.create_task(create(model="llama", messages=HELLO, user="ada")))
        async with asyncio.timeout(PATIENCE_S):
            while len((await front.app.list_jobs(user_id="ada")).data) < 2:
                await asyncio.sleep(0.01)
        with pytest.raises(openai.RateLimitError) as caught:
            await create(model="llama", messages=HELLO, user="ada")
        assert (caught.value.code, caught.value.type) == (code, "rate_limit_error")
        assert int(caught.value.response.headers["retry-after"]) >= 1
        front.upstream.gate.set()
        await asyncio.gather(*waiting)
        assert len(front.upstream.calls) == 2


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/v1/chat/completions", 405, "method_not_allowed"),
        ("DELETE", "/v1/models/llama", 405, "method_not_allowed"),
        ("PUT", "/v1/files", 405, "method_not_allowed"),
        ("POST", "/v1/models", 405, "method_not_allowed"),
        ("GET", "/v1/models/unknown", 404, "model_not_found"),
        ("POST", "/v1/", 404, "no_such_route"),
    ],
)
async def test_methods_and_paths_that_do_not_exist_have_openais_shape(
    tmp_path: Path, method: str, path: str, status: int, code: str
) -> None:
    async with open_front(tmp_path) as front, httpx2.AsyncClient(base_url=front.base) as client:
        answer = await client.request(method, path, json={} if method == "POST" else None)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
    assert answer.headers["x-request-id"]


async def test_errors_of_keys_have_openais_shape(tmp_path: Path) -> None:
    async with open_front(tmp_path, admin_key=ADMIN) as front, front.http() as client:
        answer = await client.post("/chat/completions", json=ASK)
        assert (answer.status_code, answer.json()["error"]["type"]) == (401, "authentication_error")
        viewer = (await front.app.create_key("viewer", name="wall")).text
        headers = {"Authorization": f"Bearer {viewer}"}
        answer = await client.post("/chat/completions", json=ASK, headers=headers)
        assert (answer.status_code, answer.json()["error"]["type"]) == (403, "permission_error")


async def test_a_streamed_transcription_passes(tmp_path: Path) -> None:
    parts = [event({"type": "transcript.text.delta", "delta": word}) for word in ("hel", "lo")]
    done = event({"type": "transcript.text.done", "text": "hello"})
    async with open_front(tmp_path) as front, front.client() as client:
        front.upstream.script.append(streaming(*parts, done))
        sound = ("a.wav", io.BytesIO(b"\0\xff" * 100))
        stream = await client.audio.transcriptions.create(model="llama", file=sound, stream=True)
        assert [each.type async for each in stream] == ["transcript.text.delta"] * 2 + ["transcript.text.done"]


async def test_an_image_is_edited_with_a_form(tmp_path: Path) -> None:
    async with open_front(tmp_path) as front, front.client() as client:
        front.upstream.script.append(sending(b'{"created": 1, "data": [{"b64_json": "cG5n"}]}'))
        image = ("a.png", io.BytesIO(b"\x89PNG\0\xff"), "image/png")
        answer = await client.images.edit(model="llama", image=image, prompt="a harbour")
        assert answer.data is not None
        assert answer.data[0].b64_json == "cG5n"
        assert front.upstream.calls[0].path == "images/edits"
        assert b"\x89PNG\0\xff" in front.upstream.calls[0].body


async def test_a_connection_that_closes_within_an_answer_is_retried(tmp_path: Path) -> None:
    async def cut(upstream: Any, request: Any, fields: Any) -> Any:
        response = web.StreamResponse(headers={"Content-Type": "application/json", "Content-Length": "1000"})
        await response.prepare(request)
        await response.write(b'{"id": ')
        request.transport.abort()
        return response

    async with open_front(tmp_path) as front, front.client() as client:
        front.upstream.script.extend([cut, cut])
        answer = await client.chat.completions.create(model="llama", messages=HELLO)
        assert answer.choices[0].message.content
        front.upstream.script.extend([cut] * 3)
        with pytest.raises(openai.InternalServerError) as caught:
            await client.chat.completions.create(model="llama", messages=HELLO)
        assert caught.value.status_code == 502
        await front.upstream.reaches(open=0)
