"""Responses as chat completions, and their objects and events, without a server."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai.types.responses import Response
from uuid_utils import uuid7

from fairlead.domain import openai, openai_responses
from fairlead.domain.chat_answers import events_for
from fairlead.domain.chat_requests import Untranslatable, chat_request
from fairlead.domain.openai import FrontRequest
from fairlead.domain.openai_responses import STRIDE, continued, first_number, job_id_of, response_id

JOB = str(uuid7())


def request_of(background: bool = False, **fields: Any) -> FrontRequest:
    body = json.dumps({"model": "llama", **fields}).encode()
    return FrontRequest("responses", "application/json", body, stream=True, background=background)


def test_a_request_becomes_a_chat_completion() -> None:
    fields = {
        "model": "llama",
        "instructions": "Be short.",
        "input": [
            {"role": "developer", "content": "Rules"},
            {"role": "user", "content": [{"type": "input_text", "text": "What is it?"}]},
            {
                "type": "message",
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "And this?"},
                    {"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "low"},
                ],
            },
            {"type": "reasoning", "summary": []},
            {"role": "assistant", "content": [{"type": "output_text", "text": "Let me "}, {"type": "refusal"}]},
            {"type": "function_call", "call_id": "c1", "name": "look", "arguments": '{"at":1}'},
            {"type": "function_call", "call_id": "c2", "name": "look", "arguments": ""},
            {"type": "function_call_output", "call_id": "c1", "output": "a cat"},
            {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "a dog"}]},
        ],
        "tools": [{"type": "function", "name": "look", "parameters": {"type": "object"}, "strict": True}],
        "tool_choice": {"type": "function", "name": "look"},
        "text": {"format": {"type": "json_schema", "name": "x", "schema": {}, "strict": True}, "verbosity": "low"},
        "max_output_tokens": 7,
        "reasoning": {"effort": "low", "summary": "auto"},
        "temperature": 0.5,
        "top_k": 3,
        "stream": True,
        "store": True,
        "background": True,
        "parallel_tool_calls": False,
        "truncation": "auto",
        "previous_response_id": None,
    }
    calls = [
        {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at":1}'}},
        {"id": "c2", "type": "function", "function": {"name": "look", "arguments": "{}"}},
    ]
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA==", "detail": "low"}}
    assert chat_request(fields) == {
        "model": "llama",
        "messages": [
            {"role": "system", "content": "Be short."},
            {"role": "system", "content": "Rules"},
            {"role": "user", "content": "What is it?"},
            {"role": "user", "content": [{"type": "text", "text": "And this?"}, image]},
            {"role": "assistant", "content": "Let me ", "tool_calls": calls},
            {"role": "tool", "tool_call_id": "c1", "content": "a cat"},
            {"role": "tool", "tool_call_id": "c2", "content": "a dog"},
        ],
        "tools": [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}, "strict": True}}],
        "tool_choice": {"type": "function", "function": {"name": "look"}},
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {}, "strict": True}},
        "verbosity": "low",
        "max_tokens": 7,
        "reasoning_effort": "low",
        "temperature": 0.5,
        "top_k": 3,
        "parallel_tool_calls": False,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    assert chat_request({"input": "Hi"}) == {"messages": [{"role": "user", "content": "Hi"}]}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt"),
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"tools": {"type": "function"}}, "tools"),
        ({"tools": [{"type": "function", "name": "f"}], "tool_choice": {"type": "allowed_tools"}}, "tool_choice"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0]"),
        ({"input": ["Hi"]}, "input[0]"),
        ({"input": [{"content": [{"type": "input_image", "file_id": "file-1"}]}]}, "input[0].content[0]"),
        ({"input": [{"content": ["Hi"]}]}, "input[0].content[0]"),
    ],
)
def test_what_has_no_counterpart_is_refused_with_its_place(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(Untranslatable, match="only knows chat completions") as refused:
        chat_request(fields)
    assert refused.value.param == param


def chunk(delta: dict[str, Any], reason: str | None = None, **more: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": reason}], "model": "llama-70b", **more}


def test_the_chunks_of_a_chat_become_the_events_of_a_response() -> None:
    events = events_for(request_of(input="Hi"), JOB, 1)
    usage = {"prompt_tokens": 3, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 2}}
    chunks = [
        chunk({"role": "assistant", "content": ""}),
        chunk({"reasoning_content": "Hm"}),
        chunk({"content": "Hel"}),
        chunk({"content": "lo"}),
        chunk({"tool_calls": [{"index": 0, "id": "c1", "function": {"name": "look", "arguments": ""}}]}),
        chunk({"tool_calls": [{"index": 0, "function": {"arguments": '{"at"'}}]}),
        chunk({"tool_calls": [{"index": 0, "function": {"arguments": ":1}"}}]}),
        chunk({"tool_calls": [{"index": 1, "id": "c2", "function": {"name": "go", "arguments": "{}"}}]}, "tool_calls"),
        {"choices": [], "usage": usage},
    ]
    got = [json.loads(json.dumps(event)) for each in chunks for event in events.feed(each)]
    got += [json.loads(json.dumps(event)) for event in events.end(1731801600.7)]
    assert [event["sequence_number"] for event in got] == list(range(len(got)))
    text = ["output_item.added", "content_part.added"]
    assert [event["type"].removeprefix("response.") for event in got] == [
        *("created", "in_progress"),
        *(*text, "reasoning_text.delta", "reasoning_text.done", "content_part.done", "output_item.done"),
        *(*text, "output_text.delta", "output_text.delta", "output_text.done", "content_part.done", "output_item.done"),
        *("output_item.added", "function_call_arguments.delta", "function_call_arguments.delta"),
        *("function_call_arguments.done", "output_item.done"),
        *("output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"),
        "completed",
    ]
    response = Response.model_validate(got[-1]["response"], strict=True)
    assert response.output_text == "Hello"
    assert response.id == response_id(JOB)
    assert response.model == "llama-70b"
    assert [item.type for item in response.output] == ["reasoning", "message", "function_call", "function_call"]
    assert [getattr(item, "arguments", None) for item in response.output[2:]] == ['{"at":1}', "{}"]
    assert response.usage is not None
    assert (response.usage.input_tokens, response.usage.total_tokens) == (3, 7)
    assert response.usage.input_tokens_details.cached_tokens == 2
    assert [event["output_index"] for event in got if event["type"].endswith("added")] == [0, 0, 1, 1, 2, 3]


@pytest.mark.parametrize(
    ("reason", "status", "details"),
    [
        ("stop", "completed", None),
        ("length", "incomplete", {"reason": "max_output_tokens"}),
        ("content_filter", "incomplete", {"reason": "content_filter"}),
    ],
)
def test_a_whole_completion_becomes_a_response(reason: str, status: str, details: Any) -> None:
    message = {"role": "assistant", "content": "Hello", "refusal": None, "tool_calls": [{"id": "c", "function": {}}]}
    completion = {"choices": [{"index": 0, "message": message, "finish_reason": reason}]}
    response = events_for(request_of(input="Hi"), JOB, 1).whole(completion, 5.0)
    assert (response["status"], response["incomplete_details"]) == (status, details)
    assert [item["type"] for item in response["output"]] == ["message", "function_call"]
    assert Response.model_validate(response).output_text == "Hello"


def test_later_runs_have_greater_numbers_and_the_gateway_has_sent_the_first_events() -> None:
    events = [next(events_for(request_of(background=True), JOB, run).feed(chunk({}))) for run in (1, 2, 5)]
    assert [event["type"] for event in events] == ["response.in_progress"] * 3
    assert [event["sequence_number"] for event in events] == [2, 2 + STRIDE, 2 + 4 * STRIDE]
    assert first_number(5) < 2**53


def test_ids_are_those_of_jobs() -> None:
    assert job_id_of(response_id(JOB)) == JOB
    for other in ("resp_1", "resp_" + "0" * 31, "resp_" + "G" * 32, "", "msg_" + "0" * 32, "resp_" + "0" * 48):
        assert job_id_of(other) is None


def test_a_conversation_continues_with_what_was_asked_and_answered() -> None:
    output = [
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {"type": "message", "id": "msg_1", "status": "completed", "role": "assistant", "content": []},
    ]
    items = continued({"input": "Hi"}, output, {"input": [{"role": "user", "content": "Why?"}]})
    assert items == [
        {"type": "message", "role": "user", "content": "Hi"},
        {"type": "message", "role": "assistant", "content": []},
        {"role": "user", "content": "Why?"},
    ]


@pytest.mark.parametrize(
    ("answer", "status", "code"),
    [
        (openai.FrontAnswer(400, {}, b'{"error": {"message": "no", "code": "bad"}}'), "failed", "bad"),
        (openai.FrontAnswer(413, {}, b"<html>"), "failed", "invalid_request"),
        (openai.FrontAnswer(200, {}, b"[]"), "failed", "server_error"),
        (openai.FrontAnswer(200, {"content-type": "text/event-stream"}, b"data: {}\n\n"), "failed", "server_error"),
    ],
)
def test_an_answer_that_is_no_response_is_a_failed_one(answer: openai.FrontAnswer, status: str, code: str) -> None:
    found = openai_responses.answered(answer)
    assert (found["status"], found["error"]["code"]) == (status, code)


def test_a_field_of_a_form_is_left_out() -> None:
    part = b'--x\r\nContent-Disposition: form-data; name="%s"\r\n\r\n%s\r\n'
    file = b'--x\r\nContent-Disposition: form-data; name="response_format"; filename="a"\r\n\r\nurl\r\n'
    form = part % (b"model", b"m") + part % (b"response_format", b"url") + file + b"--x--\r\n"
    left = openai.form_with("multipart/form-data; boundary=x", form, "response_format", None)
    assert left == part % (b"model", b"m") + file + b"--x--\r\n"
    assert openai.form_with("multipart/form-data", form, "model", None) == form
