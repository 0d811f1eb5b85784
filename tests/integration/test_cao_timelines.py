"""The timelines of the CAO seed ("Complete Flow Examples", "Concurrency Control Deep Dive", "Error Handling &
Retries"), second by second, in virtual time. Where the seed polls every half second or every five minutes, the times
here are exact."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from fairlead.engine.loops.recover import EVERY as RECOVER_EVERY
from fairlead.testing.virtual_time import in_virtual_time
from tests.integration.cao_site import HANGS, TimedEvent, cao

MINUTES = 60.0


def timeline(received: list[TimedEvent], *details: str) -> list[tuple[Any, ...]]:
    """The events with their times and these details, without snapshots and positions."""
    events = [event for event in received if event.type not in ("SNAPSHOT", "POSITION")]
    return [(event.at, event.type, *(event.more[name] for name in details if name in event.more)) for event in events]


@in_virtual_time
async def test_a_high_priority_job_goes_through_the_full_pipeline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T+0 submitted, T+1 claimed; calls of 45, 120, 300 and 350 s; image_gen is occupied until T+240."""
    async with cao(tmp_path, monkeypatch) as site:
        before = await site.submit("image_gen", "mary", "high", seconds=239)
        john = await site.submit("full_pipeline", "john", "high")
        watcher = site.watch(john)
        await asyncio.sleep(1)
        await site.start_worker()
        received = await watcher

        assert timeline(received, "service", "step") == [
            (1, "STEP_START", "prompt_enhancer", 1),
            (46, "STEP_COMPLETE", "prompt_enhancer", 1),
            (46, "WAITING", "fast_chat_llm", 2),
            (46, "STEP_START", "fast_chat_llm", 2),
            (166, "STEP_COMPLETE", "fast_chat_llm", 2),
            (166, "WAITING", "image_gen", 3),
            (240, "STEP_START", "image_gen", 3),
            (540, "STEP_COMPLETE", "image_gen", 3),
            (540, "WAITING", "model_3d_gen", 4),
            (540, "STEP_START", "model_3d_gen", 4),
            (890, "STEP_COMPLETE", "model_3d_gen", 4),
            (890, "JOB_COMPLETE"),
        ]
        in_line = [event for event in received if event.type == "POSITION" and 166 <= event.at <= 240]
        assert {event.more["position"] for event in in_line} == {1}
        assert (await site.job(before))["status"] == "COMPLETED"
        job = await site.job(john)
        assert (job["status"], job["current_step_index"], job["original_priority"]) == ("COMPLETED", 4, "high")
        entry = job["context"]["step_1_fast_chat_llm"]
        assert (entry["status"], entry["data"]) == ("SUCCESS", {"made_by": "fast_chat_llm"})
        assert entry["metrics"] == {"model_version": "v2.1", "execution_time_ms": 120_000}


@in_virtual_time
async def test_a_low_priority_job_is_promoted_after_30_minutes_and_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five calls of 70 s at a time, with more always waiting, all of higher priority than Alice's job."""
    async with cao(tmp_path, monkeypatch) as site:
        await site.start_worker()
        for number in range(150):
            await site.submit("prompt_enhancer", f"pro {number % 7}", "medium", seconds=70)
        alice = await site.submit("text_only", "alice", "low", seconds=50)
        received = await site.watch(alice)

        # The slots that were taken at T+0 are free every 70 s: at 1,820 for the first time after the promotion.
        assert timeline(received, "old", "new", "service") == [
            (30 * MINUTES, "JOB_PROMOTED", "low", "medium"),
            (1820, "STEP_START", "prompt_enhancer"),
            (1870, "STEP_COMPLETE", "prompt_enhancer"),
            (1870, "WAITING", "fast_chat_llm"),
            (1870, "STEP_START", "fast_chat_llm"),
            (1920, "STEP_COMPLETE", "fast_chat_llm"),
            (1920, "JOB_COMPLETE"),
        ]
        job = await site.job(alice)
        assert (job["priority"], job["original_priority"]) == ("medium", "low")
        # A promotion moves the job: no second copy ever ran.
        assert [visit.service for visit in site.endpoints.visits if "alice" in visit.user_prompt] == [
            "prompt_enhancer",
            "fast_chat_llm",
        ]


@in_virtual_time
async def test_a_low_priority_job_behind_high_ones_is_promoted_at_30_and_at_60_minutes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cao(tmp_path, monkeypatch) as site:
        await site.start_worker()
        for number in range(80):
            await site.submit("prompt_enhancer", f"enterprise {number % 7}", "high", seconds=270)
        alice = await site.submit("prompt_enhancer", "alice", "low", seconds=50)
        received = await site.watch(alice)

        assert timeline(received, "old", "new", "service") == [
            (30 * MINUTES, "JOB_PROMOTED", "low", "medium"),
            (60 * MINUTES, "JOB_PROMOTED", "medium", "high"),
            (14 * 270, "STEP_START", "prompt_enhancer"),
            (14 * 270 + 50, "STEP_COMPLETE", "prompt_enhancer"),
            (14 * 270 + 50, "JOB_COMPLETE"),
        ]
        job = await site.job(alice)
        assert (job["priority"], job["original_priority"]) == ("high", "low")
        assert len([visit for visit in site.endpoints.visits if "enterprise" in visit.user_prompt]) < 80


@in_virtual_time
async def test_a_transient_failure_is_resumed_by_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`retry = "manual"`: no answer for 30 s, FAILED and retryable; the user resumes a second later."""
    async with cao(tmp_path, monkeypatch, fast_chat_llm={"retry": "manual", "timeout": 30}) as site:
        site.endpoints.answers["fast_chat_llm"] = [HANGS]
        job_id = await site.submit("text_only", "ann", seconds=20)
        watcher = site.watch(job_id)
        await asyncio.sleep(1)
        await site.start_worker()
        received = await watcher

        assert timeline(received, "service", "retryable")[3:] == [
            (21, "STEP_START", "fast_chat_llm"),
            (51, "JOB_FAILED", True),
        ]
        assert received[-1].more["message"] == "fast_chat_llm did not answer within 30 s (resume available)"

        await asyncio.sleep(1)
        resumed = await site.client.post(f"/api/v1/jobs/{job_id}/resume")
        assert resumed.status_code == 200, resumed.text
        assert (await site.watch(job_id))[-1].type == "JOB_COMPLETE"
        job = await site.job(job_id)
        assert (job["status"], job["retryable"], len(job["attempts"])) == ("COMPLETED", None, 1)
        calls = [(visit.service, visit.begun, visit.ended) for visit in site.endpoints.visits]
        assert calls == [("prompt_enhancer", 1, 21), ("fast_chat_llm", 21, 51), ("fast_chat_llm", 52, 72)]


@in_virtual_time
async def test_a_resume_is_the_next_attempt_and_the_third_failure_is_permanent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cao(tmp_path, monkeypatch, prompt_enhancer={"retry": "manual"}) as site:
        await site.start_worker()
        site.endpoints.answers["prompt_enhancer"] = [503, 503, 503]
        job_id = await site.submit("prompt_enhancer", "ann")
        failures = [(await site.watch(job_id))[-1].more["retryable"]]
        for _ in range(2):
            resumed = await site.client.post(f"/api/v1/jobs/{job_id}/resume")
            assert resumed.status_code == 200, resumed.text
            failures.append((await site.watch(job_id))[-1].more["retryable"])

        assert failures == [True, True, False]
        assert [visit.attempt for visit in site.endpoints.visits] == [1, 2, 3]
        job = await site.job(job_id)
        assert (job["retryable"], job["error"]["reason"]) == (False, "ATTEMPTS_USED_UP")
        assert (await site.client.post(f"/api/v1/jobs/{job_id}/resume")).status_code == 409


@pytest.mark.parametrize("resume", ["auto", "manual"])
@in_virtual_time
async def test_a_low_priority_job_is_promoted_although_it_is_resumed_every_two_minutes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, resume: str
) -> None:
    """Example 2 of the seed: no capacity within `wait_timeout`, resumed a minute later, and again, until the promotion
    after 30 minutes. The time that a job spends as FAILED does not count; a job that resumes by itself never fails."""
    limits = {"wait_timeout": 110, "resume": resume, "backoff": [60], "timeout": 4000}
    async with cao(tmp_path, monkeypatch, prompt_enhancer=limits) as site:
        await site.start_worker()
        for number in range(5):
            await site.submit("prompt_enhancer", f"pro {number}", "high", seconds=3500)
        alice = await site.submit("prompt_enhancer", "alice", "low", seconds=50)
        received = await site.watch(alice)
        while received[-1].type == "JOB_FAILED":
            await asyncio.sleep(60)
            assert (await site.client.post(f"/api/v1/jobs/{alice}/resume")).status_code == 200
            received += await site.watch(alice)

        assert received[-1].type == "JOB_COMPLETE"
        failures = len([event for event in received if event.type == "JOB_FAILED"])
        assert (failures == 0) is (resume == "auto")
        before = next(n for n, event in enumerate(received) if event.type == "JOB_PROMOTED")
        paused = len([event for event in received[:before] if event.type == "JOB_FAILED"]) * MINUTES
        assert received[before].at == 30 * MINUTES + paused
        job = await site.job(alice)
        assert (job["priority"], [visit.attempt for visit in site.endpoints.visits][-1]) == ("medium", 1)


@in_virtual_time
async def test_the_same_failure_is_fixed_by_the_automatic_retry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cao(tmp_path, monkeypatch, fast_chat_llm={"timeout": 30}) as site:
        site.endpoints.answers["fast_chat_llm"] = [HANGS]
        job_id = await site.submit("text_only", "ann", seconds=20)
        watcher = site.watch(job_id)
        await asyncio.sleep(1)
        await site.start_worker()
        received = await watcher

        assert timeline(received, "service", "attempt")[3:] == [
            (21, "STEP_START", "fast_chat_llm", 1),
            (51, "JOB_RETRYING", 1),
            (53, "WAITING", "fast_chat_llm"),
            (53, "STEP_START", "fast_chat_llm", 2),
            (73, "STEP_COMPLETE", "fast_chat_llm"),
            (73, "JOB_COMPLETE"),
        ]
        job = await site.job(job_id)
        assert [attempt["error"]["code"] for attempt in job["attempts"]] == ["TIMEOUT"]


@pytest.mark.parametrize("last", [500, 503], ids=lambda status: f"the last is a {status}")
@in_virtual_time
async def test_a_failure_is_permanent_after_three_attempts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last: int
) -> None:
    """No answer, then 503, then the last attempt; one attempt every five minutes."""
    async with cao(tmp_path, monkeypatch, prompt_enhancer={"timeout": 30, "backoff": [270, 300]}) as site:
        site.endpoints.answers["prompt_enhancer"] = [HANGS, 503, last]
        job_id = await site.submit("full_pipeline", "ann")
        watcher = site.watch(job_id)
        await asyncio.sleep(1)
        await site.start_worker()
        received = await watcher

        assert timeline(received, "attempt", "retryable") == [
            (1, "STEP_START", 1),
            (31, "JOB_RETRYING", 1),
            (301, "WAITING"),
            (301, "STEP_START", 2),
            (301, "JOB_RETRYING", 2),
            (601, "WAITING"),
            (601, "STEP_START", 3),
            (601, "JOB_FAILED", False),
        ]
        job = await site.job(job_id)
        assert (job["status"], job["retryable"], job["current_step_index"]) == ("FAILED", False, 0)
        codes = [attempt["error"]["code"] for attempt in job["attempts"]]
        assert codes == ["TIMEOUT", "HTTP_503", f"HTTP_{last}"]
        assert (await site.client.post(f"/api/v1/jobs/{job_id}/resume")).status_code == 409
        dead = (await site.client.get("/admin/queue-dead")).json()["data"]
        assert [letter["job_id"] for letter in dead] == [job_id]


@in_virtual_time
async def test_a_crashed_workers_job_is_recovered_within_a_lease_and_its_slot_at_the_calls_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Worker A crashes at 02:00. Its endpoint may continue until the call's deadline at 06:40, which cannot be
    observed. So the job is queued again when the lease has expired, but the slot is held until the deadline."""
    async with cao(tmp_path, monkeypatch, image_gen={"timeout": 400, "lease_ttl": 15}) as site:
        job_id = await site.submit("image_gen", "ann")
        watcher = site.watch(job_id)
        await asyncio.sleep(1)
        worker = await site.start_worker()
        await asyncio.sleep(119)
        await site.crash(worker)
        await site.start_worker()
        received = await watcher

        start, waiting, again, *rest = timeline(received, "service", "attempt")
        assert start == (1, "STEP_START", "image_gen", 1)
        # The last heartbeat came at most a third of a lease before the crash.
        assert waiting[1:] == ("WAITING", "image_gen")
        assert 120 + 10 <= waiting[0] <= 120 + 15 + 2 * RECOVER_EVERY
        # Holds are checked once a second.
        assert again[1:] == ("STEP_START", "image_gen", 2)
        assert 401 <= again[0] <= 402
        assert rest == [
            (again[0] + 300, "STEP_COMPLETE", "image_gen"),
            (again[0] + 300, "JOB_COMPLETE"),
        ]
        job = await site.job(job_id)
        assert [attempt["error"]["code"] for attempt in job["attempts"]] == ["WORKER_DIED"]


@in_virtual_time
async def test_a_crashed_workers_slot_is_free_within_a_lease_when_the_call_died_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A function runs in its worker and dies with it: there is no reason to hold the slot."""
    function = {"url": None, "function": "tests.integration.cao_site:draw", "lease_ttl": 15}
    async with cao(tmp_path, monkeypatch, image_gen=function) as site:
        job_id = await site.submit("image_gen", "ann")
        watcher = site.watch(job_id)
        await asyncio.sleep(1)
        worker = await site.start_worker()
        await asyncio.sleep(119)
        await site.crash(worker)
        await site.start_worker()
        received = await watcher

        _, waiting, again, *rest = timeline(received, "service", "attempt")
        assert 120 + 10 <= waiting[0] <= 120 + 15 + 2 * RECOVER_EVERY
        assert again == (waiting[0], "STEP_START", "image_gen", 2)
        assert rest[-1] == (again[0] + 300, "JOB_COMPLETE")


@in_virtual_time
async def test_ten_workers_share_one_slot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All ten claim at T+0. One call runs at a time, and the next one starts the moment the previous one ends."""
    async with cao(tmp_path, monkeypatch) as site:
        first = await site.submit("image_gen", "user 0", seconds=300)
        jobs = [first, *[await site.submit("image_gen", f"user {n}", seconds=30) for n in range(1, 10)]]
        watcher = site.watch(jobs[-1])
        for _ in range(10):
            await site.start_worker()
        assert timeline(await watcher)[-1] == (300 + 9 * 30, "JOB_COMPLETE")

        calls = site.endpoints.visits_of("image_gen")
        assert [call.begun for call in calls] == [0, *(300 + 30 * number for number in range(9))]
        assert all(before.ended == after.begun for before, after in pairwise(calls))
        assert [call.user_prompt for call in calls] == [f"a robot for user {n}" for n in range(10)]
        assert {(await site.job(job_id))["status"] for job_id in jobs} == {"COMPLETED"}
