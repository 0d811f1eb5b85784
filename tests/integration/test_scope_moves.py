"""A service that moves to another scope: into a pool and out of it, across shards and back, removed and declared again.

Every process here is a separate application with its own configuration, on one PostgreSQL and two Redis servers; the
handlers count their open calls.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import pytest
import redis
from aiohttp import web
from aiohttp.test_utils import TestServer
from redis.backoff import NoBackoff
from redis.retry import Retry

from fairlead import Call, Config, Fairlead, JobStatus
from fairlead.domain.job import Job
from fairlead.domain.rules import BANDS, Lanes
from fairlead.engine.roles import Roles
from fairlead.store.port import DeclareServices
from tests import redis_servers, servers

PATIENCE = 30.0
GATEWAY = Roles(worker=False, manager=False)
WORKER = Roles(api=False, manager=False)
MANAGER = Roles(api=False, worker=False)
STILL = Roles(worker=False)
"""Jobs are accepted and put in the queue, and nothing runs them."""


@dataclass
class Endpoint:
    """The state that the services of all processes share: the number of their open calls, and its maximum."""

    limits: dict[str, int]
    seconds: float = 0.0
    open: Counter[str] = field(default_factory=Counter)
    too_many: list[str] = field(default_factory=list)
    runs: Counter[str] = field(default_factory=Counter)
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    pool: tuple[frozenset[str], int] | None = None
    """What counts in the pool, and its limit, as soon as no earlier call exceeds it."""
    watched: int = 0
    """Calls that began while the pool was watched."""

    @contextlib.contextmanager
    def call(self, service: str, job_id: str, region: str = "") -> Iterator[None]:
        counted = [service, f"{service}/{region}"] if region else [service]
        self.open.update(counted)
        self.runs[job_id] += 1
        for name in counted:
            if self.open[name] > self.limits[name]:
                self.too_many.append(f"{self.open[name]} calls of {name}, its limit is {self.limits[name]}")
        if self.pool is not None:
            members, limit = self.pool
            self.watched += not members.isdisjoint(counted)
            if (used := sum(self.open[name] for name in members)) > limit:
                self.too_many.append(f"{used} calls in the pool, its limit is {limit}")
        try:
            yield
        finally:
            self.open.subtract(counted)

    async def over_http(self, request: web.Request) -> web.Response:
        """The endpoint of a service with regions."""
        job_id, _, _ = request.headers["Idempotency-Key"].partition(":")
        with self.call(request.match_info["service"], job_id, request.match_info["region"]):
            await self.gate.wait()
            await asyncio.sleep(self.seconds)
        return web.json_response({"data": "done"})

    async def run(self, call: Call) -> str:
        with self.call(call.service, call.job_id):
            await self.gate.wait()
            await asyncio.sleep(self.seconds)
        return "done"


@dataclass
class Site:
    """A database and two Redis servers, for as many applications as a test starts."""

    database_url: str
    main: redis.Redis
    other: redis.Redis
    endpoint: Endpoint
    url: str

    def app(self, services: dict[str, dict[str, Any]], **sections: Any) -> Fairlead:
        config = {
            "shards": {"other": url_of(self.other)},
            "services": {
                name: {"limit": self.endpoint.limits[name], "lease_ttl": 2.0, **keys, **self._regions(name, keys)}
                for name, keys in services.items()
            },
            "worker": {"drain_timeout": 1.0},
            **sections,
        }
        app = Fairlead(Config.model_validate(config), database_url=self.database_url, redis_url=url_of(self.main))

        def handler(name: str) -> None:
            async def run(call: Call) -> str:
                return await self.endpoint.run(call)

            app.service(name)(run)

        for name, keys in services.items():
            if "regions" not in keys:
                handler(name)
        return app

    def _regions(self, service: str, keys: dict[str, Any]) -> dict[str, Any]:
        """The regions of a configuration, with their limits and addresses."""
        regions = {
            region: {
                "url": f"{self.url}/{service}/{region}",
                "limit": self.endpoint.limits[f"{service}/{region}"],
                **of,
            }
            for region, of in keys.get("regions", {}).items()
        }
        return {"regions": regions} if regions else {}


def url_of(server: redis.Redis) -> str:
    return f"redis://127.0.0.1:{redis_servers.port_of(server)}/0"


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    servers.postgres_url()
    database_url = await servers.shared_database()
    await servers.empty(database_url)
    redis_url = redis_servers.server_url()
    redis_servers.empty(redis_url)
    main, other = redis_servers.start_server(), redis_servers.start_server()
    endpoint = Endpoint({"draw": 3, "chat": 3, "draw/us": 2, "draw/eu": 1})
    application = web.Application()
    application.router.add_post("/{service}/{region}", endpoint.over_http)
    async with TestServer(application) as served:
        yield Site(database_url, main, other, endpoint, str(served.make_url("")).rstrip("/"))
    for server in (main, other):
        server.set_retry(Retry(NoBackoff(), 0))
        with contextlib.suppress(redis.ConnectionError):
            server.shutdown(nosave=True)
        server.close()


async def until(what: Callable[[], Awaitable[bool]], patience: float = PATIENCE) -> None:
    async with asyncio.timeout(patience):
        while not await what():
            await asyncio.sleep(0.02)


async def all_end(app: Fairlead, jobs: list[str], patience: float = PATIENCE) -> None:
    """Every job is COMPLETED; otherwise the error lists those that are not."""
    left = list(jobs)

    async def ended() -> bool:
        left[:] = [job_id for job_id in left if (await app.get(job_id)).status is not JobStatus.COMPLETED]
        return not left

    try:
        await until(ended, patience)
    except TimeoutError:
        why = (await app.why(left[0])).summary
        raise AssertionError(f"{len(left)} of {len(jobs)} jobs did not end; {left[0]}: {why}") from None


POOLED: dict[str, Any] = {"services": {"draw": {"pool": "gpu"}, "chat": {"pool": "gpu"}}, "pools": {"gpu": 4}}
HALF: dict[str, Any] = {"services": {"draw": {}, "chat": {"pool": "gpu"}}, "pools": {"gpu": 4}}
ALONE: dict[str, Any] = {"services": {"draw": {}, "chat": {}}}
ELSEWHERE: dict[str, Any] = {"services": {"draw": {"shard": "other"}, "chat": {}}}
SPLIT: dict[str, Any] = {
    "services": {
        "draw": {
            "limit": 3,
            "shards": {"other": {"bands": ["high"], "limit": 1}, "main": {"bands": ["medium", "low"], "limit": 2}},
        },
        "chat": {},
    }
}
REMOVED: dict[str, Any] = {"services": {"chat": {}}}
REGIONAL: dict[str, Any] = {"services": {"draw": {"regions": {"us": {}, "eu": {}}}, "chat": {}}}
PART_POOLED: dict[str, Any] = {
    "services": {"draw": {"regions": {"us": {"pool": "gpu"}, "eu": {}}}, "chat": {"pool": "gpu"}},
    "pools": {"gpu": 3},
}

MOVES = {
    "into a pool": (ALONE, POOLED),
    "into a pool and back": (ALONE, POOLED, ALONE),
    "out of a pool that stays and back": (POOLED, HALF, POOLED),
    "to another shard and back": (ALONE, ELSEWHERE, ALONE),
    "split over shards and into a pool": (ALONE, SPLIT, POOLED),
    "removed from a pool and back": (POOLED, REMOVED, POOLED),
    "into regions, some of them in a pool, and back": (ALONE, REGIONAL, PART_POOLED, ALONE),
}


@pytest.mark.parametrize("move", MOVES)
async def test_waiting_jobs_move_with_their_service_across_a_full_restart(site: Site, move: str) -> None:
    *before, last = MOVES[move]
    jobs: list[str] = []
    for config in before:
        app = site.app(**config)
        async with app.running(STILL):
            for service in config["services"]:
                jobs += [(await app.submit(service, priority=band)).id for band in ("high", "medium", "low")]
            await until(lambda: in_queue(app, jobs, config))  # noqa: B023
    site.endpoint.gate.set()
    app = site.app(**last)
    async with app.running():
        await all_end(app, jobs)
    assert site.endpoint.too_many == []


async def in_queue(app: Fairlead, jobs: list[str], config: dict[str, Any]) -> bool:
    """All jobs that wait for a declared service have a position."""
    views = [await app.get(job_id) for job_id in jobs]
    return all(view.position is not None for view in views if view.feature_name in config["services"])


@pytest.mark.parametrize(
    "there",
    [
        pytest.param(POOLED, id="pool"),
        pytest.param(ELSEWHERE, id="shard"),
        pytest.param(SPLIT, id="split", marks=pytest.mark.slow),
        pytest.param(REMOVED, id="removed", marks=pytest.mark.slow),
    ],
)
async def test_a_call_continues_while_its_service_moves_and_its_slot_moves_with_it(
    site: Site, there: dict[str, Any]
) -> None:
    short = {name: {"lease_ttl": 1.0} for name in ("draw", "chat")}
    here = {"services": short}
    there = {**there, "services": {name: {**keys, "lease_ttl": 1.0} for name, keys in there["services"].items()}}
    old, new = site.app(**here), site.app(**there)
    async with old.running():
        jobs = [(await old.submit("draw", priority=band)).id for band in ("high", "medium", "low")]
        await until(lambda: running(site, 3))
        async with new.running(Roles()):
            jobs += [(await old.submit("draw", priority=band)).id for band in ("high", "medium", "low")]
            await asyncio.sleep(2.5)  # longer than a lease lasts without a renewal
            assert await running(site, 3)
            async with site.app(**here).running(GATEWAY):
                site.endpoint.gate.set()
                await all_end(old, jobs)
    assert site.endpoint.too_many == []
    assert set(site.endpoint.runs.values()) == {1}


async def running(site: Site, calls: int) -> bool:
    return site.endpoint.open.total() == calls


@pytest.mark.slow
async def test_limits_hold_and_jobs_end_during_a_rolling_restart(site: Site) -> None:
    site.endpoint.gate.set()
    site.endpoint.seconds = 0.02
    jobs: list[str] = []
    async with AsyncExitStack() as last:
        before: list[AsyncExitStack] = []
        for config in (ALONE, POOLED, ELSEWHERE, ALONE):
            after = [await started(last, site.app(**config), roles) for roles in (MANAGER, WORKER)]
            gateway = site.app(**config)
            after.append(await started(last, gateway, GATEWAY))
            for replaced in (*before, None):
                jobs += [(await gateway.submit(service)).id for service in ("draw", "chat") for _ in range(10)]
                if replaced is not None:
                    await replaced.aclose()
            before = after
        await all_end(gateway, jobs)
    assert site.endpoint.too_many == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param(REGIONAL, ALONE, id="regions removed"),
        pytest.param({"services": {"draw": {"regions": {"eu": {}}}, "chat": {}}}, REGIONAL, id="region added"),
    ],
)
async def test_an_old_worker_leaves_jobs_to_others_when_regions_change(
    site: Site, old: dict[str, Any], new: dict[str, Any]
) -> None:
    site.endpoint.gate.set()
    async with site.app(**old).running() as before:
        await all_end(before, [(await before.submit("draw")).id])
        gateway = site.app(**new)
        async with gateway.running(GATEWAY):
            jobs = [(await gateway.submit("draw")).id for _ in range(6)]
            await all_end(gateway, [(await gateway.submit("chat")).id])

            async def run_or_left() -> bool:
                """The old worker may still run jobs of the regions that it has."""
                seen = {(await gateway.get(job_id)).status for job_id in jobs}
                assert seen <= {JobStatus.PENDING, JobStatus.RUNNING, JobStatus.COMPLETED}
                return JobStatus.RUNNING not in seen

            await until(run_or_left)
            async with site.app(**new).running(WORKER):
                await all_end(gateway, jobs)
    assert site.endpoint.too_many == []
    assert max(site.endpoint.runs.values()) == 1


async def started(last: AsyncExitStack, app: Fairlead, roles: Roles) -> AsyncExitStack:
    """Stopped by the caller, or at the end."""
    stack = AsyncExitStack()
    last.push_async_callback(stack.aclose)
    await stack.enter_async_context(app.running(roles))
    return stack


async def test_a_job_whose_service_has_moved_is_not_called_before_its_queue_is_rebuilt(site: Site) -> None:
    app = site.app(**ALONE)
    async with app.running(STILL):
        jobs = [(await app.submit("draw")).id]
        await until(lambda: in_queue(app, jobs, ALONE))
    gateway = site.app(**POOLED)
    async with gateway.running(GATEWAY):
        why = await gateway.why(jobs[0])
        assert why.position is None
        assert "no-manager" in [reason.code.replace("_", "-") for reason in why.reasons]
        assert "no-manager" in [finding.code for finding in await gateway.doctor()]


async def test_a_declaration_itself_ends_the_epochs_under_which_slots_were_granted(site: Site) -> None:
    """No manager has to notice the move first: a step that was granted before cannot be started after it."""
    app = site.app(**ALONE)
    async with app.running(STILL):
        jobs = [(await app.submit("draw")).id]
        await until(lambda: in_queue(app, jobs, ALONE))
        before = await app._runtime.store.epochs()
    gateway = site.app(**POOLED)
    async with gateway.running(GATEWAY):
        after = await gateway._runtime.store.epochs()
    assert all(after[scope].number > before[scope].number for scope in ("service:draw", "service:chat"))
    assert "pool:gpu" in after


async def test_a_queue_left_behind_by_an_earlier_release_is_closed_and_its_jobs_are_requeued(site: Site) -> None:
    app = site.app(**ALONE)
    async with app.running(STILL):
        jobs = [(await app.submit("draw")).id for _ in range(3)]
        await until(lambda: in_queue(app, jobs, ALONE))
    new = site.app(**POOLED)
    async with new:  # it declared without raising an epoch, and built the pool beside the old queue
        services = tuple(service.rules(name) for name, service in new.config.services.items())
        await new._runtime.group_commit.write(DeclareServices(services, new.config.pools))
    site.endpoint.gate.set()
    async with new.running():
        await all_end(new, jobs)
        assert (await new._runtime.store.epochs())["service:draw"].number == 2
    assert site.endpoint.too_many == []


# ---------------------------------------------------------------- any sequence of changes

CHANGES: list[dict[str, Any]] = [
    ALONE,
    POOLED,
    HALF,
    ELSEWHERE,
    SPLIT,
    REMOVED,
    {"services": {"draw": {"limit": 2}, "chat": {"pool": "gpu", "limit": 1}}, "pools": {"gpu": 2}},
    {
        "services": {"draw": {"shard": "other", "pool": "gpu"}, "chat": {"shard": "other", "pool": "gpu"}},
        "pools": {"gpu": 3},
    },
    {"services": {"draw": {"order": "fifo"}}},
    REGIONAL,
    PART_POOLED,
    {"services": {"draw": {"regions": {"us": {}}, "shard": "other"}}},
    {"services": {"draw": {"regions": {"eu": {"pool": "gpu"}}, "order": "fifo"}, "chat": {}}, "pools": {"gpu": 1}},
]


class Fleet:
    """Processes with different configurations, side by side."""

    def __init__(self, site: Site, last: AsyncExitStack, chance: random.Random) -> None:
        self._site = site
        self._last = last
        self._chance = chance
        self._processes: list[AsyncExitStack] = []
        self._gateways: dict[AsyncExitStack, tuple[Fairlead, dict[str, Any]]] = {}
        self.jobs: list[str] = []

    async def start(self, config: dict[str, Any], *roles: Roles) -> Fairlead:
        services = {name: {"max_attempts": 50, "backoff": [0.05], **keys} for name, keys in config["services"].items()}
        for each in roles:
            app = self._site.app(**{**config, "services": services})
            if each.api:
                self._site.endpoint.pool = None
            self._processes.append(await started(self._last, app, each))
            if each.api:
                self._gateways[self._processes[-1]] = (app, config)
                await self._watch_pool(app, config)
        return app

    async def _watch_pool(self, app: Fairlead, config: dict[str, Any]) -> None:
        """The gateway has declared its configuration. Once the calls of earlier ones fit into the pool, all must."""
        members = pool_members(config)
        if not members:
            return
        limit = config["pools"]["gpu"]
        async with asyncio.timeout(PATIENCE):
            while True:
                running = [row for row in await app._runtime.store.running(ALL_LANES) if counts_in(row, members)]
                if len(running) <= limit:
                    break
                await asyncio.sleep(0.01)
        self._site.endpoint.pool = members, limit

    async def step(self) -> None:
        """One change: a gateway declares its configuration, or a worker or a manager starts or stops."""
        config = self._chance.choice(CHANGES)
        await self.start(config, self._chance.choice([GATEWAY, GATEWAY, Roles(), WORKER, MANAGER]))
        if len(self._processes) > 5:
            *_, newest = self._gateways
            oldest = next(each for each in self._processes if each is not newest)
            self._processes.remove(oldest)
            self._gateways.pop(oldest, None)
            await oldest.aclose()
        await self.submit()

    async def submit(self) -> None:
        *_, (app, config) = self._gateways.values()
        for service in config["services"]:
            for band in ("high", "medium", "low"):
                region = self._chance.choice([*config["services"][service].get("regions", {}), None])
                self.jobs.append((await app.submit(service, priority=band, region=region)).id)


def pool_members(config: dict[str, Any]) -> frozenset[str]:
    """What counts in the pool: services, and regions of services."""
    members: set[str] = set()
    for name, keys in config["services"].items():
        if "pool" in keys:
            members.add(name)
        members |= {f"{name}/{region}" for region, of in keys.get("regions", {}).items() if "pool" in of}
    return frozenset(members)


def counts_in(row: Job, members: frozenset[str]) -> bool:
    return row.service in members or f"{row.service}/{row.call_region}" in members


ALL_LANES = Lanes(frozenset((service, band) for service in ("draw", "chat") for band in BANDS))


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)])
async def test_any_sequence_of_changes_keeps_the_limits_and_loses_no_job(site: Site, seed: int) -> None:
    site.endpoint.gate.set()
    site.endpoint.seconds = 0.03
    async with AsyncExitStack() as last:
        fleet = Fleet(site, last, random.Random(seed))
        await fleet.start(ALONE, Roles())
        await fleet.submit()
        for _ in range(8):
            await fleet.step()
        app = await fleet.start(POOLED, MANAGER, WORKER, GATEWAY)
        site.endpoint.seconds = 0.2  # so that the pool fills up
        for _ in range(4):
            await fleet.submit()
        await all_end(app, fleet.jobs)
    assert site.endpoint.too_many == []
    assert site.endpoint.watched > 0, "no call was made while the pool was watched"
