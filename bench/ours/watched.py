"""The app behind the watchers benchmark: calls that wait at a gate, then run for a while and report progress twice."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from fairlead import Call, Config, Fairlead, Settings

GATE = Path(os.environ["BENCH_FOLDER"]) / "gate"
LOOK_EVERY_S = 1.0

app = Fairlead(
    Settings(Config(), os.environ["BENCH_DATABASE_URL"], redis_url=os.environ.get("BENCH_REDIS_URL") or None)
)


@app.service(limit=20)
async def watched(call: Call) -> dict[str, int]:
    while not GATE.exists():  # noqa: ASYNC110 (another process opens it)
        await asyncio.sleep(LOOK_EVERY_S)
    for fraction in (0.3, 0.6):
        await asyncio.sleep(0.05)
        call.progress(fraction)
    return {"number": call.params["number"]}
