"""Recovery judges only when it was awake itself."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from fairlead.dispatch.port import Lease
from fairlead.domain.job import Job, JobStatus
from fairlead.domain.limits import EVERYTHING, Lanes, Rules, ServiceRules
from fairlead.domain.processes import GONE, ProcessRecord
from fairlead.runtime.loops.recover import ASLEEP_AFTER, EVERY, GRACE, RecoverLoop


class Asked:
    """A dispatcher and a store of which nothing is asked but whether anything expired."""

    def __init__(self) -> None:
        self.times = 0

    async def expired(self) -> list[Any]:
        self.times += 1
        return []

    async def running(self, lanes: Lanes) -> list[Any]:
        return []

    async def states(self, scopes: Any) -> dict[str, Any]:
        return {}


async def test_a_manager_that_was_stopped_lets_the_workers_renew_before_it_judges() -> None:
    asked = Asked()
    loop = RecoverLoop(asked, asked, None, lambda: Rules({}), lambda: EVERYTHING, alone=True)  # type: ignore[arg-type]
    now = 1000.0
    for _ in range(3):
        now = await loop.tick(now)
    assert asked.times == 3
    assert now == 1000.0 + 3 * EVERY
    now += ASLEEP_AFTER + 60  # SIGSTOP, or a laptop's lid
    assert await loop.tick(now) == now + GRACE
    assert asked.times == 3
    await loop.tick(now + GRACE)
    assert asked.times == 4


async def test_the_leases_of_every_worker_of_a_process_that_was_killed_are_taken_back_at_once() -> None:
    taken: list[str] = []

    class Line(Asked):
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

    line: Any = Line()
    await RecoverLoop(line, line, line, lambda: Rules({}), lambda: EVERYTHING, alone=False).tick(1000.0)
    assert taken == ["j0", "j1", "j2"]


async def test_a_turn_that_a_killed_process_handed_over_stays_its_holders() -> None:
    turn = Job("01890000-0000-8000-8000-000000000001", "gpu", "ada", ("gpu",), run=1, turn="host:2:cd")
    held = replace(turn, status=JobStatus.RUNNING, run=2, lease="1:1", worker="host:1:ab/-turns")
    released: list[str] = []

    class Line(Asked):
        job = held

        async def processes(self) -> list[ProcessRecord]:
            return [ProcessRecord("host:1:ab", (), (), (), 1, "host", 1, "1", 0.0, details={GONE: True})]

        async def snapshot(self) -> list[Any]:
            lease = Lease("1:1", turn.id, 0, 1, "gpu", "ada", "host:1:ab/-turns", 0.0, 9.0)
            return [SimpleNamespace(leases=[lease])]

        async def get_jobs(self, job_ids: list[str]) -> dict[str, Job]:
            return {self.job.id: self.job}

        async def apply_each(self, moves: list[Any], now: float) -> list[Any]:
            return []

        async def hold(self, holds: list[Any]) -> None: ...

        async def release(self, releases: list[Any]) -> None:
            released.extend(release.lease for release in releases)

    line: Any = Line()
    await RecoverLoop(line, line, line, lambda: Rules({}), lambda: EVERYTHING, alone=False).tick(1000.0)
    assert released == [], "its holder renews it"
    line.job = turn
    await RecoverLoop(line, line, line, lambda: Rules({}), lambda: EVERYTHING, alone=False).tick(1000.0)
    assert released == ["1:1"], "it was not handed over yet"


async def test_a_job_that_finished_meanwhile_leaves_no_hold_behind() -> None:
    held: list[Any] = []

    class Line:
        async def get_jobs(self, job_ids: list[str]) -> dict[str, Job]:
            return {JOB.id: JOB}

        async def apply_each(self, moves: list[Any], now: float) -> list[Any]:
            return []  # the result arrived first: the move was refused

        async def hold(self, holds: list[Any]) -> None:
            held.extend(holds)

    rules = Rules({"gpu": ServiceRules("gpu", limit=1, remote=True)})
    line: Any = Line()
    await RecoverLoop(line, line, line, lambda: rules, lambda: EVERYTHING, alone=True).recover([JOB], 1000.0)
    assert held == []


JOB = Job(
    id="j", feature_name="gpu", user_id="u", steps=("gpu",), status=JobStatus.RUNNING, run=1, attempt=1, lease="1:1",
    call_deadline=2000.0,
)  # fmt: skip
