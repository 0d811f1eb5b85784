"""The parts of the dashboard that need no server: patches, followers, groups, history, timelines."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.integration.dashboard_client import merge

from fairlead.domain.job import Attempt, Job, JobRecord, JobStatus, Priority, StepResult
from fairlead.domain.redaction import likeness
from fairlead.domain.stats import SECONDS, MinuteStats
from fairlead.engine.counters import USERS_PER_MINUTE, Counters, MinuteStatsLoop
from fairlead.gateway.dashboard import live_views
from fairlead.gateway.dashboard.live_views import Follower, NotMergeable, merge_patch
from fairlead.observe.dashboard.history import MINUTES, History, quantile
from fairlead.observe.dashboard.overview import error_groups
from fairlead.observe.dashboard.timeline import timeline
from fairlead.store.dashboard import DeadGroup, RecordMinuteStats

# ---------------------------------------------------------------- patches

LEAVES = st.booleans() | st.integers(0, 3) | st.text("ab", max_size=1) | st.lists(st.none() | st.integers(0, 2))
STATES = st.recursive(
    st.dictionaries(st.text("abc", max_size=1), LEAVES),
    lambda inner: st.dictionaries(st.text("abc", max_size=1), inner | LEAVES),
)


@given(STATES, STATES)
def test_a_patch_turns_one_state_into_the_next(old: dict[str, Any], new: dict[str, Any]) -> None:
    assert merge(old, merge_patch(old, new)) == new
    assert merge_patch(new, new) == {}


def test_a_patch_contains_changes_only() -> None:
    old = {"a": {"x": 1, "y": {"z": 2}}, "b": [1, 2], "c": 3}
    assert merge_patch(old, {"a": {"x": 1, "y": {"z": 5}}, "b": [1, 2]}) == {"a": {"y": {"z": 5}}, "c": None}


@pytest.mark.parametrize("new", [{"a": None}, {"a": {"b": None}}, {"a": {"b": {"c": None}}}])
def test_a_new_null_is_not_mergeable(new: dict[str, Any]) -> None:
    with pytest.raises(NotMergeable):
        merge_patch({}, new)
    with pytest.raises(NotMergeable):
        merge_patch({"a": 1}, new)
    assert merge_patch(new, new) == {}
    assert merge({}, merge_patch({}, {"a": [None, {"b": None}]})) == {"a": [None, {"b": None}]}, (
        "in a list it is a value"
    )


# ---------------------------------------------------------------- followers


async def test_a_page_that_falls_behind_gets_the_current_state() -> None:
    class Present:
        def current_messages(self) -> list[bytes]:
            return [b"state", b"error"]

    follower = Follower()
    follower.view = Present()  # type: ignore[assignment]
    follower.push(b"1")
    assert await follower.next() == b"1"
    for number in range(live_views.MAX_BEHIND + 1):
        follower.push(b"%d" % number)
    assert await follower.next() == b"state"
    assert await follower.next() == b"error"
    follower.push(b"after")
    assert await follower.next() == b"after"


async def test_messages_of_a_left_view_are_dropped() -> None:
    follower = Follower()
    follower.push(b"old")
    follower.clear()
    follower.push(b"new")
    assert await follower.next() == b"new"


async def test_messages_repeat_the_number_of_the_request() -> None:
    follower = Follower()
    for number, expected in ((None, b'{"type":"patch"}'), (7, b'{"request":7,"type":"patch"}')):
        follower.number = number
        follower.push(b'{"type":"patch"}')
        assert await follower.next() == expected


# ---------------------------------------------------------------- groups


@pytest.mark.parametrize(
    ("message", "alike"),
    [
        ("no answer within 12.5 s", "no answer within # s"),
        ("job 0190d0c5-7b5a-7cc0-b1f0-3f8f4c9d2a10 is gone", "job # is gone"),
        ("commit deadbeef1 failed", "commit # failed"),
        ("the facade decade is added", "the facade decade is added"),
        ("no answer within # s", "no answer within # s"),
        ("x" * 1000, "x" * 200),
    ],
)
def test_errors_that_differ_in_numbers_and_ids_share_a_signature(message: str, alike: str) -> None:
    assert likeness(message) == alike
    assert likeness(alike) == alike


def test_groups_are_merged_over_services_and_differences() -> None:
    found = [
        DeadGroup("X", "took 3 s", "draw", 2, 10.0, 20.0, ("b", "a")),
        DeadGroup("X", "took 4 s", "tell", 1, 5.0, 6.0, ("c",)),
        DeadGroup("Y", "took 4 s", "tell", 1, 5.0, 6.0, ("d",)),
    ]
    merged = error_groups(found)
    assert merged["X took # s"] == {
        "code": "X",
        "message": "took # s",
        "services": ["draw", "tell"],
        "count": 3,
        "first": 5.0,
        "last": 20.0,
        "examples": ["c", "b", "a"],
    }
    assert merged["Y took # s"]["count"] == 1


# ---------------------------------------------------------------- history


def test_a_quantile_lies_within_its_bucket() -> None:
    counts = [0] * (len(SECONDS) + 1)
    assert quantile(counts, 0.5) is None
    counts[SECONDS.index(1.0)] = 10
    found = quantile(counts, 0.5)
    assert found is not None
    assert 0.5 < found <= 1.0
    counts[-1] = 1000
    late = quantile(counts, 0.95)
    assert late is not None
    assert late > SECONDS[-1]


class MinuteStore:
    """A store that holds the minute statistics, and a group commit that writes to it."""

    def __init__(self) -> None:
        self.kept: dict[tuple[int, str, str], MinuteStats] = {}
        self.clock = 600_000.0
        self.asked: list[int] = []

    async def now(self) -> float:
        return self.clock

    async def activity(self, from_minute: int) -> list[MinuteStats]:
        self.asked.append(from_minute)
        return [note for note in self.kept.values() if note.minute >= from_minute]

    async def write(self, note: RecordMinuteStats) -> None:
        self.kept |= {(each.minute, each.process, each.service): each for each in note.notes}


def job(**given: Any) -> Job:
    fields = {
        "feature_name": "draw",
        "user_id": "ann",
        "steps": ("draw",),
        "waiting_since": 1.0,
        "call_started_at": 3.0,
    }
    return Job(id="j", **{**fields, **given})


def loop_of(notes: MinuteStore, counters: Counters, name: str = "p1") -> MinuteStatsLoop:
    return MinuteStatsLoop(name, counters, notes, notes)  # type: ignore[arg-type]


async def test_counts_are_stored_in_their_minute_and_read_back() -> None:
    notes, counters = MinuteStore(), Counters()
    loop = loop_of(notes, counters)
    await loop.tick(0.0)
    assert notes.kept == {}, "nothing happened"
    counters.started(job())
    counters.ran(job(), 2.0)
    counters.failures["draw", "X"] += 1
    await loop.tick(0.0)
    counters.started(job(priority=Priority.HIGH))
    counters.ran(job(user_id="bob"), 6.0)
    await loop.tick(0.0)
    past = await History(notes).renew()  # type: ignore[arg-type]
    assert past.chart["failed"][-1] == 1
    assert len(past.chart["finished"]) == MINUTES
    assert dict(past.all.codes) == {"X": 1}
    assert past.all_of("draw").used == {"ann": (1, 2.0), "bob": (1, 6.0)}
    assert sum(past.all.waits) == 2
    assert past.chart_of("draw") == past.chart
    notes.clock += 60
    counters.failures["draw", "X"] += 2
    await loop.tick(0.0)
    assert sorted(note.failed for note in notes.kept.values()) == [1, 2]


async def test_counts_that_could_not_be_stored_are_stored_later() -> None:
    notes, counters = MinuteStore(), Counters()
    loop = loop_of(notes, counters)
    counters.ran(job(), 2.0)
    write, loop._group_commit = loop._group_commit, None  # type: ignore[assignment]
    with pytest.raises(AttributeError):
        await loop.tick(0.0)
    loop._group_commit = write
    notes.clock += 60
    await loop.tick(0.0)
    ((_, note),) = notes.kept.items()
    assert dict(note.used) == {"ann": (1, 2.0)}


async def test_the_users_with_the_most_jobs_are_kept() -> None:
    notes, counters = MinuteStore(), Counters()
    for number in range(USERS_PER_MINUTE + 50):
        counters.ran(job(user_id=f"u{number}"), float(number))
    await loop_of(notes, counters).tick(0.0)
    ((_, note),) = notes.kept.items()
    assert len(note.used) == USERS_PER_MINUTE
    assert f"u{USERS_PER_MINUTE + 49}" in note.used
    assert "u0" not in note.used


async def test_only_recent_minutes_are_read_again() -> None:
    notes = MinuteStore()
    history = History(notes)  # type: ignore[arg-type]
    await history.renew()
    notes.clock += 60
    await notes.write(RecordMinuteStats("p1", (MinuteStats("p1", 10_001, "draw", finished=3),), 0))
    past = await history.renew()
    assert notes.asked == [10_000 - MINUTES + 1, 9_999]
    assert past.chart["finished"][-1] == 3
    notes.clock += 60 * MINUTES
    assert sum((await history.renew()).chart["finished"]) == 0


# ---------------------------------------------------------------- timelines


def record(job: Job, results: tuple[StepResult, ...] = (), attempts: tuple[Attempt, ...] = ()) -> JobRecord:
    return JobRecord(job, "{}", None, results, attempts)


def test_a_timeline_lists_every_call_with_its_wait() -> None:
    two = job(steps=("tell", "draw"), step=1, attempt=2, created_at=10.0, queued_at=10.0, status=JobStatus.RUNNING,
              call_started_at=50.0, worker="w", call_region="eu")  # fmt: skip
    result = StepResult("j", 0, "tell", 0, "{}", '{"execution_time_ms": 4000}', 20.0)
    failed = Attempt("j", 1, "draw", 0, 1, {"code": "X", "message": "no"}, 25.0, 30.0, "w")
    call, tried, runs = timeline(record(two, (result,), (failed,)))
    assert (call["waited_from"], call["started"], call["ended"], call["outcome"]) == (10.0, 16.0, 20.0, "ok")
    assert (tried["waited_from"], tried["started"], tried["ended"], tried["outcome"]) == (20.0, 25.0, 30.0, "failed")
    assert tried["error"]["code"] == "X"
    assert (runs["waited_from"], runs["started"], runs["outcome"], runs["region"]) == (30.0, 50.0, "running", "eu")
    assert "ended" not in runs


def test_a_timeline_ends_with_the_current_wait() -> None:
    waits = job(created_at=1.0, waiting_since=5.0, call_started_at=None)
    assert timeline(record(waits))[0]["waited_from"] == 5.0
    backs_off = job(status=JobStatus.RETRYING, timer_at=40.0)
    failed = Attempt("j", 0, "draw", 0, 1, {"code": "X"}, 25.0, 30.0)
    assert timeline(record(backs_off, (), (failed,)))[-1] == {
        "step": 0,
        "service": "draw",
        "round": 0,
        "waited_from": 30.0,
        "backoff_until": 40.0,
        "outcome": "backing_off",
    }
    gone = job(status=JobStatus.CANCELLED, created_at=1.0, finished_at=9.0)
    assert [call["outcome"] for call in timeline(record(gone))] == ["cancelled"]


def test_a_timeline_shows_the_backoff_of_a_call() -> None:
    failed = Attempt("j", 0, "draw", 0, 1, {"code": "X", "retry_in": 8.0}, 25.0, 30.0)
    backs_off = job(status=JobStatus.RETRYING, timer_at=38.0, created_at=1.0)
    (only,) = timeline(record(backs_off, (), (failed,)))
    assert (only["ended"], only["backoff_until"]) == (30.0, 38.0)
    again = job(status=JobStatus.RUNNING, created_at=1.0, call_started_at=50.0, attempt=2)
    assert timeline(record(again, (), (failed,)))[-1]["waited_from"] == 38.0, "queued since then"
    given_up = job(status=JobStatus.CANCELLED, created_at=1.0, finished_at=33.0)
    ended, cancelled = timeline(record(given_up, (), (failed,)))
    assert (ended["backoff_until"], cancelled["waited_from"], cancelled["ended"]) == (33.0, 33.0, 33.0)


def test_a_resumed_job_waits_since_its_resume() -> None:
    again = job(status=JobStatus.RUNNING, created_at=10.0, queued_at=500.0, call_started_at=510.0, round=1)
    failed = Attempt("j", 0, "draw", 0, 1, {"code": "X"}, 25.0, 30.0)
    assert timeline(record(again, (), (failed,)))[-1]["waited_from"] == 500.0
