"""Requests to `/responses` as requests to `/chat/completions`, for upstreams that only know the latter."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fairlead.domain.openai import BadRequest
from fairlead.domain.openai_responses import input_items

_REFUSED = {
    "previous_response_id": "the earlier response is not one of this gateway's",
    "conversation": "this upstream keeps no conversations",
    "prompt": "this upstream keeps no prompts",
}
_DROPPED = frozenset(
    {"background", "context_management", "include", "input", "instructions", "max_output_tokens", "max_tool_calls"}
    | {"metadata", "moderation", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "reasoning"}
    | {"store", "stream_options", "text", "tool_choice", "tools", "top_logprobs", "truncation", *_REFUSED}
)
"""Fields that chat completions do not have, or that are translated. All others are passed on."""
_EFFORTS = frozenset({"none", "minimal", "low", "medium", "high", "xhigh", "max"})


class Untranslatable(BadRequest):
    """This part of a request has no counterpart in chat completions."""

    def __init__(self, message: str, param: str) -> None:
        super().__init__(f"{message}; the upstream of this model only knows chat completions", param, "untranslatable")


def chat_request(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The body of a chat completion that asks for the same. Raises Untranslatable."""
    for name, reason in _REFUSED.items():
        if fields.get(name) is not None:
            raise Untranslatable(f"{name} cannot be used: {reason}", name)
    request: dict[str, Any] = {name: value for name, value in fields.items() if name not in _DROPPED}
    request["messages"] = _messages(fields)
    if fields.get("max_output_tokens") is not None:
        request["max_tokens"] = fields["max_output_tokens"]
    if fields.get("top_logprobs") is not None:
        request |= {"logprobs": True, "top_logprobs": fields["top_logprobs"]}
    effort = _object(fields.get("reasoning")).get("effort")
    if effort in _EFFORTS:
        request["reasoning_effort"] = effort
    request |= _text_options(_object(fields.get("text")))
    if fields.get("tools"):
        request["tools"] = [_tool(tool) for tool in _list(fields["tools"], "tools")]
        if fields.get("tool_choice") is not None:
            request["tool_choice"] = _tool_choice(fields["tool_choice"])
    else:
        request.pop("parallel_tool_calls", None)
    if fields.get("stream"):
        request["stream_options"] = {"include_usage": True}
    return {name: value for name, value in request.items() if value is not None}


def _text_options(text: Mapping[str, Any]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if text.get("verbosity") is not None:
        options["verbosity"] = text["verbosity"]
    form = _object(text.get("format"))
    if form.get("type") == "json_schema":
        schema = {name: value for name, value in form.items() if name != "type"}
        options["response_format"] = {"type": "json_schema", "json_schema": schema}
    elif form.get("type") not in (None, "text"):
        options["response_format"] = dict(form)
    return options


def _tool(tool: Any) -> dict[str, Any]:
    kind = _object(tool).get("type")
    if kind != "function":
        raise Untranslatable(f"tools of the type {str(kind)[:50]!r} cannot be used, only functions", "tools")
    return {"type": "function", "function": {name: value for name, value in tool.items() if name != "type"}}


def _tool_choice(choice: Any) -> Any:
    if isinstance(choice, str):
        return choice
    if _object(choice).get("type") != "function":
        raise Untranslatable("tool_choice must be auto, none, required or a function", "tool_choice")
    return {"type": "function", "function": {"name": choice.get("name")}}


# ---------------------------------------------------------------- messages


def _messages(fields: Mapping[str, Any]) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    if fields.get("instructions") is not None:
        messages.append({"role": "system", "content": fields["instructions"]})
    for index, item in enumerate(input_items(fields)):
        if not isinstance(item, dict):
            raise Untranslatable("each item of the input must be an object", f"input[{index}]")
        kind = item.get("type") or "message"
        translate = _ITEMS.get(kind)
        if translate is None:
            raise Untranslatable(f"items of the type {str(kind)[:50]!r} cannot be used", f"input[{index}]")
        translate(item, messages, f"input[{index}]")
    return messages


def _add_message(item: Mapping[str, Any], messages: list[dict[str, Any]], param: str) -> None:
    role = item.get("role") or "user"
    role = "system" if role == "developer" else role
    content = item.get("content")
    if isinstance(content, list):
        content = _contents(content, role, param)
    messages.append({"role": role, "content": content})


def _contents(parts: list[Any], role: Any, param: str) -> str | list[dict[str, Any]]:
    """The content of a message. Text alone stays text: the templates of many models take nothing else."""
    translated = [_part(_object(part), f"{param}.content[{index}]") for index, part in enumerate(parts)]
    if role != "user" or len(translated) == 1:
        texts = [part["text"] for part in translated if part["type"] == "text"]
        if len(texts) == len(translated):
            return "".join(texts)
    return translated


def _part(part: Mapping[str, Any], param: str) -> dict[str, Any]:
    match part.get("type"):
        case "input_text" | "output_text" | "text":
            return {"type": "text", "text": str(part.get("text", ""))}
        case "refusal":
            return {"type": "text", "text": str(part.get("refusal", ""))}
        case "input_image" if part.get("image_url"):
            detail = {"detail": part["detail"]} if part.get("detail") else {}
            return {"type": "image_url", "image_url": {"url": part["image_url"], **detail}}
        case "input_audio" if part.get("input_audio"):
            return {"type": "input_audio", "input_audio": part["input_audio"]}
        case "input_file" if part.get("file_data"):
            file = {name: part[name] for name in ("file_data", "filename") if part.get(name)}
            return {"type": "file", "file": file}
        case "input_image" | "input_file":
            raise Untranslatable("files must be in the request, as image_url or file_data", param)
        case kind:
            raise Untranslatable(f"content of the type {str(kind)[:50]!r} cannot be used", param)


def _add_call(item: Mapping[str, Any], messages: list[dict[str, Any]], param: str) -> None:
    """A call of a function belongs to the message of the assistant before it."""
    function = {"name": item.get("name"), "arguments": item.get("arguments") or "{}"}
    call = {"id": item.get("call_id"), "type": "function", "function": function}
    if messages and messages[-1]["role"] == "assistant":
        messages[-1].setdefault("tool_calls", []).append(call)
    else:
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})


def _add_output(item: Mapping[str, Any], messages: list[dict[str, Any]], param: str) -> None:
    output = item.get("output")
    content = _contents(output, "tool", param) if isinstance(output, list) else output
    messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": content})


def _skip(item: Mapping[str, Any], messages: list[dict[str, Any]], param: str) -> None:
    """Chat completions do not take the reasoning of earlier answers."""


_ITEMS: Mapping[Any, Callable[[Mapping[str, Any], list[dict[str, Any]], str], None]] = {
    "message": _add_message,
    "function_call": _add_call,
    "function_call_output": _add_output,
    "reasoning": _skip,
}


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any, param: str) -> list[Any]:
    if not isinstance(value, list):
        raise Untranslatable(f"{param} must be a list", param)
    return value
