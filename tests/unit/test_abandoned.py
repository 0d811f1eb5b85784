"""Requests whose gateway is gone are cancelled after the grace time, unless another gateway reads them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fairlead.domain.front_readers import MOST_READERS, NONE, Reader, Readers
from fairlead.domain.job import Job, JobStatus
from fairlead.domain.processes import DEAD_AFTER, ProcessRecord
from fairlead.domain.rules import Rules, ServiceRules
from fairlead.domain.transitions import Move
from fairlead.engine.loops import abandoned
from fairlead.engine.loops.abandoned import AbandonedLoop
from fairlead.engine.parts import RulesRef
from fairlead.engine.transition_writer import Applied

GRACE = 30.0
JOB = Job("j1", "llama", "ada", ("llama",))
P1 = ProcessRecord("p1", (), (), (), 0, "host", 1, "1", 0.0, seen_at=1000.0)
P2 = replace(P1, name="p2")


class FakeStore:
    """The parts of a store and a recorder that the loop uses."""

    def __init__(self, reader: str, *processes: ProcessRecord) -> None:
        self.reader = reader
        self.known = list(processes)
        self.moment = 1000.0
        self.time = 0.0
        self.cancelled: list[str] = []
        self.looks = 0
        self.others: list[tuple[str, str]] = []

    async def processes(self) -> list[ProcessRecord]:
        return self.known

    async def now(self) -> float:
        return self.moment

    async def front_readers(self, limit: int) -> list[tuple[str, str]]:
        self.looks += 1
        return [*self.others, (JOB.id, self.reader)][:limit]

    async def get_jobs(self, job_ids: list[str]) -> dict[str, Job]:
        return dict.fromkeys(job_ids, JOB)

    async def apply_each(self, moves: list[tuple[Job, Move]], now: float) -> Applied:
        self.cancelled += [job.id for job, move in moves if move.status is JobStatus.CANCELLED]
        return Applied([move for _, move in moves])


def loop_of(store: FakeStore) -> AbandonedLoop:
    anything: Any = store
    rules = RulesRef(Rules({"llama": ServiceRules("llama", 1)}))
    return AbandonedLoop(anything, anything, rules, grace=GRACE, timer=lambda: store.time)


async def ticked(loop: AbandonedLoop, store: FakeStore, seconds: float) -> list[str]:
    store.time += seconds
    await loop.tick(0.0)
    return store.cancelled


async def test_a_job_is_cancelled_when_its_process_has_been_gone_for_the_grace_time() -> None:
    store = FakeStore("b@p1/r", P1, P2)
    loop = loop_of(store)
    await ticked(loop, store, 0)
    assert await ticked(loop, store, GRACE) == [], "p1 lives"
    store.known = [P2]
    await ticked(loop, store, 1)
    assert await ticked(loop, store, GRACE - 1) == []
    assert await ticked(loop, store, 1) == ["j1"]


async def test_a_silent_process_counts_as_gone() -> None:
    store = FakeStore("b@p1/r", P1, P2)
    loop = loop_of(store)
    await ticked(loop, store, 0)
    store.moment += DEAD_AFTER + 1
    store.known = [P1, replace(P2, seen_at=store.moment)]
    await ticked(loop, store, 1)
    assert await ticked(loop, store, GRACE) == ["j1"]


async def test_jobs_of_a_process_that_was_gone_before_the_leader_started_are_cancelled() -> None:
    store = FakeStore("b@p0/r", P1)
    loop = loop_of(store)
    await ticked(loop, store, 0)
    assert await ticked(loop, store, GRACE) == ["j1"]


async def test_a_job_that_another_gateway_has_joined_goes_on() -> None:
    store = FakeStore("b@p1/r", P1, P2)
    loop = loop_of(store)
    await ticked(loop, store, 0)
    store.known = [P2]
    await ticked(loop, store, GRACE + 1)
    store.reader = "b@p2/r"
    assert await ticked(loop, store, GRACE) == []


async def test_jobs_are_read_only_after_a_process_disappeared() -> None:
    store = FakeStore("b@p1/r", P1)
    loop = loop_of(store)
    for _ in range(100):
        await ticked(loop, store, GRACE)
    assert store.looks == 1


async def test_a_reader_of_an_unregistered_process_and_a_plain_hash_are_left_alone() -> None:
    for reader in ("b@/r", "0123abcd"):
        store = FakeStore(reader, P1)
        loop = loop_of(store)
        await ticked(loop, store, 0)
        assert await ticked(loop, store, GRACE) == []


async def test_a_job_whose_client_has_left_is_cancelled_even_if_its_gateway_could_not() -> None:
    store = FakeStore(f"b@{NONE}/r", P1)
    loop = loop_of(store)
    await ticked(loop, store, 0)
    assert await ticked(loop, store, GRACE) == ["j1"]


async def test_an_abandoned_job_is_found_behind_many_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(abandoned, "BATCH", 2)
    store = FakeStore("b@p0/r", P1)
    store.others = [(f"o{number}", "b@p1/r") for number in range(30)]
    loop = loop_of(store)
    await ticked(loop, store, 0)
    assert await ticked(loop, store, GRACE) == ["j1"]


async def test_a_job_is_not_abandoned_as_long_as_one_of_its_readers_lives() -> None:
    store = FakeStore("b@p0/r1+p1/r2", P1, P2)
    loop = loop_of(store)
    await ticked(loop, store, 0)
    assert await ticked(loop, store, GRACE) == []
    store.known = [P2]
    await ticked(loop, store, 1)
    assert await ticked(loop, store, GRACE) == ["j1"]


def test_readers_survive_their_text() -> None:
    readers = Readers("body", (Reader("host:1:ab/pool", "r1"),))
    assert Readers.of(str(readers)) == readers
    two = readers.joined_by(Reader("host:2:cd", "r2"))
    assert Readers.of(str(two)) == two
    assert Readers.of("0123abcd") is None


def test_the_last_reader_that_leaves_is_still_known() -> None:
    first, second = Reader("p1", "r1"), Reader("p2", "r2")
    readers = Readers("body", (first, second))
    assert readers.left_by(first).requests == (second,)
    assert readers.left_by(second, gone={"p1"}).all_left
    left = readers.left_by(first).left_by(second)
    assert (left.all_left, left.left_by(second)) == (True, left)


def test_the_number_of_stored_readers_is_bounded() -> None:
    readers = Readers("body", (Reader("p", "0"),))
    for number in range(1, 100):
        readers = readers.joined_by(Reader("p", str(number)))
    assert [reader.request for reader in readers.requests] == [str(n) for n in range(100 - MOST_READERS, 100)]
