"""What a request for a batch says, be it one JSON object or JSON Lines, turned into what the application takes."""

from __future__ import annotations

import codecs
from collections.abc import Mapping
from typing import Any

from starlette.requests import Request

from fairlead.domain.keys import Role
from fairlead.errors import InvalidInput
from fairlead.gateway import bodies
from fairlead.gateway.access import Caller
from fairlead.gateway.frame import headers_of
from fairlead.gateway.problems import BadJson, Forbidden
from fairlead.runtime.batch_submission import BatchSubmission

NDJSON = "application/x-ndjson"
_LINES = (b"application/x-ndjson", b"application/jsonl", b"application/ndjson")
_OF_THE_BATCH = ("items", "user_id", "name", "metadata")


async def read_batch(request: Request, caller: Caller, asked: Mapping[str, Any]) -> BatchSubmission:
    """`asked` is what the query says; the body counts more."""
    given = {name: value for name, value in asked.items() if value is not None}
    media_type = headers_of(request.scope).get(b"content-type", b"").partition(b";")[0].strip().lower()
    if media_type in _LINES:
        raw: Any = {**given, "items": _lines(await bodies.read(request))}
    else:
        raw = await bodies.read_json(request, or_as=f", or JSON Lines as {NDJSON!r}")
        if not isinstance(raw, dict) or not isinstance(raw.get("items"), list):
            raise InvalidInput('the body must be {"items": [...], ...}', pointer="/items")
        raw = {**given, **raw}
    return BatchSubmission(
        raw["items"],
        _user_of(raw, caller),
        raw.get("name"),
        raw.get("metadata"),
        {name: value for name, value in raw.items() if name not in _OF_THE_BATCH},
    )


def _lines(body: bytes) -> list[Any]:
    """Empty lines count for nothing, as at the end of a file. Some programs begin a file with a byte order mark, which
    is no part of the first line."""
    items = []
    for number, line in enumerate(body.removeprefix(codecs.BOM_UTF8).split(b"\n"), 1):
        if line and not line.isspace():
            try:
                items.append(bodies.decode(line))
            except BadJson as error:
                raise BadJson(f"line {number}: {error.message}") from None
            except InvalidInput as error:
                for each in getattr(error, "found", (error,)):
                    each.pointer = f"/items/{len(items)}{each.pointer or ''}"
                error.pointer = f"/items/{len(items)}"
                raise
    return items


def _user_of(raw: Mapping[str, Any], caller: Caller) -> Any:
    """Said for the batch, or else by its first item, or by the key of a user. That the others are of the same user is
    looked at with all else about them."""
    items = raw["items"]
    said = raw.get("user_id")
    if said is None and items and isinstance(items[0], dict):
        said = items[0].get("user_id")
    if caller.role is not Role.USER:
        if said is None:
            raise InvalidInput("user_id is missing", pointer="/user_id")
        return said
    if isinstance(said, str) and said != caller.user_id:
        raise Forbidden("a user's key submits that user's own jobs; leave user_id out", pointer="/user_id")
    return caller.user_id if said is None else said
