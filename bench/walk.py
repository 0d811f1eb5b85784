"""How many files of Fairlead one submitted job passes through: `python -m bench.walk`.

Runs a service of one step on PostgreSQL and Redis in this process, and counts the source files whose functions are
called on the event loop's thread from the submit to the result. Background loops that run meanwhile are included, so
the least of several jobs counts.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from types import FrameType
from typing import Any

from tests import redis_servers, servers

import fairlead
from fairlead import Call, Config, Fairlead

SOURCE = str(Path(fairlead.__file__).parent)
JOBS = 20


async def walk() -> set[str]:
    database = await servers.new_database()
    redis = redis_servers.Server().start()
    app = Fairlead(Config(services={"echo": {"limit": 1}}), database_url=database, redis_url=redis.url)

    @app.service("echo")
    async def echo(call: Call) -> dict[str, Any]:
        return {}

    try:
        async with app.running():
            await (await app.submit("echo", {}, user_id="ada")).result(timeout=30)
            return min([await _one(app) for _ in range(JOBS)], key=len)
    finally:
        redis.kill()
        await servers.drop_database(database)


async def _one(app: Fairlead) -> set[str]:
    files: set[str] = set()

    def called(frame: FrameType, event: str, argument: Any) -> None:
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(SOURCE):
            files.add(name[len(SOURCE) + 1 :])

    await asyncio.sleep(0.3)
    sys.setprofile(called)
    try:
        await (await app.submit("echo", {}, user_id="ada")).result(timeout=30)
    finally:
        sys.setprofile(None)
    return files


if __name__ == "__main__":
    found = asyncio.run(walk())
    print("\n".join(sorted(found)))
    print(f"{len(found)} files")
