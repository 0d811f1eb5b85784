"""Parses request bodies and headers into the objects that the application takes.

This module checks JSON, field names and headers; `submission.check` checks the values of fields.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from itertools import islice
from typing import Any, TypeVar

import orjson
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request

from fairlead.domain.config import Config
from fairlead.domain.submission import ANONYMOUS, MAX_KEY, Submission, check
from fairlead.domain.trace_context import TraceContext, of_headers
from fairlead.domain.validation import user_text
from fairlead.errors import InvalidInput, RequestError
from fairlead.gateway.problems import (
    MAX_ERRORS,
    BadJson,
    Forbidden,
    ManyInvalid,
    UnsupportedMediaType,
    of_validation,
    pointer,
)
from fairlead.gateway.request_middleware import CONNECTION, headers_of

FIELDS = frozenset(field.name for field in fields(Submission))
REQUIRED = ("user_id", "feature_name")
ENOUGH = MAX_ERRORS + 1
"""Number of errors after which the search for more errors stops."""
MAX_WAIT = 60
MAX_FIELDS = 1000

_NOT_NUMBERS = re.compile(rb"-?\b(NaN|Infinity)\b")
# Maps all digits to 0, so that a long number is found with one substring search.
_DIGITS = bytes.maketrans(b"123456789", b"000000000")
_LONG_NUMBER = b"0" * 19
_BARE_WAIT = re.compile(rb"(?:^|[,;\s])wait\s*(?:$|[,;])", re.IGNORECASE)
_WAIT = re.compile(rb"(?:^|[,;\s])wait\s*=\s*\"?(\d{1,9})\"?\s*(?:$|[,;])", re.IGNORECASE)

Model = TypeVar("Model", bound=BaseModel)


# ---------------------------------------------------------------- JSON


async def read_json(request: Request, *, or_as: str = "") -> Any:
    """Read a JSON body. Raises if the Content-Type is not JSON; `or_as` names the other media types that the route
    accepts, for the error message."""
    require_json(request, or_as)
    return decode(await read(request))


def refuse_encoded(request: Request) -> None:
    """Refuse a compressed body: it would have to be unpacked to be measured."""
    encoding = headers_of(request.scope).get(b"content-encoding")
    if encoding is not None and encoding.strip().lower() not in (b"identity", b""):
        shown = encoding.decode("latin-1").strip()
        raise UnsupportedMediaType(f"send the body as it is, without 'Content-Encoding: {shown}'")


async def read(request: Request) -> bytes:
    """Return the whole body. This is faster than Starlette's `Request.body`, and can be called only once per
    request."""
    refuse_encoded(request)
    connection, receive = request.scope.get(CONNECTION), request.receive
    if connection is not None and (body := connection.take_body(request.scope, receive)) is not None:
        arrived: bytes = body
        return arrived
    pieces: list[bytes] = []
    while (message := await receive())["type"] == "http.request":
        pieces.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(pieces)
    raise ClientDisconnect


async def read_pieces(request: Request) -> AsyncIterator[bytes]:
    """Yield the chunks of the body as they arrive."""
    refuse_encoded(request)
    more = True
    while more:
        message = await request.receive()
        if message["type"] != "http.request":
            raise ClientDisconnect
        more = message.get("more_body", False)
        yield message.get("body", b"")


async def read_model(
    request: Request,
    model: type[Model],
    *,
    empty: Mapping[str, Any] | None = None,
    required: bool = False,
    check_size: Callable[[bytes], None] | None = None,
) -> Model:
    """Parse a small JSON body into `model`. An empty body is parsed as `empty`, by default `{}`, so that the error
    names the required fields; with `required`, for a model without such fields, it is an error itself. `check_size`
    raises if the body must not be parsed."""
    raw = await read(request)
    value: Any = empty or {}
    if required and not raw:
        raise InvalidInput("the body is missing; send a JSON object", pointer="")
    if check_size is not None:
        check_size(raw)
    if raw:
        require_json(request)
        value = decode(raw)
    if isinstance(value, dict) and len(value) > MAX_FIELDS:
        raise InvalidInput(f"the body has {len(value)} fields, more than {MAX_FIELDS}", pointer="")
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise of_validation(error.errors(include_url=False, include_context=False, include_input=False)) from None


def require_json(request: Request, or_as: str = "") -> None:
    content_type = headers_of(request.scope).get(b"content-type", b"")
    if content_type == b"application/json":
        return
    media_type = content_type.partition(b";")[0].strip().lower()
    if media_type != b"application/json" and not (
        media_type.startswith(b"application/") and media_type.endswith(b"+json")
    ):
        raise UnsupportedMediaType(f"send the body as 'Content-Type: application/json'{or_as}")


def decode(body: bytes) -> Any:
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        hint = "; NaN and Infinity are not JSON" if _NOT_NUMBERS.search(body) else ""
        raise BadJson(f"the body is not JSON: {error}{hint}") from None
    if _LONG_NUMBER in body.translate(_DIGITS):
        _refuse_large_integers(body)
    return value


def decode_items(text: bytes, first: int, name: str = "items") -> list[Any]:
    """Parse items of a list from the text between its brackets. `name` is the name of the list, and `first` the index
    of the first item; both are for error messages."""
    try:
        items: list[Any] = orjson.loads(b"[" + text + b"]")
    except orjson.JSONDecodeError as error:
        hint = "; NaN and Infinity are not JSON" if _NOT_NUMBERS.search(text) else ""
        raise BadJson(f"the body is not JSON, in item {first} or after it: {error}{hint}") from None
    if _LONG_NUMBER in text.translate(_DIGITS):
        _refuse_large_integers(b'{"%s":[%s]}' % (name.encode(), text), first)
    return items


def _refuse_large_integers(body: bytes, first: int = 0) -> None:
    """Raise InvalidInput if the body contains an integer beyond 64 bits. orjson parses such integers as floats, which
    changes their value."""
    try:
        value = json.loads(body)
    except RecursionError:
        return  # the check of the fields reports that it is nested too deeply
    except ValueError:
        raise InvalidInput("the body has an integer of thousands of digits; send it as text") from None
    paths = list(islice((path for path, field in _fields(value, first) if _has_large_integer(field)), ENOUGH))
    if paths:
        raise ManyInvalid(
            [
                InvalidInput(f"{path[-1]} has an integer beyond 64 bits{_instead(path)}", pointer=pointer(*path))
                for path in paths
            ]
        )


def _instead(path: tuple[str | int, ...]) -> str:
    """Return the end of an error message about an integer beyond 64 bits. It advises to send the integer as text if the
    field accepts any JSON; otherwise it says that the integer is out of range."""
    return "; send it as text" if path[-1] in ("input_data", "metadata") else ", which is out of range"


def _fields(body: Any, first: int = 0) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    for name, value in body.items() if isinstance(body, dict) else ():
        if name in ("jobs", "items") and isinstance(value, list):
            for index, job in enumerate(value, first):
                yield from (((name, index, *path), field) for path, field in _fields(job))
        else:
            yield (name,), value


def _has_large_integer(value: Any) -> bool:
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, int):
            if not -(1 << 63) <= item < 1 << 64:
                return True
        elif isinstance(item, dict):
            stack += item.values()
        elif isinstance(item, list):
            stack += item
    return False


# ---------------------------------------------------------------- submissions


def as_own(raw: Any, user_id: str | None) -> Any:
    """Set the `user_id` of a job that is submitted with a user's key to the user of the key. Raises Forbidden if the
    job names another user.

    A `user_id` of `anonymous` is replaced too: it is the default of Fairlead's clients, which do not know the user of
    their key.
    """
    if not isinstance(raw, dict):
        return raw
    if raw.get("user_id", ANONYMOUS) == ANONYMOUS:
        return {**raw, "user_id": user_id}
    given = user_text(raw["user_id"])
    if isinstance(given, str) and given != user_id:
        raise Forbidden("a user's key submits that user's own jobs; omit user_id", pointer="/user_id")
    return raw


def all_as_own(raw: Any, user_id: str | None) -> Any:
    """Apply `as_own` to every job of a bulk."""
    items = []
    for index, item in enumerate(raw["jobs"]):
        try:
            items.append(as_own(item, user_id))
        except Forbidden as error:
            error.pointer = f"/jobs/{index}{error.pointer}"
            raise
    return {**raw, "jobs": items}


def read_submission(raw: Any) -> Submission:
    errors = _name_errors(raw)
    if errors:
        raise ManyInvalid(errors)
    return Submission(**raw)


def require_bulk(raw: Any, config: Config) -> None:
    """Raise unless a body has the shape of a bulk and an allowed number of jobs. Called before any single job is
    processed."""
    if not isinstance(raw, dict) or not isinstance(raw.get("jobs"), list):
        raise InvalidInput('the body must be {"jobs": [...]}', pointer="/jobs")
    most = config.server.max_bulk
    if not 1 <= len(raw["jobs"]) <= most:
        raise InvalidInput(f"jobs must hold 1 to {most} jobs, not {len(raw['jobs'])}", pointer="/jobs")


def read_bulk(raw: Any, config: Config, now: float) -> list[Submission]:
    """Return the jobs of a bulk. Raises one error that lists all invalid jobs."""
    unknown = [
        InvalidInput(f"{name[:100]!r} is not a field of a bulk", pointer=pointer(name))
        for name in islice((name for name in raw if name != "jobs"), ENOUGH)
    ]
    if unknown:
        raise ManyInvalid(unknown)
    items = raw["jobs"]
    if any(_name_errors(item) for item in items):
        raise ManyInvalid(bad_items(items, config, now))
    return [Submission(**item) for item in items]


def bad_items(items: Sequence[Any], config: Config, now: float) -> list[RequestError]:
    """Return the errors of all invalid items, with pointers such as `/jobs/3/priority`.

    Call this only for a bulk that is refused anyway. The application checks all items itself, so a valid bulk is
    checked only once.
    """
    errors: list[RequestError] = []
    for index, item in enumerate(items):
        for error in _name_errors(item) or _value_errors(item, config, now):
            error.pointer = f"/jobs/{index}{error.pointer or ''}"
            errors.append(error)
        if len(errors) >= ENOUGH:
            break
    return errors


def _value_errors(item: dict[str, Any], config: Config, now: float) -> list[RequestError]:
    try:
        check(Submission(**item), config, now=now)
    except RequestError as error:
        return [error]
    return []


def _name_errors(raw: Any) -> list[RequestError]:
    """Return the errors in the field names of a job: unknown fields, and required fields that are missing."""
    if not isinstance(raw, dict):
        return [InvalidInput("a job must be a JSON object", pointer="")]
    if raw.keys() <= FIELDS and "user_id" in raw and "feature_name" in raw:
        return []
    errors: list[RequestError] = [
        InvalidInput(
            f"{name[:100]!r} is not a field of a job; valid are: {', '.join(sorted(FIELDS))}", pointer=pointer(name)
        )
        for name in islice((name for name in raw if name not in FIELDS), ENOUGH)
    ]
    return errors + [InvalidInput(f"{name} is missing", pointer=f"/{name}") for name in REQUIRED if name not in raw]


# ---------------------------------------------------------------- headers


def idempotency_key(request: Request) -> str | None:
    key = headers_of(request.scope).get(b"idempotency-key")
    if key is None:
        return None
    if sum(name == b"idempotency-key" for name, _ in request.scope["headers"]) > 1:
        raise InvalidInput("Idempotency-Key occurs more than once", pointer="/Idempotency-Key")
    text = key.decode("latin-1")
    if not (1 <= len(text) <= MAX_KEY and text.isascii() and text.isprintable()):
        raise InvalidInput(
            f"Idempotency-Key must be 1 to {MAX_KEY} printable ASCII characters", pointer="/Idempotency-Key"
        )
    return text


def preferred_wait(request: Request, *, bare: bool = False) -> int | None:
    """Return N of `Prefer: wait=N`, at most 60 seconds. With `bare`, `Prefer: wait` means 60 seconds. Invalid
    preferences are ignored (RFC 7240)."""
    prefer = headers_of(request.scope).get(b"prefer")
    if bare and prefer is not None and _BARE_WAIT.search(prefer):
        return MAX_WAIT
    match = _WAIT.search(prefer) if prefer is not None else None
    return min(int(match[1]), MAX_WAIT) or None if match else None


def trace_of(request: Request) -> TraceContext | None:
    """The span that the request belongs to (W3C Trace Context). An invalid `traceparent` is ignored."""
    headers = headers_of(request.scope)
    parent = headers.get(b"traceparent")
    if parent is None:
        return None
    return of_headers(parent.decode("latin-1"), headers.get(b"tracestate", b"").decode("latin-1"))
