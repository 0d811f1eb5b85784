"""Recovery judges only when it was awake itself."""

from typing import Any

from fairlead.domain.job import Job, JobStatus
from fairlead.domain.limits import EVERYTHING, Lanes, Rules, ServiceRules
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


async def test_a_job_that_finished_meanwhile_leaves_no_hold_behind() -> None:
    held: list[Any] = []

    class Line:
        async def get_jobs(self, job_ids: list[str]) -> dict[str, Job]:
            return {JOB.id: JOB}

        async def record_each(self, moves: list[Any], now: float) -> list[Any]:
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
