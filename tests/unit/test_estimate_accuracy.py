"""Learning from measured waits, and scoring estimates against them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import pytest
from bench.estimates import EXCERPT, read, replayed

from fairlead.domain.fair_share import QueuePosition
from fairlead.domain.job import Job, JobStatus
from fairlead.domain.rules import Order
from fairlead.engine import estimate_accuracy as loop
from fairlead.engine.estimate_accuracy import FEWEST, SAMPLE, EstimateAccuracy, ScoreEstimatesLoop, score
from fairlead.store.port import Store

PLACE = QueuePosition(9, 40.0, 4, 5.0, service="llm", band=2)
"""Ten seconds, as far as is known."""


@pytest.mark.parametrize("limit", [1, 4, 16])
@pytest.mark.parametrize(("order", "least"), [(Order.FIFO, 0.8), (Order.FAIR, 0.6)])
def test_estimates_hold_on_a_replay_of_a_real_trace(order: Order, least: float, limit: int) -> None:
    """The replay is seeded, so these figures are deterministic. `python -m bench.estimates` shows more of them."""
    replay = replayed(read(EXCERPT), limit=limit, load=0.5, order=order)
    assert replay.waited > replay.jobs / 2, "otherwise there is nothing to estimate"
    assert replay.close >= least
    assert replay.strict >= 0.5, "half of them within 25 % of the measured wait, without the tolerance of a second"
    assert replay.width < 3, "the range is narrow enough to be useful"
    if order is Order.FIFO:
        assert replay.middle >= 0.5, "without overtaking, half of the waits are within the middle of the range too"


@pytest.mark.parametrize(("order", "least"), [(Order.FIFO, 0.9), (Order.FAIR, 0.45)])
def test_stated_costs_make_estimates_better(order: Order, least: float) -> None:
    trace = read(EXCERPT)
    without, stated = (replayed(trace, limit=4, load=0.5, order=order, cost=cost) for cost in ("none", "stated"))
    assert stated.middle >= least
    assert stated.middle > without.middle
    assert stated.twice >= 0.9


@pytest.mark.parametrize(
    ("waited", "within", "close"),
    [(10.0, True, True), (25.0, False, True), (27.0, False, False), (8.1, False, True), (7.0, False, False)],
)
def test_an_estimate_is_close_within_a_quarter_of_the_measured_wait(waited: float, within: bool, close: bool) -> None:
    scored = score(10.0, 20.0, waited)
    assert (scored.within, scored.close) == (within, close)


def test_an_error_of_one_second_is_tolerated() -> None:
    assert score(0.0, 0.0, 0.9).close
    assert not score(0.0, 0.0, 1.1).close


def test_longer_waits_than_estimated_make_the_next_estimates_longer() -> None:
    scores = EstimateAccuracy()
    for n in range(FEWEST):
        assert scores.learned({"x": PLACE})["x"].surprise is None, "too few samples"
        scores.remember(f"job-{n}", PLACE, 0.0)
        scores.came_true(f"job-{n}", 20.0 + n)
    assert scores.learned({"x": PLACE})["x"].estimated_wait() == pytest.approx((22.0, 26.0)), "the middle half"
    for other in (replace(PLACE, newcomer=True), replace(PLACE, band=3), replace(PLACE, service="tts")):
        assert scores.learned({"x": other})["x"].surprise is None, "no samples of another kind"


def test_the_sample_is_bounded_and_does_not_over_represent_long_waits() -> None:
    scores = EstimateAccuracy()
    for n in range(20 * SAMPLE):
        scores.remember(f"job-{n}", PLACE, float(n))
    assert SAMPLE / 4 < len(scores.given) <= SAMPLE
    kept = [given.at for given in scores.given.values()]
    assert 0.3 < sum(at < 10 * SAMPLE for at in kept) / len(kept) < 0.7, "old and new alike"


def test_a_job_with_a_free_slot_is_not_sampled() -> None:
    scores = EstimateAccuracy()
    scores.remember("job", replace(PLACE, position=1, free=1), 0.0)
    assert not scores.given


def test_a_wait_for_the_users_own_limit_is_a_kind_of_its_own() -> None:
    own = replace(PLACE, position=2, free=4, ahead_own=1, user_slots=1, user_free=1)
    scores = EstimateAccuracy()
    for n in range(FEWEST):
        scores.remember(f"job-{n}", own, 0.0)
        scores.came_true(f"job-{n}", 10.0)
    assert scores.report()["llm"]["count"] == FEWEST
    assert scores.learned({"x": own})["x"].surprise is not None
    assert scores.learned({"x": PLACE})["x"].surprise is None


def test_a_stalled_queue_is_not_sampled() -> None:
    scores = EstimateAccuracy()
    scores.remember("job", replace(PLACE, undated=True), 0.0)
    assert not scores.given


def test_a_report_contains_the_accuracy_per_service() -> None:
    scores = EstimateAccuracy()
    assert scores.report() == {}
    for n, waited in enumerate([11.0, 14.0, 17.0, 40.0]):
        scores.remember(f"job-{n}", PLACE, 0.0)  # from 10 to 15 seconds
        scores.came_true(f"job-{n}", waited)
    scores.remember("never", PLACE, 0.0)
    scores.forget("never")
    report = scores.report()["llm"]
    assert (report["count"], report["scored"], report["within_range"], report["close"]) == (4, 4, 0.5, 0.75)
    assert 0.13 < report["median_error"] < 0.28


class JobStore:
    """A store that holds these jobs, and counts how many were requested."""

    def __init__(self) -> None:
        self.jobs: dict[str, Job] = {}
        self.asked = 0

    async def get_jobs(self, job_ids: Sequence[str]) -> dict[str, Job]:
        self.asked += len(job_ids)
        return {job_id: self.jobs[job_id] for job_id in job_ids if job_id in self.jobs}


async def test_the_loop_reads_the_measured_waits() -> None:
    store, scores = JobStore(), EstimateAccuracy()
    looking = ScoreEstimatesLoop(cast("Store", store), scores)
    job = Job("started", "llm", "ada", ("llm",), status=JobStatus.COMPLETED, started_at=112.0)
    store.jobs = {
        "started": job,
        "waits": replace(job, id="waits", status=JobStatus.PENDING, started_at=None),
        "cancelled": replace(job, id="cancelled", status=JobStatus.CANCELLED, started_at=None),
        "under way": replace(job, id="under way", status=JobStatus.PENDING, started_at=20.0),
    }
    for job_id in [*store.jobs, "deleted"]:
        scores.remember(job_id, PLACE, 100.0)
    assert await looking.tick(100.5) > 100.5
    assert store.asked == 0, "nothing is read at once"
    await looking.tick(120.0)
    assert list(scores.given) == ["waits"]
    assert scores.report()["llm"] == {"count": 1, "scored": 1, "within_range": 1.0, "close": 1.0, "median_error": 0.042}
    asked = store.asked
    await looking.tick(121.0)
    assert store.asked == asked, "a job that has waited long is read rarely"
    store.jobs["waits"] = replace(job, id="waits", started_at=124.0)
    await looking.tick(125.0)
    assert not scores.given
    assert scores.report()["llm"]["count"] == 2


async def test_one_pass_reads_few_jobs() -> None:
    store, scores = JobStore(), EstimateAccuracy()
    for n in range(SAMPLE):
        scores.remember(f"job-{n}", PLACE, 0.0)
    await ScoreEstimatesLoop(cast("Store", store), scores).tick(100.0)
    assert store.asked == loop.AT_ONCE
