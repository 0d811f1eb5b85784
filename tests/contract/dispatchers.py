"""The dispatchers that must pass `test_dispatcher*.py`, and a harness for those tests.

To add an engine, add a function to `ENGINES` that makes an empty one from a clock.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial

from fairlead.dispatch.memory import MemoryDispatcher
from fairlead.dispatch.memory.claim_new import claim_new
from fairlead.dispatch.port import (
    Claim,
    Dispatcher,
    Lease,
    Offer,
    Promotion,
    Release,
    ServiceSnapshot,
    UserQueue,
    Withdrawal,
)
from fairlead.dispatch.port import (
    ClaimNew as ClaimsNew,
)
from fairlead.dispatch.redis import RedisDispatcher
from fairlead.dispatch.redis.claim_new import ClaimNew
from fairlead.domain.groups import GroupRules
from fairlead.domain.job import RANK_ARRIVAL, Hold
from fairlead.domain.rates import Rate
from fairlead.domain.rules import Rules, ServiceRules
from fairlead.engine.prompt_worker import LAST
from tests.redis_servers import server_url


async def claimed_new(claim_new: ClaimsNew, offer: Offer) -> Lease | None:
    """Claim a step that is not in the queue, and wait for the answer."""
    answer: asyncio.Future[Lease | None] = asyncio.get_running_loop().create_future()
    claim_new(offer, "w", answer.set_result)
    return await answer


class FakeClock:
    """A clock that the test advances. Multiples of 1/64 s add up exactly."""

    def __init__(self, now: float = 1_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


async def memory(clock: FakeClock, database: FakeClock | None = None) -> Dispatcher:
    return MemoryDispatcher(clock, database=database)


async def redis(clock: FakeClock, database: FakeClock | None = None) -> Dispatcher:
    """A dispatcher with a key prefix of its own, so that tests need not clean up."""
    return RedisDispatcher(server_url(), prefix=f"test-{secrets.token_hex(6)}", clock=clock, database=database)


ENGINES: dict[str, Callable[..., Awaitable[Dispatcher]]] = {"memory": memory, "redis": redis}
"""Factories that take the dispatcher's clock, and the database's if it differs."""


@dataclass
class QueueHarness:
    """A dispatcher under test, with shorthands for its operations."""

    dispatcher: Dispatcher
    clock: FakeClock
    rules: dict[str, ServiceRules] = field(default_factory=dict)
    pools: dict[str, int] = field(default_factory=dict)
    groups: dict[str, GroupRules] = field(default_factory=dict)
    plan_rates: dict[str, Rate] = field(default_factory=dict)
    pool_rates: dict[str, Rate] = field(default_factory=dict)
    version: int = 0
    seq: int = 0
    wakes: list[frozenset[str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.dispatcher.on_wake(self.wakes.append)

    async def open(
        self,
        *services: ServiceRules,
        pools: dict[str, int] | None = None,
        groups: dict[str, GroupRules] | None = None,
    ) -> None:
        """Apply these rules and open their scopes at epoch 1."""
        await self.configure(*services, pools=pools, groups=groups)
        for scope in {rules.scope for rules in services}:
            await self.dispatcher.close_scope(scope, epoch=1)
            await self.dispatcher.open_scope(scope, epoch=1)
        self.wakes.clear()

    async def configure(
        self,
        *services: ServiceRules,
        pools: dict[str, int] | None = None,
        groups: dict[str, GroupRules] | None = None,
    ) -> None:
        """Change these services, pools and groups only."""
        self.rules |= {rules.service: rules for rules in services}
        self.pools |= pools or {}
        self.groups |= groups or {}
        self.version += 1
        rules = Rules(
            dict(self.rules),
            dict(self.pools),
            self.version,
            groups=dict(self.groups),
            plan_rates=dict(self.plan_rates),
            pool_rates=dict(self.pool_rates),
        )
        await self.dispatcher.configure(rules)

    async def change(self, service: str, **changes: object) -> None:
        await self.configure(replace(self.rules[service], **changes))  # type: ignore[arg-type]

    async def offer(self, job: str, user: str = "ann", service: str = "s", **more: object) -> bool:
        """Offer one job: by default a new one in band 2 at run 1, with `seq` in order of the offers."""
        self.seq += 1
        values: dict[str, object] = {"seq": self.seq, "band": 2, "rank": RANK_ARRIVAL, "step": 0, "run": 1} | more
        offer = Offer(job_id=job, service=service, user_id=user, **values)  # type: ignore[arg-type]
        return await self.dispatcher.offer([offer]) == 1

    async def offer_all(self, jobs: Iterable[str], user: str = "ann", service: str = "s", **more: object) -> None:
        for job in jobs:
            await self.offer(job, user, service, **more)

    async def claim(self, budget: int = 1, *services: str, worker: str = "w", **filters: object) -> list[Lease]:
        """Claim for these services, by default for all."""
        claim = Claim(worker, budget, frozenset(services or self.rules), **filters)  # type: ignore[arg-type]
        return await self.dispatcher.exchange(claim)

    async def claim_new(self, job: str, user: str = "ann", service: str = "s", **more: object) -> Lease | None:
        """Claim a step that was not offered. By default its job is new, and has no seq yet."""
        values: dict[str, object] = {"seq": LAST, "band": 2, "rank": RANK_ARRIVAL, "step": 0, "run": 0} | more
        offer = Offer(job_id=job, service=service, user_id=user, **values)  # type: ignore[arg-type]
        if isinstance(self.dispatcher, MemoryDispatcher):
            return await claimed_new(partial(claim_new, self.dispatcher), offer)
        assert isinstance(self.dispatcher, RedisDispatcher)
        return await claimed_new(ClaimNew(self.dispatcher, rest=0.0), offer)

    async def claimed(self, budget: int = 1, *services: str, worker: str = "w", **filters: object) -> list[str]:
        """Claim, and return the jobs."""
        return [lease.job_id for lease in await self.claim(budget, *services, worker=worker, **filters)]

    async def take(self, *services: str, worker: str = "w", **filters: object) -> Lease:
        (lease,) = await self.claim(1, *services, worker=worker, **filters)
        return lease

    async def end(self, lease: Lease, *, after: float = 0.0, refund: bool = False, **outcome: object) -> None:
        """Advance the clock and release a lease."""
        self.clock.advance(after)
        await self.dispatcher.release([Release(lease.name, lease.service, refund, **outcome)])  # type: ignore[arg-type]

    async def serve(self, count: int, *services: str, seconds: float = 1.0) -> list[str]:
        """Run `count` steps one after the other; returns their jobs in order."""
        served = []
        for _ in range(count):
            lease = await self.take(*services)
            await self.end(lease, after=seconds)
            served.append(lease.job_id)
        return served

    async def run_first(self, user: str, seconds: float, service: str = "s", **more: object) -> None:
        """Run one step of this user, which sets the user's mean duration."""
        await self.offer(f"first of {user}", user, service, **({"rank": 0, "seq": 0} | more))
        (lease,) = await self.claim(1, service)
        assert lease.job_id == f"first of {user}"
        await self.end(lease, after=seconds)

    async def withdraw(self, job: str, run: int = 1, service: str = "s") -> int:
        return await self.dispatcher.withdraw([Withdrawal(job, service, run)])

    async def promote(self, job: str, band: int, run: int = 2, service: str = "s") -> int:
        return await self.dispatcher.promote([Promotion(job, service, run, band)])

    async def hold(
        self, job: str, seconds: float, service: str = "s", region: str | None = None, hold_id: str = ""
    ) -> None:
        await self.dispatcher.hold([Hold(job, service, region, self.clock.now + seconds, hold_id)])

    async def positions(self, *jobs: str) -> list[int]:
        positions = await self.dispatcher.positions(jobs)
        return [positions[job].position for job in jobs]

    async def see(self, service: str = "s") -> ServiceSnapshot:
        (seen,) = await self.dispatcher.snapshot([service], users=True)
        return seen

    async def user(self, user: str, service: str = "s", band: int = 2) -> UserQueue | None:
        """This user's queue in this band, if any."""
        queues = [queue for queue in (await self.see(service)).users if (queue.user_id, queue.band) == (user, band)]
        return queues[0] if queues else None

    async def tag(self, user: str, service: str = "s", band: int = 2) -> float | None:
        """This user's virtual time, in seconds."""
        queue = await self.user(user, service, band)
        return None if queue is None else queue.tag / 1e6

    def wakeups(self) -> list[set[str]]:
        """The wakeups since the last call."""
        wakes = [set(wake) for wake in self.wakes]
        self.wakes.clear()
        return wakes


async def open_pool(queue: QueueHarness, limit: int, *names: str) -> None:
    """Open services that share a pool with a lower limit than their own."""
    await queue.open(*(ServiceRules(name, limit=9, pool="gpu") for name in names), pools={"gpu": limit})
