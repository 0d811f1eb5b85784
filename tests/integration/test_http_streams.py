"""HTTP services whose response arrives in parts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from fairlead import Chunk, Config, Fairlead, JobFailed, Restart
from fairlead.domain.config_checks import contradictions

PATIENCE = 30.0
SSE, TEXT = "text/event-stream", "text/plain"


class Endpoint:
    """Answers each request with the next list of parts. A part is bytes, an event to wait for, or an exception after
    which the connection is cut."""

    def __init__(self) -> None:
        self.url = ""
        self.kind = SSE
        self.answers: list[list[Any]] = []
        self.cut = asyncio.Event()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": self.kind})
        await response.prepare(request)
        for part in self.answers.pop(0):
            if isinstance(part, asyncio.Event):
                await part.wait()
            elif isinstance(part, bytes):
                await response.write(part)
            elif request.transport is not None:
                request.transport.abort()
                return response
        return response


@pytest.fixture
async def endpoint() -> AsyncIterator[Endpoint]:
    served = Endpoint()
    application = web.Application()
    application.router.add_post("/", served.handle)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    served.url = f"http://{host}:{port}/"
    yield served
    await runner.cleanup()


MakeApp = Callable[..., Fairlead]


@pytest.fixture
def make_app(tmp_path: Path, endpoint: Endpoint) -> MakeApp:
    def make(worker: dict[str, Any] | None = None, **options: Any) -> Fairlead:
        service = {"url": endpoint.url, "limit": 1, "backoff": [0], **options}
        config = Config.model_validate({"services": {"llm": service}, "worker": worker or {}})
        return Fairlead(config, database_url=f"sqlite:///{tmp_path}/fairlead.db")

    return make


async def streamed(app: Fairlead) -> tuple[list[Any], Any]:
    """The output and the result of one job."""
    job = await app.submit("llm", {}, user_id="ada")
    async with asyncio.timeout(PATIENCE):
        output = [each.data if isinstance(each, Chunk) else each async for each in job.stream()]
    return output, await job.result(PATIENCE)


async def test_the_data_of_events_are_chunks(make_app: MakeApp, endpoint: Endpoint) -> None:
    first = b': hello\n\nevent: token\ndata: {"delta": "a"}\nid: 7\n\n'
    endpoint.answers = [
        [first, b"da", b'ta:{"delta":', b' "b"}\r\n\r\ndata: [DONE]\n\n'],
        [b"data: one\ndata: two\n\ndata: 5\n\ndata: {broken\n\n", b'data: " and"\n\n', b"data: last"],
    ]
    async with make_app().running() as app:
        objects = [{"delta": "a"}, {"delta": "b"}]
        assert await streamed(app) == (objects, objects)
        texts = ["one\ntwo", "5", "{broken", " and", "last"]
        assert await streamed(app) == (texts, "".join(texts))


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("size", [1, 1000])
async def test_lines_may_end_in_each_way_of_the_standard(
    make_app: MakeApp, endpoint: Endpoint, end: str, size: int
) -> None:
    lines = ("\ufeffdata: grün", "data: zwei", "", ": comment", "", "data: drei", "", "data: [DONE]", "", "")
    sent = end.join(lines).encode()
    endpoint.answers = [[sent[start : start + size] for start in range(0, len(sent), size)]]
    async with make_app().running() as app:
        assert (await streamed(app))[0] == ["grün\nzwei", "drei"]


async def test_chunks_arrive_before_the_response_ends(make_app: MakeApp, endpoint: Endpoint) -> None:
    go_on = asyncio.Event()
    endpoint.answers = [[b"data: one\n\n", go_on, b"data: two\n\n"]]
    async with make_app().running() as app, asyncio.timeout(PATIENCE):
        job = await app.submit("llm", {}, user_id="ada")
        output = job.stream()
        assert str(await anext(output)) == "one"
        go_on.set()
        assert str(await anext(output)) == "two"
        await output.aclose()


@pytest.mark.parametrize("done", [b"data: [DONE]\n\n", b"data: [DONE]\n"])
async def test_a_stream_may_go_on_after_its_last_event(make_app: MakeApp, endpoint: Endpoint, done: bytes) -> None:
    never = asyncio.Event()
    endpoint.answers = [[b"data: one\n\n" + done, never]]
    async with make_app().running() as app:
        assert await streamed(app) == (["one"], "one")
    never.set()


async def test_text_is_streamed_if_asked_for(make_app: MakeApp, endpoint: Endpoint) -> None:
    endpoint.kind = TEXT
    words = "grün und blau".encode()
    go_on = asyncio.Event()
    endpoint.answers = [[words[:3], go_on, words[3:]]]
    async with make_app(stream="text").running() as app, asyncio.timeout(PATIENCE):
        job = await app.submit("llm", {}, user_id="ada")
        output = job.stream()
        assert str(await anext(output)) == "gr"
        go_on.set()
        assert await job.result(PATIENCE) == "grün und blau"
        await output.aclose()


async def test_text_is_one_result_if_not_asked_for(make_app: MakeApp, endpoint: Endpoint) -> None:
    endpoint.kind = TEXT
    endpoint.answers = [[b"plain ", b"words"]]
    async with make_app(format="raw").running() as app:
        assert await streamed(app) == ([], "plain words")


async def test_a_stream_that_is_cut_starts_again(make_app: MakeApp, endpoint: Endpoint) -> None:
    endpoint.answers = [[b"data: one\n\n", endpoint.cut, OSError()], [b"data: One\n\n", b"data: Two\n\n"]]
    async with make_app().running() as app, asyncio.timeout(PATIENCE):
        job = await app.submit("llm", {}, user_id="ada")
        output = job.stream()
        assert str(await anext(output)) == "one"
        endpoint.cut.set()
        rest = [each async for each in output]
        assert rest[0] == Restart(0)
        assert list(map(str, rest[1:])) == ["One", "Two"]
        assert await job.result(PATIENCE) == "OneTwo"


@pytest.mark.parametrize(
    ("kind", "parts", "message"),
    [
        (SSE, [b"data: " + b"x" * 3000], "too large"),
        (SSE, [b"data: x\n" * 3000], "too large"),
        (SSE, [b"data:\n" * 3000], "too large"),
        (SSE, [b"data: xxxxxxxx\n\n" * 3000], "too large"),
        (SSE, [b"x" * 3000], "too large"),
        (TEXT, [b"x" * 3000], "too large"),
        (SSE, [b"data: \xff\n\n"], "not UTF-8"),
        (TEXT, [b"\xff"], "not text"),
        (SSE, [b"data: " + b"[" * 300 + b"]" * 300 + b"\n\n"], "cannot be stored"),
    ],
)
async def test_a_bad_stream_is_a_clear_error(
    make_app: MakeApp, endpoint: Endpoint, kind: str, parts: list[bytes], message: str
) -> None:
    endpoint.kind = kind
    never = asyncio.Event()
    endpoint.answers = [[*parts, never] if message == "too large" else parts]
    async with make_app({"max_result": 2000}, stream="text").running() as app:
        with pytest.raises(JobFailed, match=message) as caught:
            await (await app.submit("llm", {}, user_id="ada")).result(PATIENCE)
        assert caught.value.error["code"] == "BAD_RESULT"
    never.set()


def test_only_http_services_have_a_stream() -> None:
    services = {"talk": {"limit": 1, "stream": "sse"}, "llm": {"limit": 1, "stream": "sse", "url": "http://x/"}}
    (problem,) = contradictions(services, {}, {}, {})
    assert problem[0] == "services.talk.stream"
