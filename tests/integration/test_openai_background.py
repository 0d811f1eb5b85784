"""Background responses, for upstreams that know `/responses` and for those that only know chat completions, with the
unmodified client."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import openai
import orjson
import pytest
from openai.types.responses import Response

from fairlead import Fairlead
from fairlead.app.front_requests import FrontRequests
from fairlead.domain.front_readers import Readers
from fairlead.domain.openai_responses import job_id_of, response_id
from fairlead.engine.loops import erase
from tests.integration.openai_site import ADMIN, open_front, second_gateway
from tests.integration.test_openai_models import fronts
from tests.openai_upstream import PATIENCE_S, WORDS, Upstream, chunks, event, refusing, sending, streaming
from tests.webhook_receiver import receiver

TEXT = "".join(WORDS)
CHAT_ONLY = pytest.mark.parametrize("chat_only", [False, True], ids=["passed on", "translated"])


async def ended(client: openai.AsyncOpenAI, response: Response) -> Response:
    async with asyncio.timeout(PATIENCE_S):
        while response.status in ("queued", "in_progress"):
            await asyncio.sleep(0.02)
            response = await client.responses.retrieve(response.id)
    return response


def paths(upstream: Upstream) -> list[str]:
    return [call.path for call in upstream.calls]


@CHAT_ONLY
async def test_a_background_response_is_answered_at_once_and_read_later(
    tmp_path: Path, engines: dict[str, str], chat_only: bool
) -> None:
    async with open_front(tmp_path, engines=engines, service={"limit": 1}) as front, front.client() as client:
        front.upstream.chat_only = chat_only
        front.upstream.gate.clear()
        options: Any = {"model": "llama", "background": True, "metadata": {"a": "b"}, "instructions": "Be short."}
        first = await client.responses.create(input="Hi", **options)
        assert (first.status, first.background, first.output, first.metadata) == ("queued", True, [], {"a": "b"})
        await front.upstream.reaches(open=1)
        second = await client.responses.create(input="Ho", **options)
        assert (await client.responses.retrieve(first.id)).status == "in_progress"
        waiting = await client.responses.retrieve(second.id)
        assert waiting.status == "queued"
        assert waiting.model_extra is not None
        assert waiting.model_extra["fairlead"]["position"] == 1
        front.upstream.gate.set()
        for response in (first, second):
            done = await ended(client, response)
            assert (done.id, done.status, done.output_text, done.background) == (response.id, "completed", TEXT, True)
            assert done.usage is not None
            assert (done.usage.input_tokens, done.usage.output_tokens) == (9, 7)
            assert done.completed_at is not None
            assert done.created_at == response.created_at
        assert (await client.responses.input_items.list(first.id)).data[0].content[0].text == "Hi"  # type: ignore[union-attr]
    sent = [call for call in front.upstream.calls if call.path == ("chat/completions" if chat_only else "responses")]
    assert [call.json.get("background") for call in sent] == [None, None]
    # The upstream is asked for /responses once, and remembered.
    assert len(front.upstream.calls) == 3 if chat_only else 2


@CHAT_ONLY
async def test_a_cut_stream_is_resumed_at_another_gateway_without_a_lost_or_doubled_event(
    tmp_path: Path, distributed: dict[str, str], chat_only: bool
) -> None:
    async with (
        open_front(tmp_path, engines=distributed) as front,
        second_gateway(front) as other,
        front.client() as client,
        other.client() as elsewhere,
    ):
        front.upstream.chat_only = chat_only
        front.upstream.gate.clear()
        seen: list[Any] = []
        stream = await client.responses.create(model="llama", input="Hi", background=True, stream=True)
        async for each in stream:
            seen.append(each)
            if each.type == "response.output_text.delta":
                break
        await stream.close()
        front.upstream.gate.set()
        id_ = seen[0].response.id
        rest = await elsewhere.responses.retrieve(id_, stream=True, starting_after=seen[-1].sequence_number)
        seen += [each async for each in rest]
        assert [each.sequence_number for each in seen] == list(range(len(seen)))
        assert [each.type for each in seen[:3]] == ["response.created", "response.queued", "response.in_progress"][
            : 3 if chat_only else 2
        ] + ([] if chat_only else ["response.output_text.delta"])
        assert "".join(each.delta for each in seen if each.type == "response.output_text.delta") == TEXT
        assert seen[-1].type == "response.completed"
        assert {each.response.id for each in seen if hasattr(each, "response")} == {id_}
        assert seen[-1].response.output_text == TEXT
        # Everything again, from the stored result if the output is gone; and nothing after the last event.
        again = await client.responses.retrieve(id_, stream=True)
        assert [each.to_dict() async for each in again] == [each.to_dict() for each in seen]
        await front.app._runtime.output_log.delete([front_job(id_)])
        kept = await elsewhere.responses.retrieve(id_, stream=True, starting_after=2)
        assert [each.to_dict() async for each in kept] == [each.to_dict() for each in seen[3:]]
        none = await elsewhere.responses.retrieve(id_, stream=True, starting_after=seen[-1].sequence_number)
        assert [each async for each in none] == []
        assert (await elsewhere.responses.retrieve(id_)).output_text == TEXT
    assert paths(front.upstream).count("chat/completions" if chat_only else "responses") == 1


def front_job(id_: str) -> str:
    job_id = job_id_of(id_)
    assert job_id is not None
    return job_id


@CHAT_ONLY
async def test_a_stream_that_breaks_off_is_retried_with_greater_numbers(tmp_path: Path, chat_only: bool) -> None:
    async with open_front(tmp_path) as front, front.client() as client:
        front.upstream.chat_only = chat_only
        broken: Any = {"type": "response.output_text.delta", "item_id": "m", "delta": "lost", "sequence_number": 1}
        pieces = [chunks({"model": "llama"})[1]] if chat_only else [event(broken, broken["type"])]
        if chat_only:
            front.upstream.script.append(refusing(404))
        front.upstream.script.append(streaming(*pieces, ConnectionResetError()))
        stream = await client.responses.create(model="llama", input="Hi", background=True, stream=True)
        seen: list[Any] = [each async for each in stream]
        numbers = [each.sequence_number for each in seen]
        assert numbers == sorted(set(numbers))
        assert seen[-1].type == "response.completed"
        assert seen[-1].response.output_text == TEXT
        begins = max(index for index, number in enumerate(numbers) if number < 1_000_000) + 1
        assert "".join(each.delta for each in seen[begins:] if each.type == "response.output_text.delta") == TEXT


async def test_a_response_is_cancelled_and_deleted(tmp_path: Path, engines: dict[str, str]) -> None:
    async with open_front(tmp_path, engines=engines, service={"limit": 1}) as front, front.client() as client:
        front.upstream.gate.clear()
        options: Any = {"model": "llama", "input": "Hi", "background": True}
        running = await client.responses.create(**options)
        await front.upstream.reaches(open=1)
        streamed = await client.responses.create(**options, stream=True)
        first: Any = await anext(aiter(streamed))
        assert (await client.responses.cancel(first.response.id)).status == "cancelled"
        assert [each.type async for each in streamed][-1] == "response.cancelled"
        assert (await client.responses.cancel(running.id)).status == "cancelled"
        await front.upstream.reaches(open=0)
        assert (await client.responses.cancel(running.id)).status == "cancelled"
        front.upstream.gate.set()
        done = await ended(client, await client.responses.create(**options))
        assert (await client.responses.cancel(done.id)).output_text == TEXT
        front.upstream.gate.clear()
        open_one = await client.responses.create(**options)
        for each in (done, running, open_one):
            await client.responses.delete(each.id)
            with pytest.raises(openai.NotFoundError):
                await client.responses.retrieve(each.id)
        await front.upstream.reaches(open=0)


async def test_a_webhook_learns_of_the_end_as_openai_reports_it(tmp_path: Path) -> None:
    local = {"webhooks": {"allow_http": True, "allow_private": True}}
    async with receiver() as hook, open_front(tmp_path, **local) as front, front.client() as client:
        secret = await front.app.webhooks.default_secret("anonymous")
        cut = {"choices": [{"index": 0, "message": {"content": "Hm"}, "finish_reason": "length"}]}
        front.upstream.script += [refusing(404), sending(orjson.dumps(cut)), refusing(400)]
        front.upstream.chat_only = True
        ids = []
        for status in ("incomplete", "failed", "completed"):
            options: Any = {"model": "llama", "input": "Hi", "background": True}
            response = await client.responses.create(**options, extra_headers={"X-Fairlead-Webhook": hook.url})
            assert (await ended(client, response)).status == status
            ids.append(response.id)
            request = (await hook.reaches(len(ids)))[-1]
            event: Any = client.webhooks.unwrap(request.text, request.headers, secret=secret)
            assert (event.type, event.data.id) == (f"response.{status}", response.id)
        with pytest.raises(openai.UnprocessableEntityError, match="webhook"):
            await client.responses.create(**options, extra_headers={"X-Fairlead-Webhook": "ftp://x"})
        await client.responses.create(model="llama", input="Hi", extra_headers={"X-Fairlead-Webhook": "ignored"})


async def test_a_stream_of_a_deleted_response_ends(tmp_path: Path) -> None:
    async with open_front(tmp_path) as front, front.client() as client:
        front.upstream.gate.clear()
        stream = await client.responses.create(model="llama", input="Hi", background=True, stream=True)
        first: Any = await anext(aiter(stream))
        await front.upstream.reaches(open=1)
        await client.responses.delete(first.response.id)
        async with asyncio.timeout(PATIENCE_S):
            with contextlib.suppress(openai.APIError):  # the stream may find that the job is gone
                assert [each.type async for each in stream][-1] == "response.cancelled"


async def test_a_failed_request_is_a_failed_response(tmp_path: Path) -> None:
    async with open_front(tmp_path, service={"max_attempts": 1}) as front, front.client() as client:
        front.upstream.script += [refusing(400, "too long"), refusing(500, "broken"), refusing(400, "too long")]
        options: Any = {"model": "llama", "input": "Hi", "background": True}
        refused = await ended(client, await client.responses.create(**options))
        assert refused.status == "failed"
        assert refused.error is not None
        assert (refused.error.code, refused.error.message) == ("of_the_upstream", "too long")
        failed = await ended(client, await client.responses.create(**options))
        assert failed.status == "failed"
        assert failed.error is not None
        assert "broken" in failed.error.message
        seen: list[Any] = [each async for each in await client.responses.create(**options, stream=True)]
        assert [each.type for each in seen] == ["response.created", "response.queued", "response.failed"]
        assert [each.sequence_number for each in seen] == [0, 1, 2]
        assert seen[-1].response.error.message == "too long"


async def test_a_response_is_its_users(tmp_path: Path) -> None:
    async with open_front(tmp_path, admin_key=ADMIN) as front:
        keys = {}
        for user in ("ada", "bob"):
            keys[user] = (await front.app.create_key("user", user_id=user)).text
        service = (await front.app.create_key("service", name="shop")).text
        named = front.client(service, default_headers={"X-Fairlead-User": "bob"})
        async with front.client(keys["ada"]) as ada, front.client(keys["bob"]) as bob, named:
            mine = await ended(ada, await ada.responses.create(model="llama", input="Hi", background=True))
            for client in (bob, named):
                calls: list[Any] = [client.responses.retrieve, client.responses.cancel, client.responses.delete]
                for call in (*calls, client.responses.input_items.list):
                    with pytest.raises(openai.NotFoundError):
                        await call(mine.id)
                with pytest.raises(openai.NotFoundError):
                    await client.responses.retrieve(mine.id, stream=True)
            with pytest.raises(openai.BadRequestError, match="no response"):
                await bob.responses.create(model="llama", input="Ho", previous_response_id=mine.id)
            for headers in ({}, {"X-Fairlead-User": "ada"}):
                async with front.client(service, default_headers=headers) as shop:
                    assert (await shop.responses.retrieve(mine.id)).output_text == TEXT


async def test_what_cannot_be_read_says_why(tmp_path: Path) -> None:
    async with open_front(tmp_path) as front, front.client() as client:
        chat = await client.chat.completions.with_raw_response.create(
            model="llama", messages=[{"role": "user", "content": "Hi"}]
        )
        unknown = response_id("01938f1c-6f5e-7a30-9d2c-5b8f3c1d2e4f")
        for id_ in ("resp_1", unknown, "msg_1", response_id(chat.headers["x-fairlead-job"])):
            with pytest.raises(openai.NotFoundError, match="there is no response"):
                await client.responses.retrieve(id_)
        with pytest.raises(openai.BadRequestError, match="store"):
            await client.responses.create(model="llama", input="Hi", background=True, store=False)
        deep: Any = "x"
        for _ in range(260):
            deep = [deep]
        with pytest.raises(openai.BadRequestError, match="nested"):
            await client.responses.create(model="llama", input="Hi", background=True, metadata={"x": deep})
        plain = await ended(client, await client.responses.create(model="llama", input="Hi", background=True))
        with pytest.raises(openai.BadRequestError, match="background and stream"):
            await client.responses.retrieve(plain.id, stream=True)


@CHAT_ONLY
async def test_a_conversation_continues_an_earlier_response(tmp_path: Path, chat_only: bool) -> None:
    async with open_front(tmp_path) as front, front.client() as client:
        front.upstream.chat_only = chat_only
        first = await ended(client, await client.responses.create(model="llama", input="Hi", background=True))
        second = await client.responses.create(model="llama", input="Why?", previous_response_id=first.id, store=True)
        assert second.output_text == TEXT
        sent = front.upstream.calls[-1].json
        asked = sent["messages"] if chat_only else sent["input"]
        assert [message["role"] for message in asked] == ["user", "assistant", "user"]
        assert "previous_response_id" not in sent
        front.upstream.gate.clear()
        running = await client.responses.create(model="llama", input="Hi", background=True)
        with pytest.raises(openai.BadRequestError, match="cannot be continued"):
            await client.responses.create(model="llama", input="Why?", previous_response_id=running.id)
        await client.responses.cancel(running.id)


async def test_a_request_that_is_sent_again_joins_the_response(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[str] = []
    monkeypatch.setattr(FrontRequests, "leave", lambda self, reading: left.append(reading.job_id))
    async with open_front(tmp_path) as front, front.client() as client:
        options: Any = {"model": "llama", "input": "Hi", "background": True}
        front.upstream.gate.clear()
        first = await client.responses.create(**options)
        ((_, stored),) = await front.app._runtime.store.front_readers(10)
        readers = Readers.of(stored)
        assert readers is not None
        assert [reader.process for reader in readers.requests] == [""], "the loss of no gateway cancels it"
        front.upstream.gate.set()
        again = await client.responses.create(**options, extra_headers={"x-stainless-retry-count": "1"})
        other = await client.responses.create(**options)
        assert (again.id == first.id, other.id == first.id) == (True, False)
        streamed = await client.responses.create(**options, stream=True)
        await anext(aiter(streamed))
        await streamed.close()
        for response in (first, other):
            assert (await ended(client, response)).status == "completed"
    assert left == []


async def test_keeping_nothing_erases_a_background_response(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(erase, "MARGIN_S", 0.2)
    monkeypatch.setattr(erase, "EVERY", 0.1)
    settings = {"keep": "nothing", "grace": 0.0}
    async with open_front(tmp_path, openai=settings) as front, front.client() as client:
        response = await client.responses.create(model="llama", input="Hi", background=True)
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    found = await client.responses.retrieve(response.id)
                except openai.NotFoundError:
                    break
                assert found.status != "failed"
                await asyncio.sleep(0.02)


# ---------------------------------------------------------------- translation without background


async def test_a_translated_response_looks_like_one_of_an_upstream(tmp_path: Path) -> None:
    async with open_front(tmp_path, service={"responses": "translate"}) as front, front.client() as client:
        whole = await client.responses.create(model="llama", input="Hi", max_output_tokens=5)
        assert (whole.output_text, whole.status, whole.background) == (TEXT, "completed", False)
        assert (await client.responses.retrieve(whole.id)).to_dict() == whole.to_dict()
        async with client.responses.stream(model="llama", input="Hi") as stream:
            seen: list[Any] = [each async for each in stream]
            final = await stream.get_final_response()
        assert [each.sequence_number for each in seen] == list(range(len(seen)))
        assert final.output_text == TEXT
        with pytest.raises(openai.BadRequestError, match="only knows chat completions"):
            await client.responses.create(model="llama", input="Hi", tools=[{"type": "web_search"}])
    assert set(paths(front.upstream)) == {"chat/completions"}
    assert front.upstream.calls[0].json["max_tokens"] == 5


async def test_a_missing_model_is_not_taken_for_a_missing_path(tmp_path: Path) -> None:
    async with open_front(tmp_path, service={"models": ["llama"]}) as front, front.client() as client:
        front.upstream.script += [refusing(404, "no such model"), refusing(404, "no such model")]
        with pytest.raises(openai.NotFoundError, match="no such model"):
            await client.responses.create(model="llama", input="Hi")
        assert (await client.responses.create(model="llama", input="Hi")).output_text == TEXT
        front.upstream.chat_only = True
        with pytest.raises(openai.BadRequestError, match="only knows chat completions"):
            await client.responses.create(model="llama", input="Hi", tools=[{"type": "web_search"}])
    assert paths(front.upstream)[-2:] == ["responses", "responses"]


async def test_a_function_answers_responses(tmp_path: Path) -> None:
    failures = ["once"]

    async def shout(messages: list[dict[str, Any]]) -> Any:
        yield messages[-1]["content"].upper()
        if failures:
            raise RuntimeError(failures.pop())
        yield "!"

    def declare(app: Fairlead) -> None:
        app.model("shout", limit=1, backoff=[0.01])(shout)

    async with fronts(tmp_path, declare) as (_, client):
        stream = await client.responses.create(model="shout", input="hey", background=True, stream=True)
        seen: list[Any] = [each async for each in stream]
        assert seen[-1].type == "response.completed"
        assert seen[-1].response.output_text == "HEY!"
        assert [each.sequence_number for each in seen] == sorted({each.sequence_number for each in seen})
        assert (await client.responses.create(model="shout", input="hey")).output_text == "HEY!"
        with pytest.raises(openai.BadRequestError, match="conversation"):
            await client.responses.create(model="shout", input="hey", conversation="conv_1")
