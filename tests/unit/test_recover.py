"""Recovery judges workers only after it was running itself."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from fairlead.dispatch.port import Lease, ScopeState
from fairlead.domain.job import Hold, Job, JobStatus
from fairlead.domain.processes import GONE, ProcessRecord
from fairlead.domain.rules import Lanes, Rules, ServiceRules
from fairlead.engine.events import Hub
from fairlead.engine.loops.recover import ASLEEP_AFTER, EVERY, GRACE, STRAY_AFTER, RecoverLoop
from fairlead.engine.parts import RulesRef, RunningNode
from fairlead.engine.transition_writer import Applied, TransitionWriter
from fairlead.errors import Unavailable
from fairlead.store.port import Done, Refused


class CountingDispatcher:
    """A dispatcher and a store that count how often expired leases are read."""

    def __init__(self) -> None:
        self.times = 0

    async def expired(self) -> list[Any]:
        self.times += 1
        return []

    async def running(self, lanes: Lanes) -> list[Any]:
        return []

    async def states(self, scopes: Any) -> dict[str, Any]:
        return {}


async def test_a_manager_that_was_suspended_lets_workers_renew_before_it_judges() -> None:
    dispatcher = CountingDispatcher()
    loop = RecoverLoop(dispatcher, dispatcher, None, RulesRef(), alone=True)  # type: ignore[arg-type]
    now = 1000.0
    for _ in range(3):
        now = await loop.tick(now)
    assert dispatcher.times == 3
    assert now == 1000.0 + 3 * EVERY
    now += ASLEEP_AFTER + 60  # SIGSTOP, or a laptop that slept
    assert await loop.tick(now) == now + GRACE
    assert dispatcher.times == 3
    await loop.tick(now + GRACE)
    assert dispatcher.times == 4


async def test_the_leases_of_all_workers_of_a_killed_process_are_recovered_at_once() -> None:
    taken: list[str] = []

    class FakeQueue(CountingDispatcher):
        async def processes(self) -> list[ProcessRecord]:
            record = ProcessRecord("host:1:ab", ("worker",), (), (), 1, "host", 1, "1", 0.0, details={GONE: True})
            return [record, replace(record, name="host:2:cd", details={})]

        async def snapshot(self) -> list[Any]:
            names = ("host:1:ab", "host:1:ab/high", "host:1:ab/low", "host:2:cd/high")
            leases = [Lease(f"1:{n}", f"j{n}", 0, 0, "gpu", "ada", name, 0.0, 9.0) for n, name in enumerate(names)]
            return [SimpleNamespace(leases=leases)]

        async def get_jobs(self, job_ids: list[str]) -> dict[str, Job]:
            taken.extend(job_ids)
            return {}

        async def holds(self) -> list[Any]:
            return []

        async def hold(self, holds: list[Any]) -> None: ...

        async def release(self, releases: list[Any]) -> None: ...

    queue: Any = FakeQueue()
    await RecoverLoop(queue, queue, queue, RulesRef(), alone=False).tick(1000.0)
    assert taken == ["j0", "j1", "j2"]


async def test_a_turn_that_a_killed_process_handed_over_stays_with_its_holder() -> None:
    turn = Job("01890000-0000-8000-8000-000000000001", "gpu", "ada", ("gpu",), run=1, turn="host:2:cd")
    held = replace(turn, status=JobStatus.RUNNING, run=2, lease="1:1", worker="host:1:ab/-turns")
    released: list[str] = []

    class FakeQueue(CountingDispatcher):
        job = held

        async def processes(self) -> list[ProcessRecord]:
            return [ProcessRecord("host:1:ab", (), (), (), 1, "host", 1, "1", 0.0, details={GONE: True})]

        async def snapshot(self) -> list[Any]:
            lease = Lease("1:1", turn.id, 0, 1, "gpu", "ada", "host:1:ab/-turns", 0.0, 9.0)
            return [SimpleNamespace(leases=[lease])]

        async def get_jobs(self, job_ids: list[str]) -> dict[str, Job]:
            return {self.job.id: self.job}

        async def apply_each(self, moves: list[Any], now: float) -> Applied:
            return Applied([move for _, move in moves])

        async def hold(self, holds: list[Any]) -> None: ...

        async def release(self, releases: list[Any]) -> None:
            released.extend(release.lease for release in releases)

    queue: Any = FakeQueue()
    await RecoverLoop(queue, queue, queue, RulesRef(), alone=False).tick(1000.0)
    assert released == [], "its holder renews it"
    queue.job = turn
    await RecoverLoop(queue, queue, queue, RulesRef(), alone=False).tick(1000.0)
    assert released == ["1:1"], "it was not handed over yet"


async def test_a_job_that_finished_meanwhile_leaves_no_hold() -> None:
    held: list[Any] = []

    class FakeQueue:
        async def get_jobs(self, job_ids: list[str]) -> dict[str, Job]:
            return {JOB.id: JOB}

        async def apply_each(self, moves: list[Any], now: float) -> Applied:
            return Applied([])  # the result arrived first, so the transition was refused

        async def hold(self, holds: list[Any]) -> None:
            held.extend(holds)

    rules = Rules({"gpu": ServiceRules("gpu", limit=1, remote=True)})
    queue: Any = FakeQueue()
    await RecoverLoop(queue, queue, queue, RulesRef(rules), alone=True).recover([JOB], 1000.0)
    assert held == []


class Leased:
    """A database and a queue with these leases, all expired. `outcomes`: per job, the outcome of its recovery."""

    def __init__(self, outcomes: dict[str, bool | Exception], leases: list[Lease]) -> None:
        self.jobs = {name: replace(JOB, id=name, lease=f"1:{name}") for name in outcomes}
        self.outcomes = outcomes
        self.leases = leases
        self.released: list[str] = []
        self.slots: list[str] = []
        """What became of slots, in order."""
        self.recorder = TransitionWriter(self, Hub(), RunningNode())  # type: ignore[arg-type]

    async def expired(self) -> list[Lease]:
        return self.leases

    async def processes(self) -> list[ProcessRecord]:
        return [ProcessRecord("host:1:ab", ("worker",), (), (), 1, "host", 1, "1", 0.0, details={GONE: True})]

    async def snapshot(self) -> list[Any]:
        return [SimpleNamespace(leases=self.orphans)]

    orphans: tuple[Lease, ...] = ()

    async def get_jobs(self, job_ids: list[str]) -> dict[str, Job]:
        return {name: job for name, job in self.jobs.items() if name in job_ids}

    async def write_each(self, moves: list[Any]) -> list[Any]:
        refused = Refused("the job moved on")
        found = [self.outcomes[move.job_id] for move in moves]
        return [Done() if each is True else refused if each is False else each for each in found]

    stored_holds: tuple[Hold, ...] = ()

    async def holds(self) -> list[Hold]:
        return [*self.stored_holds]

    async def hold(self, holds: list[Hold]) -> None:
        self.slots += [f"hold {hold.job_id}" for hold in holds]

    async def release(self, releases: list[Any]) -> None:
        self.released += [release.lease for release in releases]
        self.slots += [f"release {release.lease}" for release in releases]

    strays: tuple[Job, ...] = ()

    async def running(self, lanes: Lanes) -> list[Job]:
        return [*self.strays]

    state = ScopeState(1, open=True, server="redis")

    async def states(self, scopes: Any) -> dict[str, Any]:
        return dict.fromkeys(scopes, self.state)

    def loop(self, *, alone: bool = True, remote: bool = False) -> RecoverLoop:
        queue: Any = self
        rules = RulesRef(Rules({"gpu": ServiceRules("gpu", limit=1, remote=remote)}))
        return RecoverLoop(queue, queue, self.recorder, rules, alone=alone)


def leased(job_id: str) -> Lease:
    return Lease(f"1:{job_id}", job_id, 0, 0, "gpu", "ada", "host:1:ab", 0.0, 9.0)


async def test_only_the_slot_of_a_recovered_step_is_released() -> None:
    away, poisoned = Unavailable("the database is away"), ValueError("this row")
    queue = Leased(
        {"taken": True, "moved": False, "unknown": away, "poisoned": poisoned},
        [leased(name) for name in ("taken", "moved", "unknown", "poisoned", "deleted")],
    )
    with pytest.raises(Unavailable):
        await queue.loop().tick(1000.0)
    assert queue.released == ["1:taken", "1:deleted"]


async def test_a_failed_recovery_from_a_killed_process_is_retried() -> None:
    queue = Leased({"j": Unavailable("the database is away")}, [])
    queue.orphans = (leased("j"),)
    loop = queue.loop(alone=False)
    with pytest.raises(Unavailable):
        await loop.tick(1000.0)
    queue.outcomes["j"] = True
    await loop.tick(1001.0)
    assert queue.released == ["1:j"]


async def test_a_queue_is_not_rebuilt_while_running_steps_could_not_be_recovered() -> None:
    queue = Leased({"j": Unavailable("the database is away")}, [])
    with pytest.raises(Unavailable):
        await queue.loop().recover([queue.jobs["j"]], 1000.0)


async def test_a_slot_is_held_before_the_lease_of_a_remote_call_is_released() -> None:
    queue = Leased({"j": True}, [leased("j")])
    await queue.loop(remote=True).tick(1000.0)
    assert queue.slots == ["hold j", "release 1:j"]


async def test_a_hold_of_a_job_that_moved_on_before_is_placed_before_its_lease_is_released() -> None:
    queue = Leased({}, [leased("moved")])
    queue.stored_holds = (Hold("moved", "gpu", None, 2000.0),)
    await queue.loop(remote=True).tick(1000.0)
    assert queue.slots == ["hold moved", "release 1:moved"]


async def test_a_running_row_without_a_lease_is_taken_back_unless_leases_are_being_restored() -> None:
    queue = Leased({"stray": True, "young": True, "leased": True}, [])
    old = 1000.0 - 2 * STRAY_AFTER
    queue.strays = (
        replace(queue.jobs["stray"], call_started_at=old),
        replace(queue.jobs["young"], call_started_at=1000.0),
        replace(queue.jobs["leased"], call_started_at=old),
    )
    queue.orphans = (leased("leased"),)
    queue.state = ScopeState(2, open=False, server="redis")
    loop = queue.loop()
    await loop.tick(1000.0)
    assert loop.queued == 0
    queue.state = ScopeState(2, open=True, server="redis")
    loop = queue.loop(remote=True)
    await loop.tick(1000.0)
    assert loop.queued == 1
    assert queue.slots == ["hold stray"]


JOB = Job(
    id="j", feature_name="gpu", user_id="u", steps=("gpu",), status=JobStatus.RUNNING, run=1, attempt=1, lease="1:1",
    call_deadline=2000.0,
)  # fmt: skip
