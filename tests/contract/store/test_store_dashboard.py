"""What the dashboard needs of a store: sessions, the history of the last hours, and counts over many jobs."""

from __future__ import annotations

from fairlead.domain import transitions
from fairlead.domain.access import Key, Role
from fairlead.domain.job import JobStatus, Priority
from fairlead.domain.stats import MinuteStats
from fairlead.domain.transitions import Move
from fairlead.store.dashboard import CloseSession, OpenSession, RecordMinuteStats, Session
from fairlead.store.port import CreateKey, Done, JobFilter, RevokeKey
from tests.contract.stores import START_OF_TIME, StoreHarness

ODD = 'Zoë "O\'Neill" \\ \n 雪 ]}'


# ---------------------------------------------------------------- sessions


async def test_a_session_is_valid_until_it_is_closed_or_expires(harness: StoreHarness) -> None:
    now = START_OF_TIME
    assert await harness.store.session("aa", now) is None
    await harness.commit(OpenSession("aa", "k1", now + 60), OpenSession("bb", "k2", now + 5))
    assert await harness.store.session("aa", now) == Session("k1", now + 60)
    assert await harness.store.session("bb", now + 5) is None
    assert await harness.one(CloseSession("aa")) == Done()
    assert await harness.store.session("aa", now) is None
    assert await harness.one(CloseSession("aa")) == Done(), "an unknown session cannot be closed"


async def test_expired_sessions_are_deleted_when_the_next_is_opened(harness: StoreHarness) -> None:
    await harness.one(OpenSession("aa", "k1", START_OF_TIME + 5))
    harness.clock.now += 10
    await harness.one(OpenSession("bb", "k1", harness.clock.now + 60))
    assert await harness.store.session("aa", START_OF_TIME) is None
    assert await harness.store.session("bb", harness.clock.now) is not None


async def test_the_sessions_of_a_key_are_bounded(harness: StoreHarness) -> None:
    now = START_OF_TIME
    await harness.one(OpenSession("other", "k2", now + 1))
    for number in range(5):
        await harness.one(OpenSession(f"s{number}", "k1", now + 60 + number, per_key=3))
    found = [await harness.store.session(hash_, now) for hash_ in ("s0", "s1", "s2", "s3", "s4", "other")]
    assert [session is not None for session in found] == [False, False, True, True, True, True], "the oldest was closed"


async def test_the_sessions_of_all_keys_are_bounded(harness: StoreHarness) -> None:
    now = START_OF_TIME
    for number in range(5):
        await harness.one(OpenSession(f"s{number}", f"k{number}", now + 60 + number, in_all=2))
    found = [await harness.store.session(f"s{number}", now) for number in range(5)]
    assert [session is not None for session in found] == [False, False, False, True, True]


async def test_revoking_a_key_closes_its_sessions(harness: StoreHarness) -> None:
    for key_id in ("k1", "k2"):
        await harness.one(CreateKey(Key(key_id, Role.VIEWER, None, key_id, "ab", START_OF_TIME)))
        await harness.one(OpenSession(f"of {key_id}", key_id, START_OF_TIME + 60))
    await harness.one(RevokeKey("k1", START_OF_TIME))
    assert await harness.store.session("of k1", START_OF_TIME) is None
    assert await harness.store.session("of k2", START_OF_TIME) is not None
    assert [key.role for key in await harness.store.keys()] == [Role.VIEWER, Role.VIEWER]


# ---------------------------------------------------------------- history


def note(minute: int, service: str = "draw", process: str = "p1", **fields: object) -> MinuteStats:
    return MinuteStats(process, minute, service, **fields)  # type: ignore[arg-type]


async def test_the_last_statistics_of_a_process_replace_earlier_ones(harness: StoreHarness) -> None:
    first = note(100, finished=1, failed=2, waits=[1, 0, 3], codes={"X": 2}, used={ODD: [3, 1.5]})
    assert await harness.one(RecordMinuteStats("p1", (first, note(100, ODD)), 0)) == Done()
    again = note(100, finished=5)
    await harness.one(RecordMinuteStats("p1", (again, note(101)), 0))
    await harness.one(RecordMinuteStats("p2", (note(100, process="p2", finished=7),), 0))
    found = {(each.process, each.minute, each.service): each for each in await harness.store.activity(100)}
    assert found.keys() == {("p1", 100, "draw"), ("p1", 100, ODD), ("p1", 101, "draw"), ("p2", 100, "draw")}
    assert (found["p1", 100, "draw"].finished, found["p2", 100, "draw"].finished) == (5, 7)
    await harness.one(RecordMinuteStats("p1", (first,), 0))
    assert first in await harness.store.activity(100)
    assert [each.minute for each in await harness.store.activity(101)] == [101]


async def test_old_statistics_of_all_processes_are_deleted(harness: StoreHarness) -> None:
    await harness.one(RecordMinuteStats("p1", (note(100), note(200)), 0))
    await harness.one(RecordMinuteStats("p2", (), 150))
    assert [each.minute for each in await harness.store.activity(0)] == [200]


# ---------------------------------------------------------------- counts


async def test_the_longest_wait_of_each_service_is_returned(harness: StoreHarness) -> None:
    assert await harness.store.waiting_by_service() == {}
    await harness.submitted(steps=("draw", "tell"))
    harness.clock.now += 10
    await harness.submitted(steps=("draw",))
    await harness.submitted(steps=("tell", "draw"))
    await harness.running(steps=("idle",))
    await harness.completed(steps=("idle",))
    retried = await harness.running(steps=("flaky",))
    await harness.one(
        Move(
            *(retried.id, retried.run, "retry", JobStatus.RETRYING, 0, 1, 0),
            tells_line=False,
            timer_at=harness.clock.now + 60,
        )
    )
    found = await harness.store.waiting_by_service()
    assert {name: (each.oldest_since, each.retrying) for name, each in found.items()} == {
        "draw": (START_OF_TIME, 0),
        "tell": (START_OF_TIME + 10, 0),
        "flaky": (None, 1),
    }


async def test_users_are_sorted_by_waiting_jobs(harness: StoreHarness) -> None:
    for user_id, weight in (("ann", 1.0), ("bob", 2.0), ("bob", 4.0), (ODD, 1.0)):
        await harness.submitted(user_id=user_id, weight=weight)
        harness.clock.now += 1
    for user_id in ("ann", ODD, ODD, "cy"):
        await harness.running(user_id=user_id)
    await harness.completed(user_id="dee")
    found = await harness.store.user_loads(10)
    assert [(each.user_id, each.waiting, each.running) for each in found] == [
        ("bob", 2, 0),
        (ODD, 1, 2),
        ("ann", 1, 1),
        ("cy", 0, 1),
    ]
    assert found[0].oldest_since == START_OF_TIME + 1
    assert (found[0].weight, found[3].oldest_since) == (4.0, None), "the newest job has the current weight"
    assert await harness.store.user_loads(2) == found[:2]


async def test_users_have_the_group_and_plan_of_their_newest_job(harness: StoreHarness) -> None:
    for group, plan in (("old", "free"), ("acme/red", "gold")):
        await harness.submitted(user_id="ann", group=group, plan=plan)
        await harness.submitted(user_id="bob", plan=plan)
    await harness.submitted(user_id="cy", priority_source="given")
    found = {each.user_id: (each.weight, each.group, each.plan) for each in await harness.store.user_loads(10)}
    assert found == {"ann": (1.0, "acme/red", "gold"), "bob": (1.0, None, "gold"), "cy": (1.0, None, None)}


async def test_heads_returns_the_first_queued_jobs_of_each_user(harness: StoreHarness) -> None:
    fresh = [await harness.submitted(user_id="ann", steps=("tell", "draw")) for _ in range(2)]
    under_way = await harness.submitted(user_id="ann", steps=("draw", "tell"))
    under_way = await harness.started(under_way)
    await harness.one(harness.done(under_way))
    bobs = await harness.submitted(user_id="bob", steps=("tell",))
    await harness.submitted(user_id="bob", steps=("draw",))
    await harness.running(user_id="bob", steps=("tell",))
    urgent = await harness.submitted(user_id="ann", steps=("tell",), priority=Priority.HIGH)
    heads = await harness.store.heads("tell", ["ann", "bob", "unknown"], 2)
    assert {job.id for job in heads} == {under_way.id, fresh[0].id, bobs.id, urgent.id}, "two of each user and band"
    first = await harness.store.heads("tell", None, 3)
    assert [job.id for job in first] == [fresh[0].id, fresh[1].id, under_way.id]


async def test_dead_letters_are_counted_by_error_and_service(harness: StoreHarness) -> None:
    first = await harness.failed(steps=("draw",))
    harness.clock.now += 5
    last = await harness.failed(steps=("draw",))
    other = await harness.failed(steps=("tell",))
    await harness.completed()
    same, different = await harness.store.dead_groups(10)
    assert (same.code, same.message, same.service, same.count) == ("X", "no", "draw", 2)
    assert (same.first, same.last) == (START_OF_TIME, START_OF_TIME + 5)
    assert set(same.examples) == {first.id, last.id}
    assert (different.service, different.examples) == ("tell", (other.id,))
    assert await harness.store.dead_groups(1) == [same]
    await harness.one(transitions.requeue(first, now=harness.clock.now, waits={}))
    assert sum(each.count for each in await harness.store.dead_groups(10)) == 2


async def test_jobs_are_filtered_by_created_at(harness: StoreHarness) -> None:
    jobs = []
    for _ in range(3):
        jobs.append(await harness.submitted(created_at=harness.clock.now))
        harness.clock.now += 10
    where = JobFilter(created_from=jobs[1].created_at, created_before=jobs[2].created_at)
    assert [job.id for job in await harness.store.list_jobs(where, before_seq=None, limit=10)] == [jobs[1].id]
    assert await harness.store.count(JobFilter("ann", (JobStatus.PENDING,), created_from=jobs[1].created_at)) == 2
