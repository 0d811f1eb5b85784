from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

from fairlead.dispatch.port import Dispatcher, Offer, Withdrawal
from fairlead.domain.job import Job, JobStatus
from fairlead.domain.limits import EVERYTHING, Rules, ServiceRules
from fairlead.runtime.relay import Relay
from fairlead.store.journal import Journal
from fairlead.store.port import LineChange, Relayed

RULES = Rules({"draw": ServiceRules("draw", limit=1)})


class Told:
    """What the dispatcher and the journal hear."""

    def __init__(self) -> None:
        self.offers: list[Offer] = []
        self.withdrawals: list[Withdrawal] = []
        self.relayed: list[int] = []

    async def offer(self, offers: Sequence[Offer]) -> int:
        self.offers += offers
        return len(offers)

    async def withdraw(self, withdrawals: Sequence[Withdrawal]) -> int:
        self.withdrawals += withdrawals
        return len(withdrawals)

    def write_later(self, relayed: Relayed) -> None:
        self.relayed += relayed.outbox_ids


def change(number: int, **fields: Any) -> LineChange:
    job = Job(f"j{number}", "image", "ann", ("draw", "scale"), seq=number, **fields)
    return LineChange(number, job.id, job)


async def relay(*changes: LineChange) -> Told:
    told = Told()
    relay = Relay(cast(Dispatcher, told), lambda: EVERYTHING, lambda: RULES)
    await relay.relay(changes, cast(Journal, told))
    return told


async def test_the_line_hears_of_what_waits_and_of_what_no_longer_does() -> None:
    gone = LineChange(3, "j3", None)
    told = await relay(change(1), change(2, status=JobStatus.CANCELLED, run=1), gone, change(4, step=1, run=2))
    assert [(each.job_id, each.service, each.run) for each in told.offers] == [("j1", "draw", 0), ("j4", "scale", 2)]
    assert told.withdrawals == [Withdrawal("j2", "draw", 1)]
    assert told.relayed == [1, 2, 3, 4]


async def test_an_offer_says_what_its_job_has_waited_for_so_far() -> None:
    told = await relay(change(1), change(2, step=1, run=2), change(3, step=0, run=5, round=1))
    assert [offer.steps for offer in told.offers] == [("draw",), ("draw", "scale"), ("draw", "scale")]


async def test_a_row_that_jobs_share_is_relayed_once() -> None:
    shared = [replace(change(number), outbox_id=7) for number in (1, 2, 3)]
    told = await relay(*shared, change(8))
    assert [offer.job_id for offer in told.offers] == ["j1", "j2", "j3", "j8"]
    assert told.relayed == [7, 8]
