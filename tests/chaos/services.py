"""Simulated HTTP services in a separate process, which count their own calls.

    POST /v1/NAME       a call. It lasts its planned time even if the client disconnects
    GET  /counters      the counts
    POST /gate/NAME     open this gate for waiting and future calls

The duration and outcome of a call follow from the seed, its Idempotency-Key and the number of calls with that key, so
they are the same in every run. A job's params may contain:

    gate        wait at this gate (and no longer than `GATE_S`)
    seconds     take this long
    plain       succeed; no faults
    poison      respond with 400
    stops       stop computing when the client disconnects. The slot of a cancelled call is released at once, so these
                calls do not count towards the limit
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

SHORTEST, LONGEST = 0.005, 0.080
GATE_S = 120.0


@dataclass
class Plan:
    """The planned duration and outcome of a call."""

    seconds: float
    outcome: str = "ok"


@dataclass
class Service:
    """The counts of one service."""

    calls: int = 0
    in_flight: int = 0
    maximum: int = 0
    stoppable: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)


class Services:
    def __init__(self, names: list[str], seed: str, faulty: bool, longest_call: float) -> None:
        self.seen = {name: Service() for name in names}
        self.calls: Counter[str] = Counter()
        self.gone: Counter[str] = Counter()
        self._seed = seed
        self._faulty = faulty
        self._longest_call = longest_call
        self._gates: dict[str, asyncio.Event] = {}
        self._computing: set[asyncio.Task[str]] = set()

    async def call(self, request: web.Request) -> web.StreamResponse:
        service = self.seen[request.match_info["name"]]
        key = request.headers.get("Idempotency-Key", "")
        body = await request.json()
        params = body["payload"]["params"]
        self.calls[key] += 1
        service.calls += 1
        computing = asyncio.ensure_future(self._compute(service, params, self._plan(key, params)))
        self._computing.add(computing)
        computing.add_done_callback(self._computing.discard)
        try:
            outcome = await asyncio.shield(computing)
        except asyncio.CancelledError:
            self.gone[key] += 1
            if params.get("stops"):
                computing.cancel()
            raise
        return self._answer(request, outcome, key)

    async def _compute(self, service: Service, params: dict[str, Any], plan: Plan) -> str:
        stops = bool(params.get("stops"))
        service.in_flight += not stops
        service.stoppable += stops
        service.maximum = max(service.maximum, service.in_flight)
        try:
            if gate := params.get("gate"):
                async with asyncio.timeout(GATE_S):
                    await self._gates.setdefault(gate, asyncio.Event()).wait()
            await asyncio.sleep(plan.seconds)
        finally:
            # Before the response is sent, so that the call has ended when its caller releases the slot.
            service.in_flight -= not stops
            service.stoppable -= stops
        service.outcomes[plan.outcome] += 1
        return plan.outcome

    def _plan(self, key: str, params: dict[str, Any]) -> Plan:
        chance = random.Random(f"{self._seed}|{key}|{self.calls[key]}")
        seconds = chance.uniform(SHORTEST, LONGEST)
        if "seconds" in params:
            seconds = float(params["seconds"])
        if params.get("poison"):
            return Plan(seconds, "poison")
        if params.get("plain") or not self._faulty:
            return Plan(seconds)
        # An occasional long call, so that some outlast their worker's lease.
        if self.calls[key] == 1 and chance.random() < 0.02:
            return Plan(chance.uniform(self._longest_call / 2, self._longest_call))
        drawn = chance.random()
        return Plan(seconds, "busy" if drawn < 0.04 else "reset" if drawn < 0.07 else "ok")

    def _answer(self, request: web.Request, outcome: str, key: str) -> web.StreamResponse:
        if outcome == "reset" and request.transport is not None:
            request.transport.abort()
        if outcome == "busy":
            return web.json_response({"error": "busy"}, status=503)
        if outcome == "poison":
            return web.json_response({"error": "not with this input"}, status=400)
        return web.json_response({"data": {"key": key, "call": self.calls[key]}, "metrics": {}})

    async def gate(self, request: web.Request) -> web.Response:
        self._gates.setdefault(request.match_info["name"], asyncio.Event()).set()
        return web.Response()

    async def counters(self, request: web.Request) -> web.Response:
        return web.json_response(
            {"services": {name: vars(seen) for name, seen in self.seen.items()}, "calls": self.calls, "gone": self.gone}
        )

    def application(self) -> web.Application:
        application = web.Application()
        application.router.add_post("/v1/{name}", self.call)
        application.router.add_post("/gate/{name}", self.gate)
        application.router.add_get("/counters", self.counters)
        return application


async def serve(port: int, services: Services) -> None:
    runner = web.AppRunner(services.application(), handler_cancellation=True, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port, backlog=1000).start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    options = json.loads(sys.argv[2])
    asyncio.run(serve(int(sys.argv[1]), Services(**options)))
