"""The priority service: an HTTP endpoint that returns a user's priority.

A user id cannot change the address of the request: it is percent-encoded as a whole, and the ids `.` and `..`, which
are path segments even when encoded, are never sent. Redirects and proxies from the environment are ignored, and the
size of the response is limited.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import aiohttp
import orjson
from yarl import URL

from fairlead.app.priority.sources import NoAnswer
from fairlead.domain.config_checks import USER_ID
from fairlead.domain.job import PrioritySource
from fairlead.domain.redaction import redacted

MAX_ANSWER = 16384
MOST_CONNECTIONS = 64
# With these statuses the service has a problem or rejects us; any other 4xx status concerns only the one user.
SERVICE_FAILURES = frozenset({401, 403, 407, 408, 429})
DOT_SEGMENTS = frozenset({".", ".."})


class PriorityService:
    name = "the priority service"
    source = PrioritySource.SERVICE

    def __init__(self, template: str, headers: Mapping[str, str]) -> None:
        self._before, _, self._after = template.partition(USER_ID)
        self._headers = {
            name: os.environ.get(value.removeprefix("env:"), "") if value.startswith("env:") else value
            for name, value in headers.items()
        }
        self._session: aiohttp.ClientSession | None = None

    def url_of(self, user_id: str) -> URL:
        if user_id in DOT_SEGMENTS:
            # RFC 3986 treats them as dot segments even if they are encoded as %2E.
            raise NoAnswer("this user_id cannot be part of a URL", counts=False, keep=True)
        encoded = quote(user_id, safe="")
        return URL(self._before + encoded + self._after.replace(USER_ID, encoded), encoded=True)

    async def ask(self, user_id: str) -> Any:
        url = self.url_of(user_id)
        try:
            async with self._open().get(url, allow_redirects=False) as response:
                _check_status(response.status)
                body = await _read(response)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            if isinstance(error, TimeoutError):
                raise
            raise NoAnswer(redacted(f"{type(error).__name__}: {error}"), counts=True) from None
        try:
            answer = orjson.loads(body)
        except orjson.JSONDecodeError:
            raise NoAnswer("its response is not JSON", counts=True) from None
        if not isinstance(answer, dict | str):
            raise NoAnswer('its response is neither {"priority": "high"} nor "high"', counts=True)
        return answer

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                headers={**self._headers, "Accept": "application/json", "Accept-Encoding": "identity"},
                connector=aiohttp.TCPConnector(limit=MOST_CONNECTIONS),
                cookie_jar=aiohttp.DummyCookieJar(),
                # The resolver applies the timeout. Responses are not decompressed: one could expand far beyond
                # MAX_ANSWER.
                timeout=aiohttp.ClientTimeout(total=None),
                auto_decompress=False,
                trust_env=False,
            )
        return self._session

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()


def _check_status(status: int) -> None:
    if status == 200:
        return
    of_the_user = 400 <= status < 500 and status not in SERVICE_FAILURES
    raise NoAnswer(f"it returned status {status}", counts=not of_the_user, keep=of_the_user)


async def _read(response: aiohttp.ClientResponse) -> bytes:
    chunks, size = [], 0
    async for chunk in response.content.iter_any():
        chunks.append(chunk)
        size += len(chunk)
        if size > MAX_ANSWER:
            response.close()
            raise NoAnswer(f"its response is over {MAX_ANSWER} bytes", counts=True)
    return b"".join(chunks)
