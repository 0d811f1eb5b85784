"""Reads responses of HTTP services that arrive in parts: server-sent events, or text."""

from __future__ import annotations

import codecs
import re
from collections.abc import AsyncIterator

import aiohttp
import orjson

from fairlead.domain.json_codec import from_json
from fairlead.domain.openai import DONE
from fairlead.executors.port import Call, OutputTooLarge

_DONE = DONE.decode()
_LINE_END = re.compile(rb"\r\n|\n|\r")


class BrokenStream(Exception):
    """A streamed response is not what it claims to be, or does not end as it should."""


async def emit_text(response: aiohttp.ClientResponse, call: Call) -> None:
    """Emit a response as text, in the parts in which it arrives."""
    decode = codecs.getincrementaldecoder("utf-8")().decode
    try:
        async for part in response.content.iter_any():
            call.emit(decode(part))
        call.emit(decode(b"", final=True))
    except UnicodeDecodeError:
        raise BrokenStream("the service's response is not text in UTF-8") from None


async def emit_events(response: aiohttp.ClientResponse, call: Call, most: int) -> None:
    """Emit the data of each server-sent event, until `[DONE]` or the end. Data that is a JSON object, array or string
    is decoded; other data is text. A number is text too, since tokens may look like numbers."""
    data: list[str] = []
    size = 0
    async for line in _lines(response, most):
        name, _, value = line.partition(":")
        if name == "data":
            data.append(value.removeprefix(" "))
            if data == [_DONE]:  # a service may leave out the empty line after it, and keep the connection open
                response.close()
                return
            size += len(value) + 1  # an empty line of data takes memory too
            if size > most:
                raise OutputTooLarge(size, most)
        elif not line and data:
            _emit_data(call, "\n".join(data))
            data, size = [], 0
    if data:
        _emit_data(call, "\n".join(data))


def _emit_data(call: Call, text: str) -> None:
    if text[:1] in ("{", "[", '"'):
        try:
            call.emit(from_json(text.encode()))
            return
        except orjson.JSONDecodeError:
            pass
        except ValueError as error:
            raise BrokenStream(f"an event of the service cannot be stored: {error}") from None
    call.emit(text)


async def _lines(response: aiohttp.ClientResponse, most: int) -> AsyncIterator[str]:
    """The lines of a response without their ends, and without a byte order mark. Raises OutputTooLarge if a line is
    longer than `most` bytes."""
    rest, last, mark = b"", b"", "\ufeff"
    async for part in response.content.iter_any():
        # A line end may be split between two parts.
        *lines, rest = _LINE_END.split(rest + (part.removeprefix(b"\n") if last == b"\r" else part))
        last = part[-1:]
        for line in lines:
            yield _decoded(line).removeprefix(mark)
            mark = ""
        if len(rest) > most:
            raise OutputTooLarge(len(rest), most)
    if rest:
        yield _decoded(rest).removeprefix(mark)


def _decoded(line: bytes) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError:
        raise BrokenStream("the service's event stream is not UTF-8") from None
