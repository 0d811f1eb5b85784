"""Streams of the Replicate front: events, resumption, output that begins again, and kills."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import orjson
import pytest

from fairlead import Permanent
from fairlead.artifacts.files import NewFile
from fairlead.errors import Retry
from tests.integration.cli_process import running, up
from tests.integration.replicate_site import Site, async_client_of, open_site
from tests.integration.test_openai_distributed import balanced
from tests.integration.test_openai_distributed import engines as environment
from tests.integration.test_replicate_front import read

__all__ = ["environment"]
PATIENCE_S = 30.0


@pytest.fixture
async def site(engines: dict[str, str]) -> AsyncIterator[Site]:
    async with open_site(engines) as opened:
        yield opened


@dataclass
class Events:
    """What one connection has received."""

    got: list[tuple[str, str]] = field(default_factory=list)
    comments: list[str] = field(default_factory=list)
    last_id: str = ""

    @property
    def text(self) -> str:
        return "".join(data for kind, data in self.got if kind == "output")


@dataclass
class Connection:
    status: int
    lines: AsyncIterator[str]


async def follow(connection: Connection, events: Events, until: int | None = None) -> None:
    """Read events until the end, or until there are this many."""
    assert connection.status == 200
    kind, data = "", []
    async for line in connection.lines:
        name, _, value = line.partition(": ")
        if name == "event":
            kind = value
        elif name == "id":
            events.last_id = value
        elif name == "data":
            data.append(value)
        elif not name and value:
            events.comments.append(value)
        elif not line and kind:
            events.got.append((kind, "\n".join(data)))
            kind, data = "", []
            if until is not None and len(events.got) >= until:
                return


@asynccontextmanager
async def streaming(url: str, last_id: str = "") -> AsyncIterator[Connection]:
    headers = {"Last-Event-ID": last_id} if last_id else {}
    async with (
        asyncio.timeout(PATIENCE_S),
        httpx2.AsyncClient(trust_env=False, timeout=PATIENCE_S) as http,
        http.stream("GET", url, headers=headers) as response,
    ):
        yield Connection(response.status_code, response.aiter_lines())


async def all_of(url: str, last_id: str = "") -> Events:
    events = Events()
    async with streaming(url, last_id) as connection:
        await follow(connection, events)
    return events


async def started(site: Site, model: str = "acme/llama") -> Any:
    return await site.client.predictions.async_create(model=model, input={}, stream=True)


async def test_the_client_streams_text(site: Site) -> None:
    site.talker.say("Hello\n", "wor", {"n": 1}, "ld\u2028\r\n", None)
    events = [event async for event in await site.client.async_stream("acme/llama", input={})]
    assert [event.event.value for event in events] == ["output"] * 4 + ["done"]
    assert [event.data for event in events] == ["Hello\n", "wor", '{"n":1}', "ld\n\n", "{}"]
    assert "".join(str(event) for event in events[:2]) == "Hello\nwor"


async def test_results_of_services_that_do_not_stream_are_streamed(site: Site) -> None:
    many = await all_of((await started(site, "acme/many")).urls["stream"])
    assert many.got == [("output", "one\ntwo"), ("output", "three"), ("done", "{}")]
    drawn = await all_of((await started(site, "acme/flux")).urls["stream"])
    assert drawn.got[1:] == [("done", "{}")]
    assert (await read(site, drawn.got[0][1])).startswith(b"\x89PNG")


async def test_a_stream_has_progress_and_place_and_the_way_it_ended(site: Site) -> None:
    first = await started(site, "acme/wait")
    await site.entered.wait()
    second = await started(site, "acme/wait")
    waiting = Events()
    async with streaming(second.urls["stream"]) as connection:
        following = asyncio.create_task(follow(connection, waiting))
        while not any(comment.startswith("queued, position 1") for comment in waiting.comments):
            await asyncio.sleep(0.01)
        site.entered.clear()
        await first.async_cancel()
        await site.entered.wait()
        await second.async_cancel()
        await following
    assert waiting.got == [("logs", "step 38\n 76%|#######   | 76/100\n"), ("done", '{"reason":"canceled"}')]
    with pytest.raises(RuntimeError, match="this input will never work"):
        [event async for event in await site.client.async_stream("acme/broken", input={})]


async def test_a_client_that_reconnects_continues(site: Site) -> None:
    prediction = await started(site)
    url, first, second = prediction.urls["stream"], Events(), Events()
    site.talker.say("one ", "two ")
    async with streaming(url) as connection:
        await follow(connection, first, until=2)
    site.talker.say("three ", None)
    async with streaming(url, first.last_id) as connection:
        await follow(connection, second)
    assert (first.text, second.text) == ("one two ", "three ")
    assert second.got[-1] == ("done", "{}")
    assert (await all_of(url)).text == "one two three "
    async with streaming(url, second.last_id) as connection:
        assert connection.status == 204
    async with streaming(url, "garbage") as connection:
        assert connection.status == 422


@pytest.mark.parametrize("reconnects", [False, True])
async def test_output_that_begins_again_goes_on_if_it_is_the_same(site: Site, reconnects: bool) -> None:
    url, events, rest = (await started(site)).urls["stream"], Events(), Events()
    site.talker.say("one ", "two ")
    async with streaming(url) as connection:
        await follow(connection, events, until=2)
        again: list[Any] = [Retry("lost"), "one two three ", "four", None]
        if not reconnects:
            site.talker.say(*again)
            await follow(connection, rest)
    if reconnects:
        site.talker.say(*again)
        rest = await all_of(url, events.last_id)
    assert events.text + rest.text == "one two three four"
    assert rest.got[-1] == ("done", "{}")


async def test_other_output_ends_the_stream_with_an_error(site: Site) -> None:
    prediction = await started(site)
    events = Events()
    site.talker.say("one ", "two ")
    async with streaming(prediction.urls["stream"]) as connection:
        await follow(connection, events, until=2)
        site.talker.say(Retry("lost"), "uno ", "due ", "tre ", None)
        await follow(connection, events)
    assert [kind for kind, _ in events.got] == ["output", "output", "error", "done"]
    assert "began again" in orjson.loads(events.got[2][1])["detail"]
    await prediction.async_wait()
    assert prediction.output == "uno due tre "


async def test_a_chunk_shows_no_file_of_another_user(site: Site) -> None:
    """A result that names one fails its step. A chunk is sent before that."""

    async def content() -> AsyncIterator[bytes]:
        yield b"secret"

    for user_id, shown in (("ada", False), ("anonymous", True)):
        file = await site.app.files.save(NewFile(user_id, "a.txt"), content())
        prediction = await site.client.predictions.async_create(model="acme/llama", input={})
        site.talker.say({"$file": file.id}, Permanent("the end"))
        async with site.http() as http:
            text = (await http.get(prediction.urls["stream"])).text
        assert file.id in text
        assert (f"/files/{file.id}?ticket=" in text) is shown


async def test_a_failure_after_output_is_an_error(site: Site) -> None:
    url = (await started(site)).urls["stream"]
    site.talker.say("one ", Permanent("no more"))
    events = await all_of(url)
    assert events.got[-2:] == [("error", '{"detail":"no more"}'), ("done", '{"reason":"error"}')]


# ---------------------------------------------------------------- kills


async def test_predictions_and_streams_survive_the_kill_of_their_worker_and_gateway(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    gate, words = tmp_path / "open", ["one ", "two ", "three ", "four"]
    given = {"words": words, "after": 2, "gate": str(gate)}
    with ExitStack() as stack:
        _, doomed_worker, doomed_gateway, gateway = (
            stack.enter_context(running(role, tmp_path, "project:app", env=environment))
            for role in ("manager", "worker", "api", "api")
        )
        async with balanced(doomed_gateway, gateway) as base, async_client_of(base) as client:
            prediction = await client.predictions.async_create(model="acme/talk", input=given)
            stream, first, second = prediction.urls["stream"], Events(), Events()
            direct = stream.replace(base, doomed_gateway.url)
            async with streaming(direct) as connection:
                await follow(connection, first, until=2)
                doomed_gateway.signal(signal.SIGKILL)
                doomed_worker.signal(signal.SIGKILL)
                with pytest.raises(httpx2.TransportError):
                    await follow(connection, first)
            stack.enter_context(running("worker", tmp_path, "project:app", env=environment))
            async with streaming(stream, first.last_id) as connection:
                following = asyncio.create_task(follow(connection, second))
                gate.touch()
                await prediction.async_wait()
                await following
    assert (prediction.status, prediction.output) == ("succeeded", "".join(words))
    assert (first.text, second.text) == ("one two ", "three four")


async def test_a_prediction_and_its_stream_survive_the_kill_of_the_only_process(tmp_path: Path) -> None:
    gate, words = tmp_path / "open", ["one ", "two ", "three ", "four"]
    given = {"words": words, "after": 2, "gate": str(gate)}
    first, second = Events(), Events()
    with up(tmp_path) as process:
        async with async_client_of(process.url) as client:
            prediction = await client.predictions.async_create(model="acme/talk", input=given)
            stream = prediction.urls["stream"]
            async with streaming(stream) as connection:
                await follow(connection, first, until=2)
                process.signal(signal.SIGKILL)
                with pytest.raises(httpx2.TransportError):
                    await follow(connection, first)
        before = process.url
    with up(tmp_path) as process:
        async with async_client_of(process.url) as client:
            async with streaming(stream.replace(before, process.url), first.last_id) as connection:
                gate.touch()
                await follow(connection, second)
            prediction = await client.predictions.async_get(prediction.id)
    assert (prediction.status, prediction.output) == ("succeeded", "".join(words))
    assert (first.text, second.text) == ("one two ", "three four")
