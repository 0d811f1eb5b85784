from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fairlead.dispatch.port import Offer, Withdrawal
from fairlead.domain.job import Job, JobStatus
from fairlead.domain.rules import Lanes, Order, Rules, ServiceRules
from fairlead.engine.outbox_relay import OutboxRelay
from fairlead.engine.parts import RulesRef
from fairlead.store.port import OutboxEntry, Relayed

RULES = Rules({"draw": ServiceRules("draw", limit=1)})


class Recorder:
    """Records what the relay sends to the dispatcher, the group commit and its shard."""

    def __init__(self) -> None:
        self.offers: list[Offer] = []
        self.withdrawals: list[Withdrawal] = []
        self.relayed: list[int] = []
        self.ended: list[str] = []

    async def offer(self, offers: Sequence[Offer]) -> int:
        self.offers += offers
        return len(offers)

    async def withdraw(self, withdrawals: Sequence[Withdrawal]) -> int:
        self.withdrawals += withdrawals
        return len(withdrawals)

    def write_later(self, relayed: Relayed) -> None:
        self.relayed += relayed.outbox_ids

    def jobs_offered(self) -> None: ...

    def job_found_ended(self, job_id: str) -> None:
        self.ended.append(job_id)


def relay_to(recorder: Recorder, rules: Rules) -> OutboxRelay:
    anything: Any = recorder
    return OutboxRelay(anything, anything, anything, RulesRef(rules), anything)


def entry(number: int, **fields: Any) -> OutboxEntry:
    job = Job(f"j{number}", "image", "ann", ("draw", "scale"), seq=number, **fields)
    return OutboxEntry(number, job.id, job)


async def relay(*entries: OutboxEntry) -> Recorder:
    recorder = Recorder()
    await relay_to(recorder, RULES).relay(entries)
    return recorder


async def test_waiting_jobs_are_offered_and_others_withdrawn() -> None:
    gone = OutboxEntry(3, "j3", None)
    recorder = await relay(entry(1), entry(2, status=JobStatus.CANCELLED, run=1), gone, entry(4, step=1, run=2))
    assert [(each.job_id, each.service, each.run) for each in recorder.offers] == [
        ("j1", "draw", 0),
        ("j4", "scale", 2),
    ]
    assert recorder.withdrawals == [Withdrawal("j2", "draw", 1)]
    assert recorder.relayed == [1, 2, 3, 4]
    assert recorder.ended == ["j2"]


async def test_an_offer_names_the_services_that_its_job_has_waited_for() -> None:
    recorder = await relay(entry(1), entry(2, step=1, run=2), entry(3, step=0, run=5, round=1))
    assert [offer.steps for offer in recorder.offers] == [("draw",), ("draw", "scale"), ("draw", "scale")]


async def test_a_row_that_jobs_share_is_relayed_once() -> None:
    shared = [replace(entry(number), outbox_id=7) for number in (1, 2, 3)]
    recorder = await relay(*shared, entry(8))
    assert [offer.job_id for offer in recorder.offers] == ["j1", "j2", "j3", "j8"]
    assert recorder.relayed == [7, 8]


class WithOutbox(Recorder):
    """With rows in the outbox that no process has relayed."""

    def __init__(self, *earlier: OutboxEntry) -> None:
        super().__init__()
        self.earlier = earlier
        self.queried: list[Lanes] = []

    async def outbox(self, *, older_than: float, limit: int, lanes: Lanes) -> Sequence[OutboxEntry]:
        self.queried.append(lanes)
        return self.earlier


async def relay_late(order: Order, entry: OutboxEntry, *earlier: OutboxEntry) -> WithOutbox:
    recorder = WithOutbox(*earlier)
    rules = Rules({"draw": ServiceRules("draw", limit=1, order=order)})
    await relay_to(recorder, rules).relay([entry])
    return recorder


async def test_a_late_row_of_a_fifo_service_is_relayed_before_the_job_that_found_it() -> None:
    recorder = await relay_late(Order.FIFO, replace(entry(9), late=True), entry(1), entry(2))
    assert [offer.job_id for offer in recorder.offers] == ["j1", "j2", "j9"]
    assert recorder.relayed == [1, 2, 9]
    assert recorder.queried == [Lanes(frozenset({("draw", 1), ("draw", 2), ("draw", 3)}))]


async def test_the_outbox_is_not_read_unless_there_are_late_rows_of_a_fifo_service() -> None:
    assert (await relay_late(Order.FIFO, entry(9), entry(1))).queried == []
    assert (await relay_late(Order.FAIR, replace(entry(9), late=True), entry(1))).queried == []
