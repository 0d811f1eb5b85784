"""Runs an app for a test: on a database of its own, with all parts in this process, and with fake endpoints."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from fairlead.app.declarations import Declarations, ServiceOptions
from fairlead.app.fairlead import Fairlead
from fairlead.domain.config import Config
from fairlead.domain.job import JobStatus
from fairlead.domain.views import JobView
from fairlead.engine.clock import DatabaseClock
from fairlead.testing.fakes import FakeEndpoint
from fairlead.testing.virtual_time import VirtualClock, VirtualHeartbeat, VirtualLoop, seldom_looks

OPEN = (JobStatus.PENDING, JobStatus.RUNNING, JobStatus.RETRYING)
PAGE = 100
# How a service is executed, and what only belongs to that way. A fake endpoint needs none of it.
EXECUTION = frozenset(
    {"url", "function", "regions", "celery", "celery_queue", "openai", "models", "aliases", "format", "body", "headers"}
    | {
        "stream",
        "retry_streams",
        "responses",
        "run_in",
        "breaker",
        "spill_after",
        "shard",
        "shards",
        "hold_after_crash",
    }
)


@contextmanager
def temporary(app: Fairlead, folder: Path, fakes: Mapping[str, Any] | None = None) -> Iterator[Fairlead]:
    """Put the app on a new database in `folder`, without Redis, and its services on the given fake endpoints, until the
    block ends. For code without an event loop: `with temporary(app, tmp_path), app.sync.running(): ...`."""
    runtime = app._runtime
    if runtime.is_open:
        raise RuntimeError("the app is open already; close it before a test runs it")
    declarations = runtime.declarations
    before = app.settings, declarations.settings, declarations.config, declarations.handlers
    url = f"sqlite:///{folder / 'fairlead-test.db'}?synchronous=normal"
    app.settings = declarations.settings = replace(app.settings, database_url=url, redis_url=None)
    declarations.handlers = dict(declarations.handlers)
    declarations.config = _without_shards(declarations.config)
    try:
        for name, fake in (fakes or {}).items():
            _replace(declarations, name, fake)
        yield app
    finally:
        app.settings, declarations.settings, declarations.config, declarations.handlers = before


@asynccontextmanager
async def run(app: Fairlead, folder: Path, fakes: Mapping[str, Any] | None = None) -> AsyncIterator[Site]:
    """Run the app for a test, with everything in this process. `fakes` are functions or `FakeEndpoint`s that take the
    place of services. In virtual time (`in_virtual_time`) the app's clock is virtual too."""
    runtime = app._runtime
    clock, heartbeat = runtime.clock, runtime.heartbeat
    with temporary(app, folder, fakes), ExitStack() as stack:
        if isinstance(asyncio.get_running_loop(), VirtualLoop):
            runtime.clock, runtime.heartbeat = DatabaseClock(VirtualClock()), VirtualHeartbeat
            stack.enter_context(seldom_looks())
        try:
            async with app.running():
                yield Site(app)
        finally:
            runtime.clock, runtime.heartbeat = clock, heartbeat


class Site:
    """A running app, and what happened to it."""

    def __init__(self, app: Fairlead) -> None:
        self.app = app

    async def drain(self, timeout: float = 60.0) -> list[JobView]:
        """Wait until no job is waiting, running or retrying, and return all jobs, oldest first. Jobs that are scheduled
        for later are left alone. Raises AssertionError after `timeout` seconds, and says what the jobs wait for."""
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout
        while open_jobs := [job for job in await self.jobs() if job.status in OPEN]:
            await self.app.wait(open_jobs[0].job_id, max(0.0, until - loop.time()))
            if loop.time() >= until:
                reasons = [f"{job.job_id}: {(await self.app.why(job.job_id)).summary}" for job in open_jobs[:5]]
                raise AssertionError(f"{len(open_jobs)} jobs are not finished:\n" + "\n".join(reasons))
        return await self.jobs()

    async def jobs(self, feature: str | None = None, user_id: str | None = None) -> list[JobView]:
        """All jobs, of this feature and user if given, oldest first."""
        found, cursor = list[JobView](), None
        while True:
            page = await self.app.list_jobs(feature_name=feature, user_id=user_id, limit=PAGE, cursor=cursor)
            found += page.data
            cursor = page.next_cursor
            if cursor is None:
                return found[::-1]

    async def assert_submitted(self, feature: str, input_data: Any = None, *, user_id: str | None = None) -> JobView:
        """The newest job of this feature, user and input. Raises AssertionError, with what was submitted instead, if
        there is none. `input_data` may name only some fields of an object."""
        jobs = await self.jobs()
        for job in reversed(jobs):
            if job.feature_name == feature and user_id in (None, job.user_id):
                whole = await self.app.get(job.job_id)
                if _has(whole.input_data, input_data):
                    return whole
        listed = "\n".join(f"{job.feature_name} of {job.user_id}" for job in jobs) or "nothing"
        raise AssertionError(f"no job {feature!r} with {input_data!r} was submitted, but:\n{listed}")

    async def assert_nothing_submitted(self) -> None:
        if jobs := await self.jobs():
            raise AssertionError(f"{len(jobs)} jobs were submitted, the first to {jobs[0].feature_name}")


def _without_shards(config: Config) -> Config:
    services = {
        name: service.model_copy(update={"shard": None, "shards": {}}) for name, service in config.services.items()
    }
    return config.model_copy(update={"services": services, "shards": {}})


def _has(given: Any, wanted: Any) -> bool:
    if isinstance(given, dict) and isinstance(wanted, dict):
        return all(key in given and given[key] == value for key, value in wanted.items())
    return wanted is None or given == wanted


def _replace(declarations: Declarations, name: str, fake: Any) -> None:
    """Declare the service again, as a function, with its limit and everything else that does not depend on how it is
    executed."""
    config = declarations.config
    service = config.services.get(name)
    if service is None:
        raise ValueError(f"the app has no service {name!r}; it has: {', '.join(config.services) or 'none'}")
    kept = {key: value for key, value in service.model_dump(exclude_unset=True).items() if key not in EXECUTION}
    others = {each: other for each, other in config.services.items() if each != name}
    declarations.config = config.model_copy(update={"services": others})
    options = cast(ServiceOptions, {"limit": 1, **kept})
    declarations.service(name, options)(fake.__call__ if isinstance(fake, FakeEndpoint) else fake)
