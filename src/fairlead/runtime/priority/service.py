"""The priority service: an HTTP endpoint that knows who pays for what.

Whatever a user is called, the request goes where the operator said: the id is percent-encoded whole, into one place of
the URL, and what would still be read as a step within the path is never asked about. No redirect is followed, no proxy
of the environment is used, and no more of an answer is read than a priority takes.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import aiohttp
import orjson
from yarl import URL

from fairlead.domain.config import USER_ID
from fairlead.domain.job import PrioritySource
from fairlead.runtime.priority.port import NoAnswer

MAX_ANSWER = 16384
MOST_CONNECTIONS = 64
# These say that the service is in trouble, or that we are not welcome; other 4xx are about the one user.
NOT_ABOUT_THE_USER = frozenset({401, 403, 407, 408, 429})
STEPS = frozenset({".", ".."})


class Service:
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
        if user_id in STEPS:
            # Encoded as %2E they still are steps to whoever follows RFC 3986.
            raise NoAnswer("nobody is called that", counts=False, keep=True)
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
            raise NoAnswer(f"{type(error).__name__}: {error}", counts=True) from None
        try:
            answer = orjson.loads(body)
        except orjson.JSONDecodeError:
            raise NoAnswer("its answer is not JSON", counts=True) from None
        if not isinstance(answer, dict | str):
            raise NoAnswer('its answer is neither {"priority": "high"} nor "high"', counts=True)
        return answer

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                headers={**self._headers, "Accept": "application/json", "Accept-Encoding": "identity"},
                connector=aiohttp.TCPConnector(limit=MOST_CONNECTIONS),
                cookie_jar=aiohttp.DummyCookieJar(),
                # Whoever asks keeps the time. A compressed answer could be far larger than it looks.
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
    about_the_user = 400 <= status < 500 and status not in NOT_ABOUT_THE_USER
    raise NoAnswer(f"it answered {status}", counts=not about_the_user, keep=about_the_user)


async def _read(response: aiohttp.ClientResponse) -> bytes:
    chunks, size = [], 0
    async for chunk in response.content.iter_any():
        chunks.append(chunk)
        size += len(chunk)
        if size > MAX_ANSWER:
            response.close()
            raise NoAnswer(f"its answer is over {MAX_ANSWER} bytes", counts=True)
    return b"".join(chunks)
