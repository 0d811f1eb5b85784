"""The gateway, as the client commands use it: plain HTTP, and every way it can go wrong as one `Failure`."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote, urlsplit

import httpx2

from fairlead.cli.failure import Exit, Failure
from fairlead.cli.redact import without_secrets
from fairlead.client.settings import DEFAULT_URL, KEY_VARIABLE, URL_VARIABLE, is_loopback
from fairlead.version import __version__

CONNECT_TIMEOUT_S = 5.0
READ_TIMEOUT_S = 60.0  # the gateway sends a heartbeat on idle event streams well before that
MAX_EVENT = 64 << 20


class Gateway:
    """A running `fairlead up`, somewhere."""

    def __init__(self, url: str, key: str | None = None) -> None:
        self.url = url.rstrip("/")
        headers = {"User-Agent": f"fairlead/{__version__}", "Accept": "application/json"}
        if key:
            headers["Authorization"] = f"Bearer {key}"
        self._client = httpx2.Client(
            base_url=self.url,
            headers=headers,
            timeout=httpx2.Timeout(READ_TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
            trust_env=not is_loopback(urlsplit(self.url).hostname or ""),
        )

    def get(self, path: str, *, headers: Mapping[str, str] | None = None, **params: Any) -> Any:
        given = {name: value for name, value in params.items() if value is not None}
        return self._send("GET", path, params=given, headers=dict(headers or {}))

    def post(self, path: str, body: Any = None, *, headers: Mapping[str, str] | None = None) -> Any:
        return self._send("POST", path, json=body, headers=dict(headers or {}))

    def post_lines(self, path: str, body: bytes, *, params: Mapping[str, Any], headers: Mapping[str, str]) -> Any:
        """JSON Lines, as they are."""
        said = {**headers, "Content-Type": "application/x-ndjson"}
        return self._send("POST", path, content=body, params=dict(params), headers=said)

    def stream(self, path: str) -> Iterator[bytes]:
        """A long answer, piece by piece. One that breaks off is a failure, and never a short answer."""
        with self._failures(), self._client.stream("GET", path) as response:
            if response.status_code >= 300:
                response.read()
                raise self._refusal(response)
            yield from response.iter_bytes()

    def put(self, path: str, body: Any) -> Any:
        return self._send("PUT", path, json=body)

    def delete(self, path: str) -> Any:
        return self._send("DELETE", path)

    def job(self, job_id: str) -> dict[str, Any]:
        return dict(self.get(job_path(job_id)))

    def pages(self, path: str, *, limit: int | None, **filters: Any) -> Iterator[dict[str, Any]]:
        """The items of a list, page after page, up to `limit` of them (None: all)."""
        cursor, left = None, limit
        while left is None or left > 0:
            page = self.get(path, **filters, cursor=cursor, limit=PAGE if left is None else min(PAGE, left))
            items = page["data"]
            yield from items
            cursor = page.get("next_cursor")
            if not cursor or not items:
                return
            left = None if left is None else left - len(items)

    @contextmanager
    def events(self, job_id: str) -> Iterator[Iterator[dict[str, Any]]]:
        """The job's events from now on, beginning with a snapshot. Ends when the gateway ends the stream."""
        with (
            self._failures(),
            self._client.sse(f"{job_path(job_id)}/events", max_event_size=MAX_EVENT) as source,
        ):
            if source.response.status_code >= 400:
                source.response.read()
                raise self._refusal(source.response)
            yield (json.loads(event.data) for event in source if event.data)

    def _send(self, method: str, path: str, **request: Any) -> Any:
        with self._failures():
            response = self._client.request(method, path, **request)
        if response.status_code >= 300:
            raise self._refusal(response)
        if not response.content:
            return None
        try:
            return response.json()
        except ValueError:
            raise self._not_a_gateway(response) from None

    @contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            yield
        except (httpx2.InvalidURL, httpx2.UnsupportedProtocol) as error:
            raise Failure(f"{URL_VARIABLE}={self.shown} is not an http:// URL: {error}", Exit.USAGE) from None
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            raise Failure(
                f"cannot connect to {self.shown}: {_reason(error)}; "
                f"start it with `fairlead up`, or say where it is with {URL_VARIABLE}",
                Exit.NO_CONNECTION,
            ) from None
        except httpx2.TransportError as error:
            raise Failure(f"{self.shown} did not answer: {_reason(error)}", Exit.NO_CONNECTION) from None

    def _refusal(self, response: httpx2.Response) -> Failure:
        """One line from `application/problem+json`."""
        try:
            problem = response.json()
            detail = problem.get("detail") or problem["title"]
        except (ValueError, AttributeError, KeyError, TypeError):
            return self._not_a_gateway(response)
        if response.status_code == 401:
            detail = f"{detail}; give a key with {KEY_VARIABLE}"
        code = problem.get("code")
        return Failure(f"{detail} ({code})" if code else str(detail), problem=problem)

    def _not_a_gateway(self, response: httpx2.Response) -> Failure:
        request = response.request
        return Failure(
            f"{self.shown} answered {response.status_code} to {request.method} {request.url.path}, "
            f"which is no answer of a Fairlead gateway; is {URL_VARIABLE} right?"
        )

    @property
    def shown(self) -> str:
        return without_secrets(self.url)


PAGE = 100


def gateway() -> Gateway:
    """The one that the environment names."""
    url = os.environ.get(URL_VARIABLE) or DEFAULT_URL
    key = os.environ.get(KEY_VARIABLE, "").strip()
    if not (key.isascii() and key.isprintable()):
        raise Failure(f"{KEY_VARIABLE} is not a key: it has characters that a header cannot carry", Exit.USAGE)
    try:
        return Gateway(url, key or None)
    except (httpx2.InvalidURL, ValueError) as error:
        raise Failure(f"{URL_VARIABLE} is not a URL: {error}", Exit.USAGE) from None


def job_path(job_id: str) -> str:
    if job_id in ("", ".", ".."):
        raise Failure(f"{job_id!r} is not a job id", Exit.USAGE)
    return f"/api/v1/jobs/{quote(job_id, safe='')}"


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__
