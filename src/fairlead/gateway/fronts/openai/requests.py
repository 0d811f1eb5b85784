"""Reads a request of an OpenAI client: its model, its user, its urgency, and how it wants to see the queue."""

from __future__ import annotations

import re
from enum import Enum
from functools import lru_cache
from typing import Any, NamedTuple

import orjson
from starlette.requests import Request

from fairlead.app.front_requests import Identity
from fairlead.domain import front_readers, openai
from fairlead.domain.access import Role
from fairlead.domain.openai import BadRequest, FrontRequest
from fairlead.domain.submission import Submission
from fairlead.domain.webhooks import ENDS, JobWebhook, Shape
from fairlead.errors import InvalidInput
from fairlead.gateway import request_parsing
from fairlead.gateway.fronts.callers import user_of
from fairlead.gateway.fronts.openai.errors import PREFIX, path_of
from fairlead.gateway.permissions import Caller, caller_of
from fairlead.gateway.problems import BadJson, MethodNotAllowed, NoSuchRoute, UnsupportedMediaType
from fairlead.gateway.request_middleware import headers_of

QUEUE_HEADER = "X-Fairlead-Queue"
WEBHOOK_HEADER = "X-Fairlead-Webhook"
_QUEUE = QUEUE_HEADER.lower().encode()
_WEBHOOK = WEBHOOK_HEADER.lower().encode()
TIERS = frozenset({"auto", "default", "flex", "scale", "priority", "fast"})
FORM_FIELDS = frozenset({"model", "stream", "user", "safety_identifier", "service_tier"})

_RESPONSE = re.compile(r"responses/(?!(?:compact|input_tokens)$)[^/]+(/input_items)?")
"""The paths of responses that cannot be posted to. Upstreams know `responses/compact` and `responses/input_tokens`."""


class QueueView(Enum):
    """How a streamed response shows the place in the queue (`X-Fairlead-Queue`)."""

    COMMENTS = "comments"
    CHUNKS = "chunks"
    NONE = "none"


class FrontCall(NamedTuple):
    """What a client asks for. `tier` is the `service_tier` of the request, or None. `retried`: the client may have sent
    this request before. `previous` is the response that the request continues. `webhook` is the URL that learns of the
    end of a background response."""

    request: FrontRequest
    model: str | None
    user_id: str
    tier: str | None
    queue: QueueView
    identity: Identity
    retried: bool = False
    previous: str | None = None
    webhook: str | None = None

    def submission(self, service: str) -> Submission:
        priority = openai.priority_of(self.tier)
        return Submission(
            service,
            self.request.as_input(),
            self.user_id,
            priority=None if priority is None else priority.value,
            webhook_url=None if self.webhook is None else JobWebhook(self.webhook, ENDS, Shape.OPENAI),
        )


@lru_cache(maxsize=256)
def _postable(path: str) -> str:
    """The path below `/v1` of a request to `path`. Raises if nothing can be posted there. Clients use few paths, so the
    checks are not repeated for each request."""
    path = path.removeprefix(PREFIX)
    if not openai.is_path(path):
        raise NoSuchRoute("no such path below /v1; paths have letters, digits, '_', '-', '.' and '/'")
    if path == "models" or path.startswith(("models/", "files/", "batches/")):
        raise MethodNotAllowed(f"{path.partition('/')[0]} support GET, not POST", allow="GET")
    if match := _RESPONSE.fullmatch(path):
        allow = "GET" if match[1] else "DELETE, GET"
        raise MethodNotAllowed(f"a response supports {allow}, not POST", allow=allow)
    return path


async def read_call(request: Request) -> FrontCall:
    scope = request.scope
    path = _postable(path_of(scope))
    query = scope["query_string"].decode("latin-1")
    if query and not openai.is_query(query):
        raise InvalidInput(
            f"the query of the URL must be percent-encoded and at most {openai.MAX_QUERY} characters long"
        )
    headers = headers_of(scope)
    content_type = headers.get(b"content-type", b"").decode("latin-1")
    body = await request_parsing.read(request)
    fields, bare_body = _read_body(content_type, body)
    stream = fields.get("stream")
    tier = _text(fields, "service_tier")
    if tier is not None and tier not in TIERS:
        raise InvalidInput(f"service_tier must be one of {', '.join(sorted(TIERS))}", pointer="/service_tier")
    caller = caller_of(request)
    user_id = _user(caller, fields, headers)
    key = request_parsing.idempotency_key(request)
    body_hash = front_readers.digest(f"{path}?{query}" if query else path, bare_body)
    # A request of the same key and body; with an idempotency key, of the same key and idempotency key.
    named = ("key", key) if key is not None else ("body", body_hash)
    fingerprint = front_readers.digest(caller.key_id or "", user_id, *named)
    is_response = path == openai.RESPONSES
    background = is_response and _is_background(fields)
    return FrontCall(
        FrontRequest(path, content_type, body, stream is True or stream == "true", query, background),
        _text(fields, "model"),
        user_id,
        tier,
        queue_view(headers),
        Identity(user_id, fingerprint, body_hash, keyed=key is not None, detached=background),
        retried=key is not None or retries(headers) > 0,
        previous=_text(fields, "previous_response_id") if is_response else None,
        webhook=headers[_WEBHOOK].decode("latin-1") if background and _WEBHOOK in headers else None,
    )


def _is_background(fields: dict[str, Any]) -> bool:
    if fields.get("background") is not True:
        return False
    if fields.get("store") is False:
        raise BadRequest("background requires store: the response is kept until it is read", "store")
    try:
        orjson.dumps([[[[fields]]]])  # the response repeats parts of the request, further inside
    except orjson.JSONEncodeError:
        raise BadRequest("the request is nested too deeply for background", "background") from None
    return True


def _read_body(content_type: str, body: bytes) -> tuple[dict[str, Any], bytes]:
    """The fields of a body, and the body without what clients change when they send it again."""
    if content_type != "application/json":  # nearly all clients send just this
        if not openai.is_header_value(content_type):
            raise UnsupportedMediaType("Content-Type has characters that no header may have")
        media_type = content_type.partition(";")[0].strip().lower()
        if media_type == "multipart/form-data":
            fields = openai.form_fields(content_type, body, FORM_FIELDS)
            return dict(fields), openai.without_boundary(content_type, body)
        if media_type != "application/json" and not media_type.endswith("+json"):
            raise UnsupportedMediaType("send the body as application/json or multipart/form-data")
    try:
        value = orjson.loads(body)  # numbers of any length: the upstream gets the body as it is
    except orjson.JSONDecodeError as error:
        raise BadJson(f"the body is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise BadJson("the body must be a JSON object")
    return value, body


def _text(fields: dict[str, Any], name: str) -> str | None:
    value = fields.get(name)
    if value is not None and not isinstance(value, str):
        raise InvalidInput(f"{name} must be text", pointer=f"/{name}")
    return value or None


def _user(caller: Caller, fields: dict[str, Any], headers: dict[bytes, bytes]) -> str:
    """The user of the job. The fields of the body name users of the application, which mean nothing for a user's
    key."""
    named = None if caller.role is Role.USER else _text(fields, "safety_identifier") or _text(fields, "user")
    return user_of(caller, headers, named)


def queue_view(headers: dict[bytes, bytes]) -> QueueView:
    given = headers.get(_QUEUE)
    if not given:
        return QueueView.COMMENTS
    text = given.decode("latin-1").strip().lower()
    try:
        return QueueView(text) if text else QueueView.COMMENTS
    except ValueError:
        raise InvalidInput(f"{QUEUE_HEADER} must be comments, chunks or none", pointer=f"/{QUEUE_HEADER}") from None


def retries(headers: dict[bytes, bytes]) -> int:
    """How often the client has sent this request before (`x-stainless-retry-count`)."""
    text = headers.get(b"x-stainless-retry-count")
    return int(text) if text is not None and text.isdigit() and len(text) < 4 else 0
