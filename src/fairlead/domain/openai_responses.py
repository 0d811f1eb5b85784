"""Responses of OpenAI's protocol as jobs: their ids, their objects, and the numbers of their events.

A response that Fairlead answers for has the id `resp_` and the job's id in hexadecimal, so no table is needed. Its
object is made from the request, the job's status and the upstream's answer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from uuid import UUID

import orjson

from fairlead.domain import openai
from fairlead.domain.openai import FrontAnswer, FrontRequest

_ID = re.compile(r"resp_([0-9a-f]{32})")

QUEUED, IN_PROGRESS, COMPLETED = "queued", "in_progress", "completed"
FAILED, CANCELLED, INCOMPLETE = "failed", "cancelled", "incomplete"
ENDED = frozenset({COMPLETED, FAILED, CANCELLED, INCOMPLETE})

FIRST_OF_WORKER = 2
"""The number of a worker's first event. The gateway sends `response.created` (0) and `response.queued` (1)."""
STRIDE = 1_000_000
"""How far the numbers of two runs are apart. A run has fewer events, because its output is limited."""

_ECHOED: Mapping[str, Any] = {
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "reasoning": {"effort": None, "summary": None},
    "store": True,
    "temperature": None,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_p": None,
    "truncation": "disabled",
    "user": None,
}
"""The fields of a response that repeat the request, with their values if the request has none."""


def response_id(job_id: str) -> str:
    return f"resp_{UUID(job_id).hex}"


def created_at(job_id: str) -> int:
    """When a job was submitted, in seconds since 1970: its id is a UUID of version 7. So all processes agree."""
    return (UUID(job_id).int >> 80) // 1000


def job_id_of(id_: str) -> str | None:
    """The job of a response; None if the id is not one of Fairlead's."""
    match = _ID.fullmatch(id_)
    return None if match is None else str(UUID(match[1]))


def first_number(run: int) -> int:
    """The number of the first event that a run emits. Every change of a job raises its run, so a later attempt has
    greater numbers, and a reader can say with one number what it has seen."""
    return FIRST_OF_WORKER + max(0, run - 1) * STRIDE


def skeleton(request: FrontRequest, job_id: str, status: str = IN_PROGRESS) -> dict[str, Any]:
    """The object of a response without output, from its request."""
    fields = openai.json_object(request.body) or {}
    echoed = {name: default if fields.get(name) is None else fields[name] for name, default in _ECHOED.items()}
    return {
        "id": response_id(job_id),
        "object": "response",
        "created_at": created_at(job_id),
        "status": status,
        "background": request.background,
        "completed_at": None,
        "error": None,
        "incomplete_details": None,
        "model": str(fields.get("model") or ""),
        "output": [],
        "previous_response_id": request.previous,
        "service_tier": fields.get("service_tier"),
        "usage": None,
        **echoed,
    }


def error_of(body: Mapping[str, Any] | None, status: int) -> dict[str, str]:
    """The `error` of a response whose request the upstream refused."""
    error = (body or {}).get("error")
    message = error.get("message") if isinstance(error, dict) else error
    code = error.get("code") if isinstance(error, dict) else None
    return {
        "code": code if isinstance(code, str) and code else "invalid_request" if status < 500 else "server_error",
        "message": str(message or f"the upstream answered {status}"),
    }


def answered(answer: FrontAnswer) -> dict[str, Any]:
    """What an upstream's answer says about a response: the whole object, or `status` and `error`."""
    body = _last_response(answer.body) if _is_stream(answer) else openai.json_object(answer.body)
    if answer.status >= 400:
        return {"status": FAILED, "error": error_of(body, answer.status)}
    if body is None or not isinstance(body.get("output"), list):
        message = "the upstream's answer is not a response"
        return {"status": FAILED, "error": {"code": "server_error", "message": message}}
    return body


def status_of(result_json: str | None) -> str:
    """The status of a response whose job has completed with this result. If the result is not at hand, `completed`."""
    answer = None if result_json is None else FrontAnswer.of_result(orjson.loads(result_json))
    return COMPLETED if answer is None else str(answered(answer).get("status") or COMPLETED)


def _is_stream(answer: FrontAnswer) -> bool:
    return answer.headers.get("content-type", "").startswith(openai.EVENT_STREAM)


def _last_response(text: bytes) -> dict[str, Any] | None:
    """The response in the last event of a stream."""
    for event in reversed(events_in(text.decode())):
        if isinstance(event.get("response"), dict):
            return dict(event["response"])
    return None


def events_in(text: str) -> list[dict[str, Any]]:
    """The events in a text that has complete events, each with one line of data."""
    lines = (line[5:] for line in text.split("\n") if line.startswith("data:"))
    return [event for line in lines if (event := openai.json_object(line.encode())) is not None]


def event_text(event: Mapping[str, Any]) -> str:
    """An event as it is sent."""
    return f"event: {event['type']}\ndata: {orjson.dumps(event).decode()}\n\n"


def number_of(event: Mapping[str, Any]) -> int:
    number = event.get("sequence_number")
    return number if isinstance(number, int) else -1


# ---------------------------------------------------------------- conversations


def input_items(fields: Mapping[str, Any]) -> list[Any]:
    """The input of a request as a list of items."""
    given = fields.get("input")
    if isinstance(given, list):
        return given
    return [] if given is None else [{"type": "message", "role": "user", "content": given}]


def continued(earlier: Mapping[str, Any], output: Any, fields: Mapping[str, Any]) -> list[Any]:
    """The input of a request that continues an earlier response: the earlier input and output, then its own input.
    Reasoning is left out, and so are the ids of items: another upstream may not know them."""
    said = [_as_input(item) for item in output if isinstance(item, dict)] if isinstance(output, list) else []
    return [*input_items(earlier), *(item for item in said if item is not None), *input_items(fields)]


def _as_input(item: Mapping[str, Any]) -> dict[str, Any] | None:
    if item.get("type") == "reasoning":
        return None
    return {name: value for name, value in item.items() if name not in ("id", "status")}
