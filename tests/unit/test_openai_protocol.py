"""The parts of OpenAI's protocol that need no server."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fairlead.domain import openai
from fairlead.domain.config import ServiceConfig
from fairlead.domain.job import Priority
from fairlead.domain.model_stats import StreamCount
from fairlead.domain.openai import FrontAnswer, FrontRequest
from fairlead.domain.usage import Usage
from fairlead.executors.http_stream import BrokenStream
from fairlead.executors.openai import Upstream
from fairlead.executors.openai_stream import ChatStream, Events, UpstreamError
from fairlead.gateway.fronts.openai.errors import of_failed_job

CHAT = FrontRequest("chat/completions", "application/json", b"{}", stream=True)
FORM = (
    b'--xx\r\nContent-Disposition: form-data; name="model"\r\n\r\nwhisper\r\n'
    b'--xx\r\nContent-Disposition: form-data; name="file"; filename="model"\r\n\r\n\x00\xff\r\n'
    b'--xx\r\ncontent-disposition: form-data; name="stream"\r\n\r\ntrue\r\n--xx--\r\n'
)


@pytest.mark.parametrize("body", [b'{"a": 1}', b"\xff\0binary", b"text with \0", "ü".encode()])
def test_a_body_survives_the_input_of_a_job(body: bytes) -> None:
    request = FrontRequest("audio/speech", "text/plain", body, stream=True)
    assert FrontRequest.of_input(json.loads(json.dumps(request.as_input()))) == request
    answer = FrontAnswer(200, {"content-type": "x"}, body)
    assert FrontAnswer.of_result(json.loads(json.dumps(answer.as_result()))) == answer


@pytest.mark.parametrize("value", [{}, {"path": "x"}, {"path": "../x", "content_type": "a", "body": ""}])
def test_an_input_of_another_kind_of_job_is_refused(value: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="path"):
        FrontRequest.of_input(value)


@pytest.mark.parametrize("content_type", ["text/plain\r\nX: y", "text/plain\0", "text/plän"])
def test_a_content_type_that_is_no_header_is_refused(content_type: str) -> None:
    with pytest.raises(ValueError, match="content_type"):
        FrontRequest.of_input({"path": "embeddings", "content_type": content_type, "body": "{}"})


def test_only_harmless_headers_of_an_answer_pass() -> None:
    headers = {
        "Content-Type": "audio/mpeg",
        "openai-processing-ms": "12",
        "openai-organization": "Büro",
        "Content-Disposition": "attachment; filename=漢.mp3",
        "Set-Cookie": "a=b",
        "Content-Length": "7",
    }
    assert openai.passed_headers(headers) == {"content-type": "audio/mpeg", "openai-processing-ms": "12"}


@pytest.mark.parametrize("status", [None, 400, 600, 999])
def test_a_failed_job_has_a_status_that_can_be_sent(status: int | None) -> None:
    assert of_failed_job({"code": f"HTTP_{status}", "message": "no", "http_status": status})[0] == 502


@pytest.mark.parametrize(
    "path", ["", "/", "a//b", "../a", "a/../b", "a/.b", "a b", "a?b", "a%2f", "a/", "é", "a" * 201]
)
def test_a_path_that_could_lead_elsewhere_is_refused(path: str) -> None:
    assert not openai.is_path(path)
    assert openai.is_path("chat/completions")
    assert openai.is_path("responses/resp_1.2-x/cancel")


def test_the_fields_of_a_form_are_read_without_its_files() -> None:
    names = frozenset({"model", "stream", "user"})
    found = openai.form_fields('multipart/form-data; boundary="xx"', FORM, names)
    assert found == {"model": "whisper", "stream": "true"}
    assert openai.form_fields("multipart/form-data", FORM, names) == {}


def test_a_field_of_a_form_is_named_by_a_header_of_its_own() -> None:
    form = b'--xx\r\nX: content-disposition: form-data; name="model"\r\n\r\nwhisper\r\n--xx--\r\n'
    assert openai.form_fields("multipart/form-data; boundary=xx", form, frozenset({"model"})) == {}


@pytest.mark.parametrize(
    ("body", "changed"),
    [
        (b'{ "n": 1.50 }', b'{"stream_options":{"include_usage":true}, "n": 1.50 }'),
        (b"{}", b'{"stream_options":{"include_usage":true}}'),
        (b'{"stream_options": {"x": 1}}', b'{"stream_options":{"x":1,"include_usage":true}}'),
        (b'{"stream_options": null}', b'{"stream_options":{"include_usage":true}}'),
    ],
)
def test_usage_is_requested_with_the_least_change(body: bytes, changed: bytes) -> None:
    assert openai.with_usage(body, json.loads(body)) == changed


def test_a_replaced_field_leaves_long_integers_alone() -> None:
    body = b'{"model": "a", "seed": 123456789012345678901234567890, "x": "\xc3\xa9"}'
    assert openai.replaced(body, "model", "b") == (
        b'{"model":"b","seed":123456789012345678901234567890,"x":"\xc3\xa9"}'
    )


def test_tiers_are_priorities() -> None:
    assert [openai.priority_of(tier) for tier in ("priority", "fast", "flex")] == [
        Priority.HIGH,
        Priority.HIGH,
        Priority.LOW,
    ]
    assert [openai.priority_of(tier) for tier in ("auto", "default", "scale", None)] == [None] * 4
    assert [openai.tier_of(each) for each in Priority] == ["priority", "default", "flex"]


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n", b"\r\r", b"\n\r\n"])
@pytest.mark.parametrize("size", [1, 2, 3, 1000])
def test_events_are_found_however_they_arrive(end: bytes, size: int) -> None:
    stream = b"data: a" + end + b": b" + end + b"data: c" + end + b"rest"
    events = Events(1000)
    found = [each for at in range(0, len(stream), size) for each in events.feed(stream[at : at + size])]
    assert found == [b"data: a", b": b", b"data: c"]
    assert events.rest == b"rest"


def test_an_event_without_end_is_refused() -> None:
    events = Events(1000)
    assert list(events.feed(b"x" * 900)) == []
    found = events.feed(b"\n\n" + b"x" * 1001)
    assert next(found) == b"x" * 900, "it is complete"
    with pytest.raises(BrokenStream, match="1000 bytes"):
        next(found)


async def test_only_what_the_client_can_read_passes() -> None:
    stream = ChatStream(CHAT, hides_usage=True)
    assert stream.text_of(b'id: 1\nretry: 5\ndata: {"choices": [{}]}') == 'data: {"choices": [{}]}\n\n'
    assert stream.text_of(b"event: ping") == ""
    assert stream.text_of(b"retry: 7") == ""
    assert stream.text_of(b": comment") == ": comment\n\n"
    assert stream.text_of(b'data: {"choices": [], "usage": {"total_tokens": 3}}') == ""
    assert stream.usage == {"total_tokens": 3}
    assert not stream.complete
    assert stream.text_of(b"data: [DONE]") == "data: [DONE]\n\n"
    assert stream.complete
    assert stream.text_of(b"data: nonsense") == ""


async def test_a_byte_order_mark_does_not_hide_the_first_event() -> None:
    stream = ChatStream(CHAT, hides_usage=False)
    assert stream.text_of(b'\xef\xbb\xbfdata: {"choices": []}') == 'data: {"choices": []}\n\n'


async def test_an_error_in_a_stream_is_raised_with_its_message() -> None:
    stream = ChatStream(CHAT, hides_usage=False)
    for data in (b'{"error": {"message": "no memory"}}', b'{"error": "no memory"}'):
        with pytest.raises(UpstreamError, match="no memory"):
            stream.text_of(b"data: " + data)


def test_a_client_cannot_override_the_query_of_the_configured_url() -> None:
    upstream = Upstream(ServiceConfig.model_validate({"limit": 1, "openai": "http://up/v1/?api-version=1&key=k"}))
    assert upstream.url(None, "models") == "http://up/v1/models?api-version=1&key=k"
    assert upstream.url(None, "x", "api%2Dversion=2&key&q=a") == "http://up/v1/x?api-version=1&key=k&q=a"


@pytest.mark.parametrize("query", ["a#b", "a b", "é", "a\n", "x" * 3000, 7])
def test_the_query_of_a_request_is_one_of_a_url(query: object) -> None:
    with pytest.raises(ValueError, match="query"):
        FrontRequest.of_input({"path": "x", "content_type": "application/json", "body": "{}", "query": query})


def test_a_stream_counts_its_events_unless_a_report_has_more() -> None:
    head = {"model": "llama", "choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 0}}
    word = {"model": "llama", "choices": [{"delta": {"content": "a"}}]}
    last = {**head, "usage": {"prompt_tokens": 9, "completion_tokens": 7}}

    def usage(*events: Any, prompt: int | None = None) -> Usage | None:
        count = StreamCount()
        for event in events:
            count.add(f"data: {json.dumps(event)}\n\n")
        return count.usage(prompt)

    assert usage() is None
    assert usage(word, word) == Usage(tokens_out=2, model="llama")
    assert usage(head, word, word) == Usage(tokens_in=9, tokens_out=2, model="llama")
    assert usage(head, word, last) == Usage(tokens_in=9, tokens_out=7, model="llama")
    assert usage(prompt=5) is None
    assert usage({"model": "llama"}, prompt=5) == Usage(tokens_in=5, model="llama")
    assert usage(word, prompt=5) == Usage(tokens_in=5, tokens_out=1, model="llama")
    assert usage(head, word, prompt=5) == Usage(tokens_in=9, tokens_out=1, model="llama")
