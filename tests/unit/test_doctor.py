"""The rules of the doctor, on given facts. tests/integration/test_doctor.py provokes each finding for real."""

from __future__ import annotations

import re
import selectors
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import typer
from tests.unit.doctor_facts import (
    NOW,
    POSTGRES,
    codes,
    facts,
    find,
    lease,
    only,
    process,
    rules,
    shard,
    snapshot,
)

from fairlead.config import Settings
from fairlead.dispatch.port import RegionSnapshot, ScopeState
from fairlead.dispatch.rates import RateUse
from fairlead.domain.config import Config
from fairlead.domain.job import Hold
from fairlead.domain.processes import POOLS
from fairlead.domain.rates import Rate
from fairlead.domain.rules import Auto, Order, Overridden, Rules, ServiceRules
from fairlead.engine import heartbeat
from fairlead.observe import doctor
from fairlead.observe.doctor import KINDS, confirmed, examine
from fairlead.observe.doctor.facts import RedisFacts
from fairlead.observe.doctor.finding import Severity, sentence
from fairlead.observe.snapshot import ShardSnapshot
from fairlead.store.port import Epoch


def test_a_healthy_deployment_has_no_findings() -> None:
    assert examine(facts()) == []


def test_every_code_is_unique_kebab_case() -> None:
    every = [kind for topic in doctor.TOPICS for kind in vars(topic).values()]
    kinds = [kind for kind in every if type(kind).__name__ == "Kind"]
    assert len(kinds) == len(KINDS) >= 40
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+)*", code) for code in KINDS)


# ---------------------------------------------------------------- workers


def test_a_service_without_a_worker_is_an_error_when_jobs_wait_and_else_a_warning() -> None:
    idle = find(processes=(process("m1", "manager", services=()),))
    assert (idle.code, idle.severity, idle.about) == ("no-worker", Severity.WARNING, "gpu")
    busy = find(processes=(process("m1", "manager", services=()),), shards={"main": shard(snapshot(waiting=3))})
    assert (busy.severity, busy.evidence["waiting"]) == (Severity.ERROR, 3)
    assert "`fairlead worker --services gpu`" in busy.fix


def test_waiting_jobs_are_counted_from_the_database_while_the_queue_is_not_built() -> None:
    found = find(processes=(process("m1", "manager", services=()),), waiting_in_database={"gpu": {1: 0, 2: 4, 3: 0}})
    assert (found.code, found.severity, found.evidence["waiting"]) == ("no-worker", Severity.ERROR, 4)


def test_a_function_service_needs_a_worker_with_its_code() -> None:
    without_worker = {"processes": (process("m1", "manager", services=()),), "rules": rules(remote=False)}
    assert "`fairlead worker MODULE:APP --services gpu`" in find(**without_worker).fix
    settings = Settings(facts().config, admin_key="secret")
    assert "`fairlead up MODULE:APP`" in find(settings=settings, redis={}, echo=None, **without_worker).fix


def test_a_silent_worker_does_not_count() -> None:
    gone = process(seen_at=NOW - 11)
    assert find(processes=(gone, process("m1", "manager", services=()))).evidence["silent"] == ["w1"]


def test_the_fix_for_a_single_process_is_fairlead_up() -> None:
    settings = Settings(facts().config, admin_key="secret")
    up = process("m1", "manager", services=())
    assert "`fairlead up`" in find(settings=settings, redis={}, echo=None, processes=(up,)).fix


def test_a_band_that_no_worker_serves() -> None:
    high = process(bands=("high", "medium"))
    found = find(processes=(high, process("m1", "manager", services=())), shards={"main": shard(snapshot(waiting=0))})
    assert (found.code, found.about, found.severity) == ("no-worker-for-band", "gpu low", Severity.WARNING)
    assert "`fairlead worker --services gpu --bands low`" in found.fix


def test_a_region_that_no_worker_serves() -> None:
    regional = Rules({"gpu": ServiceRules("gpu", 2, remote=True, regions={"eu": 1, "us": 1})})
    both = (RegionSnapshot("eu", 1, 0, waiting=2, retrying=1), RegionSnapshot("us", 1, 0))
    seen = {"main": shard(replace(snapshot(waiting=3), regions=both))}
    pools = [{"name": "", "services": ["gpu"], "bands": ["high", "medium", "low"], "regions": ["us"], "concurrency": 5}]
    bound = (process(details={POOLS: pools}), process("m1", "manager", services=()))
    found = find(rules=regional, processes=bound, shards=seen)
    assert (found.code, found.about, found.severity) == ("no-worker-for-region", "gpu eu", Severity.ERROR)
    assert (found.evidence["waiting"], found.evidence["workers"]) == (3, {"w1": ["us"]})
    assert "`fairlead worker --services gpu --regions eu`" in found.fix
    idle = {"main": shard(replace(snapshot(), regions=(RegionSnapshot("eu", 1, 0), RegionSnapshot("us", 1, 0))))}
    assert find(rules=regional, processes=bound, shards=idle).severity is Severity.WARNING
    assert "no-worker-for-region" not in codes(rules=regional, shards=seen), "an unbound worker serves all regions"
    one = Settings(facts().config, admin_key="secret")
    alone = examine(facts(settings=one, redis={}, echo=None, rules=regional, processes=bound, shards=seen))
    assert [each.fix for each in alone if each.code == found.code] == [
        "add eu to the `regions` of one of [worker_pools] and restart: `fairlead up`"
    ]


def test_a_fifo_service_has_no_bands() -> None:
    high = (process(bands=("high",)), process("m1", "manager", services=()))
    assert codes(processes=high, rules=rules(order=Order.FIFO)) == []
    idle = codes(processes=high, rules=rules(order=Order.FIFO), shards={"main": shard(snapshot(waiting=3))})
    assert idle == ["waiting-while-free"]


def test_a_drained_worker_is_named_with_the_command_that_undoes_it() -> None:
    drained = process(drain_asked=True, draining=True)
    other = process("w2")
    found = find(processes=(drained, other, process("m1", "manager", services=())))
    assert (found.code, found.about) == ("worker-draining", "w1")
    assert "`fairlead workers drain w1 --undo`" in found.fix
    alone = examine(facts(processes=(drained, process("m1", "manager", services=()))))
    assert {finding.code for finding in alone} == {"worker-draining", "no-worker"}


def test_a_worker_that_cannot_reach_the_dispatcher_names_the_reason() -> None:
    stuck = process("w2", details={"problem": "Redis is away"})
    found = find(processes=(*facts().processes, stuck))
    assert (found.code, found.about, found.evidence["reason"]) == ("worker-cannot-claim", "w2", "Redis is away")
    assert "let host reach its REDIS_URL: the worker reconnects by itself" in found.fix


def test_workers_reconnect_by_themselves_to_a_redis_that_is_started_again() -> None:
    stuck = process("w2", details={"problem": "Redis is away"})
    away = {"main": replace(facts().redis["main"], problem="connection refused.")}
    found = {each.code: each for each in examine(facts(processes=(*facts().processes, stuck), redis=away))}
    assert "redis-unreachable" in found
    assert found["worker-cannot-claim"].fix.startswith("start Redis (")


def test_leases_of_a_lost_worker_are_a_warning_until_they_should_have_been_recovered() -> None:
    found = find(shards={"main": shard(snapshot(lease("w9")))})
    assert (found.code, found.severity, found.evidence["workers"]) == ("worker-gone", Severity.WARNING, ["w9"])
    late = find(shards={"main": shard(snapshot(lease("w9", expires_at=NOW - 6)))})
    assert late.severity is Severity.ERROR
    assert "`fairlead manager`" in late.fix


def test_a_blocked_event_loop_is_reported_by_the_process_or_found_by_its_leases() -> None:
    blocked = process(details={"blocked": {"ago": 30.0, "where": "tasks.py:7 in render"}})
    manager = process("m1", "manager", services=(), bands=())
    found = find(processes=(blocked, manager))
    assert (found.code, found.evidence["where"]) == ("event-loop-blocked", "tasks.py:7 in render")
    assert codes(processes=(replace(blocked, details={"blocked": {"ago": 601.0, "where": ""}}), manager)) == []
    own = {"ago": 30.0, "where": "serve.py:91 in _collect_less_often", "handler": False}
    assert codes(processes=(replace(blocked, details={"blocked": own}), manager)) == []
    silent = process(seen_at=NOW - 20)
    held = {"main": shard(snapshot(lease(granted_at=NOW - 30)))}
    assert "event-loop-blocked" in codes(processes=(silent, process("w2"), manager), shards=held)


# ---------------------------------------------------------------- who blocks the event loop


def frame_in(*files: str) -> FrameType:
    """A frame of code in the last file, called by code in the others, the outermost first."""
    seen: list[FrameType] = []
    code = "import sys; seen.append(sys._getframe())"
    for file in reversed(files):
        code = f"exec(compile({code!r}, {file!r}, 'exec'), globals())"
    exec(code, {"seen": seen})
    return seen[0]


def test_what_an_executor_calls_and_what_is_not_installed_is_a_handler() -> None:
    loop, own = "/usr/lib/python3/asyncio/runners.py", str(heartbeat.PACKAGE / "cli" / "serve.py")
    executor, installed = f"{heartbeat.EXECUTORS}/function.py", str(Path(typer.__file__))
    assert not heartbeat.runs_handler(frame_in(loop, own))
    assert not heartbeat.runs_handler(frame_in(loop, own, installed))
    assert heartbeat.runs_handler(frame_in(loop, own, executor, installed))
    assert heartbeat.runs_handler(frame_in(loop, "/srv/app/tasks.py"))
    assert heartbeat.runs_handler(frame_in(loop, "/srv/app/tasks.py", installed))
    waiting = frame_in("/srv/app/main.py", "/usr/lib/python3/asyncio/base_events.py", selectors.__file__)
    assert not heartbeat.runs_handler(waiting)
    assert not heartbeat.runs_handler(None)


def test_mixed_versions_are_a_note() -> None:
    found = find(processes=(*facts().processes, process("w2", version="1.1")))
    assert (found.code, found.evidence["versions"]) == ("versions-differ", {"1.0": ["w1", "m1"], "1.1": ["w2"]})


# ---------------------------------------------------------------- managers


def test_no_manager_and_no_leading_manager_are_two_findings() -> None:
    none = {"main": shard(leader=None, term=None)}
    assert find(processes=(process(),), shards=none).code == "no-manager"
    found = find(shards=none)
    assert (found.code, found.about, found.evidence["managers"]) == ("manager-not-leading", "main", ["m1"])


def test_a_memory_dispatcher_needs_no_leader() -> None:
    assert codes(shards={"main": shard(leader=None, in_memory=True)}) == []


@pytest.mark.parametrize(
    ("late", "code"),
    [
        ({"next_promotion": NOW - 11}, "promotion-late"),
        ({"next_timer": NOW - 11}, "timers-late"),
        ({"store": {**POSTGRES, "outbox_rows": 4, "outbox_age": 11.0}}, "outbox-late"),
    ],
)
def test_late_timers_are_reported(late: dict[str, Any], code: str) -> None:
    found = find(**late)
    assert (found.code, found.severity) == (code, Severity.ERROR)
    assert "`fairlead manager`" in found.fix


@pytest.mark.parametrize("soon", [{"next_promotion": NOW - 9}, {"next_timer": NOW + 60}])
def test_timers_that_are_just_due_are_not_late(soon: dict[str, Any]) -> None:
    assert codes(**soon) == []


def test_an_outbox_that_waits_for_redis_is_reported() -> None:
    away = {"main": RedisFacts("r", "Redis is away")}
    store = {**POSTGRES, "outbox_rows": 4, "outbox_age": 11.0}
    found = examine(facts(redis=away, store=store, shards={"main": ShardSnapshot(problem="Redis is away")}))
    assert [finding.code for finding in found] == ["redis-unreachable", "outbox-late"]
    assert found[1].evidence["redis_away"] == ["main"]


def test_a_closed_scope_is_being_rebuilt_and_one_of_another_server_is_foreign() -> None:
    closed = {"service:gpu": ScopeState(4, False, "server")}
    assert find(shards={"main": shard(states=closed)}).code == "rebuilding"
    assert find(epochs={}).code == "rebuilding"
    other = find(epochs={"service:gpu": Epoch(3, "another server")})
    assert (other.code, other.evidence["here"]) == ("another-redis", ["server"])


# ---------------------------------------------------------------- queues


def test_a_paused_service_and_an_overridden_limit_name_the_command_that_lifts_them() -> None:
    paused = find(rules=rules(paused=True), shards={"main": shard(snapshot(waiting=5))})
    assert (paused.code, paused.fix, paused.evidence["waiting"]) == ("service-paused", "`fairlead unpause gpu`", 5)
    changed = find(declared_limits={"gpu": 8})
    assert (changed.code, changed.fix) == ("limit-overridden", "`fairlead limit gpu --lift`")
    assert (changed.evidence["limit"], changed.evidence["declared"]) == (2, 8)


def test_more_running_calls_than_a_lowered_limit() -> None:
    found = examine(facts(rules=rules(limit=1), shards={"main": shard(snapshot(lease(), lease(name="1:2"), limit=1))}))
    assert [finding.code for finding in found] == ["above-limit", "limit-overridden"]
    assert "`fairlead limit gpu --lift`" in found[0].fix


def test_an_automatic_limit_is_a_finding_only_when_an_operator_overrides_it() -> None:
    moved = rules(limit=1, auto=Auto(1, 8))
    many = {"main": shard(snapshot(lease(), lease(name="1:2"), limit=1))}
    assert codes(rules=moved, declared_limits={"gpu": 2}, shards=many) == []
    found = find(rules=replace(moved, overrides={"gpu": Overridden(limit=1)}), declared_limits={"gpu": 2})
    assert (found.code, "the configuration says auto" in found.cause) == ("limit-overridden", True)


def test_holds_that_fill_a_service_name_the_slots_to_add() -> None:
    holds = (Hold("a", "gpu", None, NOW + 60, "1"), Hold("b", "gpu", None, NOW + 90, "2"))
    found = find(shards={"main": shard(snapshot(waiting=1, holds=holds))})
    assert (found.code, found.evidence["held"]) == ("held-full", 2)
    assert "`fairlead limit gpu 4`" in found.fix
    assert codes(shards={"main": shard(snapshot(holds=holds))}) == [], "no job waits"


def test_jobs_that_wait_while_slots_are_free() -> None:
    found = find(shards={"main": shard(snapshot(waiting=3))})
    assert (found.code, found.severity, found.evidence["free"]) == ("waiting-while-free", Severity.ERROR, 2)
    assert "`fairlead rebuild gpu`" in found.fix


@pytest.mark.parametrize(
    "use",
    [
        RateUse("service", "gpu", Rate(5), 5, 0.0, NOW + 9),
        RateUse("service", "gpu", Rate(None, 100.0), 1, 60.0),
        RateUse("service", "gpu", None, 0, 0.0, NOW + 9, NOW + 9),
    ],
)
def test_jobs_that_wait_for_a_rate_are_no_fault(use: RateUse) -> None:
    assert codes(shards={"main": shard(replace(snapshot(waiting=3), rates=(use,)))}) == []
    free = replace(use, rate=Rate(5), units=0.0, until=0.0)
    assert codes(shards={"main": shard(replace(snapshot(waiting=3), rates=(free,)))}) == ["waiting-while-free"]


def test_jobs_that_wait_in_a_lane_without_a_region() -> None:
    there = replace(snapshot(waiting=3), regions=(RegionSnapshot("us", 1, 0, waiting=1),), unbound=(1, 0))
    found = find(rules=rules(regions={"us": 1}), shards={"main": shard(replace(there, in_use=2))})
    assert (found.code, found.severity, found.evidence["waiting"]) == ("region-undeclared", Severity.ERROR, 1)
    assert "`fairlead rebuild gpu`" in found.fix


@pytest.mark.parametrize(
    "changes",
    [
        {"shards": {"main": shard(snapshot(lease(), lease(name="1:2"), waiting=3))}},
        {"shards": {"main": shard(snapshot(waiting=3), parked={"gpu": 3})}},
        {"rules": rules(pool="modal"), "shards": {"main": shard(snapshot(lease(), waiting=3))}},
        {"rules": rules(regions={"us": 1}), "shards": {"main": shard(snapshot(lease(region="us"), waiting=3))}},
    ],
    ids=["no slot is free", "users at their limit", "the pool is full", "a region is full"],
)
def test_a_justified_wait_is_no_finding(changes: dict[str, Any]) -> None:
    if "rules" in changes and (pool := changes["rules"].services["gpu"].pool):
        changes = {**changes, "epochs": {f"pool:{pool}": Epoch(3, "server")}}
        state = {f"pool:{pool}": ScopeState(3, True, "server")}
        changes["shards"] = {"main": replace(changes["shards"]["main"], states=state)}
    assert codes(**changes) == []


def test_full_workers_are_a_cause_of_their_own() -> None:
    full = process(running=10)
    found = find(processes=(full, process("m1", "manager", services=())), shards={"main": shard(snapshot(waiting=3))})
    assert (found.code, found.evidence["workers"]) == ("workers-full", {"w1": "10 of 10"})


def test_each_band_is_judged_by_the_workers_that_serve_it() -> None:
    manager = process("m1", "manager", services=())
    waiting = {"main": shard(snapshot(waiting=3))}
    some = process(bands=("medium",))
    assert codes(processes=(some, manager), shards=waiting).count("waiting-while-free") == 1
    full, other = replace(some, running=10), process("w2", bands=("high", "low"))
    found = find(processes=(full, other, manager), shards=waiting)
    assert (found.code, found.evidence["workers"]) == ("workers-full", {"w1": "10 of 10"})
    elsewhere = codes(processes=(other, manager), shards=waiting)
    assert elsewhere == ["no-worker-for-band"], "no other worker can take them"


def test_silent_workers_are_reported_before_a_stalled_queue() -> None:
    silent = process(seen_at=NOW - 5)
    processes = (silent, process("m1", "manager", services=()))
    found = find(processes=processes, shards={"main": shard(snapshot(waiting=3))})
    assert (found.code, found.evidence["silent"]) == ("waiting-while-free", {"w1": 5.0})
    assert "rebuild" not in found.fix
    both = (*processes, process("w2"))
    assert "rebuild" in find(processes=both, shards={"main": shard(snapshot(waiting=3))}).fix


def test_a_quoted_message_ends_with_one_period() -> None:
    assert [sentence(text) for text in ("it is away", "it is away.", "is it?")] == [
        "it is away.",
        "it is away.",
        "is it?",
    ]


def test_a_finding_that_is_gone_on_the_second_look_is_dropped() -> None:
    waiting = facts(shards={"main": shard(snapshot(waiting=3))})
    moved = facts(shards={"main": shard(snapshot(lease(name="1:9"), waiting=3))})
    paused = facts(rules=rules(paused=True))
    assert only(confirmed(examine(waiting), examine(waiting))).code == "waiting-while-free"
    assert confirmed(examine(waiting), examine(moved)) == [], "a lease was granted meanwhile"
    assert confirmed([], examine(waiting)) == []
    assert only(confirmed([], examine(paused))).code == "service-paused", "this finding does not pass by itself"


def test_jobs_that_the_queue_lost_and_jobs_of_removed_services() -> None:
    lost = find(missing={"gpu": ["a", "b"]})
    assert (lost.code, lost.fix, lost.evidence["jobs"]) == ("not-in-line", "`fairlead rebuild gpu`", ["a", "b"])
    gone = find(undeclared={"old": 2})
    assert (gone.code, gone.about, gone.evidence["waiting"]) == ("service-undeclared", "old", 2)


def test_a_service_that_only_a_worker_declares() -> None:
    both = Rules({**facts().rules.services, "cpu": ServiceRules("cpu", 1)})
    worker = process(services=("cpu", "gpu"))
    states = {"service:gpu": ScopeState(3, True, "server"), "service:cpu": ScopeState(3, True, "server")}
    changes = {
        "rules": both,
        "processes": (worker, process("m1", "manager", services=())),
        "shards": {"main": shard(states=states)},
        "epochs": {scope: Epoch(3, "server") for scope in states},
    }
    assert find(**changes).code == "service-not-configured"
    assert codes(**changes, outside=True) == [], "the configuration of a command may differ"


def test_an_object_store_that_cannot_be_used_or_is_not_shared_is_found() -> None:
    found = find(objects_problem="s3://bucket: connection refused")
    assert (found.code, found.evidence["reason"]) == ("object-store-unreachable", "s3://bucket: connection refused")
    spread = (process(), process("m1", "manager", services=(), bands=(), host="other"))
    found = find(processes=spread)
    assert (found.code, found.evidence["hosts"]) == ("object-store-local", ["host", "other"])
    config = Config.model_validate({"services": {"gpu": {"limit": 2, "url": "http://gpu"}}, "artifacts": {"url": "/x"}})
    assert codes(processes=spread, config=config) == []
