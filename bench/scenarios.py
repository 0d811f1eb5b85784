"""One scenario of the embedded line per call, in a process of its own; prints its figures as one line of JSON.

python bench/scenarios.py NAME [--synchronous full|normal]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from typing import Any

import uvicorn
import uvloop

from fairlead import Call, Config, Fairlead, Submission
from fairlead.gateway.app import create_gateway

USERS = 20
PAYLOAD = {"prompt": "a lighthouse in the fog, oil on canvas", "seed": 1234567}
Figures = dict[str, float]


class Counter:
    """Knows when so many handlers have run."""

    def __init__(self) -> None:
        self.left = 0
        self.done = asyncio.Event()

    def expect(self, count: int) -> None:
        self.left = count
        self.done.clear()

    def one(self) -> None:
        self.left -= 1
        if self.left == 0:
            self.done.set()


def make_app(folder: str, synchronous: str, *, limit: int, body: Callable[[Call], Awaitable[Any]]) -> Fairlead:
    url = f"sqlite:///{folder}/bench.db?synchronous={synchronous}"
    app = Fairlead(Config(), database_url=url)
    app.service("work", limit=limit)(body)
    return app


async def submit_single(folder: str, synchronous: str) -> Figures:
    """app.submit, one job a call: 1 caller, then 100 at once (nothing runs them)."""

    async def body(call: Call) -> None: ...

    async with make_app(folder, synchronous, limit=1, body=body) as app:
        alone = await rate(1500, 1, lambda n: app.submit("work", PAYLOAD, user_id=f"u{n % USERS}"))
        together = await rate(20_000, 100, lambda n: app.submit("work", PAYLOAD, user_id=f"u{n % USERS}"))
    return {"submit, 1 caller (jobs/s)": alone, "submit, 100 callers (jobs/s)": together}


async def submit_bulk(folder: str, synchronous: str) -> Figures:
    async def body(call: Call) -> None: ...

    many = [Submission("work", PAYLOAD, f"u{n % USERS}") for n in range(1000)]
    async with make_app(folder, synchronous, limit=1, body=body) as app:
        calls = await rate(50, 2, lambda n: app.submit_many(many))
    return {"submit_many of 1,000 (jobs/s)": calls * 1000}


async def end_to_end(folder: str, synchronous: str) -> Figures:
    """Producers and worker at once, in one process; a job counts when its end is in the truth."""
    counter = Counter()

    async def body(call: Call) -> None:
        counter.one()

    count, callers = 30_000, 200
    app = make_app(folder, synchronous, limit=1000, body=body)
    async with app.running():
        for _ in range(2):  # the first round warms up
            counter.expect(count)
            begun = time.perf_counter()
            await rate(count, callers, lambda n: app.submit("work", PAYLOAD, user_id=f"u{n % USERS}"))
            await counter.done.wait()
            await all_recorded(app)
            seconds = time.perf_counter() - begun
    return {"no-op jobs end to end (jobs/s)": count / seconds}


async def drain(folder: str, synchronous: str) -> Figures:
    """20,000 jobs wait in the file; the clock runs from opening the line to the last end in the truth."""
    counter = Counter()

    async def body(call: Call) -> None:
        counter.one()

    count = 20_000
    async with make_app(folder, synchronous, limit=1000, body=body) as producer:
        for _ in range(count // 1000):
            await producer.submit_many([Submission("work", PAYLOAD, f"u{n % USERS}") for n in range(1000)])
    app = make_app(folder, synchronous, limit=1000, body=body)
    counter.expect(count)
    begun = time.perf_counter()
    async with app.running():
        await counter.done.wait()
        await all_recorded(app)
        seconds = time.perf_counter() - begun
    return {"drain of 20,000 no-op jobs (jobs/s)": count / seconds}


async def idle_latency(folder: str, synchronous: str) -> Figures:
    """From the call of submit to the first line of the handler, nothing else going on."""
    started: list[float] = []
    begun = asyncio.Event()

    async def body(call: Call) -> None:
        started.append(time.perf_counter())
        begun.set()

    waits = []
    async with make_app(folder, synchronous, limit=4, body=body).running() as app:
        for _ in range(300):
            begun.clear()
            asked = time.perf_counter()
            await app.submit("work", PAYLOAD)
            await begun.wait()
            waits.append((started[-1] - asked) * 1000)
            await asyncio.sleep(0.01)
    waits.sort()
    return {
        "idle latency, submit to start, p50 (ms)": statistics.median(waits),
        "idle latency, submit to start, p99 (ms)": waits[int(len(waits) * 0.99)],
    }


async def sleepers(folder: str, synchronous: str) -> Figures:
    """2,000 jobs of 0.1 s at concurrency 500, submitted before: 0.4 s would be ideal."""
    counter = Counter()

    async def body(call: Call) -> None:
        await asyncio.sleep(0.1)
        counter.one()

    count = 2000
    async with make_app(folder, synchronous, limit=500, body=body).running() as app:
        await app.pause("work")
        await app.submit_many([Submission("work", PAYLOAD, f"u{n % USERS}") for n in range(count)])
        counter.expect(count)
        begun = time.perf_counter()
        await app.unpause("work")
        await counter.done.wait()
        seconds = time.perf_counter() - begun
    return {"2,000 x 0.1 s at 500 (s; ideal 0.4)": seconds, "the same, times ideal": seconds / 0.4}


async def over_http(folder: str, synchronous: str) -> Figures:
    """POST /api/v1/jobs on the real server, against an echo of the same body by the same server."""

    async def body(call: Call) -> None: ...

    app = make_app(folder, synchronous, limit=1, body=body)
    gateway = create_gateway(app)

    async def echo(scope: Any, receive: Any, send: Any) -> None:
        message = await receive()
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": message["body"]})

    job = {"user_id": "ada", "feature_name": "work", "input_data": PAYLOAD}
    async with app:
        submits = await http_rate(gateway, "/api/v1/jobs", job, 202, 6000)
        bulk = await http_rate(gateway, "/api/v1/jobs/bulk", {"jobs": [job] * 1000}, 202, 40, 4) * 1000
        echoes = await http_rate(echo, "/", job, 200, 12_000)
    return {
        "HTTP submit, 32 connections (jobs/s)": submits,
        "HTTP bulk of 1,000 (jobs/s)": bulk,
        "HTTP echo of the same server, raw ASGI (requests/s)": echoes,
        "HTTP submit / echo": submits / echoes,
    }


async def memory(folder: str, synchronous: str) -> Figures:
    """The whole process with 1,000,000 jobs waiting, against the same process with none."""

    async def body(call: Call) -> None: ...

    count = 1_000_000
    app = make_app(folder, "normal", limit=1, body=body)  # only the memory is of interest here
    async with app.running():
        await app.pause("work")
        before = resident()
        for start in range(0, count, 10_000):
            await app.submit_many([Submission("work", PAYLOAD, f"u{n % 1000}") for n in range(start, start + 10_000)])
        after = resident()
    return {"memory per waiting job at 1,000,000 (bytes)": (after - before) / count}


SCENARIOS = {
    function.__name__: function
    for function in (submit_single, submit_bulk, end_to_end, drain, idle_latency, sleepers, over_http, memory)
}

# ---------------------------------------------------------------- measuring


async def rate(count: int, callers: int, call: Callable[[int], Awaitable[object]]) -> float:
    """Calls per second, `callers` of them under way at any time."""
    numbers = iter(range(count))

    async def caller() -> None:
        for number in numbers:
            await call(number)

    begun = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(callers)))
    return count / (time.perf_counter() - begun)


async def all_recorded(app: Fairlead) -> None:
    """Until the truth says that nothing is open."""
    while True:
        jobs = (await app.status())["jobs"]
        if not any(jobs[status] for status in ("SCHEDULED", "PENDING", "RUNNING", "RETRYING")):
            return
        await asyncio.sleep(0.002)


async def http_rate(
    asgi: Any, path: str, body: dict[str, Any], status: int, count: int, connections: int = 32
) -> float:
    """The client is a process of its own, so that it does not take the server's time."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        config = uvicorn.Config(asgi, lifespan="off", log_config=None, access_log=False)
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        while not server.started:  # noqa: ASYNC110 - uvicorn gives no signal
            await asyncio.sleep(0.01)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}{path}"
        asked = json.dumps({"url": url, "body": body, "status": status, "count": count, "connections": connections})
        client = await asyncio.create_subprocess_exec(
            sys.executable, __file__, "http-client", "--asked", asked, stdout=asyncio.subprocess.PIPE
        )
        said, _ = await client.communicate()
        server.should_exit = True
        await serving
    return float(said)


async def http_client(asked: dict[str, Any]) -> float:
    import aiohttp

    body = json.dumps(asked["body"]).encode()
    headers = {"Content-Type": "application/json"}
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=asked["connections"])) as session:

        async def post(_: int) -> None:
            async with session.post(asked["url"], data=body, headers=headers) as answer:
                assert answer.status == asked["status"], await answer.text()
                await answer.read()

        return await rate(asked["count"], asked["connections"], post)


def resident() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=[*SCENARIOS, "http-client"])
    parser.add_argument("--synchronous", choices=["full", "normal"], default="full")
    parser.add_argument("--asked", help="for http-client: what to do, as JSON")
    given = parser.parse_args()
    if given.name == "http-client":
        print(uvloop.run(http_client(json.loads(given.asked))))
        return
    with tempfile.TemporaryDirectory(prefix="fairlead-bench-") as folder:
        print(json.dumps(uvloop.run(SCENARIOS[given.name](folder, given.synchronous))))


if __name__ == "__main__":
    main()
