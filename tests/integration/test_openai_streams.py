"""Streamed requests of unmodified OpenAI clients."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import openai
import orjson
import pytest

from fairlead.domain.events import POSITION
from fairlead.domain.job import JobStatus
from fairlead.engine import events
from fairlead.errors import Unavailable
from fairlead.gateway.fronts.openai import streams
from fairlead.gateway.fronts.openai.requests import QueueView
from fairlead.gateway.fronts.openai.streams import Stream
from tests.integration.openai_site import ADMIN, HELLO, Front, open_front
from tests.openai_upstream import PATIENCE_S, WORDS, begin_stream, chunks, event, hanging, refusing, streaming

TEXT = "".join(WORDS)
ASK = {"model": "llama", "messages": HELLO, "stream": True}
CHUNKS = chunks({"model": "llama"})


@pytest.fixture
async def front(tmp_path: Path) -> AsyncIterator[Front]:
    async with open_front(tmp_path) as front:
        yield front


async def text_of(stream: Any) -> str:
    return "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])


async def test_a_stream_passes_as_the_upstream_sends_it(front: Front) -> None:
    async with front.http() as client:
        response = await client.post("/chat/completions", json=ASK)
    assert response.headers["content-type"].startswith("text/event-stream")
    without_usage = chunks({"model": "llama", "stream_options": {"include_usage": True}})[:-1]
    assert response.content == b"".join(without_usage) + b"data: [DONE]\n\n"
    job = await front.app.get(response.headers["x-fairlead-job"])
    assert job.result == response.text


async def test_tokens_reach_the_client_as_they_are_made(front: Front) -> None:
    front.upstream.gate.clear()
    async with front.client() as client:
        stream = await client.chat.completions.create(model="llama", messages=HELLO, stream=True)
        seen = ""
        async for chunk in stream:
            seen += chunk.choices[0].delta.content or ""
            if seen == WORDS[0] + WORDS[1]:
                front.upstream.gate.set()
    assert seen == TEXT


async def test_the_synchronous_client_streams_too(front: Front) -> None:
    def ask() -> str:
        with front.sync_client() as client:
            stream = client.chat.completions.create(model="llama", messages=HELLO, stream=True)
            return "".join(chunk.choices[0].delta.content or "" for chunk in stream)

    assert await asyncio.to_thread(ask) == TEXT


async def test_usage_is_requested_upstream_and_hidden_unless_the_client_asks(front: Front) -> None:
    async with front.client() as client:
        create = client.chat.completions.create
        hidden = [chunk async for chunk in await create(model="llama", messages=HELLO, stream=True)]
        shown = [
            chunk
            async for chunk in await create(
                model="llama", messages=HELLO, stream=True, stream_options={"include_usage": True}
            )
        ]
    assert all(chunk.usage is None and chunk.choices for chunk in hidden)
    assert shown[-1].usage is not None
    assert shown[-1].usage.total_tokens == 16
    assert [call.json["stream_options"] for call in front.upstream.calls] == [{"include_usage": True}] * 2
    jobs = (await front.app.list_jobs()).data
    for each in jobs:
        await front.app.wait(each.job_id, 20)  # the stream may end before the commit
        job = await front.app.get(each.job_id)
        assert job.context is not None
        assert job.context["step_0_llama"]["metrics"]["usage"]["completion_tokens"] == 7


async def test_an_upstream_that_refuses_the_request_for_usage_gets_streams_without_it(front: Front) -> None:
    front.upstream.chat_only = True
    front.upstream.script.append(refusing(400, "Unrecognized request argument supplied: stream_options"))
    async with front.client() as client:
        for _ in range(2):
            assert (
                await text_of(await client.chat.completions.create(model="llama", messages=HELLO, stream=True)) == TEXT
            )
        stream = await client.responses.create(model="llama", input="Hi", stream=True)
        assert [each.type async for each in stream][-1] == "response.completed"
        chats = [call.json for call in front.upstream.calls if call.path == "chat/completions"]
        assert ["stream_options" in fields for fields in chats] == [True, False, False, False]


async def test_a_refusal_of_what_the_client_asks_for_passes(front: Front) -> None:
    front.upstream.script.append(refusing(400, "Unrecognized request argument supplied: stream_options"))
    options: Any = {"include_usage": True}
    async with front.client() as client:
        with pytest.raises(openai.BadRequestError, match="stream_options"):
            await client.chat.completions.create(model="llama", messages=HELLO, stream=True, stream_options=options)
    assert len(front.upstream.calls) == 1


async def test_a_stream_of_responses_passes(front: Front) -> None:
    async with front.client() as client:
        stream = await client.responses.create(model="llama", input="Hi", stream=True)
        seen = [each async for each in stream]
    assert seen[0].type == "response.created"
    assert seen[-1].type == "response.completed"
    assert "".join(each.delta for each in seen if each.type == "response.output_text.delta") == TEXT


async def test_a_stream_of_responses_that_ends_in_the_middle_is_an_error(front: Front) -> None:
    delta = {"type": "response.output_text.delta", "sequence_number": 1, "delta": "Hel"}
    front.upstream.script.append(streaming(event(delta, delta["type"])))
    async with front.client() as client:
        with pytest.raises(openai.APIError, match="closed the stream before its end"):
            async for _ in await client.responses.create(model="llama", input="Hi", stream=True):
                pass


@pytest.mark.parametrize("kind", ["error", "response.failed", "response.incomplete"])
async def test_a_stream_of_responses_may_end_without_an_answer(front: Front, kind: str) -> None:
    last = event({"type": kind, "sequence_number": 1, "message": "no"}, kind)
    front.upstream.script.append(streaming(last))
    async with front.client() as client:
        stream = await client.responses.create(model="llama", input="Hi", stream=True)
        assert [each.type async for each in stream] == [kind]


async def test_the_tier_that_was_used_is_in_the_stream(tmp_path: Path) -> None:
    tiered = [event({**orjson.loads(each[6:]), "service_tier": "default"}) for each in CHUNKS]
    async with open_front(tmp_path, admin_key=ADMIN) as front, front.client(ADMIN) as client:
        front.upstream.script.append(streaming(*tiered, b"data: [DONE]\n\n"))
        stream = await client.chat.completions.create(
            model="llama", messages=HELLO, stream=True, service_tier="priority"
        )
        assert {chunk.service_tier async for chunk in stream} == {"priority"}


async def test_the_tier_is_in_the_stream_of_an_upstream_that_does_not_know_it(tmp_path: Path) -> None:
    texts = ['a "service_tier": "x"', "service_tier"]
    quoted = [event({"id": "c", "choices": [{"index": 0, "delta": {"content": text}}]}) for text in texts]
    async with open_front(tmp_path, admin_key=ADMIN) as front, front.client(ADMIN) as client:
        front.upstream.script.append(streaming(b"".join([*CHUNKS[:2], *quoted, *CHUNKS[2:]]), b"data: [DONE]\n\n"))
        stream = await client.chat.completions.create(model="llama", messages=HELLO, stream=True, service_tier="flex")
        seen = [chunk async for chunk in stream]
    assert {chunk.service_tier for chunk in seen} == {"flex"}
    assert [chunk.choices[0].delta.content for chunk in seen if chunk.id == "c"] == texts
    assert len(seen) == len(CHUNKS) + 2


async def test_a_stream_with_a_tier_goes_on_while_the_database_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(job_id: str) -> Any:
        raise Unavailable("the database is away")

    async with open_front(tmp_path, admin_key=ADMIN) as front, front.client(ADMIN) as client:
        monkeypatch.setattr(front.app, "get", away)
        stream = await client.chat.completions.create(model="llama", messages=HELLO, stream=True, service_tier="flex")
        assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == "".join(WORDS)


# ---------------------------------------------------------------- the queue


async def test_a_waiting_stream_shows_its_place_at_once_and_as_it_changes(tmp_path: Path) -> None:
    async with open_front(tmp_path, service={"limit": 1}) as front, front.http() as http:
        front.upstream.gate.clear()
        running = [asyncio.create_task(http.post("/chat/completions", json={**ASK, "user": "a"}))]
        await front.upstream.reaches(open=1)
        async with http.stream("POST", "/chat/completions", json={**ASK, "user": "b"}) as response:
            lines = response.aiter_lines()
            async with asyncio.timeout(PATIENCE_S):
                assert (await anext(lines)).startswith(": queued, position 1")
                front.upstream.gate.set()
                rest = [line async for line in lines]
        assert not [line for line in rest if line.startswith(("id:", "retry:", "event:"))]
        assert rest[-2:] == ["data: [DONE]", ""] or rest[-1] == "data: [DONE]"
        await asyncio.gather(*running)


async def test_a_stream_shows_its_place_however_long_it_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "HEARTBEAT_S", 0.05)
    async with open_front(tmp_path, service={"limit": 1}) as front, front.http() as http, front.client() as client:
        front.upstream.gate.clear()
        first = asyncio.create_task(http.post("/chat/completions", json={**ASK, "user": "a"}))
        await front.upstream.reaches(open=1)
        ahead = await client.chat.completions.create(model="llama", messages=HELLO, stream=True, user="b")
        async with http.stream("POST", "/chat/completions", json={**ASK, "user": "c"}) as response:
            lines = response.aiter_lines()

            async def shown(start: str) -> None:
                async with asyncio.timeout(PATIENCE_S):
                    while not (await anext(lines)).startswith(start):
                        pass

            await shown(": queued, position 2")
            await shown(": keep-alive")
            await ahead.close()
            await shown(": queued, position 1")
            await shown(": keep-alive")
            front.upstream.gate.set()
            await shown(": started")
            await shown("data: [DONE]")
        await first


async def test_a_stream_begins_in_time_however_long_its_model_is_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "HEARTBEAT_S", 0.02)
    async with open_front(tmp_path, openai={"keepalive_after": 0.3}) as front, front.http() as http:
        front.upstream.script.append(hanging)
        async with http.stream("POST", "/chat/completions", json=ASK) as response, asyncio.timeout(PATIENCE_S):
            lines = response.aiter_lines()
            assert [await anext(lines), await anext(lines), await anext(lines)] == [": started", "", ": keep-alive"]


async def test_the_client_reads_a_stream_with_comments_as_usual(tmp_path: Path) -> None:
    async with open_front(tmp_path, service={"limit": 1}) as front, front.client() as client:
        front.upstream.gate.clear()
        first = asyncio.create_task(client.chat.completions.create(model="llama", messages=HELLO))
        await front.upstream.reaches(open=1)
        # The response begins with the first comment, so the job is queued when this returns.
        stream = await client.chat.completions.create(model="llama", messages=HELLO, stream=True)
        front.upstream.gate.set()
        assert await text_of(stream) == TEXT
        await first


async def test_the_place_can_be_shown_in_chunks(tmp_path: Path) -> None:
    async with open_front(tmp_path, service={"limit": 1}) as front, front.client() as client:
        front.upstream.gate.clear()
        first = asyncio.create_task(client.chat.completions.create(model="llama", messages=HELLO))
        await front.upstream.reaches(open=1)
        stream = await client.chat.completions.create(
            model="llama", messages=HELLO, stream=True, extra_headers={"X-Fairlead-Queue": "chunks"}
        )
        chunk = await anext(aiter(stream))
        assert chunk.choices[0].delta.content == ""
        assert (chunk.model_extra or {})["fairlead"]["position"] == 1
        front.upstream.gate.set()
        assert await text_of(stream) == TEXT
        await first


async def test_a_client_that_accumulates_chunks_gets_the_answer_alone(tmp_path: Path) -> None:
    async with open_front(tmp_path, service={"limit": 1}) as front, front.client() as client:
        front.upstream.gate.clear()
        first = asyncio.create_task(client.chat.completions.create(model="llama", messages=HELLO))
        await front.upstream.reaches(open=1)
        ahead = await client.chat.completions.create(model="llama", messages=HELLO, stream=True, user="ahead")
        manager = client.chat.completions.stream(
            model="llama", messages=HELLO, extra_headers={"X-Fairlead-Queue": "chunks"}
        )
        async with manager as stream, asyncio.timeout(PATIENCE_S):
            places = []
            async for each in stream:
                if each.type == "chunk" and (each.chunk.model_extra or {}).get("fairlead"):
                    places.append((each.chunk.model_extra or {})["fairlead"]["position"])
                    if places == [2]:
                        await ahead.close()  # the place changes: a second chunk
                    if places[-1] == 1:
                        front.upstream.gate.set()
            message = (await stream.get_final_completion()).choices[0].message
        assert places[0] == 2
        assert len(places) > 1
        assert (message.role, message.content) == ("assistant", TEXT)
        await first


@pytest.mark.parametrize(
    ("low", "high", "text"), [(3.6, 4.2, "about 4 s"), (0.0, 0.4, "about 0 s"), (12.0, 18.0, "about 12-18 s")]
)
def test_an_expected_wait_is_a_range_only_if_its_ends_differ(low: float, high: float, text: str) -> None:
    call: Any = SimpleNamespace(queue=QueueView.COMMENTS)
    nothing: Any = None
    shown = Stream(nothing, call, nothing, {})._shown(
        {"type": POSITION, "position": 3, "estimated_wait": {"low": low, "high": high}}
    )
    assert shown == f": queued, position 3, {text}\n\n".encode()


async def test_a_place_that_has_not_changed_is_not_shown_again(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[bytes] = []
    app: Any = SimpleNamespace(now=lambda: 1.5)
    reading: Any = SimpleNamespace(job_id="j")
    for view in (QueueView.COMMENTS, QueueView.CHUNKS):
        call: Any = SimpleNamespace(queue=view, model="llama", request=SimpleNamespace(path="chat/completions"))
        stream = Stream(app, call, reading, {})

        async def write(data: bytes, *, last: bool = False) -> None:
            shown.append(data)

        monkeypatch.setattr(stream, "_write", write)
        for position, low in ((3, 4.0), (3, 4.0), (3, 3.5), (2, 3.5), (3, 4.0)):
            event = {"type": POSITION, "position": position, "estimated_wait": {"low": low, "high": 4.2}}
            await stream._show(event)
    comments, chunks = shown[:3], shown[3:]
    assert [each.partition(b",")[2][:11] for each in comments] == [b" position 3", b" position 2", b" position 3"]
    places = [orjson.loads(each[6:])["fairlead"] for each in chunks]
    assert [(each["position"], each["estimated_wait"]["low"]) for each in places] == [
        (3, 4.0),
        (3, 3.5),
        (2, 3.5),
        (3, 4.0),
    ]


async def test_a_stream_in_chunks_has_no_comments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither at its start, nor while the model is silent, nor when it starts again."""
    monkeypatch.setattr(streams, "HEARTBEAT_S", 0.05)
    silent = asyncio.Event()

    async def slow(upstream: Any, request: Any, fields: Any) -> Any:
        await silent.wait()
        return await streaming(*CHUNKS[:3], ConnectionError())(upstream, request, fields)

    service = {"limit": 1, "retry_streams": True}
    headers = {"X-Fairlead-Queue": "chunks"}
    async with open_front(tmp_path, service=service, openai={"keepalive_after": 0.2}) as front, front.http() as http:
        front.upstream.script.append(slow)
        async with http.stream("POST", "/chat/completions", json=ASK, headers=headers) as response:
            lines = []
            async for line in response.aiter_lines():
                lines.append(line)
                silent.set()
    events = [orjson.loads(line[6:]) for line in lines if line.startswith("data: {")]
    assert not [line for line in lines if line.startswith(":")]
    assert events[0]["choices"] == [{"index": 0, "delta": {"content": ""}, "finish_reason": None}]
    assert "fairlead" not in events[0]
    assert [each["fairlead"]["restart"] for each in events if "fairlead" in each] == [True]
    assert {each["created"] for each in events if each["id"].startswith("chatcmpl-0")} == {events[0]["created"]}


async def test_a_stream_whose_job_is_retried_says_so(tmp_path: Path) -> None:
    async with open_front(tmp_path, service={"limit": 1}) as front, front.http() as http:
        front.upstream.gate.clear()
        first = asyncio.create_task(http.post("/chat/completions", json={**ASK, "user": "a"}))
        await front.upstream.reaches(open=1)
        async with http.stream("POST", "/chat/completions", json={**ASK, "user": "b"}) as response:
            lines = response.aiter_lines()
            async with asyncio.timeout(PATIENCE_S):
                assert (await anext(lines)).startswith(": queued, position 1")
                front.upstream.script.append(refusing(502))
                front.upstream.gate.set()
                rest = [line async for line in lines]
        assert ": retrying, attempt 2" in rest
        assert "data: [DONE]" in rest
        await first


async def test_silence_can_be_chosen(tmp_path: Path) -> None:
    async with open_front(tmp_path, service={"limit": 1}) as front, front.http() as http:
        front.upstream.gate.clear()
        first = asyncio.create_task(http.post("/chat/completions", json=ASK))
        await front.upstream.reaches(open=1)
        second = asyncio.create_task(http.post("/chat/completions", json=ASK, headers={"X-Fairlead-Queue": "none"}))
        while len((await front.app.list_jobs()).data) < 2:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.3)
        front.upstream.gate.set()
        assert (await second).text.startswith("data: {")
        await first


# ---------------------------------------------------------------- connections


async def test_a_client_that_leaves_in_the_middle_cancels_its_job(tmp_path: Path) -> None:
    async with open_front(tmp_path, service={"limit": 1}) as front, front.client() as client:
        front.upstream.gate.clear()
        stream = await client.chat.completions.create(model="llama", messages=HELLO, stream=True, user="ada")
        await anext(aiter(stream))
        await stream.close()
        await front.upstream.reaches(open=0)
        front.upstream.gate.set()
        await client.chat.completions.create(model="llama", messages=HELLO)
        [job] = (await front.app.list_jobs(user_id="ada")).data
        assert job.status is JobStatus.CANCELLED


async def test_a_stream_whose_key_is_revoked_ends_with_an_error(tmp_path: Path) -> None:
    async with open_front(tmp_path, admin_key=ADMIN) as front:
        front.upstream.gate.clear()
        key = await front.app.create_key("user", user_id="ada")
        async with front.client(key.text) as client:
            stream = await client.chat.completions.create(model="llama", messages=HELLO, stream=True)
            await anext(aiter(stream))
            await front.app.revoke_key(key.key.id)
            with pytest.raises(openai.APIError, match="revoked"):
                await text_of(stream)
        await front.upstream.reaches(open=0)


async def test_a_client_that_is_dropped_because_it_reads_too_slowly_cancels_its_job(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def two_chunks(upstream: Any, request: Any, fields: Any) -> Any:
        response = await begin_stream(request)
        await response.write(CHUNKS[0])
        await upstream.gate.wait()
        await response.write(CHUNKS[1])
        return await hanging(upstream, request, fields)

    front.upstream.script.append(two_chunks)
    front.upstream.gate.clear()
    async with front.client() as client:
        stream = await client.chat.completions.create(model="llama", messages=HELLO, stream=True)
        await anext(aiter(stream))
        monkeypatch.setattr(events, "BUFFER", 0)
        front.upstream.gate.set()
        with pytest.raises(openai.APIError, match="too slowly"):
            await text_of(stream)
        await front.upstream.reaches(open=0)


async def test_a_retry_gets_the_stream_from_its_beginning(front: Front) -> None:
    async with front.http() as http:
        first = await http.post("/chat/completions", json=ASK)
        again = await http.post("/chat/completions", json=ASK, headers={"x-stainless-retry-count": "1"})
    assert again.text == first.text
    assert again.headers["x-fairlead-job"] == first.headers["x-fairlead-job"]
    assert len(front.upstream.calls) == 1
