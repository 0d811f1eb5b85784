"""Executes services that are servers with OpenAI's protocol: vLLM, llama.cpp, OpenAI itself.

The input of the job is a `FrontRequest`, its result a `FrontAnswer`. An answer with a status from 400 to 499 is a
result too, except 429: the client gets it unchanged. When the server answers 429 or 503, the service, or the region,
rests for all workers, for the time that the answer names. The step returns to the queue, keeps its turn, and the call
costs it no attempt. With an automatic limit, such an answer is a failure instead, and lowers the limit.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any
from urllib.parse import unquote_plus, urlsplit

import aiohttp
import orjson

from fairlead.domain import openai
from fairlead.domain.chat_requests import Untranslatable
from fairlead.domain.config import AUTO, ServiceConfig
from fairlead.domain.json_codec import NotJson, from_upstream
from fairlead.domain.openai import FrontAnswer, FrontRequest
from fairlead.domain.redaction import redacted, without
from fairlead.domain.retry import (
    BAD_RESULT,
    CONNECTION,
    PERMANENT,
    TIMEOUT,
    UPSTREAM_ERROR,
    Failure,
)
from fairlead.domain.trace_context import headers_of
from fairlead.executors.call_outcome import bad, failure_of, storable, too_large, with_output
from fairlead.executors.http import (
    connection_problem,
    new_session,
    read_body,
    refusal,
    secret_of,
    secrets_of,
)
from fairlead.executors.http_client import AnyResponse, HttpClient, target_of
from fairlead.executors.http_stream import BrokenStream
from fairlead.executors.openai_images import (
    RefusedField,
    asks_for_urls,
    saved_images,
    without_format,
)
from fairlead.executors.openai_responses import (
    Exchange,
    KnownUpstreams,
    TranslatedStream,
    is_unknown_path,
    passed_on,
    translated,
)
from fairlead.executors.openai_stream import ChatStream, UpstreamError, emit_events, error_text
from fairlead.executors.port import TIMED_OUT, Call, OutputTooLarge, Success
from fairlead.executors.upstream_limits import BUSY, Sessions, heed, retry_after_of

log = logging.getLogger("fairlead.openai")

FIRST_GUESS, LONGEST_GUESS = 1.0, 60.0
MAX_LIST = 4 * 1024 * 1024
LIST_WITHIN_S = 10.0
KNOWN_URLS = 256
_MODEL = frozenset({"model"})


class Upstream:
    """The server of a service, in each of its regions, with the headers of the configuration."""

    def __init__(self, config: ServiceConfig) -> None:
        self._urls: dict[str | None, str] = {region: target.url for region, target in config.regions.items()}
        if base := config.openai or config.url:
            self._urls[None] = base
        self.headers = {name: secret_of(value) for name, value in config.headers.items()}
        secrets = {secret for url in self._urls.values() for secret in secrets_of(url)}
        self._secrets = secrets | {value for value in self.headers.values() if value}
        self.sessions = Sessions(new_session)
        self._client = HttpClient()
        self.url = lru_cache(KNOWN_URLS)(self._url)
        self._target = lru_cache(KNOWN_URLS)(lambda url: target_of(url, self.headers))

    @property
    def regions(self) -> list[str | None]:
        return list(self._urls)

    def _url(self, region: str | None, path: str, query: str = "") -> str | None:
        """The URL for a path and the query of a client. The parameters of the configured URL cannot be overridden."""
        base = self._urls.get(region)
        if base is None:
            return None
        base, _, configured = base.partition("?")
        fixed = {_parameter(pair) for pair in configured.split("&")}
        added = [pair for pair in query.split("&") if pair and _parameter(pair) not in fixed]
        pairs = "&".join([configured, *added] if configured else added)
        return f"{base.rstrip('/')}/{path}" + (f"?{pairs}" if pairs else "")

    def post(self, call: Call, url: str, headers: Mapping[str, str], body: bytes) -> Awaitable[AnyResponse]:
        """Send a request with the configured headers and these. aiohttp sends what `HttpClient` does not, and what a
        rate counts from the moment in which it was sent."""
        target = None if call.counts_sent else self._target(url)
        if target is not None:
            return self._client.post(target, headers, body)
        headers = {**self.headers, **headers}
        session = self.sessions.of(call)
        return session.post(url, data=body, headers=headers, allow_redirects=False, trace_request_ctx=call)

    def safe(self, message: str) -> str:
        """The message without the secrets of the configuration."""
        return without(redacted(message), self._secrets)

    async def close(self) -> None:
        self._client.close()
        await self.sessions.close()


class OpenAIExecutor:
    def __init__(self, config: ServiceConfig, *, max_result: int) -> None:
        self._upstream = Upstream(config)
        self._aliases = config.aliases
        self._retry_streams = config.retry_streams
        self._responses = config.responses
        self._known = KnownUpstreams()
        self._formats = RefusedField("response_format")
        self._usage = RefusedField("stream_options")
        self._waits = config.limit != AUTO
        self._max_result = max_result
        self._rests_until = 0.0
        self._rests = 0

    async def execute(self, call: Call) -> Success | Failure:
        outcome = await self._execute(call)
        if isinstance(outcome, Failure):
            return replace(outcome, message=self._upstream.safe(outcome.message))
        return outcome

    async def close(self) -> None:
        await self._upstream.close()

    async def _execute(self, call: Call) -> Success | Failure:
        try:
            request = FrontRequest.of_input(call.params)
        except ValueError as error:
            return Failure(PERMANENT, str(error), retryable=False)
        began = asyncio.get_running_loop().time()
        try:
            if request.path == openai.RESPONSES:
                return await self._respond(call, request, began)
            if asks_for_urls(request):
                return await self._make_images(call, request, began)
            return await self._call(call, Exchange(request), began)
        except Untranslatable as error:
            return result_of(error.answer(), None)
        except RecursionError:
            return Failure(PERMANENT, "the body is nested too deeply", retryable=False)

    async def _respond(self, call: Call, request: FrontRequest, began: float) -> Success | Failure:
        """Call `/responses`, or chat completions if the upstream does not know it. A 404 may be about the model, so the
        upstream counts as one that only knows chat completions if it then answers one."""
        if self._responses == "translate" or (self._responses == "auto" and self._known.is_chat_only(call.region)):
            return await self._call(call, translated(call, request), began)
        outcome = await self._call(call, passed_on(call, request), began)
        if self._responses == "auto" and is_unknown_path(outcome):
            other = await self._call(call, translated(call, request), began)
            if not is_unknown_path(other):
                self._known.note(call.region)
                return other
        return outcome

    async def _make_images(self, call: Call, request: FrontRequest, began: float) -> Success | Failure:
        """Make images that the client reads by URLs. An upstream that refuses `response_format` gets the request
        without it."""

        async def convert(answer: FrontAnswer, value: Any) -> tuple[FrontAnswer, Any]:
            return await saved_images(call, answer, value)

        if not self._formats.has(call, request):
            outcome = await self._call(call, Exchange(request, convert=convert), began)
            if not self._formats.is_why(outcome):
                return outcome
            self._formats.note(call, request)
        return await self._call(call, Exchange(without_format(request), convert=convert), began)

    async def _call(self, call: Call, exchange: Exchange, began: float) -> Success | Failure:
        """Make the call. An upstream that refuses the request for the usage of a stream, which the client has not made,
        gets the request without it."""
        request = exchange.request
        if not request.stream:
            return await self._send(call, exchange, began)
        if not self._usage.has(call, request):
            outcome = await self._send(call, exchange, began)
            if not self._usage.is_why(outcome) or not _adds_usage(exchange):
                return outcome
            self._usage.note(call, request)
        return await self._send(call, exchange.without_usage(), began)

    async def _send(self, call: Call, exchange: Exchange, began: float) -> Success | Failure:
        request = exchange.request
        url = self._upstream.url(call.region, request.path, request.query)
        if url is None:
            return Failure(PERMANENT, f"{call.service} has no URL for this call", retryable=False)
        if call.trace is not None:
            call.annotate(openai.span_attributes(request, self._aliases))
        headers = {"Content-Type": request.content_type, "Idempotency-Key": call.idempotency_key}
        if call.trace is not None:
            headers |= headers_of(call.trace)
        body, adds_usage = request.body, False
        if (request.stream or self._aliases) and (value := openai.json_object(body)) is not None:
            adds_usage = exchange.adds_usage and _may_add_usage(request, value)
            body = self._body(body, value, adds_usage)
        elif self._aliases:
            body = self._form(request)
        try:
            async with await self._upstream.post(call, url, headers, body) as response:
                if call.trace is not None:
                    host = urlsplit(url).hostname
                    call.annotate({"http.response.status_code": response.status, "server.address": host})
                if response.status == 200 and response.content_type == openai.EVENT_STREAM:
                    if not openai.may_stream(request):
                        response.close()  # it may never end
                        return bad("the upstream streamed its answer to a request that is not streamed")
                    stream = exchange.stream or ChatStream(request, hides_usage=adds_usage, began=began)
                    retries = self._retry_streams or exchange.restartable
                    return await self._stream(call, stream, response, retries)
                return await self._answer(call, exchange, response)
        except aiohttp.InvalidURL as error:
            return Failure(PERMANENT, f"not a URL that can be called: {error}", retryable=False)
        except (aiohttp.ClientError, OSError) as error:
            return Failure(CONNECTION, storable(connection_problem(error)), retryable=True)

    def _body(self, body: bytes, value: Mapping[str, Any], adds_usage: bool) -> bytes:
        """The body for the upstream: the client's, with the upstream's name of an aliased model, and with the request
        for the usage of a stream. `value` is the decoded body."""
        if adds_usage:
            body = openai.with_usage(body, value)
        model = value.get("model")
        target = self._aliases.get(model) if isinstance(model, str) else None
        return body if target is None else openai.replaced(body, "model", target)

    def _form(self, request: FrontRequest) -> bytes:
        """The body for the upstream if it is not JSON: the form of the client, with the upstream's name of an aliased
        model."""
        fields = openai.form_fields(request.content_type, request.body, _MODEL)
        target = self._aliases.get(fields.get("model", ""))
        if target is None:
            return request.body
        return openai.form_with(request.content_type, request.body, "model", target)

    async def _stream(self, call: Call, stream: ChatStream, response: AnyResponse, retries: bool) -> Success | Failure:
        """Emit a stream. Once clients have seen its beginning, a failure is not retried, unless `retries`: it is
        configured, or the exchange can be restarted."""
        self._answered(call, response)
        try:
            await emit_events(response, call, stream, self._max_result)
        except asyncio.CancelledError as error:
            if error.args != (TIMED_OUT,):
                raise
            failure = Failure(TIMEOUT, f"{call.service} did not end its stream within {call.timeout:g} s", True)
        except OutputTooLarge as error:
            failure = failure_of(error)
        except UpstreamError as error:
            failure = Failure(UPSTREAM_ERROR, str(error), retryable=retries)
        except BrokenStream as error:
            failure = Failure(BAD_RESULT, str(error), retryable=retries)
        except (aiohttp.ClientError, OSError) as error:
            failure = Failure(CONNECTION, _lost(error), retryable=True)
        else:
            return with_output(call.open_output(), Success("null", stream.metrics or None, stream.reported))
        response.close()  # it may never end
        unseen = not call.open_output().chunks
        return replace(failure, retryable=failure.retryable and (unseen or retries))

    async def _answer(self, call: Call, exchange: Exchange, response: AnyResponse) -> Success | Failure:
        request = exchange.request
        body = await read_body(response, self._max_result)
        if response.status in BUSY and self._waits:
            return self._refused(call, response, body)
        if response.status in BUSY or response.status >= 500 or 300 <= response.status < 400:
            return refusal(response, body, retry_after_of(response.headers))
        self._answered(call, response)
        if len(body) > self._max_result:
            return too_large(len(body), self._max_result)
        value = openai.json_object(body)
        answer = FrontAnswer(response.status, openai.passed_headers(response.headers), body)
        if response.status < 300 and exchange.convert is not None:
            answer, value = await exchange.convert(answer, value)
        if response.status < 300 and request.path in openai.JSON_PATHS:
            if value is None:
                return bad(_not_an_object(body, response.content_type))
            if _is_error(value):
                message = error_text(value.get("error") or value, "with status 200")
                return Failure(UPSTREAM_ERROR, message, retryable=False)
            if request.stream:
                return bad("the upstream did not stream its answer; it may not support stream for this model")
        return result_of(answer, value)

    # ------------------------------------------------------------ rests

    def _answered(self, call: Call, response: AnyResponse) -> None:
        self._rests = 0
        if self._waits:
            heed(call, response)

    def _refused(self, call: Call, response: AnyResponse, body: bytes) -> Failure:
        """Let the upstream rest for the time that it names, otherwise twice as long as the last time."""
        seconds = heed(call, response)
        if seconds is None:
            seconds = self._guessed()
            call.rest(seconds)
        call.progress(message=f"{call.service} is at its own limit; the job waits in the queue for {seconds:.0f} s")
        return replace(refusal(response, body, seconds), waits=True)

    def _guessed(self) -> float:
        now = asyncio.get_running_loop().time()
        if self._rests_until > now:  # calls that were sent together are refused together
            return self._rests_until - now
        seconds: float = min(LONGEST_GUESS, FIRST_GUESS * (1 << self._rests))
        self._rests, self._rests_until = min(self._rests + 1, 10), now + seconds
        return seconds


def _is_error(value: Mapping[str, Any]) -> bool:
    """Whether an answer is nothing but an error, which some servers send with status 200."""
    if value.get("object") == "error":  # older versions of vLLM
        return True
    return bool(value.get("error")) and value.keys().isdisjoint(("id", "object", "choices", "data"))


def _not_an_object(body: bytes, content_type: str) -> str:
    try:
        from_upstream(body)
        problem = ""
    except NotJson as error:
        problem = f": {error}"
    return f"the upstream's answer is not a JSON object ({content_type}, {len(body)} bytes){problem}"


def _lost(error: Exception) -> str:
    """What happened to a connection within a stream."""
    if isinstance(error, aiohttp.ClientPayloadError | aiohttp.ClientConnectionError | ConnectionError):
        return "the upstream closed the connection within the stream"
    return storable(f"the connection was lost within the stream: {connection_problem(error)}")


def _parameter(pair: str) -> str:
    """The name in `name=value`."""
    return unquote_plus(pair.partition("=")[0])


def _adds_usage(exchange: Exchange) -> bool:
    """Whether it was not the client that asked for the usage of this stream."""
    value = openai.json_object(exchange.request.body)
    return isinstance(exchange.stream, TranslatedStream) or (
        value is not None and _may_add_usage(exchange.request, value)
    )


def _may_add_usage(request: FrontRequest, value: Mapping[str, Any]) -> bool:
    """Whether to request the usage of a stream for a client that has not asked for it."""
    if not request.stream or request.path not in openai.WITH_DONE:
        return False
    return not openai.asks_for_usage(value) and isinstance(value.get("stream_options", {}), dict | None)


def result_of(answer: FrontAnswer, value: Any) -> Success:
    """The outcome of a call that was answered. `value` is the decoded answer, or None."""
    data = orjson.dumps(answer.as_result()).decode()  # texts and a number: nothing that JSON cannot express
    usage = openai.usage_of(value)
    return Success(data, None if usage is None else {"usage": usage}, openai.reported_usage(value))


async def list_models(upstream: Upstream, region: str | None) -> list[dict[str, Any]] | str:
    """The models that `GET /models` of the upstream lists, or the reason why there is no list."""
    url = upstream.url(region, "models")
    try:
        async with asyncio.timeout(LIST_WITHIN_S):
            session = upstream.sessions.of()
            async with session.get(url or "", headers=upstream.headers, allow_redirects=False) as response:
                body = await read_body(response, MAX_LIST)
                value = openai.json_object(body) if response.status == 200 else None
    except TimeoutError:
        return f"GET /models has no answer within {LIST_WITHIN_S:g} s"
    except (aiohttp.ClientError, OSError) as error:
        return upstream.safe(storable(connection_problem(error)))
    data = value.get("data") if value is not None else None
    if not isinstance(data, list):
        return f"GET /models answers {response.status}, without a list of models"
    return [model for model in data if isinstance(model, dict) and isinstance(model.get("id"), str)]
