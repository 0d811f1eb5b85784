"""The faults that are injected into the cluster. Each returns when new jobs complete again."""

from __future__ import annotations

import asyncio
import signal
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from random import Random

from tests import servers
from tests.chaos.cluster import OUTLIVING_CALL, TIMEOUTS, Cluster
from tests.chaos.database import GONE
from tests.chaos.load import Load
from tests.chaos.process import Process
from tests.chaos.progress_watch import Watch
from tests.chaos.redis_server import RedisServer, caught_up, replica_of
from tests.chaos.waiting import until, until_true

GRANTS = 20


@dataclass
class System:
    """The parts that a fault may act on."""

    cluster: Cluster
    postgres: servers.Postgres
    load: Load
    watch: Watch
    chance: Random
    say: Callable[[str], None]
    replicas: int = 0
    _locks: dict[str, asyncio.Lock] = field(default_factory=lambda: defaultdict(asyncio.Lock))

    @property
    def redis(self) -> RedisServer:
        assert self.cluster.redis is not None
        return self.cluster.redis

    async def flows(self) -> None:
        """Submit a job that needs all services and wait for its end: the system works."""
        job_id = await self.load.urgent("full")

        async def ended() -> bool:
            try:
                sql = "SELECT ended IS NOT NULL FROM fairlead.job WHERE id = $1"
                return bool(await self.cluster.database.value(sql, job_id))
            except GONE:
                return False

        await until("a new job goes through all services", ended, patience=90, every=0.1)

    @asynccontextmanager
    async def alone_with(self, *processes: Process) -> AsyncIterator[None]:
        """Keep other faults from stopping or starting these processes."""
        async with AsyncExitStack() as stack:
            for process in processes:
                await stack.enter_async_context(self._locks[process.name])
            yield

    def unclaimed(self) -> list[Process]:
        return [process for name, process in self.cluster.processes.items() if not self._locks[name].locked()]


async def redis_flushed(world: System) -> None:
    world.redis.ask("FLUSHALL")
    await world.flows()


async def redis_restarted(world: System) -> None:
    """Restart Redis with the data in its append-only file."""
    world.redis.kill()
    world.redis.start()
    await world.flows()


async def stale_replica_promoted(world: System) -> None:
    """Promote a replica that has the epoch and old leases, but none of the grants after it lost its primary."""
    primary, cluster = world.redis, world.cluster
    world.replicas += 1
    replica = replica_of(primary, cluster.folder, f"replica{world.replicas}")
    await until_true("the replica has caught up", lambda: caught_up(replica))
    replica.ask("REPLICAOF", "127.0.0.1", 1)
    known = replica.grants()
    await until_true("the primary went on granting", lambda: primary.grants() > known + GRANTS)
    primary.kill()
    replica.ask("REPLICAOF", "NO", "ONE")
    assert cluster.proxy is not None
    cluster.proxy.tell("target", replica.port)
    cluster.redis = replica
    await world.flows()


async def redis_cut_off(world: System) -> None:
    """Cut the connections to Redis; jobs are still accepted."""
    await _while_redis_is(world, "cut")


async def redis_silent(world: System) -> None:
    await _while_redis_is(world, "hole")


async def _while_redis_is(world: System, how: str) -> None:
    assert world.cluster.proxy is not None
    world.cluster.proxy.tell(how)
    try:
        for _ in range(3):
            await world.load.urgent("full")
    finally:
        world.cluster.proxy.tell("heal")
    await world.flows()


async def postgres_restarted(world: System) -> None:
    """Stop PostgreSQL with `-m immediate`, and start it after a gateway has responded with 503."""
    # A gateway that is killed now could not start before PostgreSQL does, and would not respond.
    async with world.alone_with(*world.cluster.named("api")):
        await world.cluster.until_up()
        world.postgres.stop()
        refused = world.load.responses["503"]
        flowing = asyncio.create_task(world.flows())
        try:
            await until_true("a gateway responds with 503", lambda: world.load.responses["503"] > refused)
            world.postgres.start()
            await flowing
        finally:
            flowing.cancel()


async def leader_paused(world: System) -> None:
    """Pause the leader past its TTL. The standby takes over; the old leader wakes up beside it and must do no harm."""
    async with world.alone_with(*world.cluster.named("manager")):
        leader = await world.cluster.until_leader()
        leader.signal(signal.SIGSTOP)
        await world.cluster.until_leader(other_than=leader)
        await world.flows()
        leader.signal(signal.SIGCONT)
        await world.flows()


async def leader_paused_in_a_rebuild(world: System) -> None:
    """Pause the leader after it closed a scope and restored its leases; another leader completes the rebuild first."""
    first, second, *_ = managers = world.cluster.named("manager")
    async with world.alone_with(*managers):
        for manager in managers:
            manager.kill()
        first.start({"FAIRLEAD_FAILPOINT": "mid_rebuild", "FAIRLEAD_FAILPOINT_AFTER": "1"})
        await world.cluster.until_leader()
        world.redis.ask("FLUSHALL")
        await until_true("the leader stops itself in its rebuild", lambda: first.paused)
        second.start()
        await world.cluster.until_leader(other_than=first)
        await world.flows()
        first.signal(signal.SIGCONT)
        await world.flows()
        first.kill()
        first.start()


async def calls_outlive_their_workers(world: System) -> None:
    """Kill all workers while some of their calls last longer than their leases."""
    jobs = [await world.load.urgent(service, seconds=OUTLIVING_CALL) for service in TIMEOUTS]

    async def called() -> bool:
        seen = await world.cluster.services.seen()
        return all(seen.calls.get(f"{job}:0:0") for job in jobs)

    workers = world.cluster.named("worker")
    async with world.alone_with(*workers):
        await until("the long calls are open", called)
        for worker in workers:
            worker.kill()
        for worker in workers:
            worker.start()
        await world.flows()


async def worker_killed_after_claim(world: System) -> None:
    await _worker_killed_at(world, "after_claim")


async def worker_killed_after_finish(world: System) -> None:
    await _worker_killed_at(world, "after_finish")


async def _worker_killed_at(world: System, point: str) -> None:
    worker = world.chance.choice(world.cluster.named("worker"))
    async with world.alone_with(worker):
        worker.kill()
        worker.start({"FAIRLEAD_FAILPOINT": point})
        await until_true(f"{worker.name} kills itself {point}", lambda: worker.code is not None)
        assert worker.code == -signal.SIGKILL, worker.tail()
        worker.start()
        await world.flows()


FAULTS: dict[str, Callable[[System], Awaitable[None]]] = {
    fault.__name__: fault
    for fault in (
        redis_flushed,
        redis_restarted,
        stale_replica_promoted,
        redis_cut_off,
        redis_silent,
        postgres_restarted,
        leader_paused,
        leader_paused_in_a_rebuild,
        calls_outlive_their_workers,
        worker_killed_after_claim,
        worker_killed_after_finish,
    )
}


async def kill_anyone(world: System) -> None:
    """Kill random processes at random times, and start each again a little later."""
    while True:
        await asyncio.sleep(world.chance.uniform(0.5, 4.0))
        victim = world.chance.choice(world.unclaimed())
        async with world.alone_with(victim):
            world.say(f"SIGKILL {victim.name}")
            victim.kill()
            await asyncio.sleep(world.chance.uniform(0.0, 1.0))
            victim.start()


async def start_again(world: System) -> None:
    """Restart processes that exited by themselves, for example because PostgreSQL was unavailable at their start, as
    systemd or Kubernetes would."""
    while True:
        for process in world.cluster.processes.values():
            if process.gave_up:
                world.say(f"{process.name} ended with {process.code}; starting it again")
                process.start()
        await asyncio.sleep(0.5)
