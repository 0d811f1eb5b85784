"""The interface of every system: how to enqueue jobs, what runs them, how to find out that all are done.

A system's file is read by its own interpreter, in its own virtual environment; the benchmark talks to it through
`bench.producer`. So this file and `handlers.py` import only the standard library.
"""

from __future__ import annotations

import inspect
import os
import sys
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

LIMITS = (5, 4, 1, 1)
"""Of the pipeline's steps: as the services of the sample project have them."""


def redis_url() -> str:
    return os.environ["BENCH_REDIS_URL"]


def database_url() -> str:
    return os.environ["BENCH_DATABASE_URL"]


def script(name: str) -> str:
    """A command that the system installed beside its interpreter."""
    return str(Path(sys.executable).with_name(name))


@dataclass(frozen=True)
class Workers:
    """A command and its number of processes. With an empty command the producer runs the jobs itself."""

    command: str
    processes: int = 1
    env: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Uses:
    """The worker commands by purpose."""

    fast: Workers
    """No-op jobs, as many a second as it can."""
    narrow: Workers
    """4 jobs at once."""
    default: Workers
    """One worker, nothing tuned."""
    sleep: Workers | None = None
    """500 jobs at once that wait for something."""
    steps: Workers | None = None
    """Four steps, each with its limit."""


@dataclass(frozen=True)
class Job:
    kind: str
    number: int = 0
    user: str = "ada"


class System:
    """What a system's file fills in. `enqueue` may be a plain function or a coroutine function: the producer's
    callers are threads or tasks accordingly."""

    store = "redis"
    """Where its jobs are: redis, postgres, or sqlite."""
    left: tuple[str, ...] = ()
    """Counts unsettled jobs: Redis commands whose results are summed, or one SQL query."""
    workers: Uses
    """{i} in a command is the process's number, {limit} the limit of the step with this number."""
    beside: tuple[str, ...] = ()
    """Commands that run all the time, such as a manager."""
    packages: tuple[str, ...] = ()
    config = ""
    """The configuration, in words, for the results."""
    bulk_size = 1000

    async def setup(self) -> None:
        """Once per empty store."""

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    def enqueue(self, job: Job) -> Any:
        raise NotImplementedError

    enqueue_many: Any = None
    """Its call for many jobs at once, if it has one: enqueue_many(jobs)."""

    enqueue_steps: Any = None
    """One job of four steps, for the systems that have pipelines: enqueue_steps(number)."""

    async def work(self, use: str) -> None:
        """Start to run jobs in this process, for systems with an empty worker command."""
        raise NotImplementedError

    def describe(self) -> dict[str, Any]:
        return {
            "store": self.store,
            "left": list(self.left),
            "workers": {use: workers for use, workers in asdict(self.workers).items() if workers},
            "beside": list(self.beside),
            "versions": {name: version(name) for name in self.packages},
            "config": self.config,
            "bulk": self.enqueue_many is not None,
            "callers": "tasks" if inspect.iscoroutinefunction(self.enqueue) else "threads",
        }
