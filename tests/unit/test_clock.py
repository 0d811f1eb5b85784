"""The database clock, derived from the monotonic clock, and the loops that wait by it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from fairlead.engine.clock import DatabaseClock, id_at
from fairlead.engine.loop_runner import LONGEST_WAIT, LoopRunner
from fairlead.errors import Unavailable
from fairlead.executors.upstream_limits import retry_after_of
from fairlead.testing.virtual_time import EPOCH, VirtualClock, in_virtual_time

HOUR = 3600.0


class Machine(VirtualClock):
    """`ahead`: the seconds by which the machine's clock was set forward."""

    ahead = 0.0

    def now(self) -> float:
        return super().now() + self.ahead


class Database:
    """Reads its clock after `asking` seconds, and answers after `answering` more."""

    def __init__(self) -> None:
        self.ahead = self.asking = self.answering = 0.0
        self.away = False

    def now(self) -> float:
        return EPOCH + asyncio.get_running_loop().time() + self.ahead

    async def read(self) -> float:
        await asyncio.sleep(self.asking)
        if self.away:
            raise Unavailable("the database is away")
        now = self.now()
        await asyncio.sleep(self.answering)
        return now


@in_virtual_time
async def test_a_process_follows_the_database_clock_and_not_the_machines() -> None:
    for ahead in (-HOUR, 0.0, HOUR):
        machine, database = Machine(), Database()
        machine.ahead = ahead
        clock = DatabaseClock(machine)
        await clock.follow(database.read)
        assert clock.now() == pytest.approx(database.now())
        machine.ahead += 60
        await asyncio.sleep(9)
        assert clock.now() == pytest.approx(database.now())
        assert clock.machine() == pytest.approx(database.now() + ahead + 60)


@in_virtual_time
async def test_without_a_database_clock_the_machines_clock_counts() -> None:
    machine = Machine()
    clock = DatabaseClock(machine)
    machine.ahead = HOUR
    assert clock.now() == machine.now()


@in_virtual_time
async def test_a_slow_answer_makes_the_clock_late_but_never_early_and_a_fast_one_corrects_it() -> None:
    database, clock = Database(), DatabaseClock(Machine())
    database.asking, database.answering = 2.0, 1.0
    await clock.follow(database.read)
    assert clock.now() == pytest.approx(database.now() - 1.0)
    database.answering = 0.25
    await clock._read(database.read)
    assert clock.now() == pytest.approx(database.now() - 0.25)
    database.asking, database.answering = 30.0, 30.0
    await clock._read(database.read)
    assert clock.now() == pytest.approx(database.now() - 0.25), "a slow reply does not narrow the offset"


@in_virtual_time
async def test_a_database_clock_that_is_set_is_followed_and_an_unreachable_one_is_not_needed() -> None:
    database, clock = Database(), DatabaseClock(Machine())
    await clock.follow(database.read)
    following = asyncio.create_task(clock.keep_following(database.read))
    for ahead in (HOUR, -60.0, 0.0):
        database.ahead = ahead
        await asyncio.sleep(2)
        assert clock.now() == pytest.approx(database.now())
    database.away = True
    await asyncio.sleep(HOUR)
    assert clock.now() == pytest.approx(database.now())
    following.cancel()


class Ticking:
    """A loop that is due every second."""

    name = "ticking"

    def __init__(self, every: float = 1.0) -> None:
        self.every = every
        self.at: list[float] = []

    async def tick(self, now: float) -> float:
        self.at.append(asyncio.get_running_loop().time())
        return now + self.every


async def ticks(loop: Ticking, machine: Machine, then: Callable[[LoopRunner], None], wait: float) -> list[float]:
    """The times of its ticks, in seconds after `then`."""
    manager = LoopRunner([loop], DatabaseClock(machine))
    running = asyncio.create_task(manager.run())
    await asyncio.sleep(2.5)
    began = asyncio.get_running_loop().time()
    then(manager)
    await asyncio.sleep(wait)
    running.cancel()
    return [round(time - began, 3) for time in loop.at if time > began]


@in_virtual_time
async def test_a_clock_that_is_set_back_stalls_no_loop() -> None:
    machine = Machine()
    assert await ticks(Ticking(), machine, lambda _: setattr(machine, "ahead", -60.0), 3) == [0.5, 1.5, 2.5]


@in_virtual_time
async def test_a_hint_after_the_clock_was_set_back_delays_no_tick() -> None:
    machine = Machine()

    def hint(manager: LoopRunner) -> None:
        machine.ahead = -60.0
        manager.wake("ticking", machine.now() + 30)

    assert await ticks(Ticking(), machine, hint, 1) == [0.5]


@in_virtual_time
async def test_a_clock_that_is_set_forward_runs_due_work_soon() -> None:
    machine = Machine()
    (tick,) = await ticks(Ticking(1800.0), machine, lambda _: setattr(machine, "ahead", HOUR), 20)
    assert tick <= LONGEST_WAIT


def test_ids_are_ordered_by_time_even_within_a_tick_and_when_the_clock_is_set_back() -> None:
    ids = [id_at(EPOCH + n // 3) for n in range(9)] + [id_at(EPOCH - HOUR)]
    assert ids == sorted(set(ids))
    assert [each[14] for each in ids] == ["7"] * len(ids)


def test_a_retry_after_date_is_read_by_the_services_clock() -> None:
    headers = {"Retry-After": "Tue, 17 Nov 2015 10:00:30 GMT", "Date": "Tue, 17 Nov 2015 10:00:00 GMT"}
    assert retry_after_of(headers) == 30.0
    assert retry_after_of({"Retry-After": headers["Retry-After"]}) == 0.0
    assert retry_after_of({"Retry-After": "Tue, 99999999999999999999 Nov 2015 10:00:30 GMT"}) is None
