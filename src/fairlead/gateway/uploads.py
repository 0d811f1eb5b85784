"""Reads the bodies of uploads piece by piece: a plain body, or a form (`multipart/form-data`) with one file.

A form may have its fields before or after the file, so the file is written while the fields are not known yet.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from dataclasses import dataclass, field
from typing import Any

from python_multipart.exceptions import MultipartParseError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import Request

from fairlead.domain.files import OCTETS
from fairlead.errors import InvalidInput
from fairlead.gateway.request_middleware import headers_of

FORM = b"multipart/form-data"
MAX_FIELDS = 20
MAX_FIELD = 4096
MAX_HEADER = 4096

Write = Callable[[str, str | None, AsyncIterator[bytes]], Awaitable[Any]]
"""Writes a file, given its name, its content type and its bytes."""


def is_form(request: Request) -> bool:
    return headers_of(request.scope).get(b"content-type", b"").strip().lower().startswith(FORM)


def plain_type(request: Request) -> str | None:
    """The content type of a plain body. `curl --data-binary` sends that of a web form unless it is given another one,
    which says nothing about the file."""
    given = request.headers.get("content-type")
    return None if given == "application/x-www-form-urlencoded" else given


async def read_plain(request: Request) -> AsyncIterator[bytes]:
    async for chunk in request.stream():
        if chunk:
            yield chunk


@dataclass(slots=True)
class _Part:
    headers: dict[bytes, bytes] = field(default_factory=dict)
    name: str = ""
    filename: str | None = None
    content_type: str | None = None


class _Events:
    """Collects what the parser finds in one piece of the body: ("part", _Part), ("data", bytes) and ("end", None)."""

    def __init__(self) -> None:
        self.found: list[tuple[str, Any]] = []
        self._part = _Part()
        self._header = self._value = b""

    def callbacks(self) -> dict[str, Callable[..., None]]:
        return {
            "on_part_begin": self._begin,
            "on_header_field": self._on_header,
            "on_header_value": self._on_value,
            "on_header_end": self._header_end,
            "on_headers_finished": self._headers_end,
            "on_part_data": lambda data, start, end: self.found.append(("data", data[start:end])),
            "on_part_end": lambda: self.found.append(("end", None)),
        }

    def _begin(self) -> None:
        self._part = _Part()

    def _on_header(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]
        self._check()

    def _on_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]
        self._check()

    def _check(self) -> None:
        if len(self._header) + len(self._value) > MAX_HEADER:
            raise InvalidInput("a header of a part of the form is too long")

    def _header_end(self) -> None:
        self._part.headers[self._header.lower()] = self._value
        self._header = self._value = b""

    def _headers_end(self) -> None:
        part = self._part
        _, options = parse_options_header(part.headers.get(b"content-disposition", b""))
        part.name = options.get(b"name", b"").decode("utf-8", "replace")
        if b"filename" in options:
            part.filename = options[b"filename"].decode("utf-8", "replace")
            part.content_type = part.headers.get(b"content-type", OCTETS.encode()).decode("latin-1")
        self.found.append(("part", part))


async def _events(request: Request) -> AsyncIterator[tuple[str, Any]]:
    _, options = parse_options_header(headers_of(request.scope)[b"content-type"])
    boundary = options.get(b"boundary")
    if not boundary:
        raise InvalidInput("the Content-Type of a form names its boundary")
    events, ended = _Events(), False
    parser = MultipartParser(boundary, events.callbacks())  # type: ignore[arg-type]
    try:
        async for chunk in request.stream():
            parser.write(chunk)
            found, events.found = events.found, []
            for event in found:
                ended = event[0] == "end"
                yield event
        parser.finalize()
    except MultipartParseError as error:
        raise InvalidInput(f"the form cannot be read: {error}") from None
    if not ended:
        raise InvalidInput("the form has no end, or no parts")


class Form:
    """A form with one file, in the field `file`, and text fields. `texts` are text fields that may have a file name,
    because some clients give every part one."""

    def __init__(self, request: Request, file: str = "file", *, texts: Collection[str] = ()) -> None:
        self._events = _events(request)
        self._file = file
        self._texts = texts
        self.fields: dict[str, str] = {}

    async def read(self, write: Write) -> Any:
        """Read the form. Returns what `write` returned for the file."""
        written = None
        async for kind, part in self._events:
            if kind != "part":
                continue
            if part.filename is None or part.name in self._texts:
                await self._field(part.name)
            elif part.name != self._file or written is not None:
                raise InvalidInput(f"a form has one file, in the field {self._file!r}", pointer=f"/{self._file}")
            else:
                written = await write(part.filename, part.content_type, self._data())
        if written is None:
            raise InvalidInput(f"the form has no file; send it in the field {self._file!r}", pointer=f"/{self._file}")
        return written

    async def _field(self, name: str) -> None:
        value = b""
        async for data in self._data():
            value += data
            if len(value) > MAX_FIELD:
                raise InvalidInput(f"the field {name[:50]!r} is too long", pointer=f"/{name[:50]}")
        if len(self.fields) >= MAX_FIELDS:
            raise InvalidInput("the form has too many fields")
        self.fields[name] = value.decode("utf-8", "replace")

    async def _data(self) -> AsyncIterator[bytes]:
        """The bytes of the current part."""
        async for kind, data in self._events:
            if kind == "end":
                return
            if data:
                yield data
