"""Streams of upstreams that fail, break off or bend the protocol."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import orjson
import pytest

from fairlead.domain.job import JobStatus
from fairlead.executors import openai_stream
from tests.integration.openai_site import HELLO, Front, open_front
from tests.integration.test_openai_streams import ASK, CHUNKS, TEXT, text_of
from tests.openai_upstream import WORDS, begin_stream, event, refusing, sending, streaming


@pytest.fixture
async def front(tmp_path: Path) -> AsyncIterator[Front]:
    async with open_front(tmp_path) as front:
        yield front


async def test_an_error_before_the_first_byte_keeps_its_status(front: Front) -> None:
    front.upstream.script.append(refusing(400, "messages are too long"))
    async with front.client() as client:
        with pytest.raises(openai.BadRequestError, match="messages are too long"):
            await client.chat.completions.create(model="llama", messages=HELLO, stream=True)


async def test_an_error_after_a_comment_is_an_event_of_the_stream(tmp_path: Path) -> None:
    async with open_front(tmp_path, service={"limit": 1}) as front, front.client() as client:
        front.upstream.gate.clear()
        first = asyncio.create_task(client.chat.completions.create(model="llama", messages=HELLO))
        await front.upstream.reaches(open=1)
        stream = await client.chat.completions.create(model="llama", messages=HELLO, stream=True)
        front.upstream.script.append(refusing(400, "messages are too long"))
        front.upstream.gate.set()
        with pytest.raises(openai.APIError, match="messages are too long"):
            await text_of(stream)
        await first


DONE = b"data: [DONE]\n\n"
BAD_STREAMS: dict[str, tuple[list[Any], str]] = {
    "garbage": ([CHUNKS[0], b"data: {oops\n\n"], "not JSON"),
    "no UTF-8": ([CHUNKS[0], b": \xff\n\n"], "not UTF-8"),
    "a list": ([CHUNKS[0], b"data: []\n\n"], "not a JSON object"),
    "closed in the middle": ([*CHUNKS[:3], ConnectionError()], "the upstream closed the connection within the stream"),
    "ended in the middle": (CHUNKS[:3], "before its end"),
    "10 MB without a newline": ([CHUNKS[0], *[b"x" * 1_000_000] * 10], "more than"),
    "too much": ([CHUNKS[0], *[event({"choices": [], "x": "y" * 100_000})] * 20], "too large"),
    "an error object": ([CHUNKS[0], event({"error": {"message": "CUDA out of memory"}})], "CUDA out of memory"),
    "an error as vLLM sent it": (
        [CHUNKS[0], event({"object": "error", "message": "no"}), DONE],
        "within the stream: no",
    ),
    "an event that is an error": ([CHUNKS[0], event({"message": "no"}, "error"), DONE], "within the stream: no"),
    "never ends": ([CHUNKS[0], None], "within"),
}


@pytest.mark.parametrize("name", BAD_STREAMS)
async def test_a_bad_stream_is_an_api_error_and_frees_the_slot(tmp_path: Path, name: str) -> None:
    pieces, message = BAD_STREAMS[name]
    options = {"service": {"limit": 1, "timeout": 1.0}, "worker": {"max_result": 1 << 20}}
    async with open_front(tmp_path, **options) as front, front.client() as client:
        front.upstream.script.append(streaming(*pieces))
        front.upstream.gate.clear()
        with pytest.raises(openai.APIError, match=message):
            async for _ in await client.chat.completions.create(model="llama", messages=HELLO, stream=True):
                pass
        await front.upstream.reaches(open=0)
        assert len(front.upstream.calls) == 1, "clients have seen its beginning"
        front.upstream.gate.set()
        stream = await client.chat.completions.create(model="llama", messages=HELLO, stream=True)
        assert await text_of(stream) == TEXT


@pytest.mark.parametrize("end", [event({"error": {"message": "CUDA out of memory"}}), b""], ids=["error", "cut"])
@pytest.mark.parametrize("headers", [{}, {"Expect": ""}], ids=["own client", "aiohttp"])
async def test_events_that_arrive_together_with_an_error_reach_the_client_first(
    tmp_path: Path, end: bytes, headers: dict[str, str]
) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 100000\r\n\r\n"

    async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(head + b"".join(CHUNKS[:3]) + end)
        writer.close()

    async with await asyncio.start_server(reply, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        service = {"openai": f"http://127.0.0.1:{port}/v1", "models": ["llama"], "max_attempts": 1, "headers": headers}
        async with open_front(tmp_path, service=service) as front, front.http() as http:
            response = await http.post("/chat/completions", json=ASK)
    shown = [line.encode() for line in response.text.split("\n\n")]
    assert [chunk.strip() for chunk in CHUNKS[:3]] == shown[:3]
    assert b"error" in shown[3]


@pytest.mark.parametrize("end", [None, ConnectionError()], ids=["open", "lost"])
async def test_a_stream_is_complete_when_it_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: Exception | None
) -> None:
    monkeypatch.setattr(openai_stream, "END_WITHIN_S", 0.01)
    async with open_front(tmp_path, service={"timeout": 5.0}) as front, front.http() as http:
        front.upstream.script.append(streaming(*CHUNKS, b"data: [DONE]\n\n", end))
        front.upstream.gate.clear()
        response = await http.post("/chat/completions", json=ASK)
        assert response.text.endswith("data: [DONE]\n\n")
        job = await front.app.get(response.headers["x-fairlead-job"])
        assert job.status is JobStatus.COMPLETED
        await front.upstream.reaches(open=0)


async def test_a_trickle_ends_with_the_timeout(tmp_path: Path) -> None:
    async def trickle(upstream: Any, request: Any, fields: Any) -> Any:
        response = await begin_stream(request)
        while True:
            await response.write(CHUNKS[1])
            await asyncio.sleep(0.05)

    async with open_front(tmp_path, service={"limit": 1, "timeout": 1.0}) as front, front.client() as client:
        await client.chat.completions.create(model="llama", messages=HELLO)  # the first request is slow
        front.upstream.script.append(trickle)
        began = time.monotonic()
        with pytest.raises(openai.APIError, match="did not end its stream within 1 s"):
            async for _ in await client.chat.completions.create(model="llama", messages=HELLO, stream=True):
                pass
        assert time.monotonic() - began >= 1.0, "not before"
        await front.upstream.reaches(open=0)
        assert len(front.upstream.calls) == 2, "clients have seen its beginning"


async def test_lines_that_break_the_client_are_left_out(front: Front) -> None:
    bad = b"id: 7\nretry: 10\n" + CHUNKS[1]
    front.upstream.script.append(
        streaming(
            CHUNKS[0],
            b": hello\n\n",
            b"event: ping\n\n",
            b"data: \n\n",
            bad,
            b": x\n\n",
            CHUNKS[-1],
            b"data: [DONE]\r\n\r\n",
        )
    )
    async with front.client() as client:
        stream = await client.chat.completions.create(model="llama", messages=HELLO, stream=True)
        assert await text_of(stream) == WORDS[0]


async def test_a_model_that_does_not_stream_is_an_error(front: Front) -> None:
    front.upstream.script.append(sending(orjson.dumps({"object": "chat.completion", "choices": []})))
    async with front.client() as client:
        with pytest.raises(openai.InternalServerError, match="did not stream"):
            await client.chat.completions.create(model="llama", messages=HELLO, stream=True)


async def test_a_broken_stream_is_retried_if_the_service_says_so(tmp_path: Path) -> None:
    async with open_front(tmp_path, service={"retry_streams": True}) as front, front.http() as http:
        front.upstream.script.append(streaming(*CHUNKS[:3], ConnectionError()))
        response = await http.post("/chat/completions", json=ASK)
        _, mark, rest = response.text.partition(": restart\n\n")
        assert mark
        assert rest.endswith("data: [DONE]\n\n")
        assert len(front.upstream.calls) == 2


async def test_a_stream_whose_retry_is_refused_ends_with_the_error(tmp_path: Path) -> None:
    async with open_front(tmp_path, service={"retry_streams": True}) as front, front.client() as client:
        front.upstream.script.extend([streaming(*CHUNKS[:3], ConnectionError()), refusing(400, "no such model")])
        stream = await client.chat.completions.create(model="llama", messages=HELLO, stream=True)
        with pytest.raises(openai.APIError, match="no such model"):
            await text_of(stream)


async def test_a_stream_that_breaks_off_before_its_first_event_is_retried(tmp_path: Path) -> None:
    async with open_front(tmp_path) as front, front.client() as client:
        front.upstream.script.append(streaming(ConnectionError()))
        stream = await client.chat.completions.create(model="llama", messages=HELLO, stream=True)
        assert await text_of(stream) == TEXT
        assert len(front.upstream.calls) == 2
