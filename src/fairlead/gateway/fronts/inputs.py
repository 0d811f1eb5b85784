"""Files in the inputs of fronts. Clients send a file as a `data:` URI, or upload it and send its URL; a job names it by
a reference, as any job does."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from itertools import islice
from typing import Any

from starlette.requests import Request

from fairlead.artifacts.files import Files, NewFile
from fairlead.domain.files import data_uri, extension
from fairlead.errors import InvalidInput, TooLarge
from fairlead.gateway.fronts.addresses import origin_of
from fairlead.gateway.responses import fairlead_of

INPUT = "input"
"""The purpose of files from `data:` URIs."""
MOST_DEPTH = 100
MOST_URIS = 100
PIECE = 1024 * 1024
# An unterminated string matches up to the end of the text, which would otherwise be scanned again from every quote.
_URI = re.compile(rb'"data:(?:[^"\\]++|\\.)*+"?', re.DOTALL)


def check_size(body: bytes, max_body: int) -> None:
    """Raise TooLarge if a JSON body has far more than `max_body` bytes besides its `data:` URIs. Called before it is
    parsed: millions of small values would block the event loop for seconds. The exact limit is on the stored input,
    which is shorter, because the body may have spaces and escapes."""
    most = 2 * max_body
    if len(body) > most:
        files = sum(match.end() - match.start() for match in islice(_URI.finditer(body), MOST_URIS))
        if len(body) - files > most:
            raise TooLarge(f"the body is over {most} bytes, without its data: URIs", pointer="/input")


async def with_references(request: Request, value: Any, user_id: str, own_paths: str) -> Any:
    """The value with each `data:` URI saved as a file, and each URL of a file of this gateway, replaced by a reference.
    `own_paths` is a pattern of the paths of files that the front uploads."""
    app = fairlead_of(request)
    paths = rf"(?:/files/|{own_paths})"
    own = re.compile(rf"{re.escape(origin_of(request))}{paths}(file-[0-9a-f]{{32}})(?:[/?].*)?")
    expires_at = app.now() + app.config.artifacts.orphan_after
    return await _Inputs(app.files, user_id, own, expires_at).replaced(value, "file", 0)


class _Inputs:
    def __init__(self, files: Files, user_id: str, own: re.Pattern[str], expires_at: float) -> None:
        self._files = files
        self._user_id = user_id
        self._own = own
        self._expires_at = expires_at
        self._saved = 0

    async def replaced(self, value: Any, name: str, depth: int) -> Any:
        if isinstance(value, str):
            return await self._of_text(value, name)
        if depth > MOST_DEPTH:
            return value
        if isinstance(value, dict):
            return {key: await self.replaced(each, key, depth + 1) for key, each in value.items()}
        return [await self.replaced(each, name, depth + 1) for each in value] if isinstance(value, list) else value

    async def _of_text(self, text: str, name: str) -> Any:
        if text.startswith("data:"):
            found = data_uri(text)
            if found is None:
                return text
            self._saved += 1
            if self._saved > MOST_URIS:
                raise InvalidInput(f"an input may have at most {MOST_URIS} data: URIs", pointer="/input")
            content_type, content = found
            new = NewFile(self._user_id, f"{name}{extension(content_type)}", content_type, INPUT, self._expires_at)
            return (await self._files.save(new, _pieces(content))).reference()
        match = self._own.fullmatch(text) if text.startswith("http") else None
        return text if match is None else {"$file": match[1]}


async def _pieces(content: bytes) -> AsyncIterator[bytes]:
    for begin in range(0, len(content), PIECE):
        yield content[begin : begin + PIECE]
