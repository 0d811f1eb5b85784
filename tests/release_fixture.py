"""Generates the upgrade fixture: a database and a Redis with jobs in every state, left by a process that was killed.

    python -m tests.release_fixture tests/data/release-0.1

was run with commit 2739f23, the last of 0.1. `tests/integration/test_upgrade.py` starts the current code on it.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from fairlead import Call, Config, Fairlead, JobStatus, Permanent
from tests import redis_servers, servers

CONFIG: dict[str, Any] = {
    "services": {
        "echo": {"limit": 2, "timeout": 5},
        "second": {"limit": 1, "timeout": 5, "order": "fifo"},
        "flaky": {"limit": 1, "timeout": 5, "retry": "manual"},
        "slow_retry": {"limit": 1, "timeout": 5, "backoff": [1]},
        "pooled": {"limit": 2, "timeout": 5, "pool": "gpu"},
        "crash": {"limit": 1, "timeout": 5, "lease_ttl": 3},
    },
    "pipelines": {"both": ["echo", "second"]},
    "pools": {"gpu": 2},
}


def application(**urls: str | None) -> Fairlead:
    """The app of the fixture. Its handlers succeed; the generator replaces some of them."""
    app = Fairlead(Config(**CONFIG), **urls)

    for name in CONFIG["services"]:

        @app.service(name)
        async def handler(call: Call) -> dict[str, Any]:
            return {"service": call.service, "value": call.params.get("value")}

    return app


def _failing(app: Fairlead) -> None:
    @app.service("flaky")
    async def flaky(call: Call) -> None:
        if call.params.get("permanent"):
            raise Permanent("wrong input")
        raise ConnectionError("not today")

    @app.service("slow_retry")
    async def slow_retry(call: Call) -> None:
        raise ConnectionError("not today")

    @app.service("crash")
    async def crash(call: Call) -> None:
        os._exit(0)


async def _leave_jobs(app: Fairlead) -> None:
    """Create jobs in every state, then exit in the middle of a call."""
    _failing(app)
    async with app.running():
        done = await app.submit("both", {"value": 1}, user_id="ada")
        await done.result(timeout=30)
        for permanent in (True, False):
            failed = await app.submit("flaky", {"permanent": permanent}, user_id="ada")
            await app.wait(failed.id, 30)
        await app.pause("second", who="fixture")
        await app.pause("pooled", who="fixture")
        between = await app.submit("both", {"value": 2}, user_id="bob", priority="high")
        while (await app.get(between.id)).current_step_index == 0:
            await asyncio.sleep(0.01)
        for n in range(6):
            await app.submit("pooled", {"value": n}, user_id=f"user-{n % 3}", priority=("low", "medium", "high")[n % 3])
            await app.submit("second", {"value": n}, user_id=f"user-{n % 2}")
        await app.submit("echo", {"value": 9}, user_id="eve", delay=1)
        await app.submit_batch(
            [{"feature_name": "second", "input_data": {"value": n}} for n in range(3)], user_id="eve"
        )
        retrying = await app.submit("slow_retry", {"value": 7}, user_id="ada")
        while (await app.get(retrying.id)).status is not JobStatus.RETRYING:
            await asyncio.sleep(0.01)
        await app.submit("crash", {"value": 8}, user_id="ada")
        await asyncio.sleep(60)


def _generate(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        database = Path(temporary) / "fairlead.db"
        _run(f"sqlite:///{database}", None)
        with contextlib.closing(sqlite3.connect(database)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        shutil.copyfile(database, folder / "fairlead.db")
    server, cache = servers.own_postgres(), redis_servers.Server().start()
    try:
        _run(server.url, cache.url)
        binaries = servers._binaries()
        assert binaries is not None
        dump = subprocess.run(
            [binaries / "pg_dump", "--inserts", "--no-owner", server.url], check=True, capture_output=True, text=True
        ).stdout
        kept = [line for line in dump.splitlines() if not re.match(r"^(--|\\|SET |SELECT pg_catalog.set_config)", line)]
        (folder / "postgres.sql").write_text("\n".join(line for line in kept if line.strip()) + "\n")
        client = cache.client
        keys = {key.decode(): base64.b64encode(client.dump(key)).decode() for key in client.scan_iter()}
        (folder / "redis.json").write_text(json.dumps(keys, indent=1, sort_keys=True) + "\n")
    finally:
        server.remove()
        cache.kill()


def _run(database_url: str, redis_url: str | None) -> None:
    code = "import asyncio, sys; from tests.release_fixture import *; from tests import release_fixture as f; "
    code += f"asyncio.run(f._leave_jobs(f.application(database_url={database_url!r}, redis_url={redis_url!r})))"
    subprocess.run([sys.executable, "-c", code], check=True)


if __name__ == "__main__":
    _generate(Path(sys.argv[1]))
