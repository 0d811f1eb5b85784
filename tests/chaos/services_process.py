"""The process of the simulated services, and a client for it."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from tests.chaos.process import Process, free_port, until_listening


@dataclass(frozen=True)
class Seen:
    """The counts of the services."""

    services: Mapping[str, Mapping[str, Any]]
    calls: Mapping[str, int]
    gone: Mapping[str, int]

    def maximum(self, service: str) -> int:
        return int(self.services[service]["maximum"])

    def calls_of(self, job_id: str) -> dict[str, int]:
        return {key: count for key, count in self.calls.items() if key.startswith(f"{job_id}:")}


class ServicesProcess:
    def __init__(
        self,
        folder: Path,
        names: list[str],
        *,
        env: Mapping[str, str],
        seed: object = 0,
        faulty: bool = False,
        longest_call: float = 1.0,
    ) -> None:
        self.port = free_port()
        options = {"names": names, "seed": str(seed), "faulty": faulty, "longest_call": longest_call}
        command = [sys.executable, "-m", "tests.chaos.services", str(self.port), json.dumps(options)]
        root = Path(__file__).parents[2]
        self.process = Process("services", command, cwd=root, env=env, log=folder / "services.log")
        self.process.start()
        until_listening(self.process, self.port)

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self.port}/v1/{name}"

    async def seen(self) -> Seen:
        async with aiohttp.ClientSession() as http, http.get(f"http://127.0.0.1:{self.port}/counters") as answer:
            return Seen(**await answer.json())

    async def open_gate(self, name: str) -> None:
        async with aiohttp.ClientSession() as http, http.post(f"http://127.0.0.1:{self.port}/gate/{name}") as answer:
            assert answer.status == 200
