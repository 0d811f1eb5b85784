"""The output of jobs over HTTP and WebSockets, and through the clients."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import orjson
import pytest

from fairlead import AsyncClient, Chunk, Client, Config, Fairlead, JobFailed, Restart, Retry
from fairlead.client import patience
from fairlead.config import Settings
from fairlead.domain.access import Role
from fairlead.engine.events import output_topic_of
from fairlead.engine.roles import Roles
from fairlead.errors import TooManyReaders
from fairlead.gateway import output
from fairlead.gateway.app import create_gateway
from tests.integration.gateway_site import served
from tests.integration.talker import PATIENCE, Talker
from tests.integration.websocket_client import next_event, next_of, refused, until_closed, watching

UNKNOWN = "0190d0c5-7b5a-7cc0-b1f0-3f8f4c9d2a10"
Event = dict[str, str]


@dataclass
class Site:
    app: Fairlead
    talker: Talker
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    app = Fairlead(Settings(Config(), f"sqlite:///{tmp_path}/jobs.db"))
    talker = Talker(app, max_attempts=2)
    async with app.running(), served(create_gateway(app)) as port:
        yield Site(app, talker, port)


@asynccontextmanager
async def reading(
    site: Site, job_id: str, query: str = "", **headers: str
) -> AsyncIterator[tuple[httpx2.Response, AsyncIterator[Event]]]:
    url = f"{site.url}/api/v1/jobs/{job_id}/output{query}"
    async with (
        asyncio.timeout(PATIENCE),
        httpx2.AsyncClient(timeout=PATIENCE) as client,
        client.stream("GET", url, headers=headers) as response,
    ):
        yield response, events_of(response)


async def events_of(response: httpx2.Response) -> AsyncIterator[Event]:
    """The events; a comment has the only field `""`."""
    event: Event = {}
    async for line in response.aiter_lines():
        if line:
            name, _, value = line.partition(":")
            event[name] = value.removeprefix(" ")
        else:
            if event.keys() != {"retry"}:
                yield event
            event = {}


def data(event: Event) -> Any:
    body = orjson.loads(event["data"])
    assert body["type"] == event["event"]
    return body


async def read(site: Site, job_id: str, query: str = "", **headers: str) -> list[Any]:
    async with reading(site, job_id, query, **headers) as (_, events):
        return [data(event) async for event in events]


def texts(events: list[Any]) -> list[Any]:
    return [event.get("data", event["type"]) for event in events]


# ------------------------------------------------------------ Server-Sent Events


async def test_chunks_are_events_with_their_position_as_id(site: Site) -> None:
    job = await site.app.submit("talk", user_id="ada")
    async with reading(site, job.id) as (response, events):
        assert response.headers["content-type"].startswith("text/event-stream")
        site.talker.say("Hel\nlo")
        first = await anext(events)
        assert first["event"] == "chunk"
        assert data(first) == {
            "type": "chunk", "position": first["id"], "step_index": 0, "attempt": 1, "data": "Hel\nlo",
        }  # fmt: skip
        site.talker.say({"n": 1}, None)
        second, end = await anext(events), await anext(events)
        assert data(second)["data"] == {"n": 1}
        assert (end["event"], end["id"]) == ("end", "end")
        assert data(end) == {"type": "end", "job_id": job.id, "status": "COMPLETED", "error": None}
        assert [event async for event in events] == []
    assert texts(await read(site, job.id, **{"Last-Event-ID": first["id"]})) == [{"n": 1}, "end"]
    assert texts(await read(site, job.id, f"?after={first['id']}")) == [{"n": 1}, "end"]
    assert texts(await read(site, job.id, f"?after={first['id']}", **{"Last-Event-ID": second["id"]})) == ["end"]
    async with reading(site, job.id, **{"Last-Event-ID": "end"}) as (response, _):
        assert response.status_code == 204


async def test_a_restart_has_no_id(site: Site) -> None:
    job = await site.app.submit("talk", user_id="ada")
    async with reading(site, job.id) as (_, events):
        site.talker.say("a")
        await anext(events)
        site.talker.say(Retry(0), "A", None)
        restart = await anext(events)
        assert "id" not in restart
        assert data(restart) == {"type": "restart", "step_index": 0}
        assert data(await anext(events))["attempt"] == 2


async def test_a_failed_job_ends_with_its_error(site: Site) -> None:
    job = await site.app.submit("talk", user_id="ada")
    site.talker.say("a", ValueError("one"), "b", ValueError("two"))
    *_, end = await read(site, job.id)
    assert (end["type"], end["status"]) == ("end", "FAILED")
    assert "two" in end["error"]["message"]


async def test_a_comment_keeps_the_connection_open(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "HEARTBEAT_S", 0.01)
    job = await site.app.submit("talk", user_id="ada")
    async with reading(site, job.id) as (_, events):
        assert await anext(events) == {"": "keep-alive"}
        assert await anext(events) == {"": "keep-alive"}


@pytest.mark.parametrize(("query", "status"), [("?after=x", 422), ("?after=1-2-3", 422), ("?after=" + "9" * 50, 422)])
async def test_a_bad_position_is_refused(site: Site, query: str, status: int) -> None:
    job = await site.app.submit("talk", user_id="ada")
    async with reading(site, job.id, query) as (response, _):
        assert response.status_code == status
    async with reading(site, UNKNOWN) as (response, _):
        assert response.status_code == 404


async def test_a_user_cannot_read_the_output_of_another(tmp_path: Path) -> None:
    app = Fairlead(Settings(Config(), f"sqlite:///{tmp_path}/jobs.db", "x" * 40))
    talker = Talker(app)
    async with app.running(), served(create_gateway(app)) as port:
        site = Site(app, talker, port)
        keys = {user: (await app.create_key(Role.USER, user_id=user, name=user)).text for user in ("ada", "bob")}
        job = await app.submit("talk", user_id="ada")
        talker.say("secret", None)
        await job.result(PATIENCE)
        statuses = {}
        for user, key in keys.items():
            async with reading(site, job.id, Authorization=f"Bearer {key}") as (response, _):
                statuses[user] = response.status_code
        assert statuses == {"ada": 200, "bob": 404}


# ------------------------------------------------------------ WebSockets


async def test_a_socket_of_one_job_has_its_output_if_asked_for(site: Site) -> None:
    job = await site.app.submit("talk", user_id="ada")
    async with watching(site.port, f"/ws/{job.id}?output=true") as one, watching(site.port, f"/ws/{job.id}") as other:
        await next_of(one, "SNAPSHOT")
        site.talker.say("a")
        chunk = await next_of(one, "OUTPUT")
        assert (chunk["job_id"], chunk["data"], chunk["step_index"]) == (job.id, "a", 0)
        site.talker.say(Retry(0), "A", "B", None)
        seen, code = await until_closed(one)
        assert code == 1000
        kinds = [
            event["type"] for event in seen if event["type"].startswith("OUTPUT") or event["type"] == "JOB_COMPLETE"
        ]
        assert kinds == ["OUTPUT_RESTART", "OUTPUT", "OUTPUT", "JOB_COMPLETE"]
        quiet, _ = await until_closed(other)
        assert not [event for event in quiet if event["type"].startswith("OUTPUT")]
    async with watching(site.port, f"/ws/{job.id}?output=1&after={chunk['position']}") as late:
        seen, _ = await until_closed(late)
        assert [event["type"] for event in seen] == ["SNAPSHOT", "OUTPUT_RESTART", "OUTPUT", "OUTPUT", "JOB_COMPLETE"]
    assert await refused(site.port, f"/ws/{job.id}?output=1&after=x") == (422, "invalid_input")


async def test_a_socket_asks_for_the_output_of_jobs(site: Site) -> None:
    job = await site.app.submit("talk", user_id="ada")
    async with watching(site.port, "/ws?user_id=ada") as client:
        await next_event(client)
        await client.send(orjson.dumps({"watch": job.id, "output": True}).decode())
        site.talker.say(*"abc", None)
        seen = [await next_of(client, "OUTPUT", "JOB_COMPLETE") for _ in range(4)]
        assert [event.get("data", event["type"]) for event in seen] == ["a", "b", "c", "JOB_COMPLETE"]
        for bad in ({"watch": job.id, "output": 1}, {"watch": job.id, "more": True}):
            await client.send(orjson.dumps(bad).decode())
            assert (await next_of(client, "ERROR"))["code"] == "bad_frame"


async def test_a_long_output_does_not_drop_a_socket(site: Site) -> None:
    """The output waits for the reader; it does not fill the reader's buffer of events."""
    job = await site.app.submit("talk", user_id="ada")
    site.talker.say(*range(2000), None)
    await job.result(PATIENCE)
    async with watching(site.port, f"/ws/{job.id}?output=true") as client:
        seen, code = await until_closed(client)
    assert code == 1000
    assert [event["data"] for event in seen if event["type"] == "OUTPUT"] == list(range(2000))
    assert seen[-1]["type"] == "JOB_COMPLETE"


# ------------------------------------------------------------ clients


async def test_the_client_streams(site: Site) -> None:
    async with AsyncClient(site.url) as client:
        job = await client.submit("talk", user_id="ada")
        site.talker.say("one ", "two")
        got: list[str] = []
        async with aclosing(client.stream(job)) as chunks:  # type: ignore[type-var]
            async for chunk in chunks:
                got.append(str(chunk))
                if len(got) == 2:
                    site.talker.say(None)
        assert got == ["one ", "two"]
        assert await job.result(PATIENCE) == "one two"
        failing = await client.submit("talk", user_id="ada")
        site.talker.say("a", ValueError("no"), "b", ValueError("no"))
        with pytest.raises(JobFailed):
            assert [str(chunk) async for chunk in failing.stream()] == []


def test_the_synchronous_client_streams(tmp_path: Path) -> None:
    async def run() -> list[Any]:
        app = Fairlead(Settings(Config(), f"sqlite:///{tmp_path}/jobs.db"))
        talker = Talker(app)
        async with app.running(), served(create_gateway(app)) as port:
            talker.say("one ", {"n": 2}, None)

            def in_thread() -> list[Any]:
                with Client(f"http://127.0.0.1:{port}") as client:
                    job = client.submit("talk", user_id="ada")
                    return [chunk.data for chunk in client.stream(job.id) if isinstance(chunk, Chunk)]

            return await asyncio.to_thread(in_thread)

    assert asyncio.run(run()) == ["one ", {"n": 2}]


async def test_a_reader_that_is_cut_continues_at_another_gateway(
    distributed: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection breaks after chunk 40, and the next one goes to another gateway."""
    monkeypatch.setattr(patience, "FIRST_PAUSE", 0.01)
    async with AsyncExitStack() as stack:

        async def process(roles: Roles) -> tuple[Fairlead, Talker]:
            app = Fairlead(Config(), **distributed)
            talker = Talker(app)
            await stack.enter_async_context(app.running(roles))
            return app, talker

        _, talker = await process(Roles(api=False))
        gateways = [(await process(Roles(worker=False, manager=False)))[0] for _ in range(2)]
        ports = [await stack.enter_async_context(served(create_gateway(app))) for app in gateways]
        job = await gateways[0].submit("talk", user_id="ada")
        talker.say(*range(41))
        site = Site(gateways[0], talker, ports[0])
        async with reading(site, job.id) as (_, events):
            received = [data(await anext(events)) for _ in range(41)]
        talker.say(*range(41, 60), None)
        site.port = ports[1]
        rest = await read(site, job.id, **{"Last-Event-ID": received[-1]["position"]})
        assert texts(received + rest) == [*range(60), "end"]


async def test_positions_and_restarts_survive_the_client(site: Site) -> None:
    async with AsyncClient(site.url) as client:
        job = await client.submit("talk", user_id="ada")
        site.talker.say("a")
        chunks = client.stream(job)
        first = await anext(chunks)
        assert isinstance(first, Chunk)
        site.talker.say(Retry(0), "A", None)
        assert [each if isinstance(each, Restart) else str(each) async for each in chunks] == [Restart(0), "A"]
        again = [each async for each in client.stream(job, after=first.position)]
        assert again[0] == Restart(0)


async def test_the_readers_of_one_output_are_bounded(tmp_path: Path) -> None:
    config = Config.model_validate({"server": {"max_output_readers": 2}})
    app = Fairlead(Settings(config, f"sqlite:///{tmp_path}/jobs.db"))
    talker = Talker(app)
    async with app.running(), served(create_gateway(app)) as port:
        site = Site(app, talker, port)
        job = await app.submit("talk", user_id="ada")
        talker.say("one")
        async with reading(site, job.id) as (_, first), reading(site, job.id) as (_, second):
            assert [texts([data(await anext(each))]) for each in (first, second)] == [["one"]] * 2
            async with httpx2.AsyncClient(base_url=site.url) as client:
                late = await client.get(f"/api/v1/jobs/{job.id}/output")
                assert (late.status_code, late.json()["code"]) == (429, "too_many_readers")
                assert late.headers["retry-after"] == "5"
            with pytest.raises(TooManyReaders, match="max_output_readers"):
                app.output(job.id)
            stream = app.feed(lambda job: True)
            with closing(stream), pytest.raises(TooManyReaders):
                await stream.watch(job.id, output=True)
            assert app.hub.readers_of(job.id) == 2, "a refused reader follows nothing"
        async with asyncio.timeout(PATIENCE):
            while app.hub.readers_of(output_topic_of(job.id)):
                await asyncio.sleep(0.01)
        talker.say(None)
        assert texts(await read(site, job.id)) == ["one", "end"]
