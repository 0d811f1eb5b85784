"""The pages of the dashboard and of the API, and `/session`: sign in with a key, and sign out.

The static files are part of the package, read once, and sent with gzip where accepted.
"""

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
from fairlead.gateway import models_admin
from fairlead.gateway.auth import guard_of
from fairlead.gateway.credentials import set_cookie
from fairlead.gateway.openapi import WITH_BODY, body, documented
from fairlead.gateway.permissions import Caller, caller_of
from fairlead.gateway.problems import RateLimited
from fairlead.gateway.request_parsing import read_model
from fairlead.gateway.responses import fairlead_of, json_response

STATIC = Path(__file__).parent / "static"
INDEX = "index.html"
API = "docs.html"

# No other hosts, no inline scripts, no frames: texts of jobs can be shown but not executed.
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src 'self' data:",
        "media-src 'self'",
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
# Kept short, because a page loads dozens of these files. None of them is a page by itself.
_FILE_HEADERS = {"Content-Security-Policy": "default-src 'none'"}
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    # Cached but revalidated each time, so that a page never mixes two versions.
    "Cache-Control": "no-cache",
    "Vary": "Accept-Encoding",
}
# Fixed here, because the MIME types that operating systems define differ.
_TYPES = {".js": "text/javascript", ".css": "text/css", ".html": "text/html", ".svg": "image/svg+xml"}
_TEXT = ("text/", "application/json", "image/svg")

router = APIRouter(include_in_schema=False)
SESSION = "/session"
MAX_BODY = 16 * 1024
"""Maximum size of the body of a sign-in. It is small because a sign-in needs no key."""

session_router = APIRouter(tags=["keys"])


@dataclass(frozen=True, slots=True)
class Asset:
    body: bytes
    compressed: bytes
    etag: str
    media_type: str


@cache
def assets() -> dict[str, Asset]:
    """Read the static files of the dashboard. Returns them by their paths below `static/`."""
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
    return _file_response(INDEX, request)


@router.get("/docs")
async def api_docs(request: Request) -> Response:
    """Serve the page that documents the routes of the API and can call them. It replaces FastAPI's own page, which
    loads its scripts from another host."""
    return _file_response(API, request)


@router.get("/static/{path:path}")
async def static(request: Request, path: str) -> Response:
    return _file_response(path, request)


def _file_response(path: str, request: Request) -> Response:
    asset = assets().get(path)
    if asset is None:
        raise NotFound("the dashboard has no such file")
    own = _PAGE_HEADERS if path in (INDEX, API) else _FILE_HEADERS
    headers = {**_HEADERS, **own, "ETag": asset.etag}
    if asset.etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    if "gzip" in request.headers.get("accept-encoding", "") and len(asset.compressed) < len(asset.body):
        headers["Content-Encoding"] = "gzip"
        return Response(asset.compressed, headers=headers, media_type=asset.media_type)
    return Response(asset.body, headers=headers, media_type=asset.media_type)


@session_router.post(
    SESSION,
    summary="Sign in to the dashboard with a key; sets a session cookie",
    operation_id="sign_in",
    openapi_extra={**body(models_admin.SignIn), "security": []},
    responses=documented(200, models_admin.SessionInfo, "Signed in for twelve hours.", *WITH_BODY, RateLimited),
)
async def sign_in(request: Request) -> Response:
    credentials = await read_model(request, models_admin.SignIn)
    caller, text = await guard_of(request).sign_in(request, credentials.key)
    return json_response(
        _session_json(caller, signed_in=True), headers={"Set-Cookie": set_cookie(text, secure=_is_secure(request))}
    )


@session_router.get(
    SESSION,
    summary="The caller, from its cookie or key",
    operation_id="session",
    responses=documented(200, models_admin.SessionInfo, "The caller."),
)
async def session(request: Request) -> Response:
    caller = caller_of(request)
    return json_response(_session_json(caller, signed_in=caller.cookie is not None))


@session_router.delete(
    SESSION,
    status_code=204,
    summary="Sign out; the session ends at every gateway within seconds",
    operation_id="sign_out",
    responses=documented(204, None, "Signed out, or there was no session."),
)
async def sign_out(request: Request) -> Response:
    cookie = caller_of(request).cookie
    if cookie is not None:
        await fairlead_of(request).close_session(cookie)
        guard_of(request).cookies.forget(cookie)
    return Response(status_code=204, headers={"Set-Cookie": set_cookie("", secure=_is_secure(request))})


def _session_json(caller: Caller, *, signed_in: bool) -> dict[str, object]:
    return {
        "role": caller.role,
        "name": caller.name,
        "user_id": caller.user_id,
        "may_act": caller.may_act,
        "signed_in": signed_in,
    }


def _is_secure(request: Request) -> bool:
    return request.url.scheme == "https"
