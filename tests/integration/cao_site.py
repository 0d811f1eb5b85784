"""The CAO seed's system in virtual time: its four services, their endpoints, its workers, and a watcher.

Everything is real but the clock and the network: the gateway, the queue, the workers' calls, the embedded engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx2
import orjson
import pytest

from fairlead.app import event_stream
from fairlead.app.fairlead import Fairlead
from fairlead.config import Settings
from fairlead.dispatch.port import Shard
from fairlead.domain.config import Config
from fairlead.domain.rules import MAIN_SHARD
from fairlead.engine import estimate_accuracy, outbox_relay, rebuild, registry
from fairlead.engine.claim_loop import ConcurrencyBudget
from fairlead.engine.loops import abandoned, cleanup, orphaned_turns, schedules, sync_rules, timers
from fairlead.engine.parts import EngineParts, RunningNode
from fairlead.engine.roles import Roles, WorkerPool
from fairlead.engine.shard_runtime import ShardRuntime
from fairlead.engine.turns.waiters import Waiters
from fairlead.engine.webhooks import delivery_loop
from fairlead.engine.webhooks import endpoints as webhook_endpoints
from fairlead.executors import http
from fairlead.executors.factory import executors_of
from fairlead.executors.port import Call
from fairlead.gateway.app import create_gateway
from fairlead.testing.virtual_time import EPOCH, VirtualClock, VirtualHeartbeat
from tests.integration.gateway_site import client_of

SERVICES: dict[str, dict[str, Any]] = {
    "prompt_enhancer": {"limit": 5},
    "fast_chat_llm": {"limit": 4},
    "image_gen": {"limit": 1},
    "model_3d_gen": {"limit": 1},
}
PIPELINES = {
    "full_pipeline": ["prompt_enhancer", "fast_chat_llm", "image_gen", "model_3d_gen"],
    "text_only": ["prompt_enhancer", "fast_chat_llm"],
}
SECONDS = {"prompt_enhancer": 45, "fast_chat_llm": 120, "image_gen": 300, "model_3d_gen": 350}
SELDOM = 10.0
NEVER = 1e6
HANGS = 0
"""An answer that never comes."""


async def draw(call: Call) -> dict[str, str]:
    """A service that is a function of the worker."""
    await asyncio.sleep(SECONDS[call.service])
    return {"made_by": call.service}


@dataclass
class Visit:
    """One call as its endpoint saw it."""

    service: str
    user_prompt: str
    attempt: int
    begun: float
    ended: float | None = None


class Endpoints:
    """The endpoints: each call takes the usual time of its service, or as long as the job's params say, and returns 200
    unless `answers` has a status for it."""

    def __init__(self) -> None:
        self.answers: dict[str, list[int]] = {}
        self.visits: list[Visit] = []

    def visits_of(self, service: str) -> list[Visit]:
        return [visit for visit in self.visits if visit.service == service]

    async def answer(self, meta: dict[str, Any], params: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        time, service = asyncio.get_running_loop().time, meta["service_name"]
        status = next(iter(self.answers.get(service, ())), 200)
        del self.answers.get(service, [])[:1]
        visit = Visit(service, params["prompt"], meta["attempt"], time())
        self.visits.append(visit)
        try:
            if status == HANGS:
                await asyncio.Event().wait()
            if status == 200:
                await asyncio.sleep(params.get("seconds", SECONDS[service]))
        finally:
            visit.ended = time()
        return status, {"data": {"made_by": service}, "metrics": {"model_version": "v2.1"}}

    def post(self, url: str, *, data: bytes, **_: Any) -> _Posted:
        return _Posted(self, orjson.loads(data))

    async def close(self) -> None: ...


class _Posted:
    """A request in progress and its response: the part of aiohttp that the executor uses."""

    headers: dict[str, str]
    status: int
    content_type = "application/json"

    def __init__(self, endpoints: Endpoints, body: dict[str, Any]) -> None:
        self._endpoints, self._body = endpoints, body
        self.headers, self.reason, self.content = {}, "as the story says", self

    async def __aenter__(self) -> _Posted:
        self.status, answer = await self._endpoints.answer(self._body["meta"], self._body["payload"]["params"])
        self._rest = orjson.dumps(answer)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    async def readany(self) -> bytes:
        rest, self._rest = self._rest, b""
        return rest


@dataclass
class TimedEvent:
    """An event with the seconds since the start of the test."""

    at: float
    type: str
    more: dict[str, Any] = field(default_factory=dict)


class Cao:
    """`app` accepts jobs and manages the queue; workers are started, and crash, one by one."""

    def __init__(self, app: Fairlead, client: httpx2.AsyncClient, endpoints: Endpoints) -> None:
        self.app = app
        self.client = client
        self.endpoints = endpoints
        self.workers: list[ShardRuntime] = []
        self._numbers = count(1)

    async def submit(self, feature: str, user: str, priority: str = "medium", **params: Any) -> str:
        body = {
            "user_id": user,
            "feature_name": feature,
            "input_data": {"prompt": f"a robot for {user}", **params},
            "priority": priority,
        }
        answer = await self.client.post("/api/v1/jobs", json=body)
        assert answer.status_code == 202, answer.text
        assert answer.json()["priority"] == priority
        return str(answer.json()["job_id"])

    async def job(self, job_id: str) -> dict[str, Any]:
        answer = await self.client.get(f"/api/v1/jobs/{job_id}")
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def watch(self, job_id: str) -> asyncio.Task[list[TimedEvent]]:
        """All events that a watcher receives until the job ends."""
        return asyncio.get_running_loop().create_task(self._watch(job_id))

    async def _watch(self, job_id: str) -> list[TimedEvent]:
        answer = await self.client.get(f"/api/v1/jobs/{job_id}/events", timeout=None)
        assert answer.status_code == 200, answer.text
        return list(_timed(answer.text))

    async def start_worker(self) -> ShardRuntime:
        """One more worker process from the queue's point of view: with its own name, heartbeat and calls."""
        assert self.app._runtime.node is not None
        dispatcher = self.app._runtime.node.shards[MAIN_SHARD].dispatcher
        parts = EngineParts(
            process=f"worker {next(self._numbers)}",
            config=self.app.config,
            roles=Roles(api=False, manager=False),
            store=self.app._runtime.store,
            group_commit=self.app._runtime.group_commit,
            recorder=self.app._runtime.writer,
            executors=executors_of(self.app.config, {}, now=self.app._runtime.clock.now),
            hub=self.app.hub,
            clock=self.app._runtime.clock,
            waiters=Waiters(RunningNode()),
            heartbeat=VirtualHeartbeat,
        )
        shard = Shard(MAIN_SHARD, dispatcher, dispatcher, lambda: dispatcher)
        worker = ShardRuntime(shard, parts, self.app._runtime.node, {WorkerPool("", 10): ConcurrencyBudget(10)})
        await worker.apply(self.app._runtime.node.rules)
        await worker.start()
        self.workers.append(worker)
        # In memory there is one listener; between processes, Redis notifies all of them.
        dispatcher.on_wake(self._wake)
        return worker

    def _wake(self, services: frozenset[str]) -> None:
        for each in self.workers:
            for worker in each.workers:
                worker.wake(services)

    async def crash(self, worker: ShardRuntime) -> None:
        """Crash without deregistering: its leases stay and are not renewed."""
        self.workers.remove(worker)
        await worker.stop()


@asynccontextmanager
async def cao(folder: Path, patch: pytest.MonkeyPatch, **changes: dict[str, Any]) -> AsyncIterator[Cao]:
    """`changes` are keys of services, such as `fast_chat_llm={"retry": "manual"}`."""
    endpoints = Endpoints()
    patch.setattr(http, "new_session", lambda traces=None: endpoints)
    # These loops poll for the work of other processes, of which there are none: an hour of polling takes long.
    patch.setattr(timers, "LOOK_EVERY", SELDOM)
    patch.setattr(timers, "PROMOTE_EVERY", SELDOM)
    patch.setattr(schedules, "LOOK_EVERY", SELDOM)
    patch.setattr(cleanup, "SETTLE_EVERY", SELDOM)
    patch.setattr(cleanup, "HOLDS_EVERY", SELDOM)
    patch.setattr(delivery_loop, "LOOK_EVERY", SELDOM)
    patch.setattr(webhook_endpoints, "READ_EVERY", SELDOM)
    patch.setattr(event_stream, "POLL_EVERY", NEVER)
    patch.setattr(registry, "NEIGHBOURS_EVERY", SELDOM)
    for loop in (outbox_relay, sync_rules, rebuild, estimate_accuracy, orphaned_turns, abandoned):
        patch.setattr(loop, "EVERY", SELDOM)
    services = {
        name: {
            "url": f"http://{name.replace('_', '-')}:9000/v1/execute",
            "timeout": 400,
            **options,
            **changes.get(name, {}),
        }
        for name, options in SERVICES.items()
    }
    config = Config.model_validate({"services": services, "pipelines": PIPELINES})
    app = Fairlead(Settings(config, f"sqlite:///{folder}/cao.db?synchronous=normal"), clock=VirtualClock())
    app._runtime.heartbeat = VirtualHeartbeat
    async with app.running(Roles(services=frozenset())), client_of(create_gateway(app)) as client:
        story = Cao(app, client, endpoints)
        try:
            yield story
        finally:
            for worker in list(story.workers):
                await story.crash(worker)


def _timed(stream: str) -> Iterator[TimedEvent]:
    for text in stream.split("\n"):
        if text.startswith("data: "):
            event = orjson.loads(text.removeprefix("data: "))
            at = datetime.fromisoformat(event.pop("at")).timestamp() - EPOCH
            yield TimedEvent(round(at, 3), event.pop("type"), event)
