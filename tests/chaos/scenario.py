"""One round: the cluster under load, all faults in a random order, anybody killed at any time; then the reckoning."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests import servers
from tests.chaos import verify
from tests.chaos.cluster import Cluster, Shape, chance_of
from tests.chaos.faults import FAULTS, World, kill_anyone, start_again
from tests.chaos.load import Load
from tests.chaos.redis_server import RedisServer
from tests.chaos.watch import Watch

Say = Callable[[str], None]


async def rampage(folder: Path, seed: int, say: Say, faults: Sequence[str] = tuple(FAULTS)) -> dict[str, Any]:
    """Raises AssertionError, with the tails of all logs, when a promise is broken."""
    postgres = servers.own_postgres()
    cluster: Cluster | None = None
    try:
        cluster = Cluster(folder, Shape(faulty=True, seed=seed), database_url=postgres.url, redis=RedisServer(folder))
        try:
            return await _round(cluster, postgres, seed, say, faults)
        except BaseException as error:
            error.add_note(f"CHAOS_SEED={seed}\n{cluster.tails()}")
            raise
    finally:
        if cluster is not None:
            await cluster.close()
        postgres.remove()


async def _round(
    cluster: Cluster, postgres: servers.Postgres, seed: int, say: Say, faults: Sequence[str]
) -> dict[str, Any]:
    await cluster.migrate()
    await cluster.truth.set_witness()
    await cluster.start()
    load = Load(cluster, seed)
    watch = Watch(cluster.truth, load)
    world = World(cluster, postgres, load, watch, chance_of(seed, "faults"), _timed(say, load, watch))
    watching = asyncio.create_task(watch.run())
    loading = asyncio.create_task(load.run())
    tending = asyncio.create_task(start_again(world))
    harming = asyncio.create_task(_harm(world, faults))
    tasks = (harming, loading, watching, tending)
    try:
        # Whatever breaks first ends it, and not what waits in vain because of it.
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task.done():
                task.result()
        load.stopping = True
        await loading
        world.say("all faults done; waiting for the last jobs")
        await verify.all_ended(cluster, load, watch)
        return await verify.everything(cluster, load)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _harm(world: World, faults: Sequence[str]) -> None:
    await world.flows()
    world.say("jobs flow")
    order = list(faults)
    world.chance.shuffle(order)
    killing = asyncio.create_task(kill_anyone(world))
    try:
        for name in order:
            world.say(name)
            await FAULTS[name](world)
            if killing.done():
                killing.result()
    finally:
        killing.cancel()
        with suppress(asyncio.CancelledError):
            await killing
        for process in world.cluster.processes.values():
            if not process.alive:
                process.start()


def _timed(say: Say, load: Load, watch: Watch) -> Say:
    began = time.monotonic()

    def timed(what: str) -> None:
        counts = f"{len(load.accepted):5} accepted {watch.ended:5} ended {watch.open:4} open"
        say(f"{time.monotonic() - began:6.1f} s {counts}  {what}")

    return timed
