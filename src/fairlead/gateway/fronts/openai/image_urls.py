"""URLs in place of the files that the answer to a request for images names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson
from starlette.requests import Request
from starlette.types import Scope

from fairlead.domain import openai
from fairlead.gateway.fronts.addresses import origin_of

if TYPE_CHECKING:
    from fairlead.app.fairlead import Fairlead


async def with_urls(app: Fairlead, content: bytes, scope: Scope | None) -> bytes:
    """The answer with a URL for each image. It reads the file without a key until it expires. A file that was deleted
    has none. Without `artifacts.public_url`, URLs have the address under which the client reached the gateway."""
    base = "" if scope is None else origin_of(Request(scope))
    value = openai.json_object(content) or {}
    data = value.get("data")
    items = [item for item in data if isinstance(item, dict)] if isinstance(data, list) else []
    named = [str(item["url"].get("$file")) for item in items if isinstance(item.get("url"), dict)]
    found = await app.files.get_many(named)
    for item in items:
        if isinstance(item.get("url"), dict):
            file = found.get(str(item["url"].get("$file")))
            item["url"] = None if file is None else await _url(app, file, base)
    return orjson.dumps(value)


async def _url(app: Fairlead, file: Any, base: str) -> str:
    url = await app.files.service_url(file, 0.0)
    if url is not None:
        return url
    ticket, _ = await app.files.ticket(file.id)
    return f"{base}/files/{file.id}?ticket={ticket}"
