"""A client of one gateway."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from tests.chaos.waiting import PATIENCE, until


class Gateway:
    def __init__(self, url: str, http: aiohttp.ClientSession) -> None:
        self._url = url
        self._http = http

    async def post(self, path: str, body: Any = None) -> tuple[int, Any, Any]:
        async with self._http.post(self._url + path, json=body) as response:
            return response.status, await response.json(content_type=None), response.headers

    async def submit(self, feature: str, given: dict[str, Any] | None = None, **more: Any) -> str:
        body = {"user_id": "ada", "feature_name": feature, "input_data": given or {}, **more}
        status, answer, _ = await self.post("/api/v1/jobs", body)
        assert status == 202, answer
        return str(answer["job_id"])

    async def get(self, path: str) -> Any:
        async with self._http.get(self._url + path) as response:
            assert response.status == 200, await response.text()
            return await response.json()

    async def job(self, job_id: str) -> dict[str, Any]:
        found: dict[str, Any] = await self.get(f"/api/v1/jobs/{job_id}")
        return found

    async def until(self, job_id: str, *statuses: str, patience: float = PATIENCE) -> dict[str, Any]:
        """The job once it has one of these statuses. A 503 is retried."""

        async def reached() -> dict[str, Any] | None:
            async with self._http.get(f"{self._url}/api/v1/jobs/{job_id}") as response:
                if response.status == 503:
                    return None
                job: dict[str, Any] = await response.json()
                return job if job["status"] in statuses else None

        job = await until(f"{job_id} is {' or '.join(statuses)}", reached, patience=patience)
        assert job is not None
        return job

    async def slots(self, service: str) -> dict[str, Any]:
        found: dict[str, Any] = next(
            each for each in (await self.get("/queue/status"))["services"] if each["service"] == service
        )
        return found

    @asynccontextmanager
    async def events(self, job_id: str) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
        """The events of the job's stream, from now on."""
        timeout = aiohttp.ClientTimeout(total=None, sock_read=PATIENCE)
        async with self._http.get(f"{self._url}/api/v1/jobs/{job_id}/events", timeout=timeout) as response:
            assert response.status == 200

            async def lines() -> AsyncIterator[dict[str, Any]]:
                async for line in response.content:
                    if line.startswith(b"data: "):
                        yield json.loads(line[6:])

            yield lines()
