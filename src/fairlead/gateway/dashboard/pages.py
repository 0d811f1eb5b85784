"""The dashboard's files. They are in the package, are read once, and are sent compressed to whoever takes that."""

from __future__ import annotations

import gzip
import hashlib
import mimetypes
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from fairlead.errors import NotFound

STATIC = Path(__file__).parent / "static"
INDEX = "index.html"

# Nothing from elsewhere, nothing inline, nobody's frame: what a job says can be shown but not run.
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src 'self' data:",
        "font-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)
_PAGE_HEADERS = {
    "Content-Security-Policy": POLICY,
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
}
# A page has dozens of parts, so these are short: none of them is a page by itself, not even a picture.
_PART_HEADERS = {"Content-Security-Policy": "default-src 'none'"}
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    # Kept, and asked for each time whether it is still the same: after an upgrade no page is a mix of two.
    "Cache-Control": "no-cache",
    "Vary": "Accept-Encoding",
}
# Said here, since what a machine's own tables call a script differs.
_TYPES = {".js": "text/javascript", ".css": "text/css", ".html": "text/html", ".svg": "image/svg+xml"}
_TEXT = ("text/", "application/json", "image/svg")

router = APIRouter(include_in_schema=False)


@dataclass(frozen=True, slots=True)
class Asset:
    body: bytes
    packed: bytes
    mark: str
    media_type: str


@cache
def assets() -> dict[str, Asset]:
    """By path below `static/`."""
    return {
        path.relative_to(STATIC).as_posix(): _asset(path)
        for path in sorted(STATIC.rglob("*"))
        if path.is_file() and not path.name.startswith(".")
    }


def _asset(path: Path) -> Asset:
    body = path.read_bytes()
    kind = _TYPES.get(path.suffix) or mimetypes.guess_type(path.name)[0] or "text/plain"
    media_type = f"{kind}; charset=utf-8" if kind.startswith(_TEXT) else kind
    return Asset(body, gzip.compress(body, 9, mtime=0), f'W/"{hashlib.sha256(body).hexdigest()[:32]}"', media_type)


@router.get("/")
async def index(request: Request) -> Response:
    return _sent(INDEX, request)


@router.get("/static/{path:path}")
async def static(request: Request, path: str) -> Response:
    return _sent(path, request)


def _sent(path: str, request: Request) -> Response:
    asset = assets().get(path)
    if asset is None:
        raise NotFound("the dashboard has no such file")
    own = _PAGE_HEADERS if path == INDEX else _PART_HEADERS
    headers = {**_HEADERS, **own, "ETag": asset.mark}
    if asset.mark in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    if "gzip" in request.headers.get("accept-encoding", "") and len(asset.packed) < len(asset.body):
        headers["Content-Encoding"] = "gzip"
        return Response(asset.packed, headers=headers, media_type=asset.media_type)
    return Response(asset.body, headers=headers, media_type=asset.media_type)
