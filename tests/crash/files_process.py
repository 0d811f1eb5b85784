"""A process that uploads files, runs jobs with them, and deletes some: `python -m tests.crash.files_process FOLDER N`.

It is killed by a failpoint (`FAIRLEAD_FAILPOINT`), or ends after `ROUNDS` rounds. What it was promised is in the file
`accepted`, one line for each job.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from fairlead import Call, Fairlead
from fairlead.artifacts.files import NewFile
from fairlead.config import Settings
from fairlead.domain.config import Config

ROUNDS = 4
PAD = "x" * 300_000


def make_app(folder: Path, orphan_after: float = 3600.0) -> Fairlead:
    config = Config.model_validate({"artifacts": {"url": str(folder / "files"), "orphan_after": orphan_after}})
    database = os.environ.get("DATABASE_URL", f"sqlite:///{folder}/fairlead.db?synchronous=normal")
    app = Fairlead(Settings(config, database, redis_url=os.environ.get("REDIS_URL")))

    @app.service("work", limit=4, max_attempts=1000, backoff=[0], lease_ttl=1)
    async def work(call: Call) -> dict[str, Any]:
        given = await call.read(call.params["file"])
        return {"copy": await call.save("copy.bin", given + b"!"), "pad": call.params["pad"] + call.params["name"]}

    return app


async def chunks(name: str) -> AsyncIterator[bytes]:
    for part in range(3):
        yield f"{name} {part} ".encode() * 100


async def one_round(app: Fairlead, folder: Path, name: str) -> None:
    whole = await app.files.save(NewFile("ada", f"{name}.bin"), chunks(name))
    pieces = await app.files.begin(NewFile("ada", f"{name}.parts"))
    offset = await app.files.add_part(pieces, 0, chunks(name))
    await app.files.add_part(pieces, offset, chunks("tail"))
    pieces = await app.files.assemble(pieces)
    jobs = []
    for file in (whole, pieces):
        given = {"file": file.reference(), "pad": PAD, "name": name}
        job = await app.submit("work", given, user_id="ada", idempotency_key=f"{name}-{file.name}")
        with (folder / "accepted").open("a", encoding="ascii") as accepted:
            accepted.write(f"{job.id}\n")
        jobs.append(job)
    for job in jobs:
        await job.result(timeout=60)
    await app.delete(jobs[0].id)
    with (folder / "deleted").open("a", encoding="ascii") as deleted:
        deleted.write(f"{jobs[0].id}\n")
    await app.files.delete(whole.id)
    while await app.files.sweep(50):
        pass


async def main(folder: Path, start: int) -> None:
    app = make_app(folder)
    async with app.running():
        for number in range(start, start + ROUNDS):
            await one_round(app, folder, f"n{number}")


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
