"""The parts of the fal front that need no server: targets of the proxy, held polls, start timeouts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from fairlead.domain import transitions
from fairlead.domain.job import Job, JobStatus
from fairlead.domain.transitions import Move
from fairlead.domain.waiting_timers import START_TIMEOUT, with_start_timeout
from fairlead.errors import NotFound, Unavailable
from fairlead.gateway.fronts.fal import polls
from fairlead.gateway.fronts.fal.polls import MOST_HELD, Polls
from fairlead.gateway.fronts.fal.proxy import target_of
from fairlead.store.rows import job_of, spec_of
from fairlead.testing import in_virtual_time

HOLD = 15.0


@pytest.mark.parametrize(
    ("url", "path", "query"),
    [
        ("https://queue.fal.run/acme/flux/dev", "/fal/acme/flux/dev", b""),
        (
            "https://queue.fal.run/acme/flux?fal_webhook=https%3A%2F%2Fx",
            "/fal/acme/flux",
            b"fal_webhook=https%3A%2F%2Fx",
        ),
        ("https://fal.run/acme/flux/stream", "/fal/run/acme/flux/stream", b""),
        (
            "https://rest.fal.ai/storage/upload/initiate?storage_type=x",
            "/fal/storage/upload/initiate",
            b"storage_type=x",
        ),
        ("https://queue.fal.run/acme%20flux", "/fal/acme flux", b""),
        ("https://queue.fal.run/../../admin/keys", "/fal/../../admin/keys", b""),
    ],
)
def test_a_url_of_fal_is_a_path_below_the_front(url: str, path: str, query: bytes) -> None:
    assert target_of(url) == (path, query)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "queue.fal.run/acme/flux",
        "//queue.fal.run/acme/flux",
        "http://queue.fal.run/acme/flux",
        "ftp://queue.fal.run/acme/flux",
        "file:///etc/passwd",
        "gopher://queue.fal.run/_x",
        "https://queue.fal.run",
        "https://queue.fal.run:443/acme/flux",
        "https://queue.fal.run:8080/acme/flux",
        "https://QUEUE.fal.run/acme/flux",
        "https://queue.fal.run./acme/flux",
        "https://queue.fal.run.evil.example/acme/flux",
        "https://evil.example/queue.fal.run/acme",
        "https://evil.example#queue.fal.run/",
        "https://evil.example?https://queue.fal.run/",
        "https://queue.fal.run@evil.example/acme",
        "https://evil.example@queue.fal.run/acme",
        "https://user:pass@queue.fal.run/acme",
        "https://queue.fal.run\\@evil.example/acme",
        "https://queue.fal.run\\evil",
        "https://queue.fal.run/acme\\flux",
        "https://queue.fal.run/acme/flux#fragment",
        "https://queue.fal.run/acme flux",
        "https://queue.fal.run/acme\tflux",
        "https://queue.fal.run/acme\nHost: evil",
        "https://queue.fal.run/acme%00flux",
        "https://queue.fal.run/acme%0d%0aX: y",
        "https://queue.fal.run/acme?x=\r\ny",
        "https://queue.fal.run/[::1]",
        "https://[::1]/acme/flux",
        "https://127.0.0.1/acme/flux",
        "https://2130706433/acme/flux",
        "https://0x7f000001/acme/flux",
        "https://169.254.169.254/latest/meta-data",
        "https://metadata.google.internal/computeMetadata/v1/",
        "https://localhost/admin/keys",
        "https://rest.fal.ai/acme/flux",
        "https://rest.fal.ai/storage/auth/token",
        "https://rest.alpha.fal.ai/storage/upload/initiate",
        "https://api.fal.ai/v1/models",
        "https://xfal.run/acme/flux",
        "https://fal.run.internal/acme/flux",
        " https://queue.fal.run/acme/flux",
        "https://queue.fal.run/acme/flux\n",
        "https:/queue.fal.run/acme",
        "https:queue.fal.run/acme",
        "https://queue。fal.run/acme",
    ],
)
def test_any_other_url_is_no_target(url: str) -> None:
    assert target_of(url) is None


# ---------------------------------------------------------------- held polls


class Jobs:
    """Jobs whose states a test sets, in place of `app.jobs` and `app.watch`."""

    def __init__(self) -> None:
        self.config = SimpleNamespace(fronts=SimpleNamespace(fal=SimpleNamespace(hold=HOLD)))
        self.jobs = self
        self.position = 5
        self.started = self.finished = self.away = False
        self.reads = self.watches = 0
        self.events: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()

    async def status(self, job_id: str) -> Any:
        self.reads += 1
        if self.away:
            raise Unavailable("the database is away")
        if job_id == "missing":
            raise NotFound("there is no job")
        status = JobStatus.COMPLETED if self.finished else JobStatus.PENDING
        return SimpleNamespace(
            job_id=job_id, status=status, position=self.position, turn=False, progress=None, last_progress_at=None,
            started_at=1 if self.started else None, finished_at=None, error=None,
        )  # fmt: skip

    async def watch(self, job_id: str, *, heartbeat: float) -> AsyncIterator[dict[str, Any] | None]:
        self.watches += 1
        if self.away:
            raise Unavailable("the database is away")
        job = {
            "status": "PENDING",
            "started_at": 1 if self.started else None,
            "position": self.position,
            "progress": None,
        }
        yield {"type": "SNAPSHOT", "job": {**job, "last_progress_at": None}, "at": "now"}
        while (event := await self.events.get()) is not None:
            yield event

    def tell(self, kind: str, **fields: Any) -> None:
        self.events.put_nowait({"type": kind, "at": "now", "message": "", **fields})

    def end(self) -> None:
        self.finished = True
        self.events.put_nowait(None)


async def asked(held: Polls, *, logs: bool = False, client: str = "a", job: str = "job") -> tuple[str, int, float]:
    """The status, the position, and how long the answer took."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    state, _ = await held.status(job, ("key", client), wants_logs=logs)
    return state.kind, state.position, loop.time() - began


def site() -> tuple[Jobs, Polls]:
    jobs = Jobs()
    return jobs, Polls(jobs)  # type: ignore[arg-type]


@in_virtual_time
async def test_only_a_client_that_polls_is_held() -> None:
    _, held = site()
    assert await asked(held) == ("IN_QUEUE", 4, 0.0)
    assert await asked(held) == ("IN_QUEUE", 4, HOLD)
    assert await asked(held, client="b") == ("IN_QUEUE", 4, 0.0)
    await asyncio.sleep(polls.QUICK_S + 0.1)
    assert await asked(held) == ("IN_QUEUE", 4, 0.0)
    assert held.held == 0


@in_virtual_time
async def test_a_start_and_an_end_are_answered_at_once_and_a_position_later() -> None:
    jobs, held = site()
    loop = asyncio.get_running_loop()
    await asked(held)
    loop.call_later(0.2, lambda: jobs.tell("POSITION", position=4))
    kind, position, took = await asked(held)
    assert (kind, position) == ("IN_QUEUE", 3)
    assert 1.0 < took < 2.0
    loop.call_later(0.2, lambda: jobs.tell("STEP_START"))
    assert await asked(held) == ("IN_PROGRESS", 0, pytest.approx(0.2))
    loop.call_later(0.2, jobs.end)
    assert await asked(held) == ("COMPLETED", 0, pytest.approx(0.2))


@in_virtual_time
async def test_a_log_line_is_news_only_for_clients_that_want_logs() -> None:
    jobs, held = site()
    jobs.started = True
    loop = asyncio.get_running_loop()
    await asked(held)
    await asked(held, client="b")
    loop.call_later(0.1, lambda: jobs.tell("STEP_START"))
    loop.call_later(0.2, lambda: jobs.tell("PROGRESS", message="half"))
    with_logs, without = await asyncio.gather(asked(held, logs=True), asked(held, client="b"))
    assert with_logs[2] == pytest.approx(0.5)
    assert without[2] == HOLD


@in_virtual_time
async def test_while_the_database_is_away_the_last_known_status_is_the_answer() -> None:
    jobs, held = site()
    await asked(held)
    await asked(held)
    jobs.away = True
    jobs.tell("STEP_START")
    assert (await asked(held))[0] == "IN_PROGRESS"
    jobs.events.put_nowait(None)  # it seems to have ended, and cannot be read
    with pytest.raises(Unavailable):
        await asked(held)


@in_virtual_time
async def test_a_status_that_was_never_known_is_unavailable_only_after_the_hold() -> None:
    jobs, held = site()
    await asked(held)
    jobs.away = True
    began = asyncio.get_running_loop().time()
    with pytest.raises(Unavailable):
        await asked(held)
    assert asyncio.get_running_loop().time() - began == HOLD


@in_virtual_time
async def test_a_client_with_many_polls_gets_its_oldest_answered_so_that_all_take_turns() -> None:
    _, held = site()
    names = [f"job-{number}" for number in range(MOST_HELD + 10)]
    for name in names:
        await asked(held, job=name)
    answers = await asyncio.gather(*(asked(held, job=name) for name in names))
    seconds = [took for _, _, took in answers]
    assert seconds[:10] == [pytest.approx(polls.HELD_AT_LEAST_S)] * 10
    assert seconds[10:] == [pytest.approx(HOLD)] * MOST_HELD


@in_virtual_time
async def test_a_job_is_followed_once_and_no_longer_than_it_is_polled() -> None:
    jobs, held = site()
    for client in ("a", "b"):
        await asked(held, client=client)
    await asyncio.gather(*(asked(held, client=client) for client in ("a", "b")))
    assert (jobs.watches, len(held._followers)) == (1, 1)
    await asyncio.sleep(polls.LINGER_S + 0.1)
    assert not held._followers
    await asyncio.sleep(0)
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("fairlead-fal")]


# ---------------------------------------------------------------- start timeouts

WAITS = {"flux": 100.0}
JOB = Job("job", "flux", "ada", ("flux",), created_at=1000.0, queued_at=1000.0, waiting_since=1000.0, timer_at=1100.0)


def test_a_start_timeout_is_the_earliest_timer_and_fails_the_job() -> None:
    job = with_start_timeout(JOB, 5.0)
    assert job.timer_at == 1005.0
    assert transitions.timer_rang(job, now=1004.0, waits=WAITS) is None
    move = transitions.timer_rang(job, now=1005.0, waits=WAITS, resumes={"flux": 1.0})
    assert move is not None
    assert move.status is JobStatus.FAILED
    assert move.error is not None
    assert (move.error["code"], move.error[START_TIMEOUT]) == ("RESOURCE_EXHAUSTED", 5.0)
    assert with_start_timeout(JOB, 500.0).timer_at == 1100.0


def test_a_start_timeout_ends_with_the_start_and_with_a_retry() -> None:
    job = with_start_timeout(JOB, 5.0)
    moved = transitions.prioritise(job, job.priority, now=1001.0, waits=WAITS)
    assert isinstance(moved, Move)
    assert moved.timer_at == 1005.0
    assert replace(job, started_at=1001.0).start_by is None
    failed = replace(job, status=JobStatus.FAILED, finished_at=1005.0, timer_at=None, error={}, retryable=True)
    resumed = transitions.resume(failed, now=2000.0, waits=WAITS)
    assert resumed.timer_at == 2100.0


def test_a_start_timeout_does_not_let_a_job_spill_into_another_region_first() -> None:
    job = replace(with_start_timeout(JOB, 5.0), region="eu", spill_after=50.0)
    move = transitions.timer_rang(job, now=1006.0, waits=WAITS)
    assert move is not None
    assert move.status is JobStatus.FAILED


def test_a_start_timeout_is_stored_with_the_job() -> None:
    for seconds in (None, 2.5):
        job = replace(JOB, start_within=seconds)
        row: list[Any] = [0] * 32
        row[4], row[5], row[31] = 1, job.priority.band, spec_of(job)
        row[28:31] = [None] * 3
        assert job_of(row).start_within == seconds
