"""An endpoint with a rate of its own. It counts every sliding window by itself, and answers 429 above the rate:
`python -m tests.chaos.rate_provider PORT REQUESTS PER SECONDS_OF_A_CALL LOG`."""

from __future__ import annotations

import asyncio
import sys
import time
from collections import deque
from pathlib import Path

from aiohttp import web


class Provider:
    """`arrivals` are the times of all calls, by the monotonic clock, in order. `latest` has the times by which calls
    must have arrived, by idempotency key: a provider in the process of its caller, which notes them, counts a call then
    even if the process gets to it later."""

    def __init__(self, requests: int, per: float, seconds: float = 0.0) -> None:
        self.requests, self.per, self.seconds = requests, per, seconds
        self.arrivals: list[float] = []
        self.latest: dict[str, float] = {}
        self.refused = 0
        self._window: deque[float] = deque()

    async def handle(self, request: web.Request) -> web.Response:
        now = time.monotonic()
        now = min(now, self.latest.get(request.headers.get("Idempotency-Key", ""), now))
        if self.arrivals:
            now = max(now, self.arrivals[-1])
        window = self._window
        while window and window[0] <= now - self.per:
            window.popleft()
        self.arrivals.append(now)
        window.append(now)
        over = len(window) > self.requests
        body = await request.json()
        if over:
            self.refused += 1
            return web.json_response({"status": "ERROR", "message": "too many"}, status=429)
        await asyncio.sleep(self.seconds)
        params = body["payload"]["params"]
        return web.json_response({"status": "SUCCESS", "data": params, "usage": params.get("usage")})

    def most(self) -> int:
        """The most calls in any window."""
        most, first = 0, 0
        for last, arrived in enumerate(self.arrivals):
            while self.arrivals[first] <= arrived - self.per:
                first += 1
            most = max(most, last - first + 1)
        return most

    def used(self) -> float:
        """The fraction of the rate that was used: `per`, divided by the mean time in which as many calls arrived as the
        rate allows in `per`."""
        pairs = list(zip(self.arrivals, self.arrivals[self.requests :], strict=False))
        return self.per * len(pairs) / sum(last - first for first, last in pairs) if pairs else 1.0

    def application(self) -> web.Application:
        application = web.Application()
        application.router.add_post("/call", self.handle)
        return application


def main() -> None:
    port, requests, per, seconds, log = sys.argv[1:]
    provider = Provider(int(requests), float(per), float(seconds))

    web.run_app(provider.application(), host="127.0.0.1", port=int(port), print=None)
    lines = [str(provider.refused), *map(repr, provider.arrivals)]
    Path(log).write_text("\n".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
