"""The cost of open dashboards for the gateway: 200 services of 4 slots, all occupied, and 10,000 waiting jobs.

    python -m bench.dashboard [--services 200] [--waiting 10000] [--call 20] [--distributed]

A real gateway (`fairlead up`, which also runs the calls; with --distributed `fairlead api` on PostgreSQL and Redis,
with a worker and a manager beside it), and the pages' sockets in another process. For each view and number of pages:
the gateway's CPU, less its CPU without pages, and the data sent to one page. `--call` is the average duration of a
call; with 0 calls do not end, so that nothing changes but leases.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.systems import ROOT
from bench.watchers import Gateway, gateway_of

APP = "bench.ours.board:app"
USERS = 500
SETTLE_S = 5.0
MEASURE_S = 20.0
NEVER_S = 86400.0
VIEWS: tuple[tuple[str, dict[str, Any], int], ...] = (
    ("overview", {"view": "overview"}, 1),
    ("overview", {"view": "overview"}, 20),
    ("overview", {"view": "overview"}, 100),
    ("service", {"view": "service", "service": "service_000"}, 1),
    ("jobs", {"view": "jobs", "limit": 200}, 1),
    ("workers", {"view": "workers"}, 1),
    ("users", {"view": "users"}, 1),
)


def fill(gateway: Gateway, services: int, waiting: int) -> None:
    jobs = waiting + 4 * services
    gateway.submit_all(
        [
            {"user_id": f"user-{n % USERS}", "feature_name": f"service_{n % services:03}", "input_data": {"n": n}}
            for n in range(jobs)
        ]
    )


def measure(gateway: Gateway, view: dict[str, Any], pages: int) -> tuple[float, dict[str, float]]:
    """Percent of a core, and what a page was sent."""
    command = [sys.executable, "-m", "bench.dashboard", "--pages", str(pages), str(gateway.port), json.dumps(view)]
    client = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert client.stdin is not None
    assert client.stdout is not None
    client.stdout.readline()
    time.sleep(SETTLE_S)
    before, begun = gateway.cpu(), time.monotonic()
    print("count", file=client.stdin, flush=True)
    time.sleep(MEASURE_S)
    spent = (gateway.cpu() - before) / (time.monotonic() - begun) * 100
    output, _ = client.communicate("stop\n")
    return spent, json.loads(output)


# ---------------------------------------------------------------- the pages


async def follow(port: int, view: dict[str, Any], pages: int) -> None:
    from websockets.asyncio.client import ClientConnection, connect

    first, sent, messages = 0, 0, 0

    async def page(client: ClientConnection) -> None:
        nonlocal sent, messages
        async for message in client:
            sent, messages = sent + len(message), messages + 1

    clients = [await connect(f"ws://127.0.0.1:{port}/ws/dashboard", max_size=None) for _ in range(pages)]
    for client in clients:
        await client.send(json.dumps(view))
        first = len(await client.recv())
    reading = [asyncio.create_task(page(client)) for client in clients]
    print("following", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    sent = messages = 0
    begun = time.monotonic()
    await asyncio.to_thread(sys.stdin.readline)
    seconds = time.monotonic() - begun
    for task in reading:
        task.cancel()
    print(
        json.dumps(
            {
                "first": first,
                "bytes_per_s": sent / seconds / pages,
                "messages_per_s": messages / seconds / pages,
            }
        )
    )
    os._exit(0)  # without a closing handshake for each


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--services", type=int, default=200)
    parser.add_argument("--waiting", type=int, default=10_000)
    parser.add_argument("--call", type=float, default=20.0)
    parser.add_argument("--distributed", action="store_true")
    parser.add_argument("--pages", type=int, help=argparse.SUPPRESS)
    parser.add_argument("rest", nargs="*", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.pages:
        port, view = arguments.rest
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
        asyncio.run(follow(int(port), json.loads(view), arguments.pages))
        return
    os.environ |= {"BENCH_SERVICES": str(arguments.services), "BENCH_SECONDS": str(arguments.call or NEVER_S)}
    with (
        tempfile.TemporaryDirectory(prefix="fairlead-bench-") as folder,
        gateway_of(arguments.distributed, Path(folder), APP) as gateway,
    ):
        fill(gateway, arguments.services, arguments.waiting)
        time.sleep(SETTLE_S)
        before, begun = gateway.cpu(), time.monotonic()
        time.sleep(MEASURE_S)
        unwatched = (gateway.cpu() - before) / (time.monotonic() - begun) * 100
        print(f"{arguments.services} services, {arguments.waiting:,} waiting, calls of {arguments.call:g} s; ", end="")
        print(f"load {os.getloadavg()[0]:.1f}; unwatched, the gateway takes {unwatched:.1f} % of a core\n")
        heads = ("view", "pages", "CPU more", "first state", "a page is sent", "messages")
        print(f"| {' | '.join(heads)} |\n|{' --- |' * len(heads)}")
        for name, view, pages in VIEWS:
            spent, sent = measure(gateway, view, pages)
            row = [
                name,
                str(pages),
                f"{spent - unwatched:.1f} %",
                f"{sent['first'] / 1024:.0f} KB",
                f"{sent['bytes_per_s'] / 1024:.2f} KB/s",
                f"{sent['messages_per_s']:.2f} /s",
            ]
            print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
