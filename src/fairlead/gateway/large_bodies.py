"""Parsing of request bodies with many items. Small bodies are parsed at once; large ones are split into their items as
they arrive.

Parsing 32 MB at once blocks the event loop for seconds, and may take a hundred times as much memory. So the splitters
only find where items begin and end: compiled patterns skip the text between brackets, and items are kept as text, in
pieces of about `PIECE` bytes. A piece is parsed each time its items are accessed. A body with too many items, or with
an item that is too large, is refused before it has been read completely.
"""

from __future__ import annotations

import asyncio
import codecs
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, overload

from starlette.requests import Request

from fairlead.app.batch_submission import BatchSubmission
from fairlead.domain.access import Role
from fairlead.domain.validation import user_text
from fairlead.errors import InvalidInput, TooLarge
from fairlead.gateway import request_parsing
from fairlead.gateway.permissions import Caller
from fairlead.gateway.problems import BadJson, Forbidden
from fairlead.gateway.request_middleware import headers_of
from fairlead.gateway.responses import fairlead_of

PIECE = 64 * 1024
MAX_DEPTH = 1024
"""Maximum nesting depth of JSON; orjson has the same limit."""

Parse = Callable[[bytes, int, int], list[Any]]
"""A function that parses the text of a piece. Its other arguments are the index of the first item in the piece, and the
number of lines before the piece."""

_STRING = rb'"(?:[^"\\]++|\\.)*+"'
_PLAIN = rb'[^"\[\]{}]++'
# Lists and objects nested one level deep are skipped as well: most items are like this, and handling a bracket in
# Python costs more than skipping a kilobyte.
_FLAT = rb"\[(?:%(c)b)*+\]|\{(?:%(c)b)*+\}" % {b"c": _PLAIN + rb"|" + _STRING}
_SHALLOW = rb"\[(?:%(c)b)*+\]|\{(?:%(c)b)*+\}" % {b"c": _PLAIN + rb"|" + _STRING + rb"|" + _FLAT}
_OUTSIDE = re.compile(rb"(?:" + _PLAIN + rb"|" + _STRING + rb")*+", re.DOTALL)
_INSIDE = re.compile(rb"(?:" + _PLAIN + rb"|" + _STRING + rb"|" + _SHALLOW + rb")*+", re.DOTALL)
_BETWEEN = re.compile(rb'(?:[^"\[\]{},]++|' + _STRING + rb"|" + _SHALLOW + rb")*+", re.DOTALL)
_NAMED = {name: re.compile(rb'(?<=[\s,{])"%s"\s*+:\s*+\Z' % name.encode()) for name in ("items", "jobs")}
_BLANK = re.compile(rb"\s*+")
_OPENING = b"[{"
NDJSON = "application/x-ndjson"
_JSON_LINES = (b"application/x-ndjson", b"application/jsonl", b"application/ndjson")
_BATCH_FIELDS = ("items", "user_id", "name", "metadata")
WHOLE = 1024 * 1024
"""Maximum size of a body that is parsed as a whole. Parsing such a body takes some milliseconds, and is several times
as fast as splitting it."""


@dataclass(frozen=True, slots=True)
class _Piece:
    text: bytes
    first: int
    count: int
    lines_before: int


class Pieces(Sequence[Any]):
    """A sequence of items that is kept as text. Items are parsed on each access, since all parsed items together may
    need far more memory than their text."""

    def __init__(self, parse: Parse) -> None:
        self._parse = parse
        self._pieces: list[_Piece] = []
        self._count = 0
        self._lines = 0

    def add(self, text: bytes, count: int) -> None:
        if count:
            self._pieces.append(_Piece(text, self._count, count, self._lines))
        self._count += count
        self._lines += text.count(b"\n")

    def __len__(self) -> int:
        return self._count

    def pieces(self) -> Iterator[list[Any]]:
        for piece in self._pieces:
            yield self._parsed(piece)

    def __iter__(self) -> Iterator[Any]:
        for piece in self.pieces():
            yield from piece

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice) or index < 0:
            return list(self)[index]
        for piece in self._pieces:
            if index < piece.first + piece.count:
                return self._parsed(piece)[index - piece.first]
        raise IndexError(index)

    def _parsed(self, piece: _Piece) -> list[Any]:
        items = self._parse(piece.text, piece.first, piece.lines_before)
        if len(items) != piece.count:
            raise BadJson(f"the body is not JSON: a value is missing after item {piece.first + len(items) - 1}")
        return items


class _Splitter:
    """Base class of the splitters for JSON and JSON Lines: adds the items of a body to `pieces` as the body arrives.
    Accepts up to `most` items of up to `largest` bytes each. `name` is the field of the body that holds the items."""

    def __init__(self, pieces: Pieces, most: int, largest: int, name: str = "items") -> None:
        self.pieces = pieces
        self.name = name
        self._most = most
        self._largest = largest
        self._text = b""
        self._at = 0
        """The position up to which the text has been scanned."""
        self._since = 0
        """The position after the last bracket, or 0 if there was none yet."""
        self._cut = 0
        """The end of the last complete item in the text."""
        self._count = 0
        """Number of items before `_cut` that are not in a piece yet."""
        self._scan_at = 0

    def feed(self, data: bytes, *, last: bool = False) -> None:
        self._text += data
        # An incomplete string is scanned again from its beginning, so wait until the unscanned text has doubled.
        if last or len(self._text) >= self._scan_at:
            self._scan(last)
            self._scan_at = len(self._text) + (len(self._text) - self._at)
            self._require_small(len(self._text) - self._cut)

    def _scan(self, last: bool) -> None:
        raise NotImplementedError

    def _end_item(self, end: int) -> None:
        """Record that an item ends at the position `end`. Raises TooLarge if the item is too large, and InvalidInput if
        there are too many items."""
        self._require_small(end - self._cut)
        self._cut = end
        self._count += 1
        if len(self.pieces) + self._count > self._most:
            name, most = self.name, self._most
            raise InvalidInput(f"{name} must hold 1 to {most} {name}, and there are more", pointer=f"/{name}")

    def _take(self, skip: int = 0) -> None:
        """Add the text before the cut (the end of the last complete item) to `pieces` as one piece. Then drop this text
        and the `skip` bytes after it."""
        self.pieces.add(self._text[: self._cut], self._count)
        self._forget(self._cut + skip)
        self._count = 0

    def _forget(self, size: int) -> None:
        self._text = self._text[size:]
        self._at -= size
        self._since = max(0, self._since - size)
        self._cut = 0

    def _require_small(self, size: int) -> None:
        if size > self._largest:
            number = len(self.pieces) + self._count
            raise TooLarge(f"item {number} is over {self._largest} bytes", pointer=f"/{self.name}/{number}")


class JsonSplitter(_Splitter):
    """Splits `{"items": [...], ...}` into its items. `rest()` returns the other fields: the object with null in place
    of the items."""

    def __init__(self, pieces: Pieces, most: int, largest: int, name: str = "items") -> None:
        super().__init__(pieces, most, largest, name)
        self._depth = 0
        self._within = False
        self._rest: list[bytes] = []

    @property
    def found(self) -> bool:
        """Whether a list of items was found in the object."""
        return bool(self._rest)

    def rest(self) -> bytes:
        if self._within:
            raise BadJson("the body is not JSON: it ends within the items")
        return b"".join(self._rest) + self._text

    def _scan(self, last: bool) -> None:
        """Scan the text that has arrived: skip to the next bracket, or the next comma between items, and handle it,
        until no bracket or comma is left."""
        text = self._text
        while True:
            between = self._within and self._depth == 0
            skipped = _BETWEEN if between else _INSIDE if self._within else _OUTSIDE
            end = skipped.match(text, self._at).end()  # type: ignore[union-attr]
            char = text[end : end + 1]
            if not char or char == b'"':
                # No bracket is left, or a string is incomplete.
                self._at = end
                return
            self._at = end + 1
            if char == b",":
                self._comma(end)
            elif char in _OPENING:
                if char == b"[" and self._depth == 1 and not self._within and self._is_named(end):
                    self._begin()
                else:
                    self._open()
            elif between:
                self._finish(char, end)
            else:
                self._depth -= 1
            self._since = self._at
            text = self._text

    def _is_named(self, end: int) -> bool:
        """Return whether the bracket at `end` opens the list of items: whether the field name before it is `name`."""
        return _NAMED[self.name].search(self._text, self._since, end) is not None

    def _comma(self, end: int) -> None:
        self._end_item(end)
        if self._cut >= PIECE:
            self._take(skip=1)

    def _begin(self) -> None:
        if self._rest:
            raise InvalidInput(f"{self.name} occurs twice", pointer=f"/{self.name}")
        self._rest.append(self._text[: self._at - 1] + b"null")
        self._forget(self._at)
        self._within = True
        self._depth = 0

    def _finish(self, char: bytes, end: int) -> None:
        """Handle the closing bracket of the list of items. The list may be empty."""
        if char != b"]":
            raise BadJson(f"the body is not JSON: item {len(self.pieces) + self._count} is followed by '}}'")
        if len(self.pieces) or self._count or self._text[:end].strip():
            self._end_item(end)
        self._take(skip=1)
        self._within = False
        self._depth = 1

    def _open(self) -> None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise BadJson("the body is not JSON: it is nested too deeply")

    def _require_small(self, size: int) -> None:
        if self._within:
            super()._require_small(size)
        elif size > self._largest:
            raise TooLarge(f"the fields besides {self.name} are over {self._largest} bytes")


class LineSplitter(_Splitter):
    """Splits JSON Lines into items, one per line. Blank lines and a byte order mark are ignored."""

    def __init__(self, pieces: Pieces, most: int, largest: int) -> None:
        super().__init__(pieces, most, largest)
        self._started = False

    def _scan(self, last: bool) -> None:
        if not self._started:
            if len(self._text) < len(codecs.BOM_UTF8) and not last:
                return
            self._started = True
            self._text = self._text.removeprefix(codecs.BOM_UTF8)
        while True:
            begin = _BLANK.match(self._text, self._cut).end()  # type: ignore[union-attr]
            end = self._text.find(b"\n", max(begin, self._at))
            if end < 0 and not (last and begin < len(self._text)):
                # Drop blank lines, which may be endless, after counting them.
                self._at = len(self._text)
                if begin - self._cut > PIECE or last:
                    self._cut = begin
                    self._take()
                return
            self._end_item(len(self._text) if end < 0 else end + 1)
            self._at = self._cut
            if self._cut >= PIECE or end < 0:
                self._take()


async def read_bulk(request: Request) -> Any:
    """Read the body of a bulk and return it as `{"jobs": [...]}`, with all jobs parsed."""
    request_parsing.require_json(request)
    raw = await read_json(request, "jobs")
    if isinstance(raw, dict) and isinstance(raw.get("jobs"), Pieces):
        jobs: list[Any] = []
        for piece in raw["jobs"].pieces():
            jobs += piece
            await asyncio.sleep(0)
        raw["jobs"] = jobs
    return raw


async def read_json(request: Request, name: str) -> Any:
    """Read a JSON object. If the body is large, the value of its field `name`, a list, is a `Pieces` object: its items
    are parsed on access."""
    start, slices = await _begin(request)
    if slices is None:
        return request_parsing.decode(start)
    splitter = JsonSplitter(Pieces(partial(_decoded, name)), *_bounds(request), name)
    async for each in slices:
        splitter.feed(each)
    splitter.feed(b"", last=True)
    raw = request_parsing.decode(splitter.rest())
    if not isinstance(raw, dict) or not splitter.found:
        return raw
    if raw.get(name) is not None:
        raise InvalidInput(f"{name} occurs twice", pointer=f"/{name}")
    return {**raw, name: splitter.pieces}


async def read_lines(request: Request, parse: Parse) -> list[Any] | Pieces:
    start, slices = await _begin(request)
    if slices is None:
        return parse(start, 0, 0)
    splitter = LineSplitter(Pieces(parse), *_bounds(request))
    async for each in slices:
        splitter.feed(each)
    splitter.feed(b"", last=True)
    return splitter.pieces


async def _begin(request: Request) -> tuple[bytes, AsyncIterator[bytes] | None]:
    """Start to read a body. Returns the whole body if it is small, otherwise an iterator over slices of it."""
    pieces = request_parsing.read_pieces(request)
    chunks: list[bytes] = []
    size = 0
    async for piece in pieces:
        chunks.append(piece)
        size += len(piece)
        if size > WHOLE:
            return b"", _sliced(b"".join(chunks), pieces)
    return b"".join(chunks), None


async def _sliced(start_of_body: bytes, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield a body in slices of at most `PIECE` bytes, and let other tasks run after each slice."""
    piece: bytes | None = start_of_body
    while piece is not None:
        for start in range(0, len(piece), PIECE):
            yield piece[start : start + PIECE]
            await asyncio.sleep(0)
        piece = await anext(pieces, None)


def _bounds(request: Request) -> tuple[int, int]:
    """Return the maximum number of items, and the maximum size of an item in bytes. The maximum size is larger than the
    limit on stored data, because whitespace and escapes make an item longer."""
    server = fairlead_of(request).config.server
    return server.max_bulk, 2 * server.max_body + PIECE


def _decoded(name: str, text: bytes, first: int, lines_before: int) -> list[Any]:
    return request_parsing.decode_items(text, first, name)


# ---------------------------------------------------------------- batches


async def read_batch(request: Request, caller: Caller, query: Mapping[str, Any]) -> BatchSubmission:
    """Read a batch from JSON or JSON Lines. A field in a JSON body takes precedence over the same field in the query
    string."""
    defaults = {name: value for name, value in query.items() if value is not None}
    media_type = headers_of(request.scope).get(b"content-type", b"").partition(b";")[0].strip().lower()
    if media_type in _JSON_LINES:
        raw: Any = {**defaults, "items": await read_lines(request, _parse_lines)}
    else:
        request_parsing.require_json(request, f", or JSON Lines as {NDJSON!r}")
        raw = await read_json(request, "items")
        if not isinstance(raw, dict) or not isinstance(raw.get("items"), list | Pieces):
            raise InvalidInput('the body must be {"items": [...], ...}', pointer="/items")
        raw = {**defaults, **raw}
    return BatchSubmission(
        raw["items"],
        _user_of(raw, caller),
        raw.get("name"),
        raw.get("metadata"),
        {name: value for name, value in raw.items() if name not in _BATCH_FIELDS},
    )


def _parse_lines(text: bytes, first: int = 0, lines_before: int = 0) -> list[Any]:
    """Parse JSON Lines. Blank lines and a byte order mark are ignored."""
    items = []
    for number, line in enumerate(text.removeprefix(codecs.BOM_UTF8).split(b"\n"), lines_before + 1):
        if line and not line.isspace():
            try:
                items.append(request_parsing.decode(line))
            except BadJson as error:
                raise BadJson(f"line {number}: {error.message}") from None
            except InvalidInput as error:
                for each in getattr(error, "errors", (error,)):
                    each.pointer = f"/items/{first + len(items)}{each.pointer or ''}"
                error.pointer = f"/items/{first + len(items)}"
                raise
    return items


def _user_of(raw: Mapping[str, Any], caller: Caller) -> Any:
    """Return the user of a batch: the `user_id` of the batch, of its first item, or of the caller's key. The
    application checks that all other items have the same user."""
    items = raw["items"]
    user_id = raw.get("user_id")
    if user_id is None and items and isinstance(items[0], dict):
        user_id = items[0].get("user_id")
    user_id = user_text(user_id)
    if caller.role is not Role.USER:
        if user_id is None:
            raise InvalidInput("user_id is missing", pointer="/user_id")
        return user_id
    if isinstance(user_id, str) and user_id != caller.user_id:
        raise Forbidden("a user's key submits that user's own jobs; omit user_id", pointer="/user_id")
    return caller.user_id if user_id is None else user_id
