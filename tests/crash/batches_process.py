"""A process that runs batches from files: `python -m tests.crash.batches_process FOLDER N`. It is killed by a failpoint
(`FAIRLEAD_FAILPOINT`), or ends after `BATCHES` batches. What it was promised is in the file `created`."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson

from fairlead import Fairlead
from fairlead.app import file_batch_loop
from fairlead.app.file_batches import NewFileBatch
from fairlead.artifacts.files import NewFile
from fairlead.config import Settings
from fairlead.domain.config import Config
from fairlead.domain.file_batch import BATCH
from fairlead.pacing import DutyCycle

BATCHES, LINES = 3, 30
CHAT = "/v1/chat/completions"
file_batch_loop.PART_LINES = 7
file_batch_loop.MOVING = file_batch_loop.COUNTING = DutyCycle(0.5, every=0.02, longest=0.1)


def make_app(folder: Path, orphan_after: float = 3600.0) -> Fairlead:
    artifacts = {"url": str(folder / "files"), "orphan_after": orphan_after}
    config = Config.model_validate({"artifacts": artifacts, "manager": {"leader_ttl": 2.0}})
    database = os.environ.get("DATABASE_URL", f"sqlite:///{folder}/fairlead.db?synchronous=normal")
    app = Fairlead(Settings(config, database, redis_url=os.environ.get("REDIS_URL")))

    @app.model("echo", limit=8, max_attempts=1000, backoff=[0], lease_ttl=1)
    async def echo(messages: list[dict[str, Any]]) -> str:
        return f"You said: {messages[-1]['content']}"

    return app


async def lines(name: str) -> AsyncIterator[bytes]:
    for number in range(LINES):
        body = {"model": "echo", "messages": [{"role": "user", "content": f"{name} {number}"}]}
        request = {"custom_id": f"{name}-{number}", "method": "POST", "url": CHAT, "body": body}
        yield orjson.dumps(request, option=orjson.OPT_APPEND_NEWLINE)


async def main(folder: Path, start: int) -> None:
    app = make_app(folder)
    async with app.running():
        for number in range(start * BATCHES, (start + 1) * BATCHES):
            file = await app.files.save(NewFile("ada", "requests.jsonl", purpose=BATCH), lines(f"n{number}"))
            batch = await app.file_batches.create(NewFileBatch("ada", file.id, CHAT, "24h"))
            with (folder / "created").open("a", encoding="ascii") as created:
                created.write(f"{batch.id}\n")
        while await app._runtime.store.open_file_batches(1):
            await asyncio.sleep(0.05)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
