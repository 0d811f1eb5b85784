"""One round: a cluster under load, all faults in random order, random kills, and finally the verification."""

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
from tests.chaos.faults import FAULTS, System, kill_anyone, start_again
from tests.chaos.load import Load
from tests.chaos.progress_watch import Watch
from tests.chaos.redis_server import RedisServer

Say = Callable[[str], None]


async def rampage(folder: Path, seed: int, say: Say, faults: Sequence[str] = tuple(FAULTS)) -> dict[str, Any]:
    """Run one round. Raises AssertionError, with the tails of all logs, if a guarantee is violated."""
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
    await cluster.database.set_witness()
    await cluster.start()
    load = Load(cluster, seed)
    watch = Watch(cluster.database, load)
    world = System(cluster, postgres, load, watch, chance_of(seed, "faults"), _timed(say, load, watch))
    watching = asyncio.create_task(watch.run())
    loading = asyncio.create_task(load.run())
    tending = asyncio.create_task(start_again(world))
    harming = asyncio.create_task(_harm(world, faults))
    tasks = (harming, loading, watching, tending)
    try:
        # Report the first failure, not the timeouts that follow from it.
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


async def _harm(world: System, faults: Sequence[str]) -> None:
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
