"""What the dashboard needs of a store: sessions, the history of the last hours, and counts over many jobs."""

from __future__ import annotations

from fairlead.domain import transitions
from fairlead.domain.activity import Activity
from fairlead.domain.job import JobStatus, Priority
from fairlead.domain.keys import Key, Role
from fairlead.domain.transitions import Move
from fairlead.store.board import CloseSession, NoteActivity, OpenSession, Session
from fairlead.store.port import CreateKey, Done, JobFilter, RevokeKey
from tests.contract.stores import START_OF_TIME, Line

ODD = 'Zoë "O\'Neill" \\ \n 雪 ]}'


# ---------------------------------------------------------------- sessions


async def test_a_session_stands_for_its_key_until_it_is_closed_or_expires(line: Line) -> None:
    now = START_OF_TIME
    assert await line.store.session("aa", now) is None
    await line.commit(OpenSession("aa", "k1", now + 60), OpenSession("bb", "k2", now + 5))
    assert await line.store.session("aa", now) == Session("k1", now + 60)
    assert await line.store.session("bb", now + 5) is None
    assert await line.one(CloseSession("aa")) == Done()
    assert await line.store.session("aa", now) is None
    assert await line.one(CloseSession("aa")) == Done(), "of what is not there, there is nothing to close"


async def test_sessions_that_expired_go_when_the_next_is_opened(line: Line) -> None:
    await line.one(OpenSession("aa", "k1", START_OF_TIME + 5))
    line.clock.now += 10
    await line.one(OpenSession("bb", "k1", line.clock.now + 60))
    assert await line.store.session("aa", START_OF_TIME) is None
    assert await line.store.session("bb", line.clock.now) is not None


async def test_a_key_that_is_revoked_takes_its_sessions_with_it(line: Line) -> None:
    for key_id in ("k1", "k2"):
        await line.one(CreateKey(Key(key_id, Role.VIEWER, None, key_id, "ab", START_OF_TIME)))
        await line.one(OpenSession(f"of {key_id}", key_id, START_OF_TIME + 60))
    await line.one(RevokeKey("k1", START_OF_TIME))
    assert await line.store.session("of k1", START_OF_TIME) is None
    assert await line.store.session("of k2", START_OF_TIME) is not None
    assert [key.role for key in await line.store.keys()] == [Role.VIEWER, Role.VIEWER]


# ---------------------------------------------------------------- history


def note(minute: int, service: str = "draw", process: str = "p1", **said: object) -> Activity:
    return Activity(process, minute, service, **said)  # type: ignore[arg-type]


async def test_what_a_process_did_is_kept_as_it_said_last(line: Line) -> None:
    first = note(100, finished=1, failed=2, waits=[1, 0, 3], codes={"X": 2}, used={ODD: [3, 1.5]})
    assert await line.one(NoteActivity("p1", (first, note(100, ODD)), 0)) == Done()
    again = note(100, finished=5)
    await line.one(NoteActivity("p1", (again, note(101)), 0))
    await line.one(NoteActivity("p2", (note(100, process="p2", finished=7),), 0))
    found = {(each.process, each.minute, each.service): each for each in await line.store.activity(100)}
    assert found.keys() == {("p1", 100, "draw"), ("p1", 100, ODD), ("p1", 101, "draw"), ("p2", 100, "draw")}
    assert (found["p1", 100, "draw"].finished, found["p2", 100, "draw"].finished) == (5, 7)
    await line.one(NoteActivity("p1", (first,), 0))
    assert first in await line.store.activity(100)
    assert [each.minute for each in await line.store.activity(101)] == [101]


async def test_what_was_noted_long_ago_goes_whoever_wrote_it(line: Line) -> None:
    await line.one(NoteActivity("p1", (note(100), note(200)), 0))
    await line.one(NoteActivity("p2", (), 150))
    assert [each.minute for each in await line.store.activity(0)] == [200]


# ---------------------------------------------------------------- counts


async def test_it_is_known_since_when_the_longest_waits_for_each_service(line: Line) -> None:
    assert await line.store.waiting_by_service() == {}
    await line.submitted(steps=("draw", "tell"))
    line.clock.now += 10
    await line.submitted(steps=("draw",))
    await line.submitted(steps=("tell", "draw"))
    await line.running(steps=("idle",))
    await line.completed(steps=("idle",))
    retried = await line.running(steps=("flaky",))
    await line.one(
        Move(
            *(retried.id, retried.run, "retry", JobStatus.RETRYING, 0, 1, 0),
            tells_line=False,
            timer_at=line.clock.now + 60,
        )
    )
    found = await line.store.waiting_by_service()
    assert {name: (each.oldest_since, each.retrying) for name, each in found.items()} == {
        "draw": (START_OF_TIME, 0),
        "tell": (START_OF_TIME + 10, 0),
        "flaky": (None, 1),
    }


async def test_users_come_in_order_of_what_they_have_waiting(line: Line) -> None:
    for user_id, weight in (("ann", 1.0), ("bob", 2.0), ("bob", 4.0), (ODD, 1.0)):
        await line.submitted(user_id=user_id, weight=weight)
        line.clock.now += 1
    for user_id in ("ann", ODD, ODD, "cy"):
        await line.running(user_id=user_id)
    await line.completed(user_id="dee")
    found = await line.store.user_loads(10)
    assert [(each.user_id, each.waiting, each.running) for each in found] == [
        ("bob", 2, 0),
        (ODD, 1, 2),
        ("ann", 1, 1),
        ("cy", 0, 1),
    ]
    assert found[0].oldest_since == START_OF_TIME + 1
    assert (found[0].weight, found[3].oldest_since) == (4.0, None), "the newest job says the weight"
    assert await line.store.user_loads(2) == found[:2]


async def test_of_each_user_the_first_in_line_are_found(line: Line) -> None:
    fresh = [await line.submitted(user_id="ann", steps=("tell", "draw")) for _ in range(2)]
    under_way = await line.submitted(user_id="ann", steps=("draw", "tell"))
    under_way = await line.started(under_way)
    await line.one(line.done(under_way))
    bobs = await line.submitted(user_id="bob", steps=("tell",))
    await line.submitted(user_id="bob", steps=("draw",))
    await line.running(user_id="bob", steps=("tell",))
    urgent = await line.submitted(user_id="ann", steps=("tell",), priority=Priority.HIGH)
    heads = await line.store.heads("tell", ["ann", "bob", "nobody"], 2)
    assert {job.id for job in heads} == {under_way.id, fresh[0].id, bobs.id, urgent.id}, "two of each user and band"
    first = await line.store.heads("tell", None, 3)
    assert [job.id for job in first] == [fresh[0].id, fresh[1].id, under_way.id]


async def test_the_dead_are_counted_by_error_and_service(line: Line) -> None:
    first = await line.failed(steps=("draw",))
    line.clock.now += 5
    last = await line.failed(steps=("draw",))
    other = await line.failed(steps=("tell",))
    await line.completed()
    same, different = await line.store.dead_groups(10)
    assert (same.code, same.message, same.service, same.count) == ("X", "no", "draw", 2)
    assert (same.first, same.last) == (START_OF_TIME, START_OF_TIME + 5)
    assert set(same.examples) == {first.id, last.id}
    assert (different.service, different.examples) == ("tell", (other.id,))
    assert await line.store.dead_groups(1) == [same]
    await line.one(transitions.requeue(first, now=line.clock.now, waits={}))
    assert sum(each.count for each in await line.store.dead_groups(10)) == 2


async def test_jobs_are_found_by_when_they_were_accepted(line: Line) -> None:
    jobs = []
    for _ in range(3):
        jobs.append(await line.submitted(created_at=line.clock.now))
        line.clock.now += 10
    where = JobFilter(created_from=jobs[1].created_at, created_before=jobs[2].created_at)
    assert [job.id for job in await line.store.list_jobs(where, before_seq=None, limit=10)] == [jobs[1].id]
    assert await line.store.count(JobFilter("ann", (JobStatus.PENDING,), created_from=jobs[1].created_at)) == 2
