"""What a store answers, and what its processes see of each other: the contract's second half."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fairlead.domain import transitions
from fairlead.domain.job import Job, JobStatus, Priority
from fairlead.domain.limits import Adapted, Auto, Change, Order, Overridden, Rules, ServiceRules, Share
from fairlead.domain.retry import Failure, RetryPolicy
from fairlead.domain.transitions import Delete, Submit
from fairlead.errors import StoreError, Unavailable
from fairlead.store.port import (
    Accepted,
    Adapt,
    DeclareServices,
    Done,
    EndHolds,
    Epoch,
    JobFilter,
    LineChange,
    Override,
    PromoteWaiting,
    Prune,
    RaiseEpoch,
    Refused,
    Relayed,
    RingTimers,
    Started,
)
from tests.contract.stores import Line

SOON_OVER = Failure("HTTP_503", "busy", retryable=True)
POLICY = RetryPolicy()
MANUAL = RetryPolicy(manual=True)
ALL = JobFilter()


# ---------------------------------------------------------------- idempotency keys


async def test_a_key_is_known_while_its_job_is_there(line: Line) -> None:
    job = line.submit(user_id="ada", idempotency_key="once", body_hash="x")
    assert not await line.store.was_submitted("ada", "once")
    await line.commit(job)
    assert await line.store.was_submitted("ada", "once")
    assert not await line.store.was_submitted("bob", "once")
    assert not await line.store.was_submitted("ada", "twice")


# ---------------------------------------------------------------- the outbox


async def told_of(line: Line, submit: Submit) -> LineChange:
    await line.one(submit)
    (change,) = line.changes
    return change


async def test_relayed_rows_go(line: Line) -> None:
    first, second, third = [await told_of(line, line.submit()) for _ in range(3)]
    await line.commit(Relayed((first.outbox_id,)), Relayed((third.outbox_id, 999)))
    assert await line.store.outbox(older_than=line.clock.now + 1, limit=10) == [second]


async def test_the_line_is_told_of_each_job_that_was_submitted_with_others_until_they_are_relayed(line: Line) -> None:
    alone = await told_of(line, line.submit())
    bulk = [line.submit(f"bulk-{n}", user_id=f"user-{n % 3}") for n in range(2500)]
    await line.commit(*bulk)
    told, later = list(line.changes), line.clock.now + 1
    assert [change.job for change in told] == [submit.job for submit in bulk]
    assert await line.store.outbox(older_than=later, limit=9999) == [alone, *told]
    assert await line.store.outbox(older_than=later, limit=1) == [alone]
    assert (await line.store.facts())["outbox_rows"] == 2501
    some = await line.store.outbox(older_than=later, limit=10)
    assert 10 <= len(some) <= 1001, "jobs may share a row, which is told whole; but not all of them"
    assert some == [alone, *told][: len(some)]
    relayed = {change.outbox_id for change in told[:1000]}
    left = [change for change in told if change.outbox_id not in relayed]
    await line.one(Relayed((alone.outbox_id, *relayed)))
    assert await line.store.outbox(older_than=later, limit=9999) == left
    await line.one(Relayed(tuple({change.outbox_id for change in left})))
    assert await line.store.outbox(older_than=later, limit=9999) == []


async def test_a_job_that_is_gone_is_told_of_with_those_it_was_submitted_with(line: Line) -> None:
    await line.commit(line.submit("kept"), line.submit("gone"))
    await line.one(transitions.cancel(await line.job("gone"), now=line.clock.now))
    await line.one(Delete("gone"))
    rows = await line.store.outbox(older_than=line.clock.now + 1, limit=9)
    assert [(row.job_id, row.job) for row in rows] == [
        ("kept", await line.job("kept")),
        ("gone", None),
        ("gone", None),
    ]


async def test_an_outbox_id_is_never_given_again(line: Line) -> None:
    """Two processes may delete a row they both relayed: the later one must not meet a new row under its id."""
    await line.submitted()
    (change,) = line.changes
    await line.one(Relayed((change.outbox_id,)))
    await line.submitted()
    await line.one(Relayed((change.outbox_id,)))
    assert len(await line.store.outbox(older_than=line.clock.now + 1, limit=10)) == 1


async def test_outbox_rows_of_those_who_relay_are_found_when_they_are_old_and_others_at_once(line: Line) -> None:
    line.store.relays()
    await line.submitted("mine")
    async with line.another() as relaying, line.another() as silent:
        relaying.relays()
        await relaying.commit([line.submit("theirs")])
        await silent.commit([line.submit("untold")])
    now = line.clock.now
    assert [row.job_id for row in await line.store.outbox(older_than=now, limit=10)] == ["untold"]
    rows = await line.store.outbox(older_than=now + 0.1, limit=10)
    assert [row.job_id for row in rows] == ["mine", "theirs", "untold"]
    assert [row.job_id for row in await line.store.outbox(older_than=now + 0.1, limit=1)] == ["mine"]


async def test_an_outbox_row_has_the_jobs_state_of_now_and_none_when_it_is_gone(line: Line) -> None:
    job = await line.submitted()
    await line.one(transitions.cancel(job, now=line.clock.now))
    later = line.clock.now + 1
    assert [row.job for row in await line.store.outbox(older_than=later, limit=9)] == [await line.job(job.id)] * 2
    await line.one(Delete(job.id))
    rows = await line.store.outbox(older_than=later, limit=9)
    assert [(row.job_id, row.job) for row in rows] == [(job.id, None)] * 2


# ---------------------------------------------------------------- reads


async def test_jobs_are_listed_newest_first_and_page_by_page(line: Line) -> None:
    jobs = [await line.submitted() for _ in range(5)]
    page = await line.store.list_jobs(ALL, before_seq=None, limit=2)
    assert page == [jobs[4], jobs[3]]
    assert await line.store.list_jobs(ALL, before_seq=page[-1].seq, limit=9) == [jobs[2], jobs[1], jobs[0]]


async def test_jobs_are_listed_and_counted_by_user_status_and_feature(line: Line) -> None:
    ann = await line.submitted()
    bob = await line.running(user_id="bob")
    done = await line.completed(user_id="bob", feature_name="video")
    dead = await line.failed()
    gone = await line.cancelled()
    cases: list[tuple[dict[str, Any], list[Job]]] = [
        ({}, [gone, dead, done, bob, ann]),
        ({"user_id": "bob"}, [done, bob]),
        ({"feature_name": "video"}, [done]),
        ({"statuses": (JobStatus.FAILED,)}, [dead]),
        ({"statuses": (JobStatus.FAILED, JobStatus.CANCELLED)}, [gone, dead]),
        ({"statuses": (JobStatus.PENDING, JobStatus.RUNNING)}, [bob, ann]),
        ({"statuses": (JobStatus.PENDING, JobStatus.COMPLETED)}, [done, ann]),
        ({"user_id": "bob", "statuses": (JobStatus.RUNNING,), "feature_name": "image"}, [bob]),
        ({"user_id": "nobody"}, []),
    ]
    for where, expected in cases:
        assert await _listed(line, **where) == expected, where
        assert await line.store.count(JobFilter(**where)) == len(expected), where


async def test_dead_jobs_are_listed_and_counted_by_service_error_and_moment(line: Line) -> None:
    began = line.clock.now
    first = await line.failed()
    line.clock.forward(10)
    busy = await line.running(steps=("draw", 'the "scale"'))
    await line.one(line.done(busy))
    busy = await line.started(await line.job(busy.id))
    await line.one(transitions.failed(busy, SOON_OVER, MANUAL, now=line.clock.now, randomness=0.5))
    busy = await line.job(busy.id)
    line.clock.forward(10)
    third = await line.failed()
    await line.submitted()
    cases: list[tuple[dict[str, Any], list[Job]]] = [
        ({"service": "draw"}, [third, first]),
        ({"service": 'the "scale"'}, [busy]),
        ({"service": "sca"}, []),
        ({"error_code": "HTTP_503"}, [busy]),
        ({"error_code": "X"}, [third, first]),
        ({"retryable": True}, [busy]),
        ({"retryable": False}, [third, first]),
        ({"finished_from": began + 10}, [third, busy]),
        ({"finished_before": began + 10}, [first]),
        ({"finished_from": began + 10, "finished_before": began + 20, "user_id": "ann"}, [busy]),
    ]
    for where, expected in cases:
        where = {"statuses": (JobStatus.FAILED,), **where}
        assert await _listed(line, **where) == expected, where
        assert await line.store.count(JobFilter(**where)) == len(expected), where


async def test_get_jobs_leaves_out_those_that_are_not_there(line: Line) -> None:
    job = await line.submitted("j1")
    assert await line.store.get_jobs(["j1", "none", "j1"]) == {"j1": job}
    assert await line.store.get_jobs([]) == {}
    assert await line.store.get("none") is None


async def test_the_next_timer_is_the_earliest(line: Line) -> None:
    now = line.clock.now
    assert await line.store.next_timer() is None
    await line.submitted()
    assert await line.store.next_timer() is None
    await line.submitted(due_at=now + 20)
    await line.submitted(waits={"draw": 10})
    await line.submitted(deadline_at=now + 30)
    assert await line.store.next_timer() == now + 10


async def test_a_finished_job_has_no_timer(line: Line) -> None:
    job = await line.submitted(due_at=line.clock.now + 10)
    await line.one(transitions.cancel(job, now=line.clock.now))
    assert await line.store.next_timer() is None


async def test_the_next_promotion_is_that_of_the_one_whose_time_is_up_first(line: Line) -> None:
    async def next_promotion() -> float | None:
        return await line.store.next_promotion(low_after=1800, medium_after=3600)

    start = line.clock.now
    await line.submitted(priority=Priority.HIGH)
    assert await next_promotion() is None
    await line.submitted()
    assert await next_promotion() == start + 3600
    line.clock.forward(100)
    await line.submitted(priority=Priority.LOW)
    assert await next_promotion() == start + 100 + 1800


async def test_the_oldest_waiting_is_told_by_band_and_of_those_in_line_alone(line: Line) -> None:
    start = line.clock.now
    assert await line.store.oldest_waiting() == {}
    await line.submitted(due_at=start + 1000)
    await line.running()
    line.clock.forward(10)
    await line.submitted(priority=Priority.LOW)
    line.clock.forward(10)
    await line.submitted(priority=Priority.LOW)
    await line.submitted(priority=Priority.HIGH)
    assert await line.store.oldest_waiting() == {3: start + 10, 1: start + 20}


async def test_waiting_yields_all_pending_jobs_in_batches(line: Line) -> None:
    pending = [await line.submitted(priority=priority) for priority in (Priority.LOW, *[Priority.HIGH] * 4)]
    await line.running()
    await line.submitted(due_at=line.clock.now + 5)
    batches = [batch async for batch in line.store.waiting(2)]
    assert [len(batch) for batch in batches] == [2, 2, 1]
    assert [job for batch in batches for job in batch] == pending


async def test_running_are_the_running_ones(line: Line) -> None:
    await line.submitted()
    running = await line.running()
    await line.completed()
    assert await line.store.running() == [running]


async def test_a_ping_answers(line: Line) -> None:
    await line.store.ping()


# ---------------------------------------------------------------- rules and epochs


DRAW = ServiceRules(
    "draw",
    4,
    regions={"eu": 1, "us": 2},
    region_weights={"eu": 1.0, "us": 2.5},
    pool="gpu",
    pooled_regions=("us",),
    retries_first=True,
    cost=2.5,
)
CHAT = ServiceRules("chat", 2, order=Order.FIFO, pool="gpu", user_limit=1, lease_ttl=7.5)
FAR = ServiceRules("far", 3, shard="b")
SPLIT = ServiceRules("split", 5, shares={"b": Share(frozenset({3, 1}), 2), "main": Share(frozenset({2}), 3)})


async def test_declared_rules_come_back_as_they_were(line: Line) -> None:
    outcome = await line.one(DeclareServices((DRAW, CHAT), {"gpu": 3}))
    assert outcome == Done(Rules({"chat": CHAT, "draw": DRAW}, {"gpu": 3}, version=1))
    assert await line.store.rules() == outcome.value


async def test_shards_and_shares_come_back_as_they_were_and_say_the_same_again(line: Line) -> None:
    part = SPLIT.on("b")
    assert part is not None
    outcome = await line.one(DeclareServices((FAR, SPLIT, replace(part, service="part")), {}))
    declared = {"far": FAR, "split": SPLIT, "part": replace(part, service="part")}
    assert outcome == Done(Rules(declared, {}, version=1))
    assert await line.store.rules() == outcome.value
    # The same in another spelling: sets and mappings have no order of their own.
    shares = {"main": Share(frozenset([2]), 3), "b": Share(frozenset([1, 3]), 2)}
    again = DeclareServices((replace(part, service="part"), replace(SPLIT, shares=shares), FAR), {})
    assert (await line.one(again)).value.version == 1
    assert (await line.one(Override("far", limit=1))).value.services["far"] == replace(FAR, limit=1)


async def test_before_anything_is_declared_there_are_no_rules(line: Line) -> None:
    assert await line.store.rules() == Rules({}, {}, 0)


async def test_the_same_declaration_again_does_not_raise_the_version(line: Line) -> None:
    await line.one(DeclareServices((DRAW, CHAT), {"a": 1, "b": 2}))
    again = await line.one(DeclareServices((CHAT, DRAW), {"b": 2, "a": 1}))
    assert again.value.version == 1
    assert (await line.one(DeclareServices((CHAT,), {"a": 1}))).value == Rules({"chat": CHAT}, {"a": 1}, 2)


async def test_an_override_wins_until_it_is_lifted_and_survives_a_declaration(line: Line) -> None:
    declare = DeclareServices((DRAW,), {})
    await line.one(declare)
    assert (await line.one(Override("draw", 1, None))).value.services["draw"] == replace(DRAW, limit=1)
    both = (await line.one(Override("draw", 1, True))).value
    assert both.services["draw"] == replace(DRAW, limit=1, paused=True)
    assert both.overrides == {"draw": Overridden(1, True)}
    outcome = await line.one(DeclareServices((replace(DRAW, limit=9),), {}))
    assert outcome.value.services["draw"] == replace(DRAW, limit=1, paused=True)
    lifted = (await line.one(Override("draw", lift_limit=True))).value
    assert lifted.services["draw"] == replace(DRAW, limit=9, paused=True)
    assert lifted.overrides == {"draw": Overridden(None, True)}
    assert (await line.one(Override("draw", None, False))).value.services["draw"] == replace(DRAW, limit=9)
    rules = await line.store.rules()
    assert (rules.version, rules.overrides) == (6, {})


async def test_an_override_that_changes_nothing_does_not_raise_the_version(line: Line) -> None:
    await line.one(DeclareServices((DRAW,), {}))
    first = await line.one(Override("draw", 1, True))
    assert await line.one(Override("draw", 1, None)) == first


async def test_an_override_of_an_undeclared_service_is_refused(line: Line) -> None:
    assert isinstance(await line.one(Override("none", 1, None)), Refused)
    assert (await line.store.rules()).version == 0


AUTO = ServiceRules("auto", 2, auto=Auto(2, 8, latency_target=1.5))
ROSE = Adapted(3, 0.25, (Change(1000.5, 3, "all slots were used"),))


async def test_a_limit_that_is_found_by_itself_survives_and_keeps_to_the_bounds_of_today(line: Line) -> None:
    await line.one(DeclareServices((AUTO, DRAW), {}))
    assert (await line.store.rules()).services["auto"] == AUTO
    assert await line.one(Adapt("auto", None, ROSE)) == Done(2)
    rules = await line.store.rules()
    assert (rules.services["auto"], rules.adapted, rules.version) == (replace(AUTO, limit=3), {"auto": ROSE}, 2)
    assert await line.one(Adapt("auto", 3, replace(ROSE, limit=8, best=None))) == Done(3)
    narrower = replace(AUTO, auto=Auto(2, 5))
    found = (await line.one(DeclareServices((narrower,), {}))).value
    assert (found.services["auto"].limit, found.adapted["auto"].limit) == (5, 8)
    # It can be moved from there, and a fixed limit is the one that counts.
    assert await line.one(Adapt("auto", 8, replace(ROSE, limit=4))) == Done(5)
    fixed = (await line.one(DeclareServices((replace(AUTO, limit=6, auto=None),), {}))).value
    assert (fixed.services["auto"].limit, fixed.adapted) == (6, {})


async def test_a_limit_that_another_has_moved_meanwhile_is_not_moved_again(line: Line) -> None:
    await line.one(DeclareServices((AUTO,), {}))
    outcomes = await line.commit(Adapt("auto", None, ROSE), Adapt("auto", None, replace(ROSE, limit=8)))
    assert (outcomes[0], type(outcomes[1])) == (Done(2), Refused)
    assert isinstance(await line.one(Adapt("auto", 7, ROSE)), Refused)
    assert isinstance(await line.one(Adapt("nothing", None, ROSE)), Refused)
    rules = await line.store.rules()
    assert (rules.adapted, rules.version) == ({"auto": ROSE}, 2)


async def test_an_operators_limit_wins_over_the_one_that_is_found(line: Line) -> None:
    await line.one(DeclareServices((AUTO,), {}))
    await line.one(Adapt("auto", None, ROSE))
    assert (await line.one(Override("auto", limit=7))).value.services["auto"].limit == 7
    rules = (await line.one(Override("auto", lift_limit=True))).value
    assert (rules.services["auto"].limit, rules.overrides) == (3, {})


async def test_epochs_begin_at_none_and_only_grow(line: Line) -> None:
    assert await line.store.epochs() == {}
    outcomes = await line.commit(RaiseEpoch("service:a"), RaiseEpoch("pool:b"), RaiseEpoch("service:a"))
    assert outcomes == [Done(1), Done(1), Done(2)]
    assert await line.store.epochs() == {"service:a": Epoch(2, ""), "pool:b": Epoch(1, "")}


async def test_an_epoch_names_the_server_that_its_last_rebuild_was_on(line: Line) -> None:
    await line.one(RaiseEpoch("service:draw", "run-1 'of' \"ours\""))
    assert await line.store.epochs() == {"service:draw": Epoch(1, "run-1 'of' \"ours\"")}
    await line.commit(RaiseEpoch("service:draw", "run-2"), RaiseEpoch("pool:gpu", "run-3"))
    assert await line.store.epochs() == {"service:draw": Epoch(2, "run-2"), "pool:gpu": Epoch(1, "run-3")}
    # A start makes its scope known, and that is no rebuild.
    await line.started(await line.submitted(), scope="service:other")
    assert set(await line.store.epochs()) == {"service:draw", "pool:gpu"}


# ---------------------------------------------------------------- batches and processes


async def test_all_kinds_go_in_one_batch(line: Line) -> None:
    waiting, running, done = await line.submitted(), await line.running(), await line.completed()
    outcomes = await line.commit(
        Delete(done.id),
        line.done(running),
        EndHolds(line.clock.now),
        line.start(waiting),
        Relayed(()),
        line.submit(),
        Prune(0, 0, 9),
        RaiseEpoch("service:x"),
        DeclareServices((DRAW,), {}),
        Override("draw", 1, None),
        Adapt("draw", None, ROSE),
        RingTimers(line.clock.now, 9, {}),
        PromoteWaiting(line.clock.now, 0, 0, 9, {}),
    )
    kinds = [Done, Done, Done, Started, Done, Accepted, Done, Done, Done, Done, Done, Done, Done]
    assert [type(outcome) for outcome in outcomes] == kinds


async def test_an_empty_batch_is_nothing(line: Line) -> None:
    assert await line.commit() == []


async def test_a_large_batch_goes_through(line: Line) -> None:
    outcomes = await line.commit(*(line.submit(max_waiting=10_000, metadata_json="{}") for _ in range(3_000)))
    assert all(isinstance(outcome, Accepted) for outcome in outcomes)
    assert await line.store.count(ALL) == 3_000


async def test_what_one_process_commits_another_reads(line: Line) -> None:
    async with line.another() as other:
        await other.commit([line.submit("theirs")])
        job = await line.job("theirs")
        started = await line.started(job)
        assert (await other.get_jobs(["theirs"])) == {"theirs": started}


async def test_only_one_may_dispatch_and_the_other_is_told_what_to_do(line: Line) -> None:
    await line.store.lock_dispatch()
    async with line.another() as other:
        with pytest.raises(StoreError, match=r"(?s)process \d+ .*stop it.*REDIS_URL"):
            await other.lock_dispatch()


async def test_a_closed_store_says_that_it_is_unavailable(line: Line) -> None:
    await line.store.close()
    with pytest.raises(Unavailable):
        await line.store.get("j1")
    with pytest.raises(Unavailable):
        await line.commit(line.submit())


async def _listed(line: Line, **where: Any) -> list[Job]:
    return await line.store.list_jobs(JobFilter(**where), before_seq=None, limit=100)


def _failed(line: Line, job: Job) -> Any:
    return transitions.failed(job, SOON_OVER, POLICY, now=line.clock.now, randomness=0.5)
