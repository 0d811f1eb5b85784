"""The reads of a store, and what its processes see of each other: the second half of the contract."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fairlead.domain import transitions
from fairlead.domain.groups import GroupRules
from fairlead.domain.job import Job, JobStatus, Priority
from fairlead.domain.retry import Failure, RetryPolicy
from fairlead.domain.rules import Adapted, Auto, Change, Order, Overridden, Rules, ServiceRules, Share
from fairlead.domain.transitions import Delete, Submit
from fairlead.errors import StoreError, Unavailable
from fairlead.store.port import (
    Accepted,
    Adapt,
    DeclareServices,
    Done,
    EndHolds,
    Epoch,
    FireTimers,
    JobFilter,
    OutboxEntry,
    Override,
    OverrideRates,
    PromoteWaiting,
    Prune,
    RaiseEpoch,
    Refused,
    Relayed,
    Started,
)
from tests.contract.stores import StoreHarness

SOON_OVER = Failure("HTTP_503", "busy", retryable=True)
POLICY = RetryPolicy()
MANUAL = RetryPolicy(manual=True)
ALL = JobFilter()


# ---------------------------------------------------------------- idempotency keys


async def test_a_key_is_known_while_its_job_exists(harness: StoreHarness) -> None:
    job = harness.submit(user_id="ada", idempotency_key="once", body_hash="x")
    assert not await harness.store.was_submitted("ada", "once")
    await harness.commit(job)
    assert await harness.store.was_submitted("ada", "once")
    assert not await harness.store.was_submitted("bob", "once")
    assert not await harness.store.was_submitted("ada", "twice")


# ---------------------------------------------------------------- the outbox


async def entry_of(harness: StoreHarness, submit: Submit) -> OutboxEntry:
    await harness.one(submit)
    (change,) = harness.changes
    return change


async def test_relayed_rows_are_deleted(harness: StoreHarness) -> None:
    first, second, third = [await entry_of(harness, harness.submit()) for _ in range(3)]
    await harness.commit(Relayed((first.outbox_id,)), Relayed((third.outbox_id, 999)))
    assert await harness.store.outbox(older_than=harness.clock.now + 1, limit=10) == [second]


async def test_the_outbox_lists_each_job_of_a_shared_row_until_it_is_relayed(harness: StoreHarness) -> None:
    alone = await entry_of(harness, harness.submit())
    bulk = [harness.submit(f"bulk-{n}", user_id=f"user-{n % 3}") for n in range(2500)]
    await harness.commit(*bulk)
    relayed, later = list(harness.changes), harness.clock.now + 1
    assert [change.job for change in relayed] == [submit.job for submit in bulk]
    assert await harness.store.outbox(older_than=later, limit=9999) == [alone, *relayed]
    assert await harness.store.outbox(older_than=later, limit=1) == [alone]
    assert (await harness.store.facts())["outbox_rows"] == 2501
    some = await harness.store.outbox(older_than=later, limit=10)
    assert 10 <= len(some) <= 1001, "jobs may share a row, which is relayed as a whole, but not all jobs share one"
    assert some == [alone, *relayed][: len(some)]
    relayed_ids = {change.outbox_id for change in relayed[:1000]}
    left = [change for change in relayed if change.outbox_id not in relayed_ids]
    await harness.one(Relayed((alone.outbox_id, *relayed_ids)))
    assert await harness.store.outbox(older_than=later, limit=9999) == left
    await harness.one(Relayed(tuple({change.outbox_id for change in left})))
    assert await harness.store.outbox(older_than=later, limit=9999) == []


async def test_a_deleted_job_is_listed_with_the_others_of_its_shared_row(harness: StoreHarness) -> None:
    await harness.commit(harness.submit("kept"), harness.submit("gone"))
    await harness.one(transitions.cancel(await harness.job("gone"), now=harness.clock.now))
    await harness.one(Delete("gone"))
    rows = await harness.store.outbox(older_than=harness.clock.now + 1, limit=9)
    assert [(row.job_id, row.job) for row in rows] == [
        ("kept", await harness.job("kept")),
        ("gone", None),
        ("gone", None),
    ]


async def test_an_outbox_id_is_never_reused(harness: StoreHarness) -> None:
    """Two processes may delete a row that both relayed: the later one must not delete a new row with its id."""
    await harness.submitted()
    (change,) = harness.changes
    await harness.one(Relayed((change.outbox_id,)))
    await harness.submitted()
    await harness.one(Relayed((change.outbox_id,)))
    assert len(await harness.store.outbox(older_than=harness.clock.now + 1, limit=10)) == 1


async def test_outbox_rows_of_relaying_processes_are_returned_once_old_and_others_at_once(
    harness: StoreHarness,
) -> None:
    harness.store.relays()
    await harness.submitted("mine")
    async with harness.another() as relaying, harness.another() as silent:
        relaying.relays()
        await relaying.commit([harness.submit("theirs")])
        await silent.commit([harness.submit("untold")])
    now = harness.clock.now
    assert [row.job_id for row in await harness.store.outbox(older_than=now, limit=10)] == ["untold"]
    rows = await harness.store.outbox(older_than=now + 0.1, limit=10)
    assert [row.job_id for row in rows] == ["mine", "theirs", "untold"]
    assert [row.job_id for row in await harness.store.outbox(older_than=now + 0.1, limit=1)] == ["mine"]


async def test_an_outbox_row_has_the_current_state_of_its_job_or_none(harness: StoreHarness) -> None:
    job = await harness.submitted()
    await harness.one(transitions.cancel(job, now=harness.clock.now))
    later = harness.clock.now + 1
    assert [row.job for row in await harness.store.outbox(older_than=later, limit=9)] == [await harness.job(job.id)] * 2
    await harness.one(Delete(job.id))
    rows = await harness.store.outbox(older_than=later, limit=9)
    assert [(row.job_id, row.job) for row in rows] == [(job.id, None)] * 2


# ---------------------------------------------------------------- reads


async def test_jobs_are_listed_newest_first_and_page_by_page(harness: StoreHarness) -> None:
    jobs = [await harness.submitted() for _ in range(5)]
    page = await harness.store.list_jobs(ALL, before_seq=None, limit=2)
    assert page == [jobs[4], jobs[3]]
    assert await harness.store.list_jobs(ALL, before_seq=page[-1].seq, limit=9) == [jobs[2], jobs[1], jobs[0]]


async def test_a_list_may_end_at_a_job(harness: StoreHarness) -> None:
    jobs = [await harness.submitted() for _ in range(4)]
    listed = await harness.store.list_jobs(ALL, before_seq=jobs[3].seq, limit=9, from_seq=jobs[1].seq)
    assert await harness.store.seq_after(ALL, before_seq=jobs[3].seq, skip=1) == jobs[1].seq
    assert await harness.store.seq_after(ALL, before_seq=jobs[1].seq, skip=1) is None
    assert listed == [jobs[2], jobs[1]]


async def test_users_are_found_by_the_beginning_of_their_id(harness: StoreHarness) -> None:
    for user_id in ("adam", "ada", "ada", "Ada", "bob", "ad%m", "adé"):
        await harness.submitted(user_id=user_id)
    find = harness.store.users_with_prefix
    assert await find("ad", 10) == ["ad%m", "ada", "adam", "adé"]
    assert await find("ad", 2) == ["ad%m", "ada"]
    assert await find("ada", 10) == ["ada", "adam"]
    assert await find("ad%", 10) == ["ad%m"]
    assert await find("z", 10) == []


async def test_jobs_are_listed_and_counted_by_user_status_and_feature(harness: StoreHarness) -> None:
    ann = await harness.submitted()
    bob = await harness.running(user_id="bob")
    done = await harness.completed(user_id="bob", feature_name="video")
    dead = await harness.failed()
    gone = await harness.cancelled()
    cases: list[tuple[dict[str, Any], list[Job]]] = [
        ({}, [gone, dead, done, bob, ann]),
        ({"user_id": "bob"}, [done, bob]),
        ({"feature_name": "video"}, [done]),
        ({"statuses": (JobStatus.FAILED,)}, [dead]),
        ({"statuses": (JobStatus.FAILED, JobStatus.CANCELLED)}, [gone, dead]),
        ({"statuses": (JobStatus.PENDING, JobStatus.RUNNING)}, [bob, ann]),
        ({"statuses": (JobStatus.PENDING, JobStatus.COMPLETED)}, [done, ann]),
        ({"user_id": "bob", "statuses": (JobStatus.RUNNING,), "feature_name": "image"}, [bob]),
        ({"user_id": "unknown"}, []),
    ]
    for where, expected in cases:
        assert await _listed(harness, **where) == expected, where
        assert await harness.store.count(JobFilter(**where)) == len(expected), where


async def test_dead_jobs_are_listed_and_counted_by_service_error_and_moment(harness: StoreHarness) -> None:
    began = harness.clock.now
    first = await harness.failed()
    harness.clock.forward(10)
    busy = await harness.running(steps=("draw", 'the "scale"'))
    await harness.one(harness.done(busy))
    busy = await harness.started(await harness.job(busy.id))
    await harness.one(transitions.failed(busy, SOON_OVER, MANUAL, now=harness.clock.now, randomness=0.5))
    busy = await harness.job(busy.id)
    harness.clock.forward(10)
    third = await harness.failed()
    await harness.submitted()
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
        assert await _listed(harness, **where) == expected, where
        assert await harness.store.count(JobFilter(**where)) == len(expected), where


async def test_get_jobs_omits_unknown_jobs(harness: StoreHarness) -> None:
    job = await harness.submitted("j1")
    assert await harness.store.get_jobs(["j1", "none", "j1"]) == {"j1": job}
    assert await harness.store.get_jobs([]) == {}
    assert await harness.store.get("none") is None


async def test_the_next_timer_is_the_earliest(harness: StoreHarness) -> None:
    now = harness.clock.now
    assert await harness.store.next_timer() is None
    await harness.submitted()
    assert await harness.store.next_timer() is None
    await harness.submitted(due_at=now + 20)
    await harness.submitted(waits={"draw": 10})
    await harness.submitted(deadline_at=now + 30)
    assert await harness.store.next_timer() == now + 10


async def test_a_finished_job_has_no_timer(harness: StoreHarness) -> None:
    job = await harness.submitted(due_at=harness.clock.now + 10)
    await harness.one(transitions.cancel(job, now=harness.clock.now))
    assert await harness.store.next_timer() is None


async def test_the_next_promotion_is_the_earliest_one(harness: StoreHarness) -> None:
    async def next_promotion() -> float | None:
        return await harness.store.next_promotion(low_after=1800, medium_after=3600)

    start = harness.clock.now
    await harness.submitted(priority=Priority.HIGH)
    assert await next_promotion() is None
    await harness.submitted()
    assert await next_promotion() == start + 3600
    harness.clock.forward(100)
    await harness.submitted(priority=Priority.LOW)
    assert await next_promotion() == start + 100 + 1800


async def test_oldest_waiting_is_by_band_and_counts_queued_jobs_only(harness: StoreHarness) -> None:
    start = harness.clock.now
    assert await harness.store.oldest_waiting() == {}
    await harness.submitted(due_at=start + 1000)
    await harness.running()
    harness.clock.forward(10)
    await harness.submitted(priority=Priority.LOW)
    harness.clock.forward(10)
    await harness.submitted(priority=Priority.LOW)
    await harness.submitted(priority=Priority.HIGH)
    assert await harness.store.oldest_waiting() == {3: start + 10, 1: start + 20}


async def test_waiting_yields_all_pending_jobs_in_batches(harness: StoreHarness) -> None:
    pending = [await harness.submitted(priority=priority) for priority in (Priority.LOW, *[Priority.HIGH] * 4)]
    await harness.running()
    await harness.submitted(due_at=harness.clock.now + 5)
    batches = [batch async for batch in harness.store.waiting(2)]
    assert [len(batch) for batch in batches] == [2, 2, 1]
    assert [job for batch in batches for job in batch] == pending


async def test_running_returns_the_running_jobs(harness: StoreHarness) -> None:
    await harness.submitted()
    running = await harness.running()
    await harness.completed()
    assert await harness.store.running() == [running]


async def test_ping_succeeds(harness: StoreHarness) -> None:
    await harness.store.ping()


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


async def test_declared_rules_are_read_back_unchanged(harness: StoreHarness) -> None:
    outcome = await harness.one(DeclareServices((DRAW, CHAT), {"gpu": 3}))
    assert outcome == Done(Rules({"chat": CHAT, "draw": DRAW}, {"gpu": 3}, version=1))
    assert await harness.store.rules() == outcome.value


async def test_shards_and_shares_are_read_back_and_declared_again_unchanged(harness: StoreHarness) -> None:
    part = SPLIT.on("b")
    assert part is not None
    outcome = await harness.one(DeclareServices((FAR, SPLIT, replace(part, service="part")), {}))
    declared = {"far": FAR, "split": SPLIT, "part": replace(part, service="part")}
    assert outcome == Done(Rules(declared, {}, version=1))
    assert await harness.store.rules() == outcome.value
    # The same rules in another order: sets and mappings are unordered.
    shares = {"main": Share(frozenset([2]), 3), "b": Share(frozenset([1, 3]), 2)}
    again = DeclareServices((replace(part, service="part"), replace(SPLIT, shares=shares), FAR), {})
    assert (await harness.one(again)).value.version == 1
    assert (await harness.one(Override("far", limit=1))).value.services["far"] == replace(FAR, limit=1)


async def test_groups_are_read_back_unchanged_from_rules_and_jobs(harness: StoreHarness) -> None:
    groups = {"acme": GroupRules(2.0, 5), "acme/red": GroupRules(0.5)}
    outcome = await harness.one(DeclareServices((DRAW,), {}, groups=groups))
    assert outcome == Done(Rules({"draw": DRAW}, {}, version=1, groups=groups))
    assert (await harness.store.declared()).groups == groups
    assert (await harness.one(DeclareServices((DRAW,), {}))).value.groups == {}
    assert (await harness.submitted(group="acme/red")).group == "acme/red"
    assert (await harness.running(group="acme/red", priority_source="hook", spill_after=3.0)).group == "acme/red"
    assert (await harness.submitted()).group is None


async def test_without_a_declaration_there_are_no_rules(harness: StoreHarness) -> None:
    assert await harness.store.rules() == Rules({}, {}, 0)


async def test_the_same_declaration_again_does_not_raise_the_version(harness: StoreHarness) -> None:
    await harness.one(DeclareServices((DRAW, CHAT), {"a": 1, "b": 2}))
    again = await harness.one(DeclareServices((CHAT, DRAW), {"b": 2, "a": 1}))
    assert again.value.version == 1
    assert (await harness.one(DeclareServices((CHAT,), {"a": 1}))).value == Rules({"chat": CHAT}, {"a": 1}, 2)


async def test_an_override_wins_until_it_is_lifted_and_survives_a_declaration(harness: StoreHarness) -> None:
    declare = DeclareServices((DRAW,), {})
    await harness.one(declare)
    assert (await harness.one(Override("draw", 1, None))).value.services["draw"] == replace(DRAW, limit=1)
    both = (await harness.one(Override("draw", 1, True))).value
    assert both.services["draw"] == replace(DRAW, limit=1, paused=True)
    assert both.overrides == {"draw": Overridden(1, True)}
    outcome = await harness.one(DeclareServices((replace(DRAW, limit=9),), {}))
    assert outcome.value.services["draw"] == replace(DRAW, limit=1, paused=True)
    lifted = (await harness.one(Override("draw", lift_limit=True))).value
    assert lifted.services["draw"] == replace(DRAW, limit=9, paused=True)
    assert lifted.overrides == {"draw": Overridden(None, True)}
    assert (await harness.one(Override("draw", None, False))).value.services["draw"] == replace(DRAW, limit=9)
    rules = await harness.store.rules()
    assert (rules.version, rules.overrides) == (6, {})


async def test_an_override_that_changes_nothing_does_not_raise_the_version(harness: StoreHarness) -> None:
    await harness.one(DeclareServices((DRAW,), {}))
    first = await harness.one(Override("draw", 1, True))
    assert await harness.one(Override("draw", 1, None)) == first


async def test_an_override_of_an_undeclared_service_is_refused(harness: StoreHarness) -> None:
    assert isinstance(await harness.one(Override("none", 1, None)), Refused)
    assert (await harness.store.rules()).version == 0


AUTO = ServiceRules("auto", 2, auto=Auto(2, 8, latency_target=1.5))
ROSE = Adapted(3, 0.25, (Change(1000.5, 3, "all slots were used"),))


async def test_an_automatic_limit_is_kept_within_the_declared_bounds(harness: StoreHarness) -> None:
    await harness.one(DeclareServices((AUTO, DRAW), {}))
    assert (await harness.store.rules()).services["auto"] == AUTO
    assert await harness.one(Adapt("auto", None, ROSE)) == Done(2)
    rules = await harness.store.rules()
    assert (rules.services["auto"], rules.adapted, rules.version) == (replace(AUTO, limit=3), {"auto": ROSE}, 2)
    assert await harness.one(Adapt("auto", 3, replace(ROSE, limit=8, best=None))) == Done(3)
    narrower = replace(AUTO, auto=Auto(2, 5))
    found = (await harness.one(DeclareServices((narrower,), {}))).value
    assert (found.services["auto"].limit, found.adapted["auto"].limit) == (5, 8)
    # From there it can be changed, and a fixed limit takes precedence.
    assert await harness.one(Adapt("auto", 8, replace(ROSE, limit=4))) == Done(5)
    fixed = (await harness.one(DeclareServices((replace(AUTO, limit=6, auto=None),), {}))).value
    assert (fixed.services["auto"].limit, fixed.adapted) == (6, {})


async def test_a_limit_that_another_process_changed_is_not_changed_again(harness: StoreHarness) -> None:
    await harness.one(DeclareServices((AUTO,), {}))
    outcomes = await harness.commit(Adapt("auto", None, ROSE), Adapt("auto", None, replace(ROSE, limit=8)))
    assert (outcomes[0], type(outcomes[1])) == (Done(2), Refused)
    assert isinstance(await harness.one(Adapt("auto", 7, ROSE)), Refused)
    assert isinstance(await harness.one(Adapt("nothing", None, ROSE)), Refused)
    rules = await harness.store.rules()
    assert (rules.adapted, rules.version) == ({"auto": ROSE}, 2)


async def test_an_operators_limit_takes_precedence_over_the_automatic_one(harness: StoreHarness) -> None:
    await harness.one(DeclareServices((AUTO,), {}))
    await harness.one(Adapt("auto", None, ROSE))
    assert (await harness.one(Override("auto", limit=7))).value.services["auto"].limit == 7
    rules = (await harness.one(Override("auto", lift_limit=True))).value
    assert (rules.services["auto"].limit, rules.overrides) == (3, {})


async def test_epochs_start_at_none_and_only_grow(harness: StoreHarness) -> None:
    assert await harness.store.epochs() == {}
    outcomes = await harness.commit(RaiseEpoch("service:a"), RaiseEpoch("pool:b"), RaiseEpoch("service:a"))
    assert outcomes == [Done(1), Done(1), Done(2)]
    assert await harness.store.epochs() == {"service:a": Epoch(2, ""), "pool:b": Epoch(1, "")}


async def test_a_declaration_raises_the_epochs_of_the_scopes_that_services_leave_and_enter(
    harness: StoreHarness,
) -> None:
    await harness.one(DeclareServices((DRAW,), {}))
    await harness.one(RaiseEpoch("service:draw", "s1"))
    job = await harness.submitted()
    moved = frozenset({"service:draw", "pool:gpu"})
    declaration = DeclareServices((replace(DRAW, pool="gpu"),), {"gpu": 3}, moved=moved)
    start, declared = await harness.commit(harness.start(job, lease="1:1"), declaration)
    assert isinstance(start, Refused)
    assert declared.value.version == 2
    assert await harness.store.epochs() == {"service:draw": Epoch(2, "s1"), "pool:gpu": Epoch(1, "")}
    await harness.one(declaration)  # the rules are unchanged
    assert (await harness.store.epochs())["service:draw"].number == 2


async def test_a_declaration_based_on_outdated_rules_changes_nothing(harness: StoreHarness) -> None:
    await harness.one(DeclareServices((DRAW,), {}))
    late = DeclareServices((DRAW, CHAT), {}, based_on=0, moved=frozenset({"service:draw"}))
    assert isinstance(await harness.one(late), Refused)
    assert (await harness.store.rules(), await harness.store.epochs()) == (Rules({"draw": DRAW}, {}, 1), {})
    outcome = await harness.one(replace(late, based_on=1))
    assert outcome.value.version == 2
    assert isinstance(await harness.one(replace(late, services=(CHAT,), based_on=1)), Refused)


async def test_an_epoch_is_raised_only_for_the_rules_in_force(harness: StoreHarness) -> None:
    await harness.one(DeclareServices((DRAW,), {}))
    assert isinstance(await harness.one(RaiseEpoch("service:draw", "s1", version=0)), Refused)
    assert await harness.store.epochs() == {}
    assert await harness.one(RaiseEpoch("service:draw", "s1", version=1)) == Done(1)
    await harness.one(DeclareServices((CHAT,), {}))
    assert isinstance(await harness.one(RaiseEpoch("service:draw", "s2", version=1)), Refused)
    assert await harness.store.epochs() == {"service:draw": Epoch(1, "s1")}


async def test_an_epoch_names_the_server_of_its_last_rebuild(harness: StoreHarness) -> None:
    await harness.one(RaiseEpoch("service:draw", "run-1 'of' \"ours\""))
    assert await harness.store.epochs() == {"service:draw": Epoch(1, "run-1 'of' \"ours\"")}
    await harness.commit(RaiseEpoch("service:draw", "run-2"), RaiseEpoch("pool:gpu", "run-3"))
    assert await harness.store.epochs() == {"service:draw": Epoch(2, "run-2"), "pool:gpu": Epoch(1, "run-3")}
    # A start creates its scope, which is not a rebuild.
    await harness.started(await harness.submitted(), scope="service:other")
    assert set(await harness.store.epochs()) == {"service:draw", "pool:gpu"}


# ---------------------------------------------------------------- batches and processes


async def test_all_kinds_of_transitions_share_one_batch(harness: StoreHarness) -> None:
    waiting, running, done = await harness.submitted(), await harness.running(), await harness.completed()
    outcomes = await harness.commit(
        Delete(done.id),
        harness.done(running),
        EndHolds(harness.clock.now),
        harness.start(waiting),
        Relayed(()),
        harness.submit(),
        Prune(0, 0, 9),
        RaiseEpoch("service:x"),
        DeclareServices((DRAW,), {}),
        Override("draw", 1, None),
        OverrideRates({}, 0),
        Adapt("draw", None, ROSE),
        FireTimers(harness.clock.now, 9, {}),
        PromoteWaiting(harness.clock.now, 0, 0, 9, {}),
    )
    kinds = [Done, Done, Done, Started, Done, Accepted, Done, Done, Done, Done, Refused, Done, Done, Done]
    assert [type(outcome) for outcome in outcomes] == kinds


async def test_an_empty_batch_is_accepted(harness: StoreHarness) -> None:
    assert await harness.commit() == []


async def test_a_large_batch_is_committed(harness: StoreHarness) -> None:
    outcomes = await harness.commit(*(harness.submit(max_waiting=10_000, metadata_json="{}") for _ in range(3_000)))
    assert all(isinstance(outcome, Accepted) for outcome in outcomes)
    assert await harness.store.count(ALL) == 3_000


async def test_a_commit_of_one_process_is_read_by_another(harness: StoreHarness) -> None:
    async with harness.another() as other:
        await other.commit([harness.submit("theirs")])
        job = await harness.job("theirs")
        started = await harness.started(job)
        assert (await other.get_jobs(["theirs"])) == {"theirs": started}


async def test_a_second_dispatching_process_is_refused_with_advice(harness: StoreHarness) -> None:
    await harness.store.lock_dispatch()
    async with harness.another() as other:
        with pytest.raises(StoreError, match=r"(?s)process \d+ .*stop it.*REDIS_URL"):
            await other.lock_dispatch()


async def test_a_closed_store_is_unavailable(harness: StoreHarness) -> None:
    await harness.store.close()
    with pytest.raises(Unavailable):
        await harness.store.get("j1")
    with pytest.raises(Unavailable):
        await harness.commit(harness.submit())


async def _listed(harness: StoreHarness, **where: Any) -> list[Job]:
    return await harness.store.list_jobs(JobFilter(**where), before_seq=None, limit=100)


def _failed(harness: StoreHarness, job: Job) -> Any:
    return transitions.failed(job, SOON_OVER, POLICY, now=harness.clock.now, randomness=0.5)
