"""HTTP services, called for real: the exact requests, the outcome of each response, and the limit as the endpoint
counts it."""

import asyncio
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from fairlead import Call, Config, Fairlead, JobFailed, JobStatus

PATIENCE = 30.0
Answer = Callable[[web.Request, dict[str, Any]], Awaitable[web.StreamResponse]]


class Endpoint:
    """A real server on a free port. Records its requests, and the largest number of concurrent calls."""

    def __init__(self) -> None:
        self.requests: list[tuple[dict[str, str], Any]] = []
        self.answer: Answer = self.succeed
        self.inside = self.most = 0
        self.url = ""
        self.closing = asyncio.Event()

    async def succeed(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return web.json_response({"data": {"ok": True}, "metrics": {"model_version": "v2.1"}})

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.inside += 1
        self.most = max(self.most, self.inside)
        try:
            body = await request.json()
            self.requests.append((dict(request.headers), body))
            return await self.answer(request, body)
        finally:
            self.inside -= 1


@pytest.fixture
async def endpoint() -> AsyncIterator[Endpoint]:
    served = Endpoint()
    application = web.Application()
    application.router.add_post("/v1/execute", served.handle)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    served.url = f"http://{host}:{port}/v1/execute"
    yield served
    served.closing.set()
    await runner.cleanup()


@pytest.fixture
def make_app(tmp_path: Path, endpoint: Endpoint) -> Callable[..., Fairlead]:
    def make(worker: dict[str, Any] | None = None, **options: Any) -> Fairlead:
        service = {"url": endpoint.url, "limit": 2, "backoff": {"base": 0, "jitter": 0}, **options}
        config = Config.model_validate({"services": {"gpu": service}, "worker": worker or {}})
        return Fairlead(config, database_url=f"sqlite:///{tmp_path}/fairlead.db")

    return make


async def test_the_call_has_the_documented_shape(make_app: Callable[..., Fairlead], endpoint: Endpoint) -> None:
    async with make_app().running() as app:
        job = await app.submit("gpu", {"prompt": "a city"}, user_id="ada")
        assert await job.result(timeout=PATIENCE) == {"ok": True}
        shown = await job.get()
    headers, body = endpoint.requests[0]
    assert body == {
        "meta": {"job_id": job.id, "step_index": 0, "service_name": "gpu", "attempt": 1},
        "payload": {"params": {"prompt": "a city"}, "context": {}},
    }
    assert headers["Idempotency-Key"] == f"{job.id}:0:0"
    assert headers["Content-Type"] == "application/json"
    assert shown.context is not None
    metrics = shown.context["step_0_gpu"]["metrics"]
    assert metrics["model_version"] == "v2.1"
    assert metrics["execution_time_ms"] > 0


async def test_raw_format_posts_the_params_and_takes_the_whole_body(
    make_app: Callable[..., Fairlead], endpoint: Endpoint
) -> None:
    async def answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        if body["want"] == "json":
            return web.json_response([1, {"x": 2}])
        return web.Response(text="plain words")

    endpoint.answer = answer
    async with make_app(format="raw").running() as app:
        assert await (await app.submit("gpu", {"want": "json"})).result(PATIENCE) == [1, {"x": 2}]
        assert await (await app.submit("gpu", {"want": "text"})).result(PATIENCE) == "plain words"
    assert endpoint.requests[0][1] == {"want": "json"}


BODY = {
    "model": "flux",
    "prompt": "{input.prompt}, {input.style}",
    "image": "{step_0.data.images.0.url}",
    "size": "{input.size}",
    "options": ["{input.seed}", {"braces": "{{x}}"}],
}


async def test_a_body_is_filled_with_the_input_and_earlier_results(tmp_path: Path, endpoint: Endpoint) -> None:
    services = {"gpu": {"url": endpoint.url, "limit": 1, "format": "raw", "body": BODY}}
    app = Fairlead(Config.model_validate({"services": services}), database_url=f"sqlite:///{tmp_path}/fairlead.db")

    @app.service(limit=1)
    async def sketch(call: Call) -> Any:
        return {"images": [{"url": "http://files/1"}] if call.params["prompt"] else []}

    app.pipeline("picture", ["sketch", "gpu"])
    fields = {"style": "oil", "size": [640, 480], "seed": 7}
    async with app.running():
        job = await app.submit("picture", {"prompt": "a city", **fields}, user_id="ada")
        assert await job.result(PATIENCE) == {"data": {"ok": True}, "metrics": {"model_version": "v2.1"}}
        failed = await app.submit("picture", {"prompt": "", **fields}, user_id="ada")
        with pytest.raises(
            JobFailed, match=r"needs \{step_0.data.images.0.url\}, but step_0.data.images has no '0'"
        ) as error:
            await failed.result(PATIENCE)
    assert (error.value.error["code"], error.value.retryable) == ("MISSING_FIELD", False)
    [(_, sent)] = endpoint.requests
    assert sent == {
        "model": "flux",
        "prompt": "a city, oil",
        "image": "http://files/1",
        "size": [640, 480],
        "options": [7, {"braces": "{x}"}],
    }


async def test_credentials_come_from_the_environment(
    make_app: Callable[..., Fairlead], endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPU_TOKEN", "Bearer secret")
    async with make_app(headers={"Authorization": "env:GPU_TOKEN", "X-Team": "art"}).running() as app:
        await (await app.submit("gpu")).result(PATIENCE)
    headers = endpoint.requests[0][0]
    assert (headers["Authorization"], headers["X-Team"]) == ("Bearer secret", "art")


async def test_a_cookie_set_by_one_call_is_not_sent_with_another(
    make_app: Callable[..., Fairlead], endpoint: Endpoint
) -> None:
    async def answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response = web.json_response({"data": {}})
        response.set_cookie("account", body["payload"]["params"]["account"])
        return response

    endpoint.answer = answer
    url = endpoint.url.replace("127.0.0.1", "localhost")  # clients keep no cookies for an IP address
    async with make_app(url=url).running() as app:
        for user in ("ada", "bob"):
            await (await app.submit("gpu", {"account": user}, user_id=user)).result(PATIENCE)
    assert [headers.get("Cookie") for headers, _ in endpoint.requests] == [None, None]


@pytest.mark.parametrize("status", [429, 502, 503, 504])
async def test_transient_responses_are_retried(
    make_app: Callable[..., Fairlead], endpoint: Endpoint, status: int
) -> None:
    async def answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        if body["meta"]["attempt"] < 2:
            return web.Response(status=status, text="overloaded")
        return await endpoint.succeed(request, body)

    endpoint.answer = answer
    async with make_app().running() as app:
        job = await app.submit("gpu")
        assert await job.result(timeout=PATIENCE) == {"ok": True}
        error = ((await job.get()).attempts or [])[0]["error"]
    assert (error["code"], error["http_status"]) == (f"HTTP_{status}", status)
    assert "overloaded" in error["message"]
    keys = {headers["Idempotency-Key"] for headers, _ in endpoint.requests}
    assert len(keys) == 1, "the endpoint can recognise a repeated call"


@pytest.mark.parametrize("status", [302, 400, 404, 422, 500])
async def test_every_other_response_is_final(
    make_app: Callable[..., Fairlead], endpoint: Endpoint, status: int
) -> None:
    async def answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return web.Response(status=status, text="no", headers={"Location": endpoint.url})

    endpoint.answer = answer
    async with make_app().running() as app:
        with pytest.raises(JobFailed) as caught:
            await (await app.submit("gpu")).result(timeout=PATIENCE)
    assert caught.value.error["code"] == f"HTTP_{status}"
    assert not caught.value.retryable
    assert len(endpoint.requests) == 1


async def test_a_429_that_names_a_time_rests_the_service_and_uses_no_attempt(
    make_app: Callable[..., Fairlead], endpoint: Endpoint
) -> None:
    async def answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        if len(endpoint.requests) <= 3:
            return web.Response(status=429, headers={"Retry-After": "0.05"})
        return web.json_response({"data": {"done": True}})

    endpoint.answer = answer
    async with make_app(max_attempts=1).running() as app:
        job = await app.submit("gpu")
        assert await job.result(timeout=PATIENCE) == {"done": True}
        assert not (await job.get()).attempts
        assert {call.outcome for call in await app._runtime.store.latest_calls(9)} == {"handed_back", "success"}
    assert len(endpoint.requests) == 4


async def test_a_429_without_a_time_uses_an_attempt(make_app: Callable[..., Fairlead], endpoint: Endpoint) -> None:
    async def answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return web.Response(status=429)

    endpoint.answer = answer
    async with make_app(max_attempts=1).running() as app:
        with pytest.raises(JobFailed) as caught:
            await (await app.submit("gpu")).result(timeout=PATIENCE)
    assert caught.value.error["code"] == "HTTP_429"


async def test_retry_after_is_honoured(make_app: Callable[..., Fairlead], endpoint: Endpoint) -> None:
    async def answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return web.Response(status=503, headers={"Retry-After": "600"})

    endpoint.answer = answer
    async with make_app().running() as app:
        job = await app.submit("gpu")
        retried = None
        async for event in app.watch(job.id):
            if event is not None and event["type"] == "JOB_RETRYING":
                retried = event
                break
            if event is not None and event["type"] == "SNAPSHOT" and event["job"]["status"] == "RETRYING":
                break
        shown = await job.get()
        assert shown.status is JobStatus.RETRYING
        attempt = (shown.attempts or [])[0]
        if retried is not None:
            assert retried["due_at"] > attempt["ended_at"]
        due = await app._runtime.store.next_timer()
        assert due is not None
        assert 500 < due - shown.created_at.timestamp() < 700, "nothing is due before the time that the service named"


@pytest.mark.parametrize(
    ("text", "reason"),
    [("not json", "not JSON"), ("[1]", "does not have the form"), ('{"metrics": {}}', "does not have the form")],
)
async def test_a_response_of_another_shape_fails_permanently_with_its_reason(
    make_app: Callable[..., Fairlead], endpoint: Endpoint, text: str, reason: str
) -> None:
    async def answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return web.Response(text=text)

    endpoint.answer = answer
    async with make_app().running() as app:
        with pytest.raises(JobFailed, match=reason) as caught:
            await (await app.submit("gpu")).result(timeout=PATIENCE)
    assert caught.value.error["code"] == "BAD_RESULT"


async def test_an_endless_response_is_cut_off(make_app: Callable[..., Fairlead], endpoint: Endpoint) -> None:
    async def answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b"x" * 4096)

    endpoint.answer = answer
    async with make_app(worker={"max_result": 2048}).running() as app:
        with pytest.raises(JobFailed, match="too large"):
            await (await app.submit("gpu")).result(timeout=PATIENCE)


async def test_a_refused_connection_is_retried_and_then_a_dead_letter(make_app: Callable[..., Fairlead]) -> None:
    app = make_app(url="http://127.0.0.1:9/v1/execute", max_attempts=2)
    async with app.running():
        job = await app.submit("gpu")
        with pytest.raises(JobFailed) as caught:
            await job.result(timeout=PATIENCE)
        assert caught.value.error["reason"] == "ATTEMPTS_USED_UP"
        assert caught.value.error["message"] == "cannot connect to 127.0.0.1:9: Connection refused"
        assert [entry["error"]["code"] for entry in (await job.get()).attempts or []] == ["CONNECTION"] * 2


async def test_a_hanging_endpoint_costs_one_timeout(make_app: Callable[..., Fairlead], endpoint: Endpoint) -> None:
    async def answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        if body["meta"]["attempt"] == 1:
            await endpoint.closing.wait()
        return await endpoint.succeed(request, body)

    endpoint.answer = answer
    async with make_app(timeout=0.3).running() as app:
        job = await app.submit("gpu")
        assert await job.result(timeout=PATIENCE) == {"ok": True}
        assert [entry["error"]["code"] for entry in (await job.get()).attempts or []] == ["TIMEOUT"]


async def test_a_dead_workers_call_keeps_its_slot_until_the_calls_deadline(
    make_app: Callable[..., Fairlead], endpoint: Endpoint
) -> None:
    """The endpoint may still be computing: the job is retried, but only in the slot that is left."""
    gate = asyncio.Event()

    async def answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        await gate.wait()
        return await endpoint.succeed(request, body)

    endpoint.answer = answer
    async with make_app(timeout=600).running() as app:
        job = await app.submit("gpu")
        with app.hub.subscribe(job.id) as subscription:
            while (await job.get()).status is not JobStatus.RUNNING:
                await subscription.next(0.1)
    async with make_app(timeout=600).running() as app:  # the first process is gone without deregistering
        with app.hub.subscribe(job.id) as subscription:
            shown = await app.get(job.id)
            while not (shown.attempts and shown.status is JobStatus.RUNNING):
                await subscription.next(0.1)
                shown = await app.get(job.id)
        service = (await app.status())["services"][0]
        assert (service["in_use"], service["held"]) == (2, 1), "one call, one hold"
        gate.set()
        assert (await app.wait(job.id, PATIENCE)).result == {"ok": True}
        assert (await app.status())["services"][0]["held"] == 1, "until its deadline, whatever happens to the job"


async def test_the_endpoint_never_sees_more_than_the_limit(
    make_app: Callable[..., Fairlead], endpoint: Endpoint
) -> None:
    async def answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        await asyncio.sleep(0.005)
        return await endpoint.succeed(request, body)

    endpoint.answer = answer
    async with make_app(limit=3).running() as app:
        jobs = [await app.submit("gpu", user_id=f"u{n % 5}") for n in range(60)]
        await asyncio.gather(*(job.result(PATIENCE) for job in jobs))
    assert endpoint.most == 3


async def test_a_drained_workers_call_keeps_its_slot_too(make_app: Callable[..., Fairlead], endpoint: Endpoint) -> None:
    """The endpoint does not notice the disconnect: a rolling restart must not send it one call more than it can
    serve."""
    begun = asyncio.Event()

    async def answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        begun.set()
        await endpoint.closing.wait()
        return await endpoint.succeed(request, body)

    endpoint.answer = answer
    async with make_app(limit=1, timeout=600, worker={"drain_timeout": 0}).running() as app:
        job = await app.submit("gpu")
        await asyncio.wait_for(begun.wait(), PATIENCE)
        await app.drain()
        assert (await job.get()).status is JobStatus.PENDING
    async with make_app(limit=1, timeout=600).running() as app:
        async with asyncio.timeout(PATIENCE):
            while not (await app.readiness())["ready"]:
                await asyncio.sleep(0.01)
        service = (await app.status())["services"][0]
        assert (service["in_use"], service["held"]) == (1, 1)
        assert (await app.get(job.id)).status is JobStatus.PENDING
    assert endpoint.most == 1


@pytest.mark.parametrize("style", ["envelope", "raw"])
async def test_a_response_that_is_nested_too_deeply_is_not_stored(
    make_app: Callable[..., Fairlead], endpoint: Endpoint, style: str
) -> None:
    deep = "[" * 300 + "]" * 300

    async def answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return web.Response(text=deep if style == "raw" else f'{{"data": {deep}}}')

    endpoint.answer = answer
    async with make_app(format=style).running() as app:
        with pytest.raises(JobFailed, match="nested") as caught:
            await (await app.submit("gpu")).result(timeout=PATIENCE)
    assert caught.value.error["code"] == "BAD_RESULT"


LARGE = 123456789012345678901234567890


@pytest.mark.parametrize(
    ("style", "text"),
    [
        ("envelope", f'{{"data": {{"n": [{LARGE}]}}}}'),
        ("envelope", f'{{"data": 1, "metrics": {{"n": -{LARGE}}}}}'),
        ("raw", f'{{"n": {LARGE}}}'),
    ],
)
async def test_an_integer_that_would_become_another_number_is_refused(
    make_app: Callable[..., Fairlead], endpoint: Endpoint, style: str, text: str
) -> None:
    async def answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return web.Response(text=text)

    endpoint.answer = answer
    async with make_app(format=style).running() as app:
        with pytest.raises(JobFailed, match="has an integer beyond 64 bits") as caught:
            await (await app.submit("gpu")).result(timeout=PATIENCE)
    assert caught.value.error["code"] == "BAD_RESULT"


@pytest.mark.parametrize("style", ["envelope", "raw"])
async def test_the_largest_integers_and_long_digits_in_texts_are_kept(
    make_app: Callable[..., Fairlead], endpoint: Endpoint, style: str
) -> None:
    value = {"most": 2**64 - 1, "least": -(2**63), "text": str(LARGE), "float": 0.1234567890123456789}

    async def answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return web.json_response(value if style == "raw" else {"data": value})

    endpoint.answer = answer
    async with make_app(format=style).running() as app:
        assert await (await app.submit("gpu")).result(timeout=PATIENCE) == value


@pytest.mark.parametrize("answer", ["echo", "bad status line", "refused"])
async def test_credentials_of_an_endpoint_are_never_part_of_an_error(
    make_app: Callable[..., Fairlead], endpoint: Endpoint, answer: str
) -> None:
    """Neither the HTTP client's message about the URL, nor the request as echoed by the endpoint."""

    async def echo(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        text = f"no such key: {request.path_qs} {request.headers['X-Token']} {request.headers['Authorization']}"
        return web.Response(status=401, text=text)

    async def speak_no_http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"what?\r\n\r\n")
        writer.close()

    endpoint.answer = echo
    server = await asyncio.start_server(speak_no_http, "127.0.0.1", 0)
    other = server.sockets[0].getsockname()[1]
    if answer == "refused":
        server.close()
    place = endpoint.url.partition("//")[2] if answer == "echo" else f"127.0.0.1:{other}/v1"
    url = f"http://ada:s3cret-password@{place}?api_key=s3cret-key&model=s3cret%2Bmodel"
    async with server, make_app(url=url, headers={"X-Token": "s3cret-token"}, max_attempts=1).running() as app:
        job = await app.submit("gpu")
        shown = await app.wait(job.id, PATIENCE)
        assert shown.status is JobStatus.FAILED
        seen = str((shown, await app.dead(), await app.why(job.id)))
    assert shown.error is not None
    assert shown.error["message"], "the message is not empty"
    assert "s3cret" not in seen
    assert b64encode(b"ada:s3cret-password").decode() not in seen
