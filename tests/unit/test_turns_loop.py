"""Whose turns are ended: of processes that are gone for certain at once, of silent ones when that is sure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fairlead.domain.job import Job, JobStatus
from fairlead.domain.limits import EVERYTHING, Rules, ServiceRules
from fairlead.domain.processes import DEAD_AFTER, GONE, ProcessRecord
from fairlead.domain.transitions import Move
from fairlead.domain.turns import UNHEARD_AFTER, owner
from fairlead.runtime.loops.turns import SURE_AFTER, TurnsLoop

WAITS = Job("waits", "flux", "ann", ("flux",), turn="p1")
HOLDS = replace(WAITS, id="holds", status=JobStatus.RUNNING, run=1, lease="1:1", worker="p2/-turns")
PROCESS = ProcessRecord("p1", (), (), (), 0, "host", 1, "1", 0.0, seen_at=1000.0)


class Truth:
    """A store, a dispatcher and a recorder, of which no more is asked than the loop needs."""

    def __init__(self, *processes: ProcessRecord) -> None:
        self.jobs = [WAITS, HOLDS]
        self.known = list(processes)
        self.moment = 1000.0
        self.ended: dict[str, str] = {}
        self.released: list[str] = []

    async def turn_owners(self) -> list[str]:
        return sorted({job.turn or "" for job in self.jobs})

    async def turns_of(self, process: str, limit: int) -> list[Job]:
        return [job for job in self.jobs if job.turn == process]

    async def processes(self) -> list[ProcessRecord]:
        return self.known

    async def now(self) -> float:
        return self.moment

    async def apply_each(self, moves: list[tuple[Job, Move]], now: float) -> list[Move]:
        self.ended |= {job.id: (move.error or {})["code"] for job, move in moves}
        self.jobs = [job for job in self.jobs if job.id not in self.ended]
        return [move for _, move in moves]

    async def release(self, releases: list[Any]) -> None:
        self.released += [release.lease for release in releases]


def loop_of(truth: Truth, alone: str | None = None) -> TurnsLoop:
    rules = Rules({"flux": ServiceRules("flux", 1)})
    anything: Any = truth
    return TurnsLoop(anything, anything, anything, lambda: rules, lambda: EVERYTHING, alone=alone)


async def test_a_process_that_lives_keeps_its_turns() -> None:
    truth = Truth(PROCESS)
    loop = loop_of(truth)
    for second in range(10):
        await loop.tick(1000.0 + second)
    assert truth.ended == {}


async def test_a_process_that_said_farewell_or_was_killed_leaves_nothing_behind() -> None:
    for truth in (Truth(), Truth(replace(PROCESS, details={GONE: True}))):
        await loop_of(truth).tick(1000.0)
        assert truth.ended == {"waits": "WAITER_GONE", "holds": "HOLDER_DIED"}
        assert truth.released == ["1:1"]


async def test_callers_outside_have_time_to_come_back_elsewhere_and_keep_their_slots_until_they_expire() -> None:
    for truth in (Truth(), Truth(replace(PROCESS, details={GONE: True}))):
        truth.jobs = [replace(job, turn=owner("p1", outside=True)) for job in (WAITS, HOLDS)]
        loop = loop_of(truth)
        await loop.tick(1000.0)
        await loop.tick(1000.0 + UNHEARD_AFTER - 0.1)
        assert truth.ended == {}
        await loop.tick(1000.0 + UNHEARD_AFTER)
        assert truth.ended == {"waits": "WAITER_GONE"}
        assert truth.released == []


async def test_a_silent_process_leaves_the_line_when_that_is_sure_and_keeps_its_slots_until_they_expire() -> None:
    truth = Truth(PROCESS)
    loop = loop_of(truth)
    truth.moment += DEAD_AFTER + 1
    await loop.tick(2000.0)
    await loop.tick(2000.0 + SURE_AFTER - 0.1)
    assert truth.ended == {}
    await loop.tick(2000.0 + SURE_AFTER)
    assert truth.ended == {"waits": "WAITER_GONE"}
    assert truth.released == []


async def test_a_process_that_announces_itself_again_after_an_outage_has_lost_nothing() -> None:
    truth = Truth(PROCESS)
    loop = loop_of(truth)
    truth.moment += DEAD_AFTER + 1
    await loop.tick(2000.0)
    truth.known = [replace(PROCESS, seen_at=truth.moment)]
    await loop.tick(2001.0)
    truth.moment += DEAD_AFTER + 1
    await loop.tick(2000.0 + SURE_AFTER)
    assert truth.ended == {}, "its silence begins anew"


async def test_in_memory_nobody_else_can_have_a_turn() -> None:
    truth = Truth()
    await loop_of(truth, alone="p1").tick(1000.0)
    assert truth.ended == {}
    await loop_of(truth, alone="another").tick(1000.0)
    assert truth.ended == {"waits": "WAITER_GONE", "holds": "HOLDER_DIED"}
