"""Sends the content of a file: ranges, conditional requests, and headers that keep browsers from running it as a
page."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from fairlead.artifacts.files import Files, disposition
from fairlead.domain.files import OCTETS, File
from fairlead.gateway.problems import PreconditionFailed, RangeNotSatisfiable
from fairlead.gateway.request_middleware import headers_of

# Types that a browser may show without running anything in them. All others are downloaded.
_SHOWN = re.compile(r"(?:image|audio|video)/(?!svg)[\w.+-]+|text/plain|application/json", re.IGNORECASE)
# Types that a browser could run as a page if it opened the download.
_RUN = re.compile(
    r"(?:text/(?:html|xml|javascript|ecmascript)|image/svg|application/(?:xhtml|xml|javascript|[\w.-]+\+xml)).*"
)
POLICY = "default-src 'none'; sandbox; frame-ancestors 'none'"
_RANGE = re.compile(rb"bytes=(\d{0,18})-(\d{0,18})")


class ContentResponse(StreamingResponse):
    """Closes its source when it ends, also if the client disconnects."""

    def __init__(self, pieces: AsyncGenerator[bytes, None], status: int, headers: dict[str, str], type_: str) -> None:
        self._pieces = pieces
        super().__init__(pieces, status, headers, type_)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._pieces.aclose()


def safe_type(content_type: str) -> str:
    plain = content_type.partition(";")[0].strip().lower()
    if _RUN.fullmatch(plain):
        return OCTETS
    if plain.startswith("text/"):
        return "text/plain; charset=utf-8"
    return plain


async def respond(request: Request, files: Files, file: File) -> Response:
    """The response with the content of a file, or with the part of it that the request asks for."""
    asked = headers_of(request.scope)
    type_, tag = safe_type(file.content_type), f'"{file.sha256}"'
    headers = {
        "ETag": tag,
        "Accept-Ranges": "bytes",
        "Cache-Control": "private, no-cache",
        "X-Content-Type-Options": "nosniff",
        "Content-Security-Policy": POLICY,
        "Content-Disposition": disposition(file, attachment=not _SHOWN.fullmatch(type_.partition(";")[0])),
    }
    if b"if-match" in asked and not _matches(asked[b"if-match"], tag, weakly=False):
        raise PreconditionFailed(f"the file has the ETag {tag}, which If-Match does not name")
    if _matches(asked.get(b"if-none-match"), tag):
        return Response(None, 304, headers)
    size = file.size or 0
    part = _range_of(asked, tag, size)
    if part == (0, 0) and size:
        raise RangeNotSatisfiable(size)
    start, end = part or (0, size)
    if part is not None:
        headers["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
    headers["Content-Length"] = str(end - start)
    status = 200 if part is None else 206
    if request.method == "HEAD":
        return Response(None, status, headers, type_)
    if (url := await files.url(file)) is not None:
        return RedirectResponse(url, 307, headers={"Cache-Control": "no-store"})
    return ContentResponse(files.read(file, start, end), status, headers, type_)


def _matches(given: bytes | None, tag: str, *, weakly: bool = True) -> bool:
    if given is None:
        return False
    tags = [each.strip().removeprefix(b"W/" if weakly else b"") for each in given.split(b",")]
    return b"*" in tags or tag.encode() in tags


def _range_of(asked: dict[bytes, bytes], tag: str, size: int) -> tuple[int, int] | None:
    """The first byte and the byte after the last one that the request asks for. None for the whole file, also if the
    request asks for several ranges; (0, 0) if the range is outside of the file."""
    given = asked.get(b"range")
    condition = asked.get(b"if-range")
    if given is None or (condition is not None and condition.strip() != tag.encode()):
        return None
    match = _RANGE.fullmatch(given.replace(b" ", b""))
    if match is None or match[0] == b"bytes=-":
        return None
    first, last = match[1], match[2]
    if not first:
        start, end = max(0, size - int(last)), size
    else:
        start, end = int(first), min(size, int(last) + 1) if last else size
        if last and int(last) < int(first):
            return None
    return (start, end) if start < end else (0, 0)
