"""What requests say, turned into what the application takes. Field values are checked by `submission.check`; here it is
their names, the JSON itself and the headers."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any, TypeVar

import orjson
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request

from fairlead.domain.config import Config
from fairlead.errors import InvalidInput, RequestError
from fairlead.gateway.frame import headers_of
from fairlead.gateway.problems import BadJson, Forbidden, ManyInvalid, UnsupportedMediaType, of_validation, pointer
from fairlead.runtime.submission import ANONYMOUS, MAX_KEY, Submission, check

FIELDS = frozenset(field.name for field in fields(Submission))
REQUIRED = ("user_id", "feature_name")
LONGEST_WAIT = 60

_NOT_NUMBERS = re.compile(rb"-?\b(NaN|Infinity)\b")
# As digits all alike: a run of them is then found without a look at each.
_DIGITS = bytes.maketrans(b"123456789", b"000000000")
_LONG_NUMBER = b"0" * 19
_WAIT = re.compile(rb"(?:^|[,;\s])wait\s*=\s*\"?(\d{1,9})\"?\s*(?:$|[,;])", re.IGNORECASE)

Model = TypeVar("Model", bound=BaseModel)


# ---------------------------------------------------------------- JSON


async def read_json(request: Request, *, or_as: str = "") -> Any:
    """`or_as`: as what else the body may be sent, for the error."""
    _require_json(request, or_as)
    return decode(await read(request))


async def read(request: Request) -> bytes:
    """The whole body, without the layers of Starlette's own way to it, and once."""
    receive = request.receive
    pieces: list[bytes] = []
    while (message := await receive())["type"] == "http.request":
        pieces.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(pieces)
    raise ClientDisconnect


async def read_model(request: Request, model: type[Model]) -> Model:
    """A body with few fields. No body at all is the same as `{}`, so that the error says which fields there are."""
    raw = await read(request)
    value = {}
    if raw:
        _require_json(request)
        value = decode(raw)
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise of_validation(error.errors()) from None


def _require_json(request: Request, or_as: str = "") -> None:
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


def _refuse_large_integers(body: bytes) -> None:
    """orjson makes floats of integers beyond 64 bits: another number would come back than was sent."""
    try:
        value = json.loads(body)
    except RecursionError:
        return  # no field may be as deep as that, and the check of the fields says so
    except ValueError:
        raise InvalidInput("the body has an integer of thousands of digits; send it as text") from None
    wrong = [path for path, field in _fields(value) if _has_large_integer(field)]
    if wrong:
        raise ManyInvalid(
            [
                InvalidInput(f"{path[-1]} has an integer beyond 64 bits{_instead(path)}", pointer=pointer(*path))
                for path in wrong
            ]
        )


def _instead(path: tuple[str | int, ...]) -> str:
    """A field of ours that is a number takes no text either."""
    return "; send it as text" if path[-1] in ("input_data", "metadata") else ", which is more than it may be"


def _fields(body: Any) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    for name, value in body.items() if isinstance(body, dict) else ():
        if name in ("jobs", "items") and isinstance(value, list):
            for index, job in enumerate(value):
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
    """A job that is submitted with the key of this user: it need not say whose it is, and may not say another's. Our
    own clients say `anonymous` unless they are told whose it is: they do not know whose key they have."""
    if not isinstance(raw, dict):
        return raw
    if raw.get("user_id", ANONYMOUS) == ANONYMOUS:
        return {**raw, "user_id": user_id}
    if isinstance(raw["user_id"], str) and raw["user_id"] != user_id:
        raise Forbidden("a user's key submits that user's own jobs; leave user_id out", pointer="/user_id")
    return raw


def all_as_own(raw: Any, user_id: str | None) -> Any:
    """The same for a bulk."""
    if not isinstance(raw, dict) or not isinstance(raw.get("jobs"), list):
        return raw
    items = []
    for index, item in enumerate(raw["jobs"]):
        try:
            items.append(as_own(item, user_id))
        except Forbidden as error:
            error.pointer = f"/jobs/{index}{error.pointer}"
            raise
    return {**raw, "jobs": items}


def read_submission(raw: Any) -> Submission:
    wrong = _misshapen(raw)
    if wrong:
        raise ManyInvalid(wrong)
    return Submission(**raw)


def read_bulk(raw: Any, config: Config) -> list[Submission]:
    """The items, or one error that names every bad one of them."""
    if not isinstance(raw, dict) or not isinstance(raw.get("jobs"), list):
        raise InvalidInput('the body must be {"jobs": [...]}', pointer="/jobs")
    unknown = [
        InvalidInput(f"{name[:100]!r} is no field of a bulk", pointer=pointer(name)) for name in raw.keys() - {"jobs"}
    ]
    if unknown:
        raise ManyInvalid(unknown)
    items, most = raw["jobs"], config.server.max_bulk
    if not 1 <= len(items) <= most:
        raise InvalidInput(f"jobs must hold 1 to {most} jobs, not {len(items)}", pointer="/jobs")
    if any(_misshapen(item) for item in items):
        raise ManyInvalid(bad_items(items, config))
    return [Submission(**item) for item in items]


def bad_items(items: Sequence[Any], config: Config) -> list[RequestError]:
    """Every error of every item, with pointers such as `/jobs/3/priority`. Only asked when there is at least one: the
    application checks the items anyway, and a good bulk is not checked twice."""
    now = time.time()
    found: list[RequestError] = []
    for index, item in enumerate(items):
        for error in _misshapen(item) or _wrong_values(item, config, now):
            error.pointer = f"/jobs/{index}{error.pointer or ''}"
            found.append(error)
    return found


def _wrong_values(item: dict[str, Any], config: Config, now: float) -> list[RequestError]:
    try:
        check(Submission(**item), config, now=now)
    except RequestError as error:
        return [error]
    return []


def _misshapen(raw: Any) -> list[RequestError]:
    """All that is wrong with the fields' names."""
    if not isinstance(raw, dict):
        return [InvalidInput("a job must be a JSON object", pointer="")]
    if raw.keys() <= FIELDS and "user_id" in raw and "feature_name" in raw:
        return []
    found: list[RequestError] = [
        InvalidInput(
            f"{name[:100]!r} is no field of a job; known are: {', '.join(sorted(FIELDS))}", pointer=pointer(name)
        )
        for name in raw
        if name not in FIELDS
    ]
    return found + [InvalidInput(f"{name} is missing", pointer=f"/{name}") for name in REQUIRED if name not in raw]


# ---------------------------------------------------------------- headers


def idempotency_key(request: Request) -> str | None:
    key = headers_of(request.scope).get(b"idempotency-key")
    if key is None:
        return None
    if sum(name == b"idempotency-key" for name, _ in request.scope["headers"]) > 1:
        raise InvalidInput("Idempotency-Key is given more than once", pointer="/Idempotency-Key")
    text = key.decode("latin-1")
    if not (1 <= len(text) <= MAX_KEY and text.isascii() and text.isprintable()):
        raise InvalidInput(
            f"Idempotency-Key must be 1 to {MAX_KEY} printable ASCII characters", pointer="/Idempotency-Key"
        )
    return text


def preferred_wait(request: Request) -> int | None:
    """`Prefer: wait=N` in seconds, at most a minute. A preference that makes no sense is ignored (RFC 7240)."""
    prefer = headers_of(request.scope).get(b"prefer")
    found = _WAIT.search(prefer) if prefer is not None else None
    return min(int(found[1]), LONGEST_WAIT) or None if found else None
