"""A whole system as processes: gateways, workers, managers, Redis behind a proxy, and the simulated services."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from tests.chaos.database import Database
from tests.chaos.process import Process, free_port
from tests.chaos.proxy import ProxyProcess
from tests.chaos.redis_server import RedisServer
from tests.chaos.services_process import ServicesProcess
from tests.chaos.waiting import until
from tests.integration.cli_process import COMMAND, environment

LIMITS = {"prompt": 5, "chat": 4, "image": 1, "model": 1}
PIPELINES = {
    "text": ["prompt", "chat"],
    "picture": ["prompt", "image"],
    "full": ["prompt", "chat", "image", "model"],
}
# A lease expires before a call may end, so that holds are needed. The longest call ends well before its deadline, so
# that the machine may be slow. A hold blocks a service with one slot, so these have short timeouts.
LEASE_TTL = LEADER_TTL = 2.0
TIMEOUT, LONGEST_CALL = 3.0, 1.6
TIMEOUTS, OUTLIVING_CALL = {"prompt": 6.0, "chat": 6.0}, 4.5


@dataclass
class Shape:
    """The number of processes, and the settings that differ between tests."""

    apis: int = 2
    workers: Sequence[Sequence[str]] = ((), (), ("--services", "prompt,chat,image"))
    managers: int = 2
    limits: Mapping[str, int] = field(default_factory=lambda: dict(LIMITS))
    pipelines: Mapping[str, Sequence[str]] = field(default_factory=lambda: dict(PIPELINES))
    service: Mapping[str, Any] = field(default_factory=dict)
    timeout: float = TIMEOUT
    timeouts: Mapping[str, float] = field(default_factory=lambda: dict(TIMEOUTS))
    lease_ttl: float = LEASE_TTL
    leader_ttl: float = LEADER_TTL
    faulty: bool = False
    seed: object = 0


class Cluster:
    def __init__(self, folder: Path, shape: Shape, *, database_url: str, redis: RedisServer | None) -> None:
        self.folder, self.shape, self.database_url = folder, shape, database_url
        self.database = Database(database_url)
        self.redis = redis
        base = environment({"PYTHONFAULTHANDLER": "1"})
        self.services = ServicesProcess(
            folder, list(shape.limits), env=base, seed=shape.seed, faulty=shape.faulty, longest_call=LONGEST_CALL
        )
        self.proxy = None if redis is None else ProxyProcess(folder, redis.port, base)
        self.config = folder / "fairlead.toml"
        self.config.write_text(configuration(shape, self.services), encoding="utf-8")
        self.env = {**base, "DATABASE_URL": database_url}
        if self.proxy is not None:
            self.env["REDIS_URL"] = f"redis://127.0.0.1:{self.proxy.port}/0"
        self.urls: dict[str, str] = {}
        self.processes: dict[str, Process] = {}
        for number in range(shape.apis):
            self.add_api(f"api{number}")
        for number, options in enumerate(shape.workers):
            self.add(f"worker{number}", "worker", *options)
        for number in range(shape.managers):
            self.add(f"manager{number}", "manager")

    # ------------------------------------------------------------ processes

    def add(self, name: str, command: str, *options: str) -> Process:
        line = [*COMMAND, "--log-level", "info", command, "--config", str(self.config), *options]
        process = Process(name, line, cwd=self.folder, env=self.env, log=self.folder / f"{name}.log")
        self.processes[name] = process
        return process

    def add_api(self, name: str, command: str = "api") -> Process:
        port = free_port()
        self.urls[name] = f"http://127.0.0.1:{port}"
        return self.add(name, command, "--host", "127.0.0.1", "--port", str(port))

    async def migrate(self) -> None:
        line = [*COMMAND, "migrate", "--config", str(self.config)]
        process = Process("migrate", line, cwd=self.folder, env=self.env, log=self.folder / "migrate.log")
        process.start()
        while process.alive:
            await asyncio.sleep(0.02)
        assert process.code == 0, process.tail()

    async def start(self) -> None:
        for process in self.processes.values():
            process.start()
        await self.until_up()

    async def until_up(self, *names: str) -> None:
        """Wait until the gateways respond, whether or not they are ready."""
        await asyncio.gather(*(self._until_up(name) for name in names or self.urls))

    async def _until_up(self, name: str) -> None:
        async def alive() -> bool:
            assert not self.processes[name].gave_up, self.processes[name].tail()
            try:
                async with aiohttp.ClientSession() as http, http.get(f"{self.urls[name]}/livez") as response:
                    return response.status == 200
            except (aiohttp.ClientError, OSError):
                return False

        await until(f"{name} is up", alive)

    def named(self, kind: str) -> list[Process]:
        return [process for name, process in self.processes.items() if name.startswith(kind)]

    def leader(self) -> Process | None:
        """The running manager that the leader key names."""
        assert self.redis is not None
        name = self.redis.leader()
        if name is None:
            return None
        # A name is host:pid:random; the key may contain more.
        parts = name.replace("@", ":").replace(" ", ":").split(":")
        leaders = [manager for manager in self.named("manager") if manager.alive and str(manager.pid) in parts]
        return leaders[0] if leaders else None

    async def until_leader(self, *, other_than: Process | None = None) -> Process:
        async def found() -> Process | None:
            leader = self.leader()
            return leader if leader is not other_than else None

        leader = await until("there is a leader" + (" again" if other_than else ""), found)
        assert leader is not None
        return leader

    # ------------------------------------------------------------ closing

    def tails(self) -> str:
        every = [*self.processes.values(), self.services.process]
        if self.proxy is not None:
            every.append(self.proxy.process)
        return "\n".join(process.tail() for process in every)

    async def close(self) -> None:
        await self.database.close()
        for process in self.processes.values():
            process.close()
        self.services.process.close()
        if self.proxy is not None:
            self.proxy.process.close()
        if self.redis is not None:
            self.redis.close()


def configuration(shape: Shape, services: ServicesProcess) -> str:
    lines = []
    for name, limit in shape.limits.items():
        lines += [
            f"[services.{name}]",
            f'url = "{services.url(name)}"',
            f"limit = {limit}",
            f"timeout = {shape.timeouts.get(name, shape.timeout)}",
            f"lease_ttl = {shape.lease_ttl}",
            "max_attempts = 1000",
            "backoff = { base = 0.05, factor = 1.5, max = 0.5, jitter = 0.2 }",
            *(f"{key} = {value}" for key, value in shape.service.items()),
        ]
    lines += ["[pipelines]", *(f"{name} = {list(steps)}" for name, steps in shape.pipelines.items())]
    lines += ["[worker]", "drain_timeout = 5", "[manager]", f"leader_ttl = {shape.leader_ttl}"]
    return "\n".join(lines) + "\n"


def chance_of(seed: object, *of: object) -> random.Random:
    return random.Random("|".join(map(str, (seed, *of))))
