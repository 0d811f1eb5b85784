"""Two gateways and two workers on PostgreSQL and Redis, of which one each is killed in the middle of requests."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import signal
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
from openai.types.chat import ChatCompletionChunk

from tests.integration.cli_process import Up, running
from tests.integration.openai_site import HELLO
from tests.openai_upstream import WORDS, running_upstream
from tests.redis_servers import port_of, start_server

SLOTS, USERS, EACH = 4, 6, 3
CONFIG = """
[services.llama]
openai = "{url}"
limit = {slots}
lease_ttl = 2
timeout = 8
backoff = [0.1]
"""


@pytest.fixture
def engines(database: str) -> dict[str, str]:
    client = start_server()
    client.close()
    return {"DATABASE_URL": database, "REDIS_URL": f"redis://127.0.0.1:{port_of(client)}/0"}


@asynccontextmanager
async def balanced(*servers: Up, port: int = 0) -> AsyncIterator[str]:
    """A load balancer: each connection goes to the next server that accepts it."""
    ports = itertools.cycle([int(server.url.rpartition(":")[2]) for server in servers])

    async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(65536):
                target.write(data)
                await target.drain()
        target.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in servers:
            with contextlib.suppress(OSError):
                there, back = await asyncio.open_connection("127.0.0.1", next(ports))
                await asyncio.gather(copy(reader, back), copy(there, writer))
                return
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", port)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


async def test_every_request_gets_its_answer_while_a_gateway_and_a_worker_are_killed(
    tmp_path: Path, engines: dict[str, str]
) -> None:
    async with running_upstream("llama") as upstream:
        (tmp_path / "fairlead.toml").write_text(CONFIG.format(url=upstream.url, slots=SLOTS))
        with ExitStack() as stack:
            _, doomed_worker, _, doomed_gateway, gateway = (
                stack.enter_context(running(role, tmp_path, "--config", "fairlead.toml", env=engines))
                for role in ("manager", "worker", "worker", "api", "api")
            )
            async with (
                balanced(doomed_gateway, gateway) as base,
                openai.AsyncOpenAI(base_url=f"{base}/v1", api_key="any", max_retries=4, timeout=90) as client,
            ):
                upstream.gate.clear()
                asked = [
                    asyncio.create_task(client.chat.completions.create(model="llama", messages=HELLO, user=f"u{user}"))
                    for user in range(USERS)
                    for _ in range(EACH)
                ]
                await upstream.reaches(open=SLOTS)
                doomed_gateway.signal(signal.SIGKILL)
                doomed_worker.signal(signal.SIGKILL)
                await asyncio.sleep(0.5)  # the connections of the killed worker end
                upstream.gate.set()
                answers = await asyncio.gather(*asked)
            assert [answer.choices[0].message.content for answer in answers] == ["".join(WORDS)] * (USERS * EACH)
            assert upstream.most <= SLOTS
            async with httpx2.AsyncClient(base_url=gateway.url, trust_env=False, timeout=30) as http:
                jobs = (await http.get("/api/v1/jobs", params={"limit": 100})).json()["data"]
                assert [job["status"] for job in jobs] == ["COMPLETED"] * (USERS * EACH), "no request became two jobs"
                whole = [(await http.get(f"/api/v1/jobs/{job['job_id']}")).json() for job in jobs]
            assert len(upstream.calls) == sum(1 + len(job["attempts"]) for job in whole)


async def test_a_process_that_is_killed_before_it_accepts_a_request_leaves_no_slot_taken(
    tmp_path: Path, engines: dict[str, str]
) -> None:
    """It is gateway and worker, and dies between the claim of the only slot and the commit. The client's own retry goes
    to another process, which gets the slot once the lease is taken back."""
    doomed_env = {**engines, "FAIRLEAD_FAILPOINT": "after_claim", "FAIRLEAD_FAILPOINT_AFTER": "1"}
    async with running_upstream("llama") as upstream:
        (tmp_path / "fairlead.toml").write_text(CONFIG.format(url=upstream.url, slots=1))
        with ExitStack() as stack:
            doomed, other = (
                stack.enter_context(running("up", tmp_path, "--config", "fairlead.toml", env=env))
                for env in (doomed_env, engines)
            )
            async with (
                balanced(doomed, other) as base,
                openai.AsyncOpenAI(base_url=f"{other.url}/v1", api_key="any", max_retries=0) as direct,
                openai.AsyncOpenAI(base_url=f"{base}/v1", api_key="any", max_retries=4, timeout=60) as client,
            ):
                await direct.chat.completions.create(model="llama", messages=HELLO)
                answer = await client.chat.completions.create(model="llama", messages=HELLO, user="bob")
            assert doomed.ended() == -signal.SIGKILL
            assert answer.choices[0].message.content == "".join(WORDS)
            async with httpx2.AsyncClient(base_url=other.url, trust_env=False, timeout=30) as http:
                jobs = (await http.get("/api/v1/jobs", params={"limit": 100})).json()["data"]
                ended = await http.get(f"/api/v1/jobs/{jobs[0]['job_id']}")
            assert [job["status"] for job in jobs] == ["COMPLETED"] * 2
            assert ended.json()["attempts"] == []
            assert (len(upstream.calls), upstream.most) == (2, 1)


async def test_a_stream_passes_through_processes_and_ends_with_an_error_if_its_worker_is_killed(
    tmp_path: Path, engines: dict[str, str]
) -> None:
    async with running_upstream("llama") as upstream:
        (tmp_path / "fairlead.toml").write_text(CONFIG.format(url=upstream.url, slots=SLOTS))
        with ExitStack() as stack:
            _, _, doomed, gateway = (
                stack.enter_context(running(role, tmp_path, "--config", "fairlead.toml", env=engines))
                for role in ("manager", "worker", "worker", "api")
            )
            async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="any", max_retries=0) as client:
                create = client.chat.completions.create
                stream = await create(model="llama", messages=HELLO, stream=True)
                assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == "".join(WORDS)
                upstream.gate.clear()
                streams = [await create(model="llama", messages=HELLO, stream=True, user=f"u{n}") for n in range(SLOTS)]
                await upstream.reaches(open=SLOTS)
                doomed.signal(signal.SIGKILL)
                await asyncio.sleep(0.5)
                upstream.gate.set()
                ended = await asyncio.gather(*(text_of(stream) for stream in streams))
            assert set(ended) <= {"".join(WORDS), "lost"}, ended
            assert upstream.most <= SLOTS


async def test_background_responses_survive_a_worker_and_a_gateway_that_are_killed(
    tmp_path: Path, engines: dict[str, str]
) -> None:
    """Streams are cut by the death of their gateway, and resumed at another one. The calls of the killed worker are
    made again: their events have greater numbers, and begin with an empty response."""
    async with running_upstream("llama") as upstream:
        upstream.chat_only = True
        (tmp_path / "fairlead.toml").write_text(CONFIG.format(url=upstream.url, slots=SLOTS))
        with ExitStack() as stack:
            _, doomed_worker, _, doomed_gateway, gateway = (
                stack.enter_context(running(role, tmp_path, "--config", "fairlead.toml", env=engines))
                for role in ("manager", "worker", "worker", "api", "api")
            )
            first = openai.AsyncOpenAI(base_url=f"{doomed_gateway.url}/v1", api_key="any", max_retries=0)
            second = openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="any", max_retries=0)
            async with first, second:
                upstream.gate.clear()
                streams = [
                    await first.responses.create(model="llama", input="Hi", background=True, stream=True)
                    for _ in range(SLOTS)
                ]
                polled = await first.responses.create(model="llama", input="Hi", background=True)
                begun = [asyncio.create_task(events_of(stream)) for stream in streams]
                await upstream.reaches(open=SLOTS)
                doomed_worker.signal(signal.SIGKILL)
                doomed_gateway.signal(signal.SIGKILL)
                cut = await asyncio.gather(*begun)
                upstream.gate.set()
                for seen in cut:
                    assert seen[-1].type not in LAST
                    id_, after = seen[0].response.id, seen[-1].sequence_number
                    rest = await second.responses.retrieve(id_, stream=True, starting_after=after)
                    seen += await events_of(rest)
                    numbers = [event.sequence_number for event in seen]
                    assert numbers == sorted(set(numbers))
                    assert seen[-1].type == "response.completed"
                    assert seen[-1].response.output_text == "".join(WORDS)
                    restarted = max(at for at, event in enumerate(seen) if event.type == "response.in_progress")
                    deltas = [event.delta for event in seen[restarted:] if event.type == "response.output_text.delta"]
                    assert "".join(deltas) == "".join(WORDS)
                async with asyncio.timeout(60):
                    while polled.status in ("queued", "in_progress"):
                        await asyncio.sleep(0.1)
                        polled = await second.responses.retrieve(polled.id)
                assert polled.output_text == "".join(WORDS)
            assert upstream.most <= SLOTS


LAST = frozenset({"response.completed", "response.failed", "response.incomplete", "response.cancelled"})


async def events_of(stream: Any) -> list[Any]:
    """The events until the stream ends or its connection is lost."""
    seen = []
    with contextlib.suppress(openai.APIConnectionError, httpx2.TransportError):
        async for event in stream:
            seen.append(event)  # noqa: PERF401 - the connection may be lost
    return seen


async def text_of(stream: openai.AsyncStream[ChatCompletionChunk]) -> str:
    try:
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
    except openai.APIError as error:
        return str(error.code)
