"""Users who submit over HTTP continuously, and repeat a request without a response under the same key.

Records for `verify.py` which jobs were accepted, how each should end, and responses that must not happen.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from tests.chaos.cluster import Cluster, chance_of

CLIENTS = 12
OPEN_JOBS = 90
REQUEST_S = 15.0
PRIORITIES = ("high", "medium", "medium", "low")


@dataclass
class Expected:
    """An accepted job and its expected outcome."""

    job_id: str
    steps: Sequence[str]
    poison: bool = False
    cancel_requested: bool = False
    cancel_granted: bool = False


@dataclass
class Load:
    cluster: Cluster
    seed: object
    accepted: dict[str, Expected] = field(default_factory=dict)
    keys: set[tuple[str, str]] = field(default_factory=set)
    responses: Counter[str] = field(default_factory=Counter)
    complaints: list[str] = field(default_factory=list)
    open_jobs: int = 0
    stopping: bool = False
    urgents: int = 0

    async def run(self) -> None:
        """Submit until `stopping` is set, then wait for the responses that are outstanding."""
        timeout = aiohttp.ClientTimeout(total=REQUEST_S)
        async with aiohttp.ClientSession(timeout=timeout) as http, asyncio.TaskGroup() as group:
            for number in range(CLIENTS):
                group.create_task(Client(self, number, http).run())

    async def urgent(self, feature: str, **given: Any) -> str:
        """Submit one high-priority job of a new user, without faults; it is accepted when this returns."""
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=REQUEST_S)) as http:
            self.urgents += 1
            return await Client(self, f"-urgent{self.urgents}", http).urgent(feature, given)


class Client:
    def __init__(self, load: Load, number: object, http: aiohttp.ClientSession) -> None:
        self._load = load
        self._user = f"user{number}"
        self._http = http
        self._chance = chance_of(load.seed, "client", number)
        self._sent = 0

    async def run(self) -> None:
        while not self._load.stopping:
            if self._load.open_jobs > OPEN_JOBS:
                await asyncio.sleep(0.1)
                continue
            several = self._chance.random() < 0.15
            wanted = [self._job() for _ in range(self._chance.randint(2, 6) if several else 1)]
            ids = await self._submit(wanted)
            for job_id, body in zip(ids, wanted, strict=True):
                self._remember(job_id, body)
            self._load.open_jobs += len(ids)  # until the next count in the database
            for job_id, body in zip(ids, wanted, strict=True):
                if body["input_data"].get("stops"):
                    await self._cancel(self._load.accepted[job_id])
            await asyncio.sleep(self._chance.uniform(0.0, 0.2))  # people pause

    async def urgent(self, feature: str, given: dict[str, Any]) -> str:
        body: dict[str, Any] = {"user_id": self._user, "feature_name": feature, "input_data": {"plain": True, **given}}
        body["priority"] = "high"
        (job_id,) = await self._submit([body])
        self._remember(job_id, body)
        return job_id

    def _job(self) -> dict[str, Any]:
        chance, shape = self._chance, self._load.cluster.shape
        feature = chance.choice([*shape.limits, *shape.pipelines])
        given: dict[str, Any] = {"n": self._sent}
        drawn = chance.random()
        if drawn < 0.03:
            given["poison"] = True
        elif drawn < 0.11:
            given["stops"] = True  # it is cancelled later
        body: dict[str, Any] = {"user_id": self._user, "feature_name": feature, "input_data": given}
        body["priority"] = chance.choice(PRIORITIES)
        if chance.random() < 0.1:
            body["delay"] = round(chance.uniform(0.05, 1.5), 3)
        return body

    def _remember(self, job_id: str, body: dict[str, Any]) -> None:
        shape = self._load.cluster.shape
        steps = shape.pipelines.get(body["feature_name"], [body["feature_name"]])
        self._load.accepted[job_id] = Expected(job_id, steps, poison=bool(body["input_data"].get("poison")))

    async def _submit(self, wanted: list[dict[str, Any]]) -> list[str]:
        key = f"{self._user}-{self._sent}"
        self._sent += 1
        self._load.keys.add((self._user, key))
        several = len(wanted) > 1
        path = "/api/v1/jobs/bulk" if several else "/api/v1/jobs"
        body = {"jobs": wanted} if several else wanted[0]
        while True:
            status, reply = await self._post(path, body, key)
            if status == 202:
                receipts = reply["jobs"] if several else [reply]
                return [receipt["job_id"] for receipt in receipts]
            if status != 0 and status != 503:
                self._complain(f"a submit was answered with {status}: {reply}")

    async def _cancel(self, wanted: Expected) -> None:
        await asyncio.sleep(self._chance.uniform(0.0, 0.6))  # at a random time
        wanted.cancel_requested = True
        while True:
            status, reply = await self._post(f"/api/v1/jobs/{wanted.job_id}/cancel", None, None)
            if status == 200:
                wanted.cancel_granted = True
                if reply["status"] != "CANCELLED":
                    self._complain(f"cancelled, but it is {reply['status']}: {wanted.job_id}")
            if status in (200, 409):
                return
            if status not in (0, 503):
                self._complain(f"a cancel was answered with {status}: {reply}")

    async def _post(self, path: str, body: Any, key: str | None) -> tuple[int, Any]:
        """The status and the body; status 0 if the connection was lost. Pauses briefly after a refusal."""
        url = self._chance.choice(list(self._load.cluster.urls.values()))
        headers = {} if key is None else {"Idempotency-Key": key}
        try:
            async with self._http.post(url + path, json=body, headers=headers) as response:
                reply = await response.json(content_type=None)
                status = response.status
                if status == 503 and "Retry-After" not in response.headers:
                    self._complain(f"503 without Retry-After: {reply}")
        except (aiohttp.ClientError, OSError):
            status, reply = 0, None
        except TimeoutError:
            status, reply = 0, None
            self._load.responses["timed out"] += 1
        self._load.responses[str(status)] += 1
        if status in (0, 503):
            await asyncio.sleep(random.uniform(0.05, 0.3))
        return status, reply

    def _complain(self, what: str) -> None:
        self._load.complaints.append(what)
        if len(self._load.complaints) > 20:
            raise AssertionError("\n".join(self._load.complaints))
