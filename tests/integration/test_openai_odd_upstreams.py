"""Upstreams that bend the protocol, and clients that leave or stall while their stream ends."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from openai import InternalServerError

from fairlead.domain.job import JobStatus
from fairlead.gateway.fronts.openai import answers
from tests.integration.openai_site import HELLO, Front, open_front
from tests.openai_upstream import PATIENCE_S, chunks, event, refusing, running_upstream, sending, streaming

ASK = {"model": "llama", "messages": HELLO}
STREAM = {**ASK, "stream": True}
CHUNKS = chunks({"model": "llama"})
DONE = b"data: [DONE]\n\n"


async def closing(upstream: Any, request: Any, fields: Any) -> Any:
    """Close the connection without an answer."""
    request.transport.abort()
    await asyncio.sleep(PATIENCE_S)


@pytest.fixture
async def front(tmp_path: Path) -> AsyncIterator[Front]:
    async with open_front(tmp_path, service={"limit": 1}) as front:
        yield front


# ---------------------------------------------------------------- answers


async def test_an_answer_that_is_too_deep_to_change_passes_as_it_is(front: Front) -> None:
    body = b'{"service_tier": "default", "deep": ' + b"[" * 1000 + b"]" * 1000 + b"}"
    front.upstream.script.append(sending(body))
    async with front.http() as http:
        response = await http.post("/chat/completions", json={**ASK, "service_tier": "flex"})
    assert response.content == body


HALF = b'{"model": "llama", "choices": [{"delta": {"content": "half an emoji: \\ud83d"}, "finish_reason": "length"}]}'


async def test_an_answer_with_half_an_emoji_passes_as_it_is(front: Front) -> None:
    front.upstream.script.append(sending(HALF))
    async with front.http() as http:
        response = await http.post("/chat/completions", json=ASK)
    assert (response.status_code, response.content) == (200, HALF)


async def test_a_changed_answer_with_half_an_emoji_stays_utf_8(front: Front) -> None:
    front.upstream.script.append(sending(HALF[:-1] + b', "service_tier": "default"}'))
    async with front.http() as http:
        response = await http.post("/chat/completions", json={**ASK, "service_tier": "flex"})
    assert response.content.decode() == json.dumps({**json.loads(HALF), "service_tier": "flex"}, separators=(",", ":"))


async def test_a_stream_with_half_an_emoji_passes_as_it_is(front: Front) -> None:
    front.upstream.script.append(streaming(b"data: " + HALF + b"\n\n", DONE))
    async with front.http() as http:
        response = await http.post("/chat/completions", json=STREAM)
    assert response.content == b"data: " + HALF + b"\n\n" + DONE


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_with_nan_is_refused_with_the_reason(front: Front, stream: bool) -> None:
    body = b'{"data": [{"embedding": [0.5, NaN]}]}'
    front.upstream.script.append(streaming(b"data: " + body + b"\n\n", DONE) if stream else sending(body))
    async with front.http() as http:
        response = await http.post("/chat/completions", json={**ASK, "stream": stream})
    assert "it contains NaN or an infinity" in response.text
    assert "bad_result" in response.text
    assert stream or response.status_code == 502


@pytest.mark.parametrize("stream", [False, True])
async def test_requests_go_to_the_services_whose_upstreams_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    """Calls that fail at once must not make a service look fast."""
    async with running_upstream("llama") as other:
        dead = {"limit": 4, "openai": other.url, "models": ["llama"], "max_attempts": 1}
        async with (
            open_front(tmp_path, service={"models": ["llama"]}, services={"dead": dead}) as front,
            front.http() as http,
        ):
            other.script.extend([closing] * 20)
            answers = [await http.post("/chat/completions", json={**ASK, "stream": stream}) for _ in range(12)]
            assert [answer.status_code for answer in answers].count(502) <= 1
            assert len(other.calls) <= 1
            other.script.clear()
            monkeypatch.setattr(front.app.models, "_resting", {"dead": 0.0})
            for _ in range(3):
                assert (await http.post("/chat/completions", json=ASK)).status_code == 200
            assert len(other.calls) >= 2, "it works again"


@pytest.mark.parametrize(
    "answer",
    [
        {"error": {"message": "out of memory", "code": 500}, "user_id": "u"},
        {"error": "out of memory", "user_id": "u"},
        {"object": "error", "message": "out of memory", "code": 500},
    ],
)
async def test_an_error_object_with_status_200_is_an_error(front: Front, answer: Any) -> None:
    front.upstream.script.append(sending(orjson.dumps(answer)))
    async with front.client() as client:
        with pytest.raises(InternalServerError, match="the upstream failed with status 200: out of memory") as caught:
            await client.chat.completions.create(**ASK)
    assert caught.value.status_code == 502
    assert len(front.upstream.calls) == 1


async def test_a_stream_for_a_request_that_is_not_streamed_is_an_error(front: Front) -> None:
    front.upstream.gate.clear()
    front.upstream.script.append(streaming(*CHUNKS, None))
    async with front.client() as client:
        with pytest.raises(InternalServerError, match="streamed its answer to a request that is not streamed"):
            await client.chat.completions.create(**ASK)
    await front.upstream.reaches(open=0)
    assert len(front.upstream.calls) == 1


async def test_a_request_that_is_too_deep_to_change_is_an_error_at_once(tmp_path: Path) -> None:
    body = b'{"model": "gpt", "messages": ' + b"[" * 1000 + b"]" * 1000 + b"}"
    async with open_front(tmp_path, service={"aliases": {"gpt": "llama"}}) as front, front.http() as http:
        response = await http.post("/chat/completions", content=body, headers={"Content-Type": "application/json"})
        assert "nested too deeply" in response.json()["error"]["message"]
        job = await front.app.get(response.headers["x-fairlead-job"])
        assert len(job.attempts or []) <= 1


async def test_the_longest_rest_is_a_day(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    rests: list[float] = []
    monkeypatch.setattr("fairlead.executors.port.Call.rest", lambda call, seconds, **limits: rests.append(seconds))
    front.upstream.script.append(refusing(429, x_ratelimit_reset_requests="99999999h"))
    async with front.http() as http:
        assert (await http.post("/chat/completions", json=ASK)).status_code == 200
    assert rests == [86400.0]


# ---------------------------------------------------------------- streams


@pytest.mark.parametrize(
    "after", [None, ConnectionError(), b"data: {oops\n\n", event({"error": {"message": "too late"}})]
)
async def test_a_stream_ends_with_done_whatever_follows(front: Front, after: Any) -> None:
    front.upstream.gate.clear()
    front.upstream.script.append(streaming(*CHUNKS, DONE, after))
    async with front.http() as http:
        response = await http.post("/chat/completions", json=STREAM)
    assert response.text.endswith(DONE.decode())
    assert (await front.app.get(response.headers["x-fairlead-job"])).status is JobStatus.COMPLETED
    await front.upstream.reaches(open=0)


@pytest.mark.parametrize("done", [b"data: [DONE]\n", b"data: [DONE]\r\n", b"data:[DONE]"])
async def test_a_stream_ends_with_done_without_an_empty_line_while_the_connection_stays_open(
    front: Front, done: bytes
) -> None:
    front.upstream.gate.clear()
    front.upstream.script.append(streaming(*CHUNKS, done, None))
    async with front.http() as http:
        response = await http.post("/chat/completions", json=STREAM)
    assert response.text.endswith(f"{done.decode().strip()}\n\n")
    assert (await front.app.get(response.headers["x-fairlead-job"])).status is JobStatus.COMPLETED
    await front.upstream.reaches(open=0)


# ---------------------------------------------------------------- clients


async def test_a_client_that_leaves_after_done_does_not_cancel_its_job(front: Front) -> None:
    front.upstream.gate.clear()
    front.upstream.script.append(streaming(*CHUNKS, DONE, None))
    async with front.http() as http:
        async with http.stream("POST", "/chat/completions", json=STREAM) as response:
            async for line in response.aiter_lines():
                if line == "data: [DONE]":
                    break
        job_id = response.headers["x-fairlead-job"]
    await front.upstream.reaches(open=0)
    job = await front.app.jobs.wait(job_id)
    assert job.status is JobStatus.COMPLETED


async def test_a_client_that_stops_reading_is_disconnected_and_its_job_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "STALLED_S", 0.2)
    large = event({"choices": [], "x": "y" * 60_000})
    worker = {"max_result": 1 << 30}
    async with open_front(tmp_path, service={"limit": 1}, worker=worker) as front, front.http() as http:
        front.upstream.gate.clear()
        front.upstream.script.append(streaming(*[large] * 400, None))
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setblocking(False)
        with contextlib.closing(client):
            loop = asyncio.get_running_loop()
            await loop.sock_connect(client, ("127.0.0.1", int(front.base.rpartition(":")[2])))
            body = orjson.dumps(STREAM)
            head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            await loop.sock_sendall(client, f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            await front.upstream.reaches(calls=1)
            await front.upstream.reaches(open=0)
        front.upstream.gate.set()
        async with asyncio.timeout(PATIENCE_S):
            assert (await http.post("/chat/completions", json=ASK)).status_code == 200
