"""The regions a job may go to: what is accepted, what is refused, and what a step is bound to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fairlead.domain import transitions
from fairlead.domain.config import Config
from fairlead.domain.job import Job, JobStatus, hold_of
from fairlead.domain.rules import ServiceRules
from fairlead.domain.submission import Submission, check
from fairlead.domain.transitions import Move
from fairlead.engine.outbox_relay import offer_of
from fairlead.errors import InvalidInput

URL = "http://127.0.0.1:1/"


def regions(*names: str) -> dict[str, Any]:
    return {name: {"url": URL, "limit": 1} for name in names}


CONFIG = Config.model_validate(
    {
        "services": {
            "plain": {"limit": 1, "url": URL},
            "draw": {"limit": 9, "regions": regions("us", "eu"), "spill_after": 60},
            "paint": {"limit": 9, "regions": regions("eu", "ap"), "wait_timeout": 100},
        },
        "pipelines": {"all": ["plain", "draw", "paint"]},
    }
)


def job_of(feature: str, **wanted: Any) -> Job:
    return check(Submission(feature, **wanted), CONFIG, now=1000.0).job


@pytest.mark.parametrize(
    ("feature", "wanted", "pointer", "says"),
    [
        ("draw", {"region": "mars"}, "/region", "known are: eu, us"),
        ("draw", {"region": ["us"]}, "/region", "region must"),
        ("draw", {"region": ""}, "/region", "region must"),
        ("draw", {"allowed_regions": ["eu", "mars"]}, "/allowed_regions", "'mars'; known are: eu, us"),
        ("draw", {"allowed_regions": []}, "/allowed_regions", "1 to 32"),
        ("draw", {"allowed_regions": "eu"}, "/allowed_regions", "list"),
        ("draw", {"allowed_regions": [7]}, "/allowed_regions", "list"),
        ("draw", {"region": "us", "allowed_regions": ["eu"]}, "/region", "not among allowed_regions: eu"),
        ("all", {"region": "ap"}, "/region", "draw has no region 'ap'; known are: eu, us"),
        ("all", {"allowed_regions": ["us"]}, "/allowed_regions", "paint has none of the regions us"),
    ],
)
def test_an_impossible_region_is_refused(feature: str, wanted: Any, pointer: str, says: str) -> None:
    with pytest.raises(InvalidInput, match=says) as caught:
        check(Submission(feature, **wanted), CONFIG, now=0.0, idempotency_key="key")
    assert caught.value.pointer == pointer


def test_services_without_regions_ignore_them() -> None:
    job = job_of("plain", region="mars")
    assert (job.region, job.spill_after) == ("mars", None)


def test_a_job_without_regions_cannot_be_restricted_to_any() -> None:
    with pytest.raises(InvalidInput, match="none of its services has regions") as caught:
        job_of("plain", allowed_regions=["mars"])
    assert caught.value.pointer == "/allowed_regions"


def test_only_the_first_call_of_the_first_step_with_regions_goes_to_the_region() -> None:
    job = job_of("all", region="eu")
    assert [offer_of(replace(job, step=step), {}).region for step in range(3)] == [None, "eu>", None]
    assert offer_of(replace(job, step=1, attempt=1), {}).region is None


def test_allowed_regions_bind_every_step_and_every_retry() -> None:
    job = job_of("all", region="us", allowed_regions=["us", "eu", "eu"])
    assert job.allowed_regions == ("eu", "us")
    assert offer_of(replace(job, step=1), {}).region == "us>eu+us"
    assert offer_of(replace(job, step=1, attempt=1), {}).region == "eu+us"
    assert offer_of(replace(job, step=2), {}).region == "eu+us"


def test_a_region_that_was_removed_is_not_waited_for_unless_nothing_else_is_allowed() -> None:
    left = {"draw": ServiceRules("draw", limit=9, regions={"eu": 1})}
    assert offer_of(job_of("draw", region="us"), left).region is None
    assert offer_of(job_of("draw", region="us", allowed_regions=["us", "eu"]), left).region == "eu+us"
    assert offer_of(job_of("draw", allowed_regions=["us"]), left).region == "us"
    assert offer_of(job_of("draw", region="us", allowed_regions=["us"]), left).region == "us"


# ---------------------------------------------------------------- spilling


def rung(job: Job, now: float) -> Move | None:
    return transitions.timer_rang(job, now=now, waits=CONFIG.wait_timeouts)


def after(job: Job, move: Move) -> Job:
    return replace(job, timer_at=move.timer_at, spilled_at=move.spilled_at, waiting_since=move.waiting_since)


def test_a_job_that_waited_long_enough_for_its_region_may_go_to_any_allowed_one() -> None:
    job = job_of("draw", region="us", allowed_regions=["us", "eu"])
    assert job.timer_at == 1060.0
    assert rung(job, 1059.9) is None
    move = rung(job, 1060.0)
    assert move is not None
    assert (move.verb, move.status, move.tells_line, move.timer_at) == ("spill", JobStatus.PENDING, True, None)
    assert offer_of(after(job, move), {}).region == "eu+us"
    assert after(job, move).waiting_since == 1000.0


def test_a_spilled_job_stays_spilled_when_it_is_promoted() -> None:
    job = job_of("draw", region="us")
    move = rung(job, 1060.0)
    assert move is not None
    promoted = transitions.promote(after(job, move), now=1100.0, waits={})
    assert promoted.timer_at is None


def test_the_wait_timeout_applies_whether_the_job_spilled_or_not() -> None:
    waits = {"draw": 90.0}
    job = job_of("draw", region="us")
    spilled = transitions.timer_rang(job, now=1060.0, waits=waits)
    assert spilled is not None
    assert (spilled.verb, spilled.timer_at) == ("spill", 1090.0)
    ended = transitions.timer_rang(after(job, spilled), now=1090.0, waits=waits)
    assert ended is not None
    assert ended.verb == "time_out"
    at_once = transitions.timer_rang(replace(job, timer_at=1030.0), now=1030.0, waits={"draw": 30.0})
    assert at_once is not None
    assert at_once.verb == "time_out"


def test_a_later_step_spills_counted_from_its_own_wait() -> None:
    job = replace(job_of("all", region="us", allowed_regions=["us", "eu"]), run=1, attempt=1)
    result = transitions.StepResult(job.id, 0, "plain", 0, "{}", "{}", 2000.0)
    assert transitions.step_done(job, result, now=2000.0, waits={}).timer_at == 2060.0


def test_a_job_without_a_region_has_no_spill_timer() -> None:
    assert job_of("draw").timer_at is None
    assert job_of("draw", allowed_regions=["us"]).timer_at is None


def test_a_hold_takes_a_slot_in_the_region_of_the_call() -> None:
    job = replace(job_of("draw", region="us"), status=JobStatus.RUNNING, call_region="eu", call_deadline=1100.0)
    hold = hold_of(job, 1050.0)
    assert hold is not None
    assert (hold.region, hold.until) == ("eu", 1100.0)
