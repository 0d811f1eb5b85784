"""A batch of 50,000 lines from a file: the memory of each process, the time of each phase, and what requests that are
not part of the batch wait with and without it.

    python -m bench.batches [--engine sqlite|postgres] [--lines 50000] [--bytes 4000] [--call 0.05] [--vary 0.0]
                            [--seconds 20] [--cancel]
    python -m bench.batches --to-end [--engine sqlite|postgres] [--lines 50000] [--bytes 4000]

The upstream takes `--call` seconds for each call, more or less by the share `--vary`, and the service has a limit of 8.
Requests of 20 users arrive at random, and would use half of the slots. A request may wait for one call more while the
batch runs, because running calls go on. If all calls take equally long, they begin and end together after a while, and
most requests wait for nearly a whole call; `begun together` is the mean number of calls that begin within 8 ms of each
other, as a call sees it.

With `--to-end`, the upstream answers at once and the batch runs alone, to its end, by OpenAI's client. The output
file must have each line of the input once, in the same order.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Any

import httpx2
import orjson
from aiohttp import web
from openai import AsyncOpenAI

from bench.front.upstream import ANSWER, LIST, MODEL
from bench.scenarios.http import free_port
from bench.servers import Servers

CHAT = "/v1/chat/completions"
LIMIT, USERS = 8, 20
TOGETHER_S = 0.008
CONFIG = """
[services.bench]
openai = "{upstream}"
limit = {limit}

[artifacts]
url = "{files}"
"""


class Begun:
    """The times at which calls began."""

    def __init__(self) -> None:
        self._times: list[float] = []

    def note(self) -> None:
        self._times.append(time.perf_counter())

    def together(self) -> float:
        """How many calls began together, as a call sees it: the mean over all calls since the last time."""
        times, self._times = self._times, []
        groups: list[int] = []
        for before, at in pairwise([-inf, *times]):
            if at - before < TOGETHER_S:
                groups[-1] += 1
            else:
                groups.append(1)
        return sum(size * size for size in groups) / max(1, len(times))


@asynccontextmanager
async def upstream(seconds: float, vary: float, begun: Begun) -> AsyncIterator[str]:
    chance = random.Random(2)

    async def chat(request: web.Request) -> web.Response:
        await request.read()
        begun.note()
        await asyncio.sleep(seconds * chance.uniform(1 - vary, 1 + vary))
        return web.Response(body=ANSWER, content_type="application/json")

    async def models(request: web.Request) -> web.Response:
        return web.Response(body=LIST, content_type="application/json")

    app = web.Application()
    app.router.add_post(CHAT, chat)
    app.router.add_get("/v1/models", models)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    finally:
        await runner.cleanup()


class Site:
    """The processes of the site by name, and the URL of its gateway."""

    def __init__(self, url: str, processes: dict[str, subprocess.Popen[bytes]]) -> None:
        self.url = url
        self.processes = processes

    def peaks(self) -> dict[str, float]:
        """The most memory that each process had so far, in MB."""
        return {name: _status(process.pid, "VmHWM") for name, process in self.processes.items()}


def _status(pid: int, name: str) -> float:
    text = Path(f"/proc/{pid}/status").read_text("ascii")
    (line,) = (line for line in text.splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) / 1024


@contextmanager
def site(folder: Path, engine: str, url: str) -> Iterator[Site]:
    (folder / "fairlead.toml").write_text(CONFIG.format(upstream=url, limit=LIMIT, files=folder / "files"))
    port = free_port()
    environment = {**os.environ, "DATABASE_URL": f"sqlite:///{folder}/bench.db"}
    roles = {"up": ["--port", str(port)]}
    if engine == "postgres":
        servers = Servers()
        environment |= {"DATABASE_URL": servers.fresh(), "REDIS_URL": servers.redis_url}
        roles = {"api": ["--port", str(port)], "worker": [], "manager": []}
    with ExitStack() as stack:
        processes = {}
        for role, options in roles.items():
            command = [sys.executable, "-m", "fairlead.cli", role, "--log-level", "warning", *options]
            process = subprocess.Popen(command, cwd=folder, env=environment)
            stack.callback(_stop, process)
            processes[role] = process
        yield Site(f"http://127.0.0.1:{port}", processes)


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


async def ready(client: httpx2.AsyncClient) -> None:
    async with asyncio.timeout(60):
        while True:
            try:
                if (await client.get("/readyz")).status_code == 200:
                    return
            except httpx2.TransportError:
                pass
            await asyncio.sleep(0.2)


def write_input(path: Path, lines: int, size: int) -> None:
    with path.open("wb") as file:
        for number in range(lines):
            body = {"model": MODEL, "messages": [{"role": "user", "content": "x" * max(1, size - 150)}]}
            request = {"custom_id": f"request-{number}", "method": "POST", "url": CHAT, "body": body}
            file.write(orjson.dumps(request, option=orjson.OPT_APPEND_NEWLINE))


async def waits(client: httpx2.AsyncClient, seconds: float, call: float) -> list[float]:
    """How long requests of users take that arrive at random for this time."""
    chance, took = random.Random(1), []

    async def ask(user: int) -> None:
        began = time.perf_counter()
        body = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}], "user": f"u{user}"}
        (await client.post(CHAT, json=body)).raise_for_status()
        took.append(time.perf_counter() - began)

    until = time.perf_counter() + seconds
    async with asyncio.TaskGroup() as group:
        while time.perf_counter() < until:
            group.create_task(ask(chance.randrange(USERS)))
            await asyncio.sleep(chance.expovariate(LIMIT / 2 / call))
    return sorted(took)


def shown(took: list[float]) -> str:
    p50, p95, p99 = (took[len(took) * share // 100] * 1000 for share in (50, 95, 99))
    return f"{len(took)} requests, p50 {p50:.0f} ms, p95 {p95:.0f} ms, p99 {p99:.0f} ms"


async def poll(client: httpx2.AsyncClient, batch_id: str, *statuses: str) -> dict[str, Any]:
    while True:
        batch: dict[str, Any] = (await client.get(f"/v1/batches/{batch_id}")).json()
        if batch["status"] in statuses:
            return batch
        await asyncio.sleep(0.2)


async def run(options: argparse.Namespace, folder: Path) -> None:
    path = folder / "requests.jsonl"
    write_input(path, options.lines, options.bytes)
    begun = Begun()
    async with upstream(options.call, options.vary, begun) as url:
        with site(folder, options.engine, url) as running:
            limits = httpx2.Limits(max_connections=500)
            async with httpx2.AsyncClient(base_url=running.url, timeout=600, limits=limits) as client:
                await ready(client)
                await waits(client, 2.0, options.call)
                begun.together()
                await measure(client, running, options, path, begun)


async def measure(
    client: httpx2.AsyncClient, running: Site, options: argparse.Namespace, path: Path, begun: Begun
) -> None:
    def report(what: str, began: float) -> None:
        peaks = ", ".join(f"{name} {peak:.0f} MB" for name, peak in running.peaks().items())
        print(f"{what}: {time.perf_counter() - began:.1f} s; peak memory: {peaks}", flush=True)

    alone = await waits(client, options.seconds, options.call)
    print(f"without a batch: {shown(alone)}, begun together {begun.together():.1f}", flush=True)
    began = time.perf_counter()
    with path.open("rb") as file:
        fields = {"files": {"file": ("requests.jsonl", file)}, "data": {"purpose": "batch"}}
        uploaded = (await client.post("/v1/files", **fields)).json()
    report(f"upload of {uploaded['bytes'] / 1e6:.0f} MB", began)
    began = time.perf_counter()
    fields = {"input_file_id": uploaded["id"], "endpoint": CHAT, "completion_window": "24h"}
    batch = (await client.post("/v1/batches", json=fields)).json()
    report(f"create, {batch['fairlead']}", began)
    began = time.perf_counter()
    batch = await poll(client, batch["id"], "in_progress", "failed")
    report(f"validation of {batch['request_counts']['total']} lines", began)
    began = time.perf_counter()
    begun.together()
    beside = await waits(client, options.seconds, options.call)
    together = begun.together()
    batch = await poll(client, batch["id"], "in_progress", "finalizing", "completed")
    print(f"with a batch, {batch['status']} {batch['request_counts']}: {shown(beside)}, begun together {together:.1f}")
    grown = beside[len(beside) * 95 // 100] - alone[len(alone) * 95 // 100]
    print(f"p95 grows by {grown / options.call:.2f} calls of {options.call} s", flush=True)
    report("in progress so far", began)
    if options.cancel:
        await client.post(f"/v1/batches/{batch['id']}/cancel")
    batch = await poll(client, batch["id"], "completed", "cancelled")
    report(f"{batch['status']} {batch['request_counts']}", began)
    began, size = time.perf_counter(), 0
    for file_id in (batch["output_file_id"], batch["error_file_id"]):
        if file_id is not None:
            async with client.stream("GET", f"/v1/files/{file_id}/content") as response:
                async for piece in response.aiter_bytes():
                    size += len(piece)
    report(f"download of {size / 1e6:.0f} MB", began)


# ---------------------------------------------------------------- to the end


@contextmanager
def fast_upstream(port: int) -> Iterator[None]:
    process = subprocess.Popen([sys.executable, "-m", "bench.front.upstream", str(port)])
    try:
        yield
    finally:
        _stop(process)


async def run_to_end(options: argparse.Namespace, folder: Path) -> None:
    path, port = folder / "requests.jsonl", free_port()
    write_input(path, options.lines, options.bytes)
    with ExitStack() as stack:
        stack.enter_context(fast_upstream(port))
        running = stack.enter_context(site(folder, options.engine, f"http://127.0.0.1:{port}/v1"))
        async with httpx2.AsyncClient(base_url=running.url, timeout=600) as client:
            await ready(client)
        async with AsyncOpenAI(base_url=f"{running.url}/v1", api_key="any") as openai:
            await follow_to_end(openai, running, options.lines, path)


async def follow_to_end(openai: AsyncOpenAI, running: Site, lines: int, path: Path) -> None:
    began = {"upload": time.perf_counter()}
    file = await openai.files.create(file=path, purpose="batch")
    batch = await openai.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
    while batch.status not in ("completed", "failed", "expired", "cancelled"):
        began.setdefault(batch.status, time.perf_counter())
        await asyncio.sleep(0.2)
        batch = await openai.batches.retrieve(batch.id)
    began |= {"download": time.perf_counter()}
    assert batch.output_file_id is not None, (batch.errors, batch.error_file_id)
    found = 0
    async with openai.files.with_streaming_response.content(batch.output_file_id) as content:
        async for line in content.iter_lines():
            result = orjson.loads(line)
            assert result["custom_id"] == f"request-{found}", (result["custom_id"], found)
            assert result["response"]["status_code"] == 200, result
            found += 1
    began |= {"end": time.perf_counter()}
    assert (batch.error_file_id, found) == (None, lines), (batch, found)
    for (phase, since), until in zip(began.items(), list(began.values())[1:], strict=False):
        print(f"{phase}: {until - since:.1f} s")
    took = began["finalizing"] - began["in_progress"]
    print(f"{found} lines, {found / took:.0f} lines/s in progress, {began['end'] - began['upload']:.0f} s in all")
    print("peak memory:", ", ".join(f"{name} {peak:.0f} MB" for name, peak in running.peaks().items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", choices=("sqlite", "postgres"), default="sqlite")
    parser.add_argument("--lines", type=int, default=50_000)
    parser.add_argument("--bytes", type=int, default=4000, help="of each line")
    parser.add_argument("--call", type=float, default=0.05, help="seconds that the upstream takes")
    parser.add_argument("--vary", type=float, default=0.0, help="share by which calls take more or less time")
    parser.add_argument("--seconds", type=float, default=20.0, help="for which requests of users are sent")
    parser.add_argument("--to-end", action="store_true", help="run a batch alone to its end, and check its output")
    parser.add_argument("--cancel", action="store_true", help="cancel the batch after that, instead of waiting for it")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run((run_to_end if options.to_end else run)(options, Path(folder)))


if __name__ == "__main__":
    main()
