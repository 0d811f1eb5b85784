"""What waiting clients of the fal front cost: CPU and memory of a gateway with many `subscribe` calls of `fal_client`.

    python -m bench.fal_waiters --waiters 1000 --seconds 30

The gateway, with its worker and SQLite, is one process; the clients are another. One job runs, and all others wait.
`--clients` is the number of HTTP clients, each of which opens at most 100 connections. `--moves` ends a job so many
times a second, so that all positions change.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import socket
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any


def gateway(folder: str, port: int, moves: float, tell: Connection) -> None:
    import uvicorn

    from fairlead import Call, Config, Fairlead
    from fairlead.config import Settings
    from fairlead.gateway.app import create_gateway
    from fairlead.gateway.serving import uvicorn_options

    async def serve() -> None:
        app = Fairlead(Settings(Config.model_validate({}), f"sqlite:///{folder}/fairlead.db"))

        @app.service("flux", limit=1)
        async def flux(call: Call) -> dict[str, Any]:
            await asyncio.sleep(1 / moves if moves else 3600)
            return {}

        async with app.running():
            files = {"ssl_certfile": f"{folder}/cert.pem", "ssl_keyfile": f"{folder}/key.pem"}
            options: dict[str, Any] = {**uvicorn_options(app.config.server), **files}
            config = uvicorn.Config(
                create_gateway(app), port=port, log_config=None, access_log=False, lifespan="off", **options
            )
            server = uvicorn.Server(config)
            serving = asyncio.create_task(server.serve())
            while not server.started:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            tell.send(os.getpid())
            await serving

    asyncio.run(serve())


def used(pid: int) -> tuple[float, float]:
    """The CPU seconds and the MiB of memory that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    ticks = os.sysconf("SC_CLK_TCK")
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return (int(fields[11]) + int(fields[12])) / ticks, pages * os.sysconf("SC_PAGE_SIZE") / 2**20


async def measure(pid: int, arguments: argparse.Namespace) -> None:
    import fal_client

    clients = [fal_client.AsyncClient(key="any") for _ in range(arguments.clients)]
    _, memory = used(pid)
    tasks = [
        asyncio.create_task(
            clients[number % len(clients)].subscribe(
                "acme/flux", {"n": number}, headers={"X-Fairlead-User": f"user-{number % 50}"}
            )
        )
        for number in range(arguments.waiters)
    ]
    await asyncio.sleep(arguments.settle)
    cpu, _ = used(pid)
    began = time.perf_counter()
    await asyncio.sleep(arguments.seconds)
    elapsed = time.perf_counter() - began
    cpu, after = used(pid)[0] - cpu, used(pid)[1]
    share = cpu / elapsed
    failed = [task for task in tasks if task.done() and task.exception() is not None]
    print(f"{arguments.waiters} waiting clients, {arguments.clients} HTTP clients, {arguments.moves:g} jobs per second")
    print(
        f"  CPU of the gateway: {share:.1%} of a core, {share / arguments.waiters * 1e6:.0f} µs per second and client"
    )
    print(f"  memory: {after - memory:.1f} MiB more, {(after - memory) / arguments.waiters * 1024:.1f} KiB per client")
    print(f"  clients with an error: {len(failed)}")
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--waiters", type=int, default=1000)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--settle", type=float, default=20.0, help="seconds until all clients wait")
    parser.add_argument("--moves", type=float, default=0.0)
    arguments = parser.parse_args()
    from fairlead.cli import certs

    with tempfile.TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        listener.close()
        certs._make(Path(folder), [*certs.LOCAL])
        os.environ |= {
            "SSL_CERT_FILE": f"{folder}/{certs.AUTHORITY}",
            "FAL_QUEUE_RUN_HOST": f"127.0.0.1:{port}/fal",
            "FAL_RUN_HOST": f"127.0.0.1:{port}/fal/run",
        }
        hears, tells = multiprocessing.Pipe(duplex=False)
        process = multiprocessing.get_context("spawn").Process(
            target=gateway, args=(folder, port, arguments.moves, tells), daemon=True
        )
        process.start()
        try:
            asyncio.run(measure(hears.recv(), arguments))
        finally:
            process.kill()
            process.join()


if __name__ == "__main__":
    main()
