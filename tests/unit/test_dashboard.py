"""The parts of the dashboard that need no server: patches, followers, groups, history, timelines."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.integration.following import merge
from tests.virtual_time import in_virtual_time

from fairlead.domain.activity import Activity
from fairlead.domain.job import Attempt, Job, JobRecord, JobStatus, Priority, StepResult
from fairlead.domain.likeness import likeness
from fairlead.gateway.dashboard import channel
from fairlead.gateway.dashboard.channel import Follower
from fairlead.gateway.dashboard.patch import Inexpressible, diff
from fairlead.runtime.dashboard.groups import groups
from fairlead.runtime.dashboard.history import MINUTES, History, quantile
from fairlead.runtime.dashboard.sparing import KEPT_S, Sparing
from fairlead.runtime.dashboard.timeline import timeline
from fairlead.runtime.loops.activity import MOST_USERS, ActivityLoop
from fairlead.runtime.observations import SECONDS, Observations
from fairlead.store.board import DeadGroup, NoteActivity

# ---------------------------------------------------------------- patches

LEAVES = st.booleans() | st.integers(0, 3) | st.text("ab", max_size=1) | st.lists(st.none() | st.integers(0, 2))
STATES = st.recursive(
    st.dictionaries(st.text("abc", max_size=1), LEAVES),
    lambda inner: st.dictionaries(st.text("abc", max_size=1), inner | LEAVES),
)


@given(STATES, STATES)
def test_a_patch_makes_one_state_into_the_next(old: dict[str, Any], new: dict[str, Any]) -> None:
    assert merge(old, diff(old, new)) == new
    assert diff(new, new) == {}


def test_a_patch_says_no_more_than_what_changed() -> None:
    old = {"a": {"x": 1, "y": {"z": 2}}, "b": [1, 2], "c": 3}
    assert diff(old, {"a": {"x": 1, "y": {"z": 5}}, "b": [1, 2]}) == {"a": {"y": {"z": 5}}, "c": None}


@pytest.mark.parametrize("new", [{"a": None}, {"a": {"b": None}}, {"a": {"b": {"c": None}}}])
def test_a_null_that_is_new_cannot_be_said_in_a_patch(new: dict[str, Any]) -> None:
    with pytest.raises(Inexpressible):
        diff({}, new)
    with pytest.raises(Inexpressible):
        diff({"a": 1}, new)
    assert diff(new, new) == {}
    assert merge({}, diff({}, {"a": [None, {"b": None}]})) == {"a": [None, {"b": None}]}, "in a list it is a value"


# ---------------------------------------------------------------- followers


async def test_a_page_that_does_not_keep_up_is_sent_the_state_as_it_then_is() -> None:
    class Present:
        def state_message(self) -> bytes:
            return b"state"

    follower = Follower()
    follower.channel = Present()  # type: ignore[assignment]
    follower.push(b"1")
    assert await follower.next() == b"1"
    for number in range(channel.MOST_BEHIND + 1):
        follower.push(b"%d" % number)
    assert await follower.next() == b"state"
    follower.push(b"after")
    assert await follower.next() == b"after"


async def test_what_is_due_of_a_view_that_was_left_is_not_sent() -> None:
    follower = Follower()
    follower.push(b"old")
    follower.clear()
    follower.push(b"new")
    assert await follower.next() == b"new"


# ---------------------------------------------------------------- sparing


async def test_what_is_asked_for_sparingly_is_asked_once_for_all_and_kept() -> None:
    asked = 0

    async def ask() -> int:
        nonlocal asked
        asked += 1
        await asyncio.sleep(0)
        return asked

    spared = Sparing(ask, every=3600.0)
    assert await asyncio.gather(spared.now(), spared.now()) == [1, 1]
    assert await spared.now() == 1
    assert spared.lately() == 1


async def test_whoever_does_not_wait_has_the_last_answer() -> None:
    spared = Sparing(lambda: asyncio.sleep(0, "well"), every=3600.0)
    assert spared.lately() is None
    assert await spared.now() == "well"
    assert spared.lately() == "well"


@in_virtual_time
async def test_an_answer_that_took_long_while_a_server_was_away_is_not_shown_for_minutes() -> None:
    asked = 0

    async def ask() -> int:
        nonlocal asked
        asked += 1
        await asyncio.sleep(10.0 if asked == 1 else 0.0)
        return asked

    spared = Sparing(ask, every=1.0)
    assert await spared.now() == 1
    await asyncio.sleep(KEPT_S - 1)
    assert await spared.now() == 1
    await asyncio.sleep(1)
    assert await spared.now() == 2


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
def test_errors_are_alike_but_for_numbers_and_ids(message: str, alike: str) -> None:
    assert likeness(message) == alike
    assert likeness(alike) == alike


def test_groups_are_merged_over_services_and_what_differs() -> None:
    found = [
        DeadGroup("X", "took 3 s", "draw", 2, 10.0, 20.0, ("b", "a")),
        DeadGroup("X", "took 4 s", "tell", 1, 5.0, 6.0, ("c",)),
        DeadGroup("Y", "took 4 s", "tell", 1, 5.0, 6.0, ("d",)),
    ]
    merged = groups(found)
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


def test_a_quantile_is_within_the_class_that_has_it() -> None:
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


class Notes:
    """A store that has what was noted, and a journal that writes there."""

    def __init__(self) -> None:
        self.kept: dict[tuple[int, str, str], Activity] = {}
        self.clock = 600_000.0
        self.asked: list[int] = []

    async def now(self) -> float:
        return self.clock

    async def activity(self, from_minute: int) -> list[Activity]:
        self.asked.append(from_minute)
        return [note for note in self.kept.values() if note.minute >= from_minute]

    async def write(self, note: NoteActivity) -> None:
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


def loop_of(notes: Notes, observations: Observations, name: str = "p1") -> ActivityLoop:
    return ActivityLoop(name, observations, notes, notes)  # type: ignore[arg-type]


async def test_what_was_counted_is_written_down_in_its_minute_and_read_back() -> None:
    notes, observations = Notes(), Observations()
    loop = loop_of(notes, observations)
    await loop.tick(0.0)
    assert notes.kept == {}, "nothing happened"
    observations.started(job())
    observations.ran(job(), 2.0)
    observations.failures["draw", "X"] += 1
    await loop.tick(0.0)
    observations.started(job(priority=Priority.HIGH))
    observations.ran(job(user_id="bob"), 6.0)
    await loop.tick(0.0)
    past = await History(notes).renew()  # type: ignore[arg-type]
    assert past.chart["failed"][-1] == 1
    assert len(past.chart["finished"]) == MINUTES
    assert dict(past.all.codes) == {"X": 1}
    assert past.all_of("draw").used == {"ann": (1, 2.0), "bob": (1, 6.0)}
    assert sum(past.all.waits) == 2
    assert past.chart_of("draw") == past.chart
    notes.clock += 60
    observations.failures["draw", "X"] += 2
    await loop.tick(0.0)
    assert sorted(note.failed for note in notes.kept.values()) == [1, 2]


async def test_what_could_not_be_written_is_written_later() -> None:
    notes, observations = Notes(), Observations()
    loop = loop_of(notes, observations)
    observations.ran(job(), 2.0)
    write, loop._journal = loop._journal, None  # type: ignore[assignment]
    with pytest.raises(AttributeError):
        await loop.tick(0.0)
    loop._journal = write
    notes.clock += 60
    await loop.tick(0.0)
    ((_, note),) = notes.kept.items()
    assert dict(note.used) == {"ann": (1, 2.0)}


async def test_of_many_users_those_with_most_are_kept() -> None:
    notes, observations = Notes(), Observations()
    for number in range(MOST_USERS + 50):
        observations.ran(job(user_id=f"u{number}"), float(number))
    await loop_of(notes, observations).tick(0.0)
    ((_, note),) = notes.kept.items()
    assert len(note.used) == MOST_USERS
    assert f"u{MOST_USERS + 49}" in note.used
    assert "u0" not in note.used


async def test_only_the_last_minutes_are_read_again() -> None:
    notes = Notes()
    history = History(notes)  # type: ignore[arg-type]
    await history.renew()
    notes.clock += 60
    await notes.write(NoteActivity("p1", (Activity("p1", 10_001, "draw", finished=3),), 0))
    past = await history.renew()
    assert notes.asked == [10_000 - MINUTES + 1, 9_999]
    assert past.chart["finished"][-1] == 3
    notes.clock += 60 * MINUTES
    assert sum((await history.renew()).chart["finished"]) == 0


# ---------------------------------------------------------------- timelines


def record(job: Job, results: tuple[StepResult, ...] = (), attempts: tuple[Attempt, ...] = ()) -> JobRecord:
    return JobRecord(job, "{}", None, results, attempts)


def test_a_timeline_has_every_call_with_how_long_it_waited() -> None:
    two = job(steps=("tell", "draw"), step=1, attempt=2, created_at=10.0, queued_at=10.0, status=JobStatus.RUNNING,
              call_started_at=50.0, worker="w", call_region="eu")  # fmt: skip
    result = StepResult("j", 0, "tell", 0, "{}", '{"execution_time_ms": 4000}', 20.0)
    failed = Attempt("j", 1, "draw", 0, 1, {"code": "X", "message": "no"}, 25.0, 30.0, "w")
    told, tried, runs = timeline(record(two, (result,), (failed,)))
    assert (told["waited_from"], told["started"], told["ended"], told["outcome"]) == (10.0, 16.0, 20.0, "ok")
    assert (tried["waited_from"], tried["started"], tried["ended"], tried["outcome"]) == (20.0, 25.0, 30.0, "failed")
    assert tried["error"]["code"] == "X"
    assert (runs["waited_from"], runs["started"], runs["outcome"], runs["region"]) == (30.0, 50.0, "running", "eu")
    assert "ended" not in runs


def test_a_timeline_ends_with_what_is_waited_for() -> None:
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


def test_a_timeline_says_how_long_a_call_backed_off() -> None:
    failed = Attempt("j", 0, "draw", 0, 1, {"code": "X", "retry_in": 8.0}, 25.0, 30.0)
    backs_off = job(status=JobStatus.RETRYING, timer_at=38.0, created_at=1.0)
    (only,) = timeline(record(backs_off, (), (failed,)))
    assert (only["ended"], only["backoff_until"]) == (30.0, 38.0)
    again = job(status=JobStatus.RUNNING, created_at=1.0, call_started_at=50.0, attempt=2)
    assert timeline(record(again, (), (failed,)))[-1]["waited_from"] == 38.0, "in line since then"
    given_up = job(status=JobStatus.CANCELLED, created_at=1.0, finished_at=33.0)
    ended, cancelled = timeline(record(given_up, (), (failed,)))
    assert (ended["backoff_until"], cancelled["waited_from"], cancelled["ended"]) == (33.0, 33.0, 33.0)


def test_after_a_resume_a_job_waits_since_then_and_not_since_it_failed() -> None:
    again = job(status=JobStatus.RUNNING, created_at=10.0, queued_at=500.0, call_started_at=510.0, round=1)
    failed = Attempt("j", 0, "draw", 0, 1, {"code": "X"}, 25.0, 30.0)
    assert timeline(record(again, (), (failed,)))[-1]["waited_from"] == 500.0
