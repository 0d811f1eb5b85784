"""Turns are set aside or ended at once for processes that are certainly gone, and later for silent ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fairlead.domain.job import Job, JobStatus
from fairlead.domain.processes import DEAD_AFTER, GONE, ProcessRecord
from fairlead.domain.rules import Rules, ServiceRules
from fairlead.domain.transitions import Move
from fairlead.domain.turns import owner
from fairlead.engine.loops.orphaned_turns import SURE_AFTER, OrphanedTurnsLoop
from fairlead.engine.parts import RulesRef
from fairlead.engine.transition_writer import Applied

WAITS = Job("waits", "flux", "ann", ("flux",), turn="p1")
HOLDS = replace(WAITS, id="holds", status=JobStatus.RUNNING, run=1, lease="1:1", worker="p2/-turns")
PROCESS = ProcessRecord("p1", (), (), (), 0, "host", 1, "1", 0.0, seen_at=1000.0)


class FakeStore:
    """The parts of a store, a dispatcher and a recorder that the loop uses."""

    def __init__(self, *processes: ProcessRecord) -> None:
        self.jobs = [WAITS, HOLDS]
        self.known = list(processes)
        self.moment = 1000.0
        self.time = 0.0
        self.ended: dict[str, str] = {}
        self.set_aside: set[str] = set()
        self.released: list[str] = []

    async def turn_owners(self) -> list[str]:
        return sorted({job.turn or "" for job in self.jobs})

    async def turns_of(self, process: str, limit: int) -> list[Job]:
        return [job for job in self.jobs if job.turn == process]

    async def processes(self) -> list[ProcessRecord]:
        return self.known

    async def now(self) -> float:
        return self.moment

    async def apply_each(self, moves: list[tuple[Job, Move]], now: float) -> Applied:
        self.set_aside |= {job.id for job, move in moves if move.status is JobStatus.SCHEDULED}
        self.ended |= {job.id: (move.error or {})["code"] for job, move in moves if move.status.finished}
        self.jobs = [job for job in self.jobs if job.id not in self.ended.keys() | self.set_aside]
        return Applied([move for _, move in moves])

    async def release(self, releases: list[Any]) -> None:
        self.released += [release.lease for release in releases]


def loop_of(store: FakeStore, alone: str | None = None) -> OrphanedTurnsLoop:
    rules = Rules({"flux": ServiceRules("flux", 1)})
    anything: Any = store
    return OrphanedTurnsLoop(
        anything, anything, anything, RulesRef(rules), grace=60.0, alone=alone, timer=lambda: store.time
    )


async def tick(loop: OrphanedTurnsLoop, store: FakeStore, time: float) -> None:
    """At this time; the database clock has advanced by as much."""
    store.time = time
    await loop.tick(time)


async def test_a_live_process_keeps_its_turns() -> None:
    store = FakeStore(PROCESS)
    loop = loop_of(store)
    for second in range(10):
        await tick(loop, store, 1000.0 + second)
    assert (store.ended, store.set_aside) == ({}, set())


async def test_the_turns_of_a_deregistered_or_killed_process_are_set_aside_or_ended() -> None:
    for store in (FakeStore(), FakeStore(replace(PROCESS, details={GONE: True}))):
        await loop_of(store).tick(1000.0)
        assert store.ended == {"holds": "HOLDER_DIED"}
        assert store.set_aside == {"waits"}
        assert store.released == ["1:1"]


async def test_outside_callers_may_reconnect_elsewhere_and_keep_their_slots_until_they_expire() -> None:
    for store in (FakeStore(), FakeStore(replace(PROCESS, details={GONE: True}))):
        store.jobs = [replace(job, turn=owner("p1", outside=True)) for job in (WAITS, HOLDS)]
        loop = loop_of(store)
        await tick(loop, store, 1000.0)
        await tick(loop, store, 1000.0 + SURE_AFTER - 0.1)
        assert store.set_aside == set()
        await tick(loop, store, 1000.0 + SURE_AFTER)
        assert (store.ended, store.set_aside) == ({}, {"waits"})
        assert store.released == []


async def test_a_silent_process_leaves_the_queue_after_a_while_and_keeps_its_slots_until_they_expire() -> None:
    store = FakeStore(PROCESS)
    loop = loop_of(store)
    store.moment += DEAD_AFTER + 1
    await tick(loop, store, 2000.0)
    await tick(loop, store, 2000.0 + SURE_AFTER - 0.1)
    assert store.set_aside == set()
    await tick(loop, store, 2000.0 + SURE_AFTER)
    assert (store.ended, store.set_aside) == ({}, {"waits"})
    assert store.released == []


async def test_a_process_that_registers_again_after_an_outage_has_lost_nothing() -> None:
    store = FakeStore(PROCESS)
    loop = loop_of(store)
    store.moment += DEAD_AFTER + 1
    await tick(loop, store, 2000.0)
    store.known = [replace(PROCESS, seen_at=store.moment)]
    await tick(loop, store, 2001.0)
    store.moment += DEAD_AFTER + 1
    await tick(loop, store, 2000.0 + SURE_AFTER)
    assert store.set_aside == set(), "its silence starts again"


async def test_a_database_clock_that_is_set_forward_ends_no_turn_of_a_live_process() -> None:
    store = FakeStore(PROCESS)
    loop = loop_of(store)
    await tick(loop, store, 1000.0)
    store.moment += 3600  # no process has sent a heartbeat by this clock yet
    await tick(loop, store, 1001.0)
    store.time += 1
    await loop.tick(1002.0 + 3600)
    assert store.set_aside == set()


async def test_in_memory_there_are_no_orphaned_turns() -> None:
    store = FakeStore()
    await loop_of(store, alone="p1").tick(1000.0)
    assert (store.ended, store.set_aside) == ({}, set())
    await loop_of(store, alone="another").tick(1000.0)
    assert (store.ended, store.set_aside) == ({"holds": "HOLDER_DIED"}, {"waits"})
