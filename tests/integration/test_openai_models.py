"""Python functions as models (`@app.model`)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest

from fairlead import Call, Config, Fairlead
from fairlead.config import Settings
from fairlead.domain.job import JobStatus
from fairlead.errors import ConfigError, JobFailed
from fairlead.gateway.app import create_gateway
from tests.integration.gateway_site import served
from tests.integration.openai_site import HELLO


def declare(app: Fairlead) -> None:
    @app.model("words", limit=2)
    def words(messages: list[dict[str, Any]]) -> Iterator[str]:
        yield from ("You", " said: ", messages[-1]["content"])

    @app.model("Async-Words:7b", limit=2)
    async def async_words(messages: list[dict[str, Any]]) -> AsyncIterator[str]:
        for word in ("You", " said: ", messages[-1]["content"]):
            yield word

    @app.model("whole", limit=2)
    async def whole(messages: list[dict[str, Any]], call: Call) -> str:
        return f"You said: {messages[-1]['content']}" if call.user_id == "ada" else "who?"

    @app.model("tools", limit=2)
    def tools(messages: list[dict[str, Any]]) -> Iterator[Any]:
        function = {"name": "look", "arguments": "{}"}
        yield {"tool_calls": [{"index": 0, "id": "c1", "type": "function", "function": function}]}

    @app.model("broken", limit=2, max_attempts=1)
    def broken(messages: list[dict[str, Any]]) -> Iterator[str]:
        yield "half"
        raise RuntimeError("out of words")


@asynccontextmanager
async def clients(folder: Path) -> AsyncIterator[openai.AsyncOpenAI]:
    async with fronts(folder, declare) as (_, client):
        yield client


@asynccontextmanager
async def fronts(
    folder: Path, declare: Callable[[Fairlead], None]
) -> AsyncIterator[tuple[Fairlead, openai.AsyncOpenAI]]:
    async with AsyncExitStack() as stack:
        app = Fairlead(Settings(Config(), f"sqlite:///{folder}/fairlead.db"))
        declare(app)
        assert app.check() == []
        await stack.enter_async_context(app.running())
        port = await stack.enter_async_context(served(create_gateway(app)))
        client = openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="any", max_retries=0)
        yield app, await stack.enter_async_context(client)


@pytest.mark.parametrize("model", ["words", "Async-Words:7b", "whole"])
async def test_a_function_is_a_model_streamed_and_not(tmp_path: Path, model: str) -> None:
    async with clients(tmp_path) as client:
        assert model in [each.id async for each in client.models.list()]
        create = client.chat.completions.create
        answer = await create(model=model, messages=HELLO, user="ada")
        assert answer.choices[0].message.content == "You said: Hello"
        stream = await create(model=model, messages=HELLO, user="ada", stream=True)
        seen = [chunk async for chunk in stream]
        assert "".join(chunk.choices[0].delta.content or "" for chunk in seen) == "You said: Hello"
        assert seen[-1].choices[0].finish_reason == "stop"
        assert (await client.completions.create(model=model, prompt="Hi", user="ada")).choices[0].text == "You said: Hi"


async def test_a_completion_has_one_prompt(tmp_path: Path) -> None:
    async with clients(tmp_path) as client:
        answer = await client.completions.create(model="words", prompt=["Hi"])
        assert answer.choices[0].text == "You said: Hi"
        for prompt in (["Hi", "Ho"], [1, 2], []):
            with pytest.raises(openai.BadRequestError, match="one prompt") as caught:
                await client.completions.create(model="words", prompt=prompt)
            assert caught.value.param == "prompt"


async def test_a_function_that_returns_no_text_is_an_error_that_says_so(tmp_path: Path) -> None:
    def declare_number(app: Fairlead) -> None:
        @app.model("number", limit=1, max_attempts=1)
        async def number(messages: list[dict[str, Any]]) -> int:
            return 5

    async with fronts(tmp_path, declare_number) as (_, client):
        with pytest.raises(openai.InternalServerError, match="text or deltas, not int"):
            await client.chat.completions.create(model="number", messages=HELLO)


async def test_a_piece_may_be_a_delta(tmp_path: Path) -> None:
    async with clients(tmp_path) as client:
        answer = await client.chat.completions.create(model="tools", messages=HELLO)
    assert answer.choices[0].finish_reason == "tool_calls"
    assert answer.choices[0].message.tool_calls is not None
    assert answer.choices[0].message.tool_calls[0].id == "c1"


async def test_the_deltas_of_an_answer_that_is_not_streamed_become_one_message(tmp_path: Path) -> None:
    """A function may pass on the deltas of another stream: texts and arguments are in parts."""

    def call(index: int, arguments: str, **first: Any) -> dict[str, Any]:
        function = {**({"name": first["id"]} if first else {}), "arguments": arguments}
        return {"tool_calls": [{"index": index, "function": function, **first}]}

    def declare_parts(app: Fairlead) -> None:
        @app.model("parts", limit=1)
        async def parts(messages: list[dict[str, Any]]) -> AsyncIterator[dict[str, Any]]:
            yield {"role": "assistant", "content": None, "reasoning_content": "Let "}
            yield {"reasoning_content": "me see."}
            yield {"content": "One "}
            yield {"content": "moment."}
            yield call(0, "", id="f", type="function") | {"content": None}
            yield call(0, '{"a"')
            yield call(0, ": 1}")
            yield call(1, "{}", id="g", type="function")

    async with fronts(tmp_path, declare_parts) as (_, client):
        message = (await client.chat.completions.create(model="parts", messages=HELLO)).choices[0].message
        response = await client.responses.create(model="parts", input="Hello")
    assert (message.role, message.content) == ("assistant", "One moment.")
    assert message.model_extra == {"reasoning_content": "Let me see."}
    called = [(each.id, each.function.name, each.function.arguments) for each in message.tool_calls or ()]
    assert called == [("f", "f", '{"a": 1}'), ("g", "g", "{}")]
    calls = [item for item in response.output if item.type == "function_call"]
    assert [(item.call_id, item.name, item.arguments) for item in calls] == called


@pytest.mark.parametrize("stream", [True, False])
async def test_a_generator_in_a_thread_whose_client_disconnects_frees_the_slot(tmp_path: Path, stream: bool) -> None:
    begun, closed, go_on = threading.Event(), threading.Event(), threading.Event()

    def declare_endless(app: Fairlead) -> None:
        @app.model("endless", limit=1)
        def endless(messages: list[dict[str, Any]]) -> Iterator[str]:
            try:
                while True:
                    yield "word "
                    begun.set()
                    go_on.wait(20)
            finally:
                closed.set()

    async with fronts(tmp_path, declare_endless) as (app, client):
        asking = asyncio.create_task(
            client.chat.completions.create(model="endless", messages=HELLO, stream=stream)  # type: ignore[call-overload]
        )
        assert await asyncio.to_thread(begun.wait, 20)
        [job] = (await app.list_jobs()).data
        if stream:
            await (await asking).close()
        asking.cancel()
        assert (await app.wait(job.job_id, 20)).status is JobStatus.CANCELLED
        go_on.set()
        assert await asyncio.to_thread(closed.wait, 20)


async def test_requests_that_a_function_cannot_answer_are_refused(tmp_path: Path) -> None:
    async with clients(tmp_path) as client:
        with pytest.raises(openai.NotFoundError, match="chat/completions"):
            await client.embeddings.create(model="words", input="Hi")
        not_a_list: Any = "Hi"
        with pytest.raises(openai.BadRequestError, match="messages"):
            await client.chat.completions.create(model="words", messages=not_a_list)


async def test_an_exception_of_a_function_is_an_error_of_the_client(tmp_path: Path) -> None:
    async with clients(tmp_path) as client:
        with pytest.raises(openai.InternalServerError, match="out of words"):
            await client.chat.completions.create(model="broken", messages=HELLO)
        with pytest.raises(openai.APIError, match="out of words"):
            async for _ in await client.chat.completions.create(model="broken", messages=HELLO, stream=True):
                pass


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_an_exception_after_the_first_piece_is_the_error_of_the_stream(tmp_path: Path, kind: str) -> None:
    attempts = []

    def declare_one(app: Fairlead) -> None:
        async def in_loop(messages: list[dict[str, Any]], call: Call) -> AsyncIterator[str]:
            attempts.append(call.attempt)
            yield "half"
            raise RuntimeError("out of words")

        def in_thread(messages: list[dict[str, Any]], call: Call) -> Iterator[str]:
            attempts.append(call.attempt)
            yield "half"
            raise RuntimeError("out of words")

        app.model("broken", limit=1, backoff=[0.01])(in_loop if kind == "async" else in_thread)

    async with fronts(tmp_path, declare_one) as (app, client):
        with pytest.raises(openai.APIError, match="RuntimeError: out of words"):
            async for _ in await client.chat.completions.create(model="broken", messages=HELLO, stream=True):
                pass
        [job] = (await app.list_jobs()).data
    assert job.status is JobStatus.FAILED
    assert attempts == [1], "clients have seen its beginning"


async def test_an_exception_before_the_first_piece_of_a_stream_is_retried(tmp_path: Path) -> None:
    def declare_one(app: Fairlead) -> None:
        @app.model("late", limit=1, backoff=[0.01])
        async def late(messages: list[dict[str, Any]], call: Call) -> AsyncIterator[str]:
            if call.attempt == 1:
                raise RuntimeError("not loaded yet")
            yield "whole"

    async with fronts(tmp_path, declare_one) as (_, client):
        stream = await client.chat.completions.create(model="late", messages=HELLO, stream=True)
        deltas = [chunk.choices[0].delta async for chunk in stream]
    assert [delta.role for delta in deltas if delta.role] == ["assistant"]
    assert "".join(delta.content or "" for delta in deltas) == "whole"


def test_a_model_without_a_limit_is_refused_by_the_name_of_its_decorator(tmp_path: Path) -> None:
    app = Fairlead(Settings(Config(), f"sqlite:///{tmp_path}/fairlead.db"))
    with pytest.raises(ConfigError, match=r"@app\.model on plain: plain\.limit"):

        @app.model("plain")
        def plain(messages: list[dict[str, Any]]) -> str:
            return "no"


async def test_a_job_that_is_not_a_request_fails_for_good(tmp_path: Path) -> None:
    async with fronts(tmp_path, declare) as (app, _):
        handle = await app.submit("words", {"messages": HELLO}, user_id="ada")
        with pytest.raises(JobFailed, match="not a request"):
            await handle.result()
        job = await app.get(handle.id)
        assert job.status is JobStatus.FAILED
        assert job.error is not None
        assert (job.error["code"], len(job.attempts or ())) == ("PERMANENT", 1)
