"""The clock of one process is an hour off, or is changed while it runs: nothing is early or late, and limits hold."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from time import monotonic
from typing import Any

import asyncpg
import pytest

from fairlead import Call, Config, Fairlead, JobStatus
from fairlead.app.api_keys import SESSION_LIFE_S
from fairlead.config import Settings
from fairlead.engine.clock import SystemClock
from fairlead.engine.roles import ALL, Roles
from fairlead.store.sqlite import SqliteStore
from tests.integration.doctor_site import API, MANAGER, WORKER

PATIENCE = 30.0
HOUR = 3600.0
SOON = 0.5
EARLIEST = SOON / 2
"""A clock may be late by what the database's fastest answer took, on a busy machine."""
HELD = "INSERT INTO {hold} (id, job_id, service, until, band) VALUES ('h', 'gone', 'held', {until}, 2)"


class Machine(SystemClock):
    """A machine whose clock is `ahead` of ours by this many seconds."""

    ahead = 0.0

    def now(self) -> float:
        return super().now() + self.ahead


@dataclass(frozen=True)
class Change:
    """The offset of a process's clock at its start, and the change while it runs."""

    skew: float = 0.0
    step: float = 0.0


CHANGES = {
    "an hour ahead": Change(skew=HOUR),
    "an hour behind": Change(skew=-HOUR),
    "set back a minute": Change(step=-60.0),
    "set forward an hour": Change(step=HOUR),
}


class Calls:
    """The times of all calls, by our own monotonic clock."""

    def __init__(self) -> None:
        self.at: dict[str, list[float]] = {}

    def app(self, settings: dict[str, str], clock: Machine) -> Fairlead:
        app = Fairlead(Settings(Config.model_validate({}), **settings), clock=clock)  # type: ignore[arg-type]

        def note(call: Call) -> int:
            times = self.at.setdefault(call.job_id, [])
            times.append(monotonic())
            return len(times)

        @app.service(limit=4, max_attempts=2, backoff=[SOON])
        async def flaky(call: Call) -> str:
            if note(call) == 1 and call.params.get("fails"):
                raise RuntimeError("once")
            return "done"

        @app.service(limit=1)
        async def held(call: Call) -> str:
            note(call)
            return "done"

        return app


async def ended(app: Fairlead, job_id: str) -> Any:
    job = await app.wait(job_id, PATIENCE)
    assert job.status.finished, job
    return job


async def all_is_on_time(app: Fairlead, calls: Calls, set_clock: Callable[[], None]) -> None:
    """A slot of `held` is held for half an hour, and no call may start in it."""
    began = monotonic()
    retried = (await app.submit("flaky", {"fails": True})).id
    delayed = (await app.submit("flaky", delay=SOON)).id
    late = (await app.submit("held", deadline=SOON)).id
    waiting = (await app.submit("held", deadline=1800.0)).id
    set_clock()
    assert (await ended(app, retried)).status is JobStatus.COMPLETED
    first, second = calls.at[retried]
    assert second - first >= EARLIEST
    assert (await ended(app, delayed)).status is JobStatus.COMPLETED
    assert calls.at[delayed][0] - began >= EARLIEST
    job = await ended(app, late)
    assert (job.status, (job.error or {})["code"]) == (JobStatus.FAILED, "DEADLINE_PASSED")
    assert monotonic() - began >= EARLIEST
    # By now every loop has run several times.
    began = monotonic()
    after = (await app.submit("flaky", delay=SOON)).id
    await ended(app, after)
    assert calls.at[after][0] - began >= EARLIEST
    assert (await app.get(waiting)).status is JobStatus.PENDING
    assert late not in calls.at
    assert waiting not in calls.at


@pytest.fixture
async def held(distributed: dict[str, str]) -> dict[str, str]:
    """PostgreSQL and Redis, with a hold that lasts for another half an hour."""
    async with Fairlead(Settings(Config.model_validate({}), **distributed)):  # type: ignore[arg-type]
        connection = await asyncpg.connect(distributed["database_url"])
        until = "((extract(epoch FROM now()) + 1800) * 1000000)::bigint"
        await connection.execute(HELD.format(hold="fairlead.hold", until=until))
        await connection.close()
    return distributed


Site = Callable[[str, Change], Awaitable[tuple[Fairlead, Machine]]]


@pytest.fixture
async def site(held: dict[str, str], calls: Calls) -> AsyncIterator[Site]:
    """A gateway, a worker and a manager, of which the one with this role has its own clock. Returns the gateway and the
    clock."""
    async with AsyncExitStack() as stack:

        async def made(role: str, change: Change) -> tuple[Fairlead, Machine]:
            odd, right = Machine(), Machine()
            odd.ahead = change.skew
            clocks = {each: odd if each == role else right for each in ("manager", "worker", "gateway")}
            roles: dict[str, Roles] = {"manager": MANAGER, "worker": WORKER, "gateway": API}
            apps = [
                await stack.enter_async_context(calls.app(held, clocks[each]).running(roles[each])) for each in roles
            ]
            return apps[-1], odd

        yield made


@pytest.fixture
def calls() -> Calls:
    return Calls()


@pytest.mark.parametrize("role", ["gateway", "worker", "manager"])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
async def test_the_clock_of_one_process_decides_nothing(site: Site, calls: Calls, role: str, change: Change) -> None:
    gateway, odd = await site(role, change)

    def set_clock() -> None:
        odd.ahead += change.step

    await all_is_on_time(gateway, calls, set_clock)


async def test_tickets_and_sessions_of_a_gateway_with_a_wrong_clock_are_valid_elsewhere(
    distributed: dict[str, str], calls: Calls
) -> None:
    """Tickets and sessions expire by the database clock, and lists are in its order."""
    behind, right = Machine(), Machine()
    behind.ahead = -2 * SESSION_LIFE_S
    async with calls.app(distributed, behind) as odd, calls.app(distributed, right) as other:
        key = (await odd.create_key("admin")).key.id
        assert await other.use_ticket(await odd.issue_ticket(key)) == key
        assert await odd.use_ticket(await other.issue_ticket(key)) == key
        assert await other.session(await odd.open_session(key)) == key
        assert await odd.session(await other.open_session(key)) == key
        batches = [(await app.submit_batch([{"feature_name": "flaky"}])).id for app in (other, odd, other, odd)]
        assert [batch.batch_id for batch in (await odd.list_batches()).data] == batches[::-1]
        for app in (other, odd, other):
            await app.create_key("service")
        records = (await odd.audit()).data
        assert [each.at for each in records] == sorted((each.at for each in records), reverse=True)
        assert len(records) == 4


async def test_a_doctor_with_a_wrong_clock_reports_only_that(distributed: dict[str, str], calls: Calls) -> None:
    ahead = Machine()
    ahead.ahead = HOUR
    right = Machine()
    async with AsyncExitStack() as stack:
        for role in (MANAGER, WORKER):
            await stack.enter_async_context(calls.app(distributed, right).running(role))
        gateway = await stack.enter_async_context(calls.app(distributed, ahead).running(API))
        await ended(gateway, (await gateway.submit("flaky")).id)
        await gateway.submit("flaky", delay=60)
        async with asyncio.timeout(PATIENCE):
            # The worker may have announced that it could not claim before the queue was built.
            while "worker-cannot-claim" in (findings := {each.code: each for each in await gateway.doctor()}):
                await asyncio.sleep(0.1)
        assert round(findings.pop("clock-skew").evidence["skew"], -2) == HOUR
        assert findings.keys() <= {"no-keys", "redis-old"}, findings  # unrelated to time


# ---------------------------------------------------------------- SQLite: the machine's clock is the database clock


async def test_a_machine_clock_that_is_set_ends_no_hold_early_and_stalls_no_loop(
    embedded: dict[str, str], calls: Calls
) -> None:
    """Jobs of another process reach the queue by the loops alone, without a hint."""
    machine = Machine()
    async with calls.app(embedded, machine) as app, calls.app(embedded, machine) as other:
        await hold_in_sqlite(app, machine.now() + 1800)
        async with app.running(ALL):
            waiting = (await app.submit("held")).id
            await ended(app, (await other.submit("flaky")).id)
            machine.ahead += HOUR
            async with asyncio.timeout(PATIENCE):
                while await app._runtime.store.holds():
                    await asyncio.sleep(0.02)
            for step in (0.0, -HOUR - 60.0, 60.0):
                machine.ahead += step
                await ended(app, (await other.submit("flaky")).id)
                began = monotonic()
                await ended(app, (await other.submit("flaky", delay=SOON)).id)
                assert monotonic() - began >= EARLIEST
            assert (await app.get(waiting)).status is JobStatus.PENDING
            assert waiting not in calls.at


async def hold_in_sqlite(app: Fairlead, until: float) -> None:
    store = app._runtime.store
    assert isinstance(store, SqliteStore)
    sql = HELD.format(hold="hold", until=int(until * 1e6))
    await store._in_writer(lambda: store._writer.execute(sql))  # type: ignore[union-attr]


async def test_a_schedule_follows_the_corrected_clock(embedded: dict[str, str], calls: Calls) -> None:
    machine = Machine()
    machine.ahead = -50 * 365 * 86400.0  # as after a boot before the clock is synchronised
    async with calls.app(embedded, machine).running(ALL) as app:
        scheduled = (await app.submit("flaky", delay=HOUR)).id
        await asyncio.sleep(0)
        machine.ahead += 2 * HOUR
        assert (await ended(app, scheduled)).status is JobStatus.COMPLETED
