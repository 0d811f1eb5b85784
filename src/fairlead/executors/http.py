"""Services that are HTTP endpoints, called with the request and response shapes of the docs (docs/services.md)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import aiohttp
import orjson

from fairlead.domain.config import ServiceConfig
from fairlead.domain.retry import CONNECTION, PERMANENT, Failure, of_http_status
from fairlead.domain.wire import NotJson, check_depth
from fairlead.executors.failure import storable
from fairlead.executors.port import Call, Success
from fairlead.executors.result import bad, enveloped, too_large

SHOWN_OF_AN_ERROR = 500


class HttpExecutor:
    """One service's endpoint, or its regions' endpoints. Never follows redirects: the config says where calls go."""

    def __init__(self, config: ServiceConfig, *, max_result: int) -> None:
        self._urls = {region: target.url for region, target in config.regions.items()}
        self._url = config.url
        self._raw = config.raw
        self._headers = {name: _secret(value) for name, value in config.headers.items()}
        self._max_result = max_result
        self._session: aiohttp.ClientSession | None = None

    async def execute(self, call: Call) -> Success | Failure:
        url = self._urls[call.region] if call.region else self._url
        if url is None:
            return Failure(PERMANENT, f"{call.service} has no address for this call", retryable=False)
        headers = {
            **self._headers,
            "Content-Type": "application/json",
            "Idempotency-Key": call.idempotency_key,
        }
        try:
            async with self._open().post(
                url, data=self._body(call), headers=headers, allow_redirects=False
            ) as response:
                body = await self._read(response)
                if response.status >= 300:
                    return _refusal(response, body)
        except aiohttp.InvalidURL as error:
            return Failure(PERMANENT, f"not a URL that can be called: {error}", retryable=False)
        except (aiohttp.ClientError, OSError) as error:
            return Failure(CONNECTION, storable(f"{type(error).__name__}: {error}"), retryable=True)
        if len(body) > self._max_result:
            return too_large(len(body), self._max_result)
        return _raw_result(body) if self._raw else _enveloped_result(body)

    def _body(self, call: Call) -> bytes:
        if self._raw:
            return call.params_json.encode()
        # Params and context are JSON already; they are spliced in, not decoded and encoded again.
        payload = {"params": orjson.Fragment(call.params_json), "context": orjson.Fragment(call.context_json)}
        return orjson.dumps({"meta": call.meta, "payload": payload})

    async def _read(self, response: aiohttp.ClientResponse) -> bytes:
        """At most one byte more than is allowed: an endless answer costs no memory."""
        chunks, size = [], 0
        async for chunk in response.content.iter_any():
            chunks.append(chunk)
            size += len(chunk)
            if size > self._max_result:
                response.close()
                break
        return b"".join(chunks)

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            # No limits of its own: slots decide how many calls are open. No timeout: the worker stops the call.
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=10),
                auto_decompress=True,
            )
        return self._session

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()


def _enveloped_result(body: bytes) -> Success | Failure:
    try:
        answer = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        return bad(f"the service's answer is not JSON: {error}")
    return enveloped(answer)


def _raw_result(body: bytes) -> Success | Failure:
    try:
        orjson.loads(body)
        check_depth(body)
        return Success(body.decode())
    except orjson.JSONDecodeError:
        pass
    except NotJson as error:
        return bad(f"the service's answer cannot be kept: {error}")
    try:
        return Success(orjson.dumps(body.decode()).decode())
    except UnicodeDecodeError:
        return bad("the service's answer is neither JSON nor text")


def _refusal(response: aiohttp.ClientResponse, body: bytes) -> Failure:
    text = body[:SHOWN_OF_AN_ERROR].decode(errors="replace").strip()
    message = f"{response.status} {response.reason}" + (f": {text}" if text else "")
    return of_http_status(response.status, message, _retry_after(response.headers))


def _retry_after(headers: Mapping[str, Any]) -> float | None:
    """Seconds, or an HTTP date; nonsense is no wish at all."""
    value = headers.get("Retry-After")
    if value is None:
        return None
    try:
        return min(86400.0, max(0.0, float(value)))
    except ValueError:
        pass
    try:
        moment = parsedate_to_datetime(value)
        return min(86400.0, max(0.0, (moment - datetime.now(UTC)).total_seconds()))
    except (ValueError, TypeError):
        return None


def _secret(value: str) -> str:
    """`env:NAME` is read when the call is made ready, and never shown."""
    return os.environ.get(value.removeprefix("env:"), "") if value.startswith("env:") else value
