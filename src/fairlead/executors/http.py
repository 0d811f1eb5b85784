"""Executes services that are HTTP endpoints. docs/services.md describes the forms of requests and responses."""

from __future__ import annotations

import os
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import replace
from urllib.parse import parse_qsl, quote, unquote, urlsplit

import aiohttp
import orjson

from fairlead.domain.body_template import MissingField, filled
from fairlead.domain.config import AUTO, ServiceConfig
from fairlead.domain.files import MARK
from fairlead.domain.json_codec import NotJson, check_depth, from_json, has_long_number, to_json
from fairlead.domain.openai import EVENT_STREAM
from fairlead.domain.redaction import redacted, without
from fairlead.domain.retry import CONNECTION, MISSING_FIELD, PERMANENT, Failure, of_http_status
from fairlead.domain.trace_context import headers_of
from fairlead.errors import Permanent
from fairlead.executors import upstream_limits
from fairlead.executors.call_outcome import (
    bad,
    concluded,
    encoded,
    enveloped,
    failure_of,
    storable,
    too_large,
    usage_in,
)
from fairlead.executors.http_client import AnyResponse
from fairlead.executors.http_files import (
    MAX_TEXT_PART,
    add_urls,
    is_binary,
    is_multipart,
    read_parts,
    save_body,
    save_bytes,
    taken_out,
)
from fairlead.executors.http_stream import BrokenStream, emit_events, emit_text
from fairlead.executors.port import Call, OutputTooLarge, Success

SHOWN_OF_AN_ERROR = 500
TOO_MANY_REQUESTS = 429
NEITHER = "the service's response is neither JSON nor text"


class HttpExecutor:
    """Calls the endpoint of one service, or the endpoints of its regions. Redirects are never followed: only the
    configuration decides where calls go."""

    def __init__(self, config: ServiceConfig, *, max_result: int) -> None:
        self._urls = {region: target.url for region, target in config.regions.items()}
        self._url = config.url
        self._raw = config.raw
        self._template = config.body
        self._stream = config.stream
        self._headers = {name: secret_of(value) for name, value in config.headers.items()}
        urls = [url for url in (self._url, *self._urls.values()) if url is not None]
        self._secrets = {secret for url in urls for secret in secrets_of(url)} | set(self._headers.values())
        self._max_result = max_result
        self._extract = config.extract
        self._auto = config.limit == AUTO
        self._manual = config.retry == "manual"
        self._sessions = upstream_limits.Sessions(new_session)

    async def execute(self, call: Call) -> Success | Failure:
        """Make the call. The secrets of the endpoint are removed from the message of a failure, even if the endpoint's
        own response contains them."""
        outcome = await self._execute(call)
        if isinstance(outcome, Failure):
            return replace(outcome, message=without(redacted(outcome.message), self._secrets))
        return outcome

    async def _execute(self, call: Call) -> Success | Failure:
        url = self._urls[call.region] if call.region else self._url
        if url is None:
            return Failure(PERMANENT, f"{call.service} has no URL for this call", retryable=False)
        headers = {
            **self._headers,
            "Content-Type": "application/json",
            "Idempotency-Key": call.idempotency_key,
            **headers_of(call.trace),
        }
        if MARK in call.params_json or MARK in call.context_json:
            await add_urls(call)
        try:
            content = self._body(call)
        except MissingField as error:
            return Failure(MISSING_FIELD, str(error), retryable=False)
        try:
            session = self._sessions.of(call)
            async with session.post(
                url, data=content, headers=headers, allow_redirects=False, trace_request_ctx=call
            ) as response:
                if call.trace is not None:
                    call.annotate({"http.response.status_code": response.status, "server.address": response.url.host})
                rests = None if self._auto else upstream_limits.heed(call, response)
                if response.status < 300 and (streamed := self._streamed(response)):
                    return await self._emit(streamed, response, call)
                if response.status < 300 and call.files is not None and (is_binary(response) or is_multipart(response)):
                    return await _files_of(response, call)
                body = await read_body(response, self._max_result)
                if response.status >= 300:
                    failure = refusal(response, body, upstream_limits.retry_after_of(response.headers))
                    # While the service rests, nothing else is refused: the step waits in the queue, at no cost.
                    waits = response.status == TOO_MANY_REQUESTS and rests is not None and not self._manual
                    return replace(failure, waits=waits)
        except aiohttp.InvalidURL as error:
            return Failure(PERMANENT, f"not a URL that can be called: {error}", retryable=False)
        except (aiohttp.ClientError, OSError) as error:
            return Failure(CONNECTION, storable(connection_problem(error)), retryable=True)
        if len(body) > self._max_result:
            return too_large(len(body), self._max_result)
        if call.files is not None and self._extract and len(body) > self._extract:
            return await self._large_result(body, call)
        return _raw_result(body) if self._raw else _enveloped_result(body)

    async def _large_result(self, body: bytes, call: Call) -> Success | Failure:
        """The result of a response that may contain files."""
        outcome = _raw_result(body) if self._raw else _enveloped_result(body)
        if isinstance(outcome, Success):
            value = await taken_out(orjson.loads(outcome.data_json), call, self._extract)
            return outcome if call.saved is None else replace(outcome, data_json=orjson.dumps(value).decode())
        if self._raw and outcome.message == NEITHER:
            return Success(orjson.dumps(await save_bytes(body, call)).decode())
        return outcome

    def _streamed(self, response: aiohttp.ClientResponse) -> str | None:
        """How the response is streamed; None if it is read as a whole."""
        return "sse" if response.content_type == EVENT_STREAM else self._stream

    async def _emit(self, streamed: str, response: aiohttp.ClientResponse, call: Call) -> Success | Failure:
        """Emit the parts of a response as they arrive."""
        call.open_output()
        try:
            if streamed == "sse":
                await emit_events(response, call, self._max_result)
            else:
                await emit_text(response, call)
        except OutputTooLarge as error:
            response.close()  # it may never end
            return failure_of(error)
        except BrokenStream as error:
            response.close()
            return bad(str(error))
        return concluded(None, call, self._max_result)

    def _body(self, call: Call) -> bytes:
        if self._template is not None:
            return orjson.dumps(filled(self._template, call.params, call.context))
        if self._raw:
            return call.params_json.encode()
        # Params and context are JSON already; they are spliced in, not decoded and encoded again.
        payload = {"params": orjson.Fragment(call.params_json), "context": orjson.Fragment(call.context_json)}
        return orjson.dumps({"meta": call.meta, "payload": payload})

    async def close(self) -> None:
        await self._sessions.close()


def new_session(trace_configs: list[aiohttp.TraceConfig] | None = None) -> aiohttp.ClientSession:
    # No connection limit: slots limit the calls. No timeout: the worker cancels the call.
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        # All calls share the session: a cookie set for one user would be sent with the calls of others.
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=10),
        auto_decompress=True,
        trace_configs=trace_configs,
    )


async def read_body(response: AnyResponse, most: int) -> bytes:
    """Read the body of a response, but not beyond `most` bytes by more than one piece: an endless response must not
    fill the memory."""
    pieces, size = [], 0
    while piece := await response.content.readany():
        pieces.append(piece)
        size += len(piece)
        if size > most:
            response.close()
            break
    return b"".join(pieces)


async def _files_of(response: aiohttp.ClientResponse, call: Call) -> Success | Failure:
    """The result of a response whose body is a file, or has files as its parts."""
    try:
        found = await (save_body(response, call) if is_binary(response) else read_parts(response, call))
    except Permanent as error:
        response.close()
        return bad(str(error))
    except (ValueError, RuntimeError) as error:  # what aiohttp raises for a multipart that it cannot read
        response.close()
        return bad(f"the service's response cannot be read: {error}")
    return encoded(found, MAX_TEXT_PART * 2)


def _enveloped_result(body: bytes) -> Success | Failure:
    try:
        response_body = from_json(body)
    except orjson.JSONDecodeError as error:
        return bad(f"the service's response is not JSON: {error}")
    except NotJson as error:
        return bad(f"the service's response cannot be stored: {error}")
    return enveloped(response_body)


def _raw_result(body: bytes) -> Success | Failure:
    try:
        value = from_json(body)
        check_depth(body)
        if has_long_number(body):
            to_json(value)
        return Success(body.decode(), usage=usage_in(value))
    except orjson.JSONDecodeError:
        pass
    except NotJson as error:
        return bad(f"the service's response cannot be stored: {error}")
    try:
        return Success(orjson.dumps(body.decode()).decode())
    except UnicodeDecodeError:
        return bad(NEITHER)


def refusal(response: AnyResponse, body: bytes, retry_after: float | None) -> Failure:
    """The failure of a call that was answered with an error. `retry_after` is in seconds."""
    text = body[:SHOWN_OF_AN_ERROR].decode(errors="replace").strip()
    message = storable(f"{response.status} {response.reason}" + (f": {text}" if text else ""))
    return of_http_status(response.status, message, retry_after)


def secrets_of(url: str) -> Iterator[str]:
    """The secret parts of a service's URL: its query and its password, in every encoding in which they may appear."""
    parts = urlsplit(url)
    yield from filter(None, (parts.query, parts.password))
    if parts.password:  # as the Authorization header has it
        yield b64encode(f"{unquote(parts.username or '')}:{unquote(parts.password)}".encode()).decode()
    for _, value in parse_qsl(parts.query):
        yield from (value, quote(value))


def connection_problem(error: Exception) -> str:
    if isinstance(error, aiohttp.ClientConnectorError) and not isinstance(error, aiohttp.ClientSSLError):
        cause = error.os_error
        # Errors of name resolution have negative numbers and texts of their own.
        reason = os.strerror(cause.errno) if cause.errno and cause.errno > 0 else cause.strerror or str(cause)
        return f"cannot connect to {error.host}:{error.port}: {reason}"
    return f"{type(error).__name__}: {error}"


def secret_of(value: str) -> str:
    """The value of a configured header. A value of the form `env:NAME` is replaced by that environment variable."""
    return os.environ.get(value.removeprefix("env:"), "") if value.startswith("env:") else value
