"""The watchers, in a separate process: they share the cores with the gateway, but not its event loop.

    python -m bench.watchers_client PORT < {"jobs": [[job_id, ...], ...], "users": {"user-1": 50}}

Prints `connected` when all have their snapshot, then, when all sockets are closed, the counts of events.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import uvloop
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

AT_ONCE = 40
ENDS = ("JOB_COMPLETE", "JOB_FAILED", "JOB_CANCELLED")


@dataclass
class Received:
    """The events of all watchers together."""

    events: Counter[str] = field(default_factory=Counter)
    codes: Counter[int] = field(default_factory=Counter)
    late_ms: list[float] = field(default_factory=list)
    missing: int = 0


async def watch(url: str, ends: int, received: Received, turn: asyncio.Semaphore, ready: asyncio.Barrier) -> None:
    """Until it is closed, or as many jobs have ended as expected."""
    async with turn:
        client = await connect(url, compression=None, ping_interval=None, open_timeout=60, max_queue=None)
        first = json.loads(await client.recv())
    received.events[first["type"]] += 1
    await ready.wait()
    try:
        while ends:
            ends -= take(await client.recv(), received)
        await until_closed(client, received)
    except ConnectionClosed as closed:
        received.codes[closed.rcvd.code if closed.rcvd else 1006] += 1
    received.missing += ends


async def until_closed(client: ClientConnection, received: Received) -> None:
    if "user_id" in client.request.path if client.request else False:
        await client.close()  # the socket of a user does not end by itself
        return
    while True:
        take(await client.recv(), received)


def take(message: str | bytes, received: Received) -> bool:
    event = json.loads(message)
    received.events[event["type"]] += 1
    if event["type"] not in ENDS:
        return False
    received.late_ms.append((time.time() - datetime.fromisoformat(event["at"]).timestamp()) * 1000)
    return True


async def main(port: int, plan: dict[str, Any]) -> None:
    received, turn = Received(), asyncio.Semaphore(AT_ONCE)
    wanted = [(f"/ws/{job_id}", 1) for job_id in plan["jobs"]]
    wanted += [(f"/ws?user_id={user}", ends) for user, ends in plan["users"].items()]
    ready = asyncio.Barrier(len(wanted) + 1)
    async with asyncio.TaskGroup() as group:
        for path, ends in wanted:
            group.create_task(watch(f"ws://127.0.0.1:{port}{path}", ends, received, turn, ready))
        await ready.wait()
        print("connected", flush=True)
    late = sorted(received.late_ms) or [0.0]
    print(
        json.dumps(
            {
                "events": received.events,
                "codes": received.codes,
                "missing": received.missing,
                "ends": len(received.late_ms),
                "p50_ms": late[len(late) // 2],
                "p99_ms": late[int(len(late) * 0.99)],
            }
        )
    )


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1]), json.load(sys.stdin)))
