"""Unmodified OpenAI clients against the front, without streaming."""

from __future__ import annotations

import asyncio
import gzip
import io
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import openai
import orjson
import pytest
from aiohttp import web

from fairlead.app import models
from fairlead.domain import events
from fairlead.domain.job import JobStatus
from fairlead.domain.openai import form_fields
from fairlead.errors import InvalidInput
from fairlead.executors import openai as executor
from fairlead.gateway.fronts.openai import answers
from tests.integration.openai_site import ADMIN, HELLO, PROMPT, Front, disconnect_after, open_front
from tests.openai_upstream import PATIENCE_S, WORDS, chat, closing, refusing, running_upstream, sending

TEXT = "".join(WORDS)


@pytest.fixture
async def front(tmp_path: Path) -> AsyncIterator[Front]:
    async with open_front(tmp_path) as front:
        yield front


# ---------------------------------------------------------------- what clients can ask for


async def test_a_chat_completion_is_a_job_with_the_upstreams_answer(front: Front) -> None:
    async with front.client() as client:
        raw = await client.chat.completions.with_raw_response.create(model="llama", messages=HELLO, user="ada")
        answer = raw.parse()
    assert answer.choices[0].message.content == TEXT
    assert answer.usage is not None
    assert answer.usage.total_tokens == 16
    job = await front.app.get(raw.headers["x-fairlead-job"])
    assert (job.status, job.user_id, job.feature_name) == (JobStatus.COMPLETED, "ada", "llama")
    assert raw.headers["x-request-id"]


async def test_the_answer_of_a_call_in_this_process_is_passed_on_without_a_read(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with front.client() as client:
        await client.chat.completions.create(model="llama", messages=HELLO)
        monkeypatch.setattr(front.app.jobs, "get_without_attempts", None)
        monkeypatch.setattr(answers, "SOON_S", PATIENCE_S)
        answer = await client.chat.completions.create(model="llama", messages=HELLO)
    assert answer.choices[0].message.content == TEXT


async def test_a_job_of_an_upstream_that_is_not_a_request_is_refused(front: Front) -> None:
    with pytest.raises(InvalidInput, match="/v1"):
        await front.app.submit("llama", {"messages": HELLO}, user_id="ada")
    assert (await front.app.list_jobs()).data == []


async def test_the_query_of_a_request_reaches_the_upstream(front: Front) -> None:
    async with front.client(default_query={"api-version": "2026-01-01", "q": "a b&c"}) as client:
        answer = await client.chat.completions.create(model="llama", messages=HELLO)
        assert answer.choices[0].message.content == TEXT
    [call] = front.upstream.calls
    assert call.path == "chat/completions"
    assert parse_qsl(call.query) == [("api-version", "2026-01-01"), ("q", "a b&c")]


async def test_a_query_that_is_no_query_is_refused(front: Front) -> None:
    async with front.http() as client:
        response = await client.post("/chat/completions?q=" + "x" * 3000, json={"model": "llama", "messages": HELLO})
    assert (response.status_code, front.upstream.calls) == (422, [])


async def test_the_synchronous_client_works_too(front: Front) -> None:
    def ask() -> str | None:
        with front.sync_client() as client:
            return client.chat.completions.create(model="llama", messages=HELLO).choices[0].message.content

    assert await asyncio.to_thread(ask) == TEXT


async def test_every_kind_of_request_passes(front: Front) -> None:
    async with front.client() as client:
        assert (await client.completions.create(model="llama", prompt="Hi")).choices[0].text == TEXT
        assert (await client.embeddings.create(model="llama", input="Hi")).data[0].embedding == [1.0, 2.0]
        images = await client.images.generate(model="llama", prompt="a harbour")
        assert images.data is not None
        assert images.data[0].b64_json == "cG5n"
        assert (await client.responses.create(model="llama", input="Hi")).output_text == TEXT
        speech = await client.audio.speech.create(model="llama", voice="alloy", input="Hi")
        assert speech.content == b"\xff\xf3\0\0mp3"


async def test_a_multipart_body_passes_byte_for_byte(front: Front) -> None:
    sound = bytes(range(256)) * 40
    async with front.client() as client:
        text = await client.audio.transcriptions.create(model="llama", file=("a.wav", io.BytesIO(sound)))
    assert text.text == "hello"
    assert sound in front.upstream.calls[0].body
    assert front.upstream.calls[0].headers["Content-Type"].startswith("multipart/form-data; boundary=")


async def test_a_form_with_an_alias_has_the_name_that_the_upstream_knows(tmp_path: Path) -> None:
    sound = b'\r\n\r\nContent-Disposition: form-data; name="model"\r\n\r\nwhisper-1\r\n' + bytes(range(256))
    async with open_front(tmp_path, service={"aliases": {"whisper-1": "llama"}}) as front, front.client() as client:
        await client.audio.transcriptions.create(model="whisper-1", file=("a.wav", io.BytesIO(sound)), language="en")
        received = front.upstream.calls[0]
    fields = form_fields(received.headers["Content-Type"], received.body, frozenset({"model", "language"}))
    assert fields == {"model": "llama", "language": "en"}
    assert sound in received.body


async def test_a_json_body_passes_byte_for_byte(front: Front) -> None:
    body = (
        b'{ "model":"llama", "messages":[], "seed": 123456789012345678901234567890, "x": 1.50, "y":"\\u00e9 \xc3\xa9" }'
    )
    async with front.http() as client:
        response = await client.post("/chat/completions", content=body, headers={"Content-Type": "application/json"})
    assert response.status_code == 200
    assert front.upstream.calls[0].body == body


async def test_the_models_are_those_of_the_upstream(tmp_path: Path) -> None:
    aliases = {"aliases": {"gpt-4o": "llama"}}
    async with open_front(tmp_path, "llama", "org/qwen", service=aliases) as front, front.client() as client:
        assert [model.id async for model in client.models.list()] == ["gpt-4o", "llama", "org/qwen"]
        assert (await client.models.retrieve("org/qwen")).owned_by == "tests"
        with pytest.raises(openai.NotFoundError, match="no model 'gpt-5'; known are: gpt-4o, llama, org/qwen"):
            await client.models.retrieve("gpt-5")
        await client.chat.completions.create(model="gpt-4o", messages=HELLO)
    assert front.upstream.calls[0].json["model"] == "llama"


async def test_an_upstream_that_starts_later_is_listed_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(models, "ASK_AGAIN_S", 0.01, raising=False)
    async with running_upstream() as gone:
        url = gone.url
    service = {"openai": url}
    async with open_front(tmp_path, service=service) as front, front.client() as client:
        assert [model.id async for model in client.models.list()] == []
        async with running_upstream("late", port=int(url.split(":")[2].removesuffix("/v1"))):
            async with asyncio.timeout(PATIENCE_S):
                while [model.id async for model in client.models.list()] != ["late"]:
                    await asyncio.sleep(0.01)
    warnings = [each for each in caplog.records if each.name == models.log.name and each.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert "llama" in warnings[0].getMessage()


async def test_a_model_of_two_services_goes_to_the_one_with_the_shorter_queue(tmp_path: Path) -> None:
    async with open_front(tmp_path, services={"other": {"limit": 1, "openai": "http://127.0.0.1:1/v1"}}) as front:
        await front.app.pause("other")
        async with front.client() as client:
            for _ in range(4):
                await client.chat.completions.create(model="llama", messages=HELLO)
    assert len(front.upstream.calls) == 4


# ---------------------------------------------------------------- who, and how urgent


async def test_a_user_key_is_its_user_and_may_only_lower_its_tier(tmp_path: Path) -> None:
    async with open_front(tmp_path, admin_key=ADMIN) as front:
        key = (await front.app.create_key("user", user_id="bob")).text
        async with front.client(key) as client:
            create: Any = client.chat.completions.with_raw_response.create
            for asked, used in (("priority", "default"), ("flex", "flex"), ("auto", "default")):
                raw = await create(model="llama", messages=HELLO, service_tier=asked, user="carol")
                assert raw.parse().service_tier == used
                assert await front.app.owner_of(raw.headers["x-fairlead-job"]) == "bob"
            with pytest.raises(openai.PermissionDeniedError):
                await client.chat.completions.create(
                    model="llama", messages=HELLO, extra_headers={"X-Fairlead-User": "ada"}
                )


async def test_the_tier_is_in_the_answer_of_an_upstream_that_does_not_know_it(front: Front) -> None:
    answer = {"id": "x", "object": "chat.completion", "created": 1, "model": "llama", "choices": []}
    async with front.client() as client:
        for asked, used in (("flex", "flex"), ("auto", "default"), (openai.omit, None)):
            front.upstream.script.append(sending(orjson.dumps(answer)))
            create: Any = client.chat.completions.create
            assert (await create(model="llama", messages=HELLO, service_tier=asked)).service_tier == used


async def test_a_service_key_names_its_user_and_its_tier(tmp_path: Path) -> None:
    async with open_front(tmp_path, admin_key=ADMIN) as front:
        key = (await front.app.create_key("service", name="web shop")).text
        async with front.client(key) as client:
            create = client.chat.completions.with_raw_response.create
            raw = await create(model="llama", messages=HELLO, service_tier="priority", safety_identifier="ada")
            assert raw.parse().service_tier == "priority"
            assert await front.app.owner_of(raw.headers["x-fairlead-job"]) == "ada"
            raw = await create(model="llama", messages=HELLO, user="bob", extra_headers={"X-Fairlead-User": "eve"})
            assert await front.app.owner_of(raw.headers["x-fairlead-job"]) == "eve"


async def test_a_wrong_key_is_an_authentication_error(tmp_path: Path) -> None:
    async with open_front(tmp_path, admin_key=ADMIN) as front, front.client("wrong") as client:
        with pytest.raises(openai.AuthenticationError) as caught:
            await client.chat.completions.create(model="llama", messages=HELLO)
        assert caught.value.body == {
            "message": "this key is unknown or revoked; send a valid one as 'Authorization: Bearer <key>'",
            "type": "authentication_error",
            "param": None,
            "code": "unauthorized",
        }
        assert caught.value.request_id


# ---------------------------------------------------------------- bad input


async def test_an_unknown_model_is_not_found_and_the_known_ones_are_named(front: Front) -> None:
    async with front.client() as client:
        with pytest.raises(openai.NotFoundError, match="known are: llama") as caught:
            await client.chat.completions.create(model="gpt-5", messages=HELLO)
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")
    assert not front.upstream.calls


@pytest.mark.parametrize(
    ("path", "content", "content_type", "status"),
    [
        ("/chat/completions", b"{", "application/json", 400),
        ("/chat/completions", b"[]", "application/json", 400),
        ("/chat/completions", b'{"model": 7}', "application/json", 422),
        ("/chat/completions", b'{"model": "llama", "service_tier": "gold"}', "application/json", 422),
        ("/chat/completions", b"hello", "text/plain", 415),
        ("/chat/completions", b'{"model": "llama", "x": "' + b"x" * 2_000_000 + b'"}', "application/json", 413),
        ("/chat/%2e%2e/admin", b'{"model": "llama"}', "application/json", 404),
        ("/%2e%2e%2fadmin", b'{"model": "llama"}', "application/json", 404),
        ("/audio/translations", b'{"model": "llama"}', "application/json", 404),
    ],
)
async def test_bad_requests_get_errors_in_openais_shape(
    front: Front, path: str, content: bytes, content_type: str, status: int
) -> None:
    async with front.http() as client:
        response = await client.post(path, content=content, headers={"Content-Type": content_type})
    assert response.status_code == status
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}
    assert response.headers["x-request-id"]


async def test_a_compressed_body_is_refused_by_the_name_of_its_encoding(front: Front) -> None:
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    async with front.http() as client:
        response = await client.post("/chat/completions", content=gzip.compress(b"{}"), headers=headers)
    assert response.status_code == 415
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert "Content-Encoding: gzip" in error["message"]


async def test_a_get_that_the_front_does_not_know_has_openais_shape(front: Front) -> None:
    async with front.http() as client:
        response = await client.get("/fine_tuning/jobs")
    assert response.status_code == 405
    assert response.json()["error"]["code"] == "method_not_allowed"


# ---------------------------------------------------------------- the upstream's errors


async def test_a_4xx_of_the_upstream_passes_unchanged(front: Front) -> None:
    front.upstream.script.append(refusing(400, "messages are too long"))
    async with front.client() as client:
        with pytest.raises(openai.BadRequestError) as caught:
            await client.chat.completions.create(model="llama", messages=HELLO)
    assert caught.value.body == {
        "message": "messages are too long",
        "type": "invalid_request_error",
        "param": None,
        "code": "of_the_upstream",
    }
    assert len(front.upstream.calls) == 1


@pytest.mark.parametrize("status", [429, 503])
async def test_a_busy_upstream_is_waited_out_without_using_up_attempts(front: Front, status: int) -> None:
    front.upstream.script.extend(refusing(status, retry_after="0.01") for _ in range(6))
    async with front.client() as client:
        raw = await client.chat.completions.with_raw_response.create(model="llama", messages=HELLO)
    assert raw.parse().choices[0].message.content == TEXT
    assert len(front.upstream.calls) == 7
    job = await front.app.get(raw.headers["x-fairlead-job"])
    assert job.status is JobStatus.COMPLETED
    assert not job.attempts


async def test_refusals_do_not_use_up_attempts_while_the_limit_is_being_discovered(tmp_path: Path) -> None:
    service = {"limit": "auto", "max": 2, "max_attempts": 2}
    async with open_front(tmp_path, service=service) as front, front.client() as client:
        front.upstream.script.extend(refusing(429, retry_after="0.01") for _ in range(5))
        answer = await client.chat.completions.create(model="llama", messages=HELLO)
        assert answer.choices[0].message.content == TEXT
        assert len(front.upstream.calls) == 6


async def first_event(front: Front, *kinds: str) -> dict[str, Any]:
    """Send a request, and return the first event of one of these kinds. The client then disconnects."""
    async with front.client() as client, asyncio.timeout(PATIENCE_S):
        asked: asyncio.Task[Any] | None = None
        async for each in front.app.watch_user("ada"):
            if asked is None:  # the snapshot
                create = client.chat.completions.create
                asked = asyncio.create_task(create(model="llama", messages=HELLO, user="ada"))
            elif each is not None and each["type"] in kinds:
                asked.cancel()
                return each
    raise AssertionError(f"none of {kinds}")


async def rest_of_the_service(front: Front) -> dict[str, Any]:
    """Send a request; returns why it waits, once it waits for the rest of its service."""
    async with front.client() as client, asyncio.timeout(PATIENCE_S):
        asked = asyncio.create_task(client.chat.completions.create(model="llama", messages=HELLO, user="bob"))
        while True:
            for job in (await front.app.list_jobs(user_id="bob")).data:
                for reason in (await front.app.why(job.job_id)).reasons:
                    if reason.code == "rate_full":
                        asked.cancel()
                        return dict(reason.details)
            assert not asked.done()
            await asyncio.sleep(0.01)


async def test_while_the_upstream_rests_no_other_call_is_sent(front: Front) -> None:
    front.upstream.script.append(refusing(429, retry_after="60"))
    event = await first_event(front, events.PROGRESS, events.JOB_COMPLETE)
    assert event["type"] == events.PROGRESS
    details = await rest_of_the_service(front)
    assert (details["of"], details["resting"]) == ("service", True)
    assert len(front.upstream.calls) == 1


async def test_an_upstream_that_names_no_time_is_not_called_again_without_a_pause(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor, "FIRST_GUESS", 60.0)
    front.upstream.script.append(refusing(429, retry_after="0"))
    event = await first_event(front, events.PROGRESS, events.JOB_COMPLETE)
    assert "at its own limit" in event["message"]
    assert len(front.upstream.calls) == 1


async def test_a_rest_frees_the_slot_and_costs_no_attempt(tmp_path: Path) -> None:
    async with open_front(tmp_path, service={"timeout": 1.0, "max_attempts": 1}) as front:
        front.upstream.script.append(refusing(429, retry_after="600"))
        event = await first_event(front, events.PROGRESS, events.JOB_FAILED)
        assert event["type"] == events.PROGRESS
        await rest_of_the_service(front)
        (service,) = (await front.app.status())["services"]
        assert service["in_use"] == 0
        assert len(front.upstream.calls) == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_the_last_call_of_a_rate_limit_begins_a_rest(front: Front, stream: bool) -> None:
    async def last(upstream: Any, request: Any, fields: Any) -> Any:
        limits = {"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "1m0s"}
        if not stream:
            return web.json_response(chat(fields), headers=limits)
        return web.Response(body=b"data: [DONE]\n\n", content_type="text/event-stream", headers=limits)

    front.upstream.script.append(last)
    async with front.http() as client:
        await client.post("/chat/completions", json={"model": "llama", "messages": HELLO, "stream": stream})
    await rest_of_the_service(front)
    assert len(front.upstream.calls) == 1


async def test_a_lost_connection_before_the_first_byte_is_retried(front: Front) -> None:
    front.upstream.script.extend([closing, closing])
    async with front.client() as client:
        answer = await client.chat.completions.create(model="llama", messages=HELLO)
    assert answer.choices[0].message.content == TEXT
    assert len(front.upstream.calls) == 3


@pytest.mark.parametrize(
    "reply",
    [sending(b"<html>oops", "text/html"), sending(b"{", "application/json"), sending(b'{"a": "' + b"x" * 2_000_000)],
    ids=["html", "cut off JSON", "too large"],
)
async def test_garbage_of_the_upstream_is_a_502_that_is_not_retried(front: Front, reply: object) -> None:
    front.upstream.script.append(reply)  # type: ignore[arg-type]
    async with front.client(max_retries=2) as client:
        with pytest.raises(openai.InternalServerError) as caught:
            await client.chat.completions.create(model="llama", messages=HELLO)
        assert caught.value.status_code == 502
        assert len(front.upstream.calls) == 1
        await front.upstream.reaches(open=0)
        assert (await client.chat.completions.create(model="llama", messages=HELLO)).choices


async def test_a_header_of_the_upstream_that_cannot_be_sent_is_left_out(front: Front) -> None:
    async def named(upstream: Any, request: Any, fields: Any) -> Any:
        return web.Response(body=b"mp3", headers={"Content-Disposition": 'attachment; filename="漢.mp3"'})

    front.upstream.script.append(named)
    async with front.http() as client:
        response = await client.post("/audio/speech", json={"model": "llama", "input": "x"})
    assert (response.status_code, response.content) == (200, b"mp3")
    assert "content-disposition" not in response.headers


async def test_an_upstream_that_never_answers_is_a_504(tmp_path: Path) -> None:
    async with open_front(tmp_path, service={"timeout": 0.2, "max_attempts": 1}) as front, front.client() as client:
        front.upstream.gate.clear()
        with pytest.raises(openai.InternalServerError) as caught:
            await client.chat.completions.create(model="llama", messages=HELLO)
        assert caught.value.status_code == 504
        await front.upstream.reaches(open=0)


# ---------------------------------------------------------------- connections


async def test_a_client_that_disconnects_cancels_its_job_and_frees_the_slot(tmp_path: Path) -> None:
    async with open_front(tmp_path, service={"limit": 1}) as front, front.client() as client:
        front.upstream.gate.clear()
        running = asyncio.create_task(client.chat.completions.create(model="llama", messages=HELLO, user="ada"))
        await front.upstream.reaches(open=1)
        running.cancel()
        await front.upstream.reaches(open=0)
        front.upstream.gate.set()
        await client.chat.completions.create(model="llama", messages=HELLO)
        jobs = (await front.app.list_jobs(user_id="ada")).data
        assert [job.status for job in jobs] == [JobStatus.CANCELLED]


async def test_a_stream_whose_client_disconnects_counts_the_tokens_that_came(tmp_path: Path) -> None:
    """The upstream reports its usage at the end of a stream, so an event with output counts as one token."""
    prices = {"llama": {"models": {"llama": {"per_million_tokens_out": 1e6}}}}
    async with open_front(tmp_path, service={"limit": 1}, prices=prices) as front, front.client() as client:
        front.upstream.gate.clear()
        await disconnect_after(client, "".join(WORDS[:2]))
        await front.upstream.reaches(open=0)
        found = await front.app.usage(group_by="user,model,outcome", interval="total")
    shown = [(row.groups, row.calls, row.tokens_in, row.tokens_out, row.price) for row in found.data]
    assert shown == [({"user": "ada", "model": "llama", "outcome": "cancelled"}, 1, PROMPT, 2, 2 * 10**9)]


async def test_a_call_that_is_cancelled_before_its_first_event_counts_no_tokens(tmp_path: Path) -> None:
    """Nothing shows that the upstream has begun with the prompt."""
    async with open_front(tmp_path, service={"limit": 1}) as front, front.client() as client:
        front.upstream.gate.clear()
        asked = asyncio.create_task(client.chat.completions.create(model="llama", messages=HELLO))
        await front.upstream.reaches(open=1)
        asked.cancel()
        await front.upstream.reaches(open=0)
        [row] = (await front.app.usage(group_by="outcome", interval="total")).data
    assert (row.groups, row.calls, row.tokens_in) == ({"outcome": "cancelled"}, 1, 0)


async def test_white_space_keeps_a_slow_request_alive(tmp_path: Path) -> None:
    async with open_front(tmp_path, openai={"keepalive_after": 0.05}) as front, front.client() as client:
        front.upstream.gate.clear()
        create = client.chat.completions.with_streaming_response.create
        async with create(model="llama", messages=HELLO) as response:  # the response has begun
            assert response.headers["x-fairlead-job"]
            front.upstream.gate.set()
            assert (await response.text()).startswith(" {")
            assert (await response.parse()).choices[0].message.content == TEXT


async def test_a_request_goes_to_another_region_if_one_cannot_be_reached(tmp_path: Path) -> None:
    async with running_upstream("llama") as upstream:
        regions = {
            "dead": {"url": "http://127.0.0.1:1/v1", "limit": 1},
            "live": {"url": upstream.url, "limit": 1},
        }
        service = {"limit": 2, "openai": None, "format": "openai", "regions": regions}
        async with open_front(tmp_path, service=service) as front, front.client() as client:
            for _ in range(4):
                answer = await client.chat.completions.create(model="llama", messages=HELLO)
                assert answer.choices[0].message.content == TEXT
        assert len(upstream.calls) == 4
