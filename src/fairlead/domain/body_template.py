"""Templates of raw request bodies: the `body` of a service, with placeholders for the job's input and earlier results.

    body = { prompt = "{input.prompt}", image = "{step_0.data.url}", size = 1024 }

A placeholder is a path of field names and list indexes, never an expression. A string that consists of a single
placeholder is replaced by the value, which keeps its type. Inside a longer string, a placeholder is replaced by the
value as text. Write `{{` and `}}` for literal braces.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fairlead.domain.json_codec import NotJson, to_json

_TOKEN = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")
_PATH = re.compile(r"(?:input|step_(?P<step>0|[1-9]\d{0,2})\.(?:data|metrics))(?:\.[^.\s]+)*")
VALID = "valid are {input.FIELD} and {step_0.data.FIELD}, and {{ for a brace"


class MissingField(LookupError):
    """The job has no value for a placeholder. The message names the placeholder and the missing field."""


def problems(body: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield (key, problem) for every invalid placeholder, and for a body that cannot be encoded as JSON."""
    for key, text in _texts(body):
        for match in _TOKEN.finditer(text):
            if (match[1] is not None and not _PATH.fullmatch(match[1])) or match[0] in ("{", "}"):
                yield key, f"{match[0]} is not a placeholder; {VALID}"
    try:
        to_json(body)
    except NotJson as error:
        yield "", f"must be JSON: {error}"


def steps_used(body: Mapping[str, Any]) -> set[int]:
    """The indexes, from 0, of the steps whose results the template uses."""
    paths = [match[1] for _, text in _texts(body) for match in _TOKEN.finditer(text) if match[1] is not None]
    found = [_PATH.fullmatch(path) for path in paths]
    return {int(match["step"]) for match in found if match is not None and match["step"] is not None}


def filled(body: Mapping[str, Any], params: Any, context: Mapping[str, Any]) -> dict[str, Any]:
    """Fill in the template for one call. `context` holds the results of earlier steps by key, such as
    `step_0_prompt_enhancer`. Raises MissingField."""
    values = {"_".join(key.split("_", 2)[:2]): entry for key, entry in context.items()}
    return {name: _filled(each, {**values, "input": params}) for name, each in body.items()}


def _filled(part: Any, values: Mapping[str, Any]) -> Any:
    if isinstance(part, str):
        return _filled_text(part, values)
    if isinstance(part, Mapping):
        return {name: _filled(each, values) for name, each in part.items()}
    if isinstance(part, Sequence):
        return [_filled(each, values) for each in part]
    return part


def _filled_text(text: str, values: Mapping[str, Any]) -> Any:
    whole = _TOKEN.fullmatch(text)
    if whole is not None and whole[1] is not None:
        return _value(whole[1], values)
    return _TOKEN.sub(lambda match: match[0][0] if match[1] is None else _as_text(_value(match[1], values)), text)


def _value(path: str, values: Mapping[str, Any]) -> Any:
    value: Any = values
    names = path.split(".")
    for depth, name in enumerate(names):
        if isinstance(value, Mapping) and name in value:
            value = value[name]
        elif isinstance(value, list) and name.isascii() and name.isdigit() and int(name[:9]) < len(value):
            value = value[int(name[:9])]
        else:
            parent = ".".join(names[:depth]) or "the job"
            raise MissingField(f"the body needs {{{path}}}, but {parent} has no {name!r}")
    return value


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else to_json(value)


def _texts(part: Any, key: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(part, str):
        yield key, part
    elif isinstance(part, Mapping):
        for name, each in part.items():
            yield from _texts(each, f"{key}.{name}")
    elif isinstance(part, Sequence):
        for index, each in enumerate(part):
            yield from _texts(each, f"{key}.{index}")
