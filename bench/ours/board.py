"""The app behind the dashboard benchmark: many services whose slots are all occupied, by calls of some seconds or
without end."""

from __future__ import annotations

import asyncio
import os
import random

from fairlead import Call, Config, Fairlead, Settings

SERVICES = int(os.environ.get("BENCH_SERVICES", "200"))
LIMIT = 4
SECONDS = float(os.environ.get("BENCH_SECONDS", "10"))

app = Fairlead(
    Settings(Config(), os.environ["BENCH_DATABASE_URL"], redis_url=os.environ.get("BENCH_REDIS_URL") or None)
)


async def work(call: Call) -> dict[str, bool]:
    await asyncio.sleep(random.uniform(0.5, 1.5) * SECONDS)
    return {"done": True}


for number in range(SERVICES):
    app.service(f"service_{number:03}", limit=LIMIT, timeout=86400)(work)
