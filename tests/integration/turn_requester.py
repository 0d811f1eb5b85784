"""A process that adds N requests and waits for each, to be killed: `python -m tests.integration.turn_requester ENGINES
N`.

Prints the ids as JSON once all are queued; without Redis, the first one has the slot by then."""

from __future__ import annotations

import asyncio
import json
import sys

from fairlead import Fairlead
from tests.integration.turn_apps import MODELS, position_is


async def main(engines: dict[str, str], count: int) -> None:
    app = Fairlead(MODELS, **engines)
    distributed = "redis_url" in engines
    async with app if distributed else app.running():
        requests = [await app.add_request("flux", "cat", 1) for _ in range(count)]
        waits = [asyncio.create_task(app.wait_for_turn(request, "flux")) for request in requests]
        if not distributed:
            await waits[0]
        await position_is(app, requests[-1], count if distributed else count - 1)
        print(json.dumps(requests), flush=True)
        await asyncio.sleep(3600)


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1]), int(sys.argv[2])))
