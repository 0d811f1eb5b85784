"""Two gateways and two workers on PostgreSQL and Redis, of which one each is killed in the middle of requests."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import signal
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

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
async def balanced(*servers: Up) -> AsyncIterator[str]:
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

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
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


async def text_of(stream: openai.AsyncStream[ChatCompletionChunk]) -> str:
    try:
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
    except openai.APIError as error:
        return str(error.code)
