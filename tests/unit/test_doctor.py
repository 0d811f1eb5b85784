"""What the doctor makes of facts. Each finding is provoked for real in tests/integration/test_doctor.py."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from fairlead.config import Settings
from fairlead.dispatch.port import Lease, RegionSnapshot, ScopeState, ServiceSnapshot
from fairlead.domain.config import Config
from fairlead.domain.job import Hold, Job, JobStatus
from fairlead.domain.keys import Key, Role
from fairlead.domain.limits import Auto, Order, Overridden, Rules, ServiceRules
from fairlead.domain.processes import POOLS, ProcessRecord
from fairlead.runtime import doctor
from fairlead.runtime.doctor import KINDS, confirmed, examine, report
from fairlead.runtime.doctor.facts import CeleryFacts, Echo, Facts, LineFacts, RedisFacts, RedisNode, Schema
from fairlead.runtime.doctor.finding import Finding, Severity, counted, sentence, shown
from fairlead.store.port import Epoch

NOW = 1_000_000.0
POSTGRES: dict[str, float | int | str] = {
    "engine": "postgresql",
    "clock": NOW,
    "asked_at": NOW,
    "outbox_rows": 0,
    "outbox_age": 0.0,
    "fsync": "on",
    "full_page_writes": "on",
    "synchronous_commit": "on",
    "autovacuum": "on",
    "connections": 10,
    "max_connections": 100,
}
INFO = {"redis_version": "8.6.3", "maxmemory": "0", "maxmemory_policy": "noeviction", "used_memory": "1000"}
SERVICE = Key("k2", Role.SERVICE, None, "shop", "hash", NOW)
ADMIN = Key("k1", Role.ADMIN, None, "ops", "hash", NOW)


def process(name: str = "w1", *roles: str, **changes: Any) -> ProcessRecord:
    every = ("high", "medium", "low")
    record = ProcessRecord(name, roles or ("worker",), ("gpu",), every, 10, "host", 1, "1.0", 0.0, NOW - 1, NOW - 1)
    return replace(record, **changes)


def lease(worker: str = "w1", **changes: Any) -> Lease:
    return Lease(**{**_LEASE, "worker": worker, **changes})


_LEASE: dict[str, Any] = {
    "name": "1:1",
    "job_id": "job",
    "step": 0,
    "run": 1,
    "service": "gpu",
    "user_id": "ada",
    "worker": "w1",
    "granted_at": NOW - 5,
    "expires_at": NOW + 10,
}


def snapshot(*leases: Lease, waiting: int = 0, holds: tuple[Hold, ...] = (), limit: int = 2) -> ServiceSnapshot:
    in_use = len(leases) + len(holds)
    return ServiceSnapshot("gpu", limit, in_use, len(holds), False, {2: waiting}, leases, holds, {2: 7}, None)


def line(*found: ServiceSnapshot, **changes: Any) -> LineFacts:
    states = {"service:gpu": ScopeState(3, True, "server")}
    facts = LineFacts(None, False, "m1", 4, {each.service: each for each in found or (snapshot(),)}, states, now=NOW)
    return replace(facts, **changes)


def facts(**changes: Any) -> Facts:
    """A line that is well, but for what the test says."""
    config = Config.model_validate({"services": {"gpu": {"limit": 2, "url": "http://gpu"}}})
    well = Facts(
        Settings(config, "postgresql://db/fairlead", "secret", redis_url="redis://r"),
        config,
        NOW,
        store=POSTGRES,
        schema=Schema(3, 3),
        rules=Rules({"gpu": ServiceRules("gpu", 2, remote=True)}),
        declared_limits={"gpu": 2},
        epochs={"service:gpu": Epoch(3, "server")},
        processes=(process(), process("m1", "manager", services=(), bands=())),
        keys=(ADMIN, SERVICE),
        lines={"main": line()},
        redis={"main": RedisFacts("r", None, (RedisNode(INFO, NOW, NOW),), False, True)},
        echo=Echo(0.001),
    )
    return replace(well, **changes)


def only(found: list[Finding]) -> Finding:
    assert len(found) == 1, found
    return found[0]


def find(**changes: Any) -> Finding:
    """The one finding of a line that is well but for this."""
    return only(examine(facts(**changes)))


def codes(**changes: Any) -> list[str]:
    return [finding.code for finding in examine(facts(**changes))]


def test_a_line_that_is_well_has_no_findings() -> None:
    assert examine(facts()) == []


def test_every_code_is_stable_kebab_case_and_is_there_once() -> None:
    every = [kind for topic in (doctor.unreached, *doctor.TOPICS) for kind in vars(topic).values()]
    kinds = [kind for kind in every if type(kind).__name__ == "Kind"]
    assert len(kinds) == len(KINDS) >= 40
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+)*", code) for code in KINDS)


# ---------------------------------------------------------------- workers


def test_a_service_without_a_worker_is_an_error_when_jobs_wait_and_a_warning_before() -> None:
    idle = find(processes=(process("m1", "manager", services=()),))
    assert (idle.code, idle.severity, idle.about) == ("no-worker", Severity.WARNING, "gpu")
    busy = find(processes=(process("m1", "manager", services=()),), lines={"main": line(snapshot(waiting=3))})
    assert (busy.severity, busy.evidence["waiting"]) == (Severity.ERROR, 3)
    assert "`fairlead worker --services gpu`" in busy.fix


def test_jobs_that_wait_while_the_line_is_not_built_are_counted_from_the_truth() -> None:
    found = find(processes=(process("m1", "manager", services=()),), waiting_in_truth={"gpu": {1: 0, 2: 4, 3: 0}})
    assert (found.code, found.severity, found.evidence["waiting"]) == ("no-worker", Severity.ERROR, 4)


def test_a_service_that_is_a_function_needs_the_code_that_has_it() -> None:
    nobody = {"processes": (process("m1", "manager", services=()),), "rules": rules(remote=False)}
    assert "`fairlead worker MODULE:APP --services gpu`" in find(**nobody).fix
    settings = Settings(facts().config, admin_key="secret")
    assert "`fairlead up MODULE:APP`" in find(settings=settings, redis={}, echo=None, **nobody).fix


def test_a_worker_that_fell_silent_is_no_worker() -> None:
    gone = process(seen_at=NOW - 11)
    assert find(processes=(gone, process("m1", "manager", services=()))).evidence["silent"] == ["w1"]


def test_one_process_on_its_own_is_started_with_up() -> None:
    settings = Settings(facts().config, admin_key="secret")
    up = process("m1", "manager", services=())
    assert "`fairlead up`" in find(settings=settings, redis={}, echo=None, processes=(up,)).fix


def test_a_band_that_no_worker_takes() -> None:
    high = process(bands=("high", "medium"))
    found = find(processes=(high, process("m1", "manager", services=())), lines={"main": line(snapshot(waiting=0))})
    assert (found.code, found.about, found.severity) == ("no-worker-for-band", "gpu low", Severity.WARNING)
    assert "`fairlead worker --services gpu --bands low`" in found.fix


def test_a_region_that_no_worker_takes() -> None:
    regional = Rules({"gpu": ServiceRules("gpu", 2, remote=True, regions={"eu": 1, "us": 1})})
    both = (RegionSnapshot("eu", 1, 0, waiting=2, retrying=1), RegionSnapshot("us", 1, 0))
    seen = {"main": line(replace(snapshot(waiting=3), regions=both))}
    pools = [{"name": "", "services": ["gpu"], "bands": ["high", "medium", "low"], "regions": ["us"], "concurrency": 5}]
    bound = (process(details={POOLS: pools}), process("m1", "manager", services=()))
    found = find(rules=regional, processes=bound, lines=seen)
    assert (found.code, found.about, found.severity) == ("no-worker-for-region", "gpu eu", Severity.ERROR)
    assert (found.evidence["waiting"], found.evidence["workers"]) == (3, {"w1": ["us"]})
    assert "`fairlead worker --services gpu --regions eu`" in found.fix
    idle = {"main": line(replace(snapshot(), regions=(RegionSnapshot("eu", 1, 0), RegionSnapshot("us", 1, 0))))}
    assert find(rules=regional, processes=bound, lines=idle).severity is Severity.WARNING
    assert "no-worker-for-region" not in codes(rules=regional, lines=seen), "a worker that is not bound takes all"
    one = Settings(facts().config, admin_key="secret")
    alone = examine(facts(settings=one, redis={}, echo=None, rules=regional, processes=bound, lines=seen))
    assert [each.fix for each in alone if each.code == found.code] == [
        "add eu to the `regions` of one of [worker_pools], and start again: `fairlead up`"
    ]


def test_a_fifo_lane_knows_no_bands() -> None:
    high = (process(bands=("high",)), process("m1", "manager", services=()))
    assert codes(processes=high, rules=rules(order=Order.FIFO)) == []
    idle = codes(processes=high, rules=rules(order=Order.FIFO), lines={"main": line(snapshot(waiting=3))})
    assert idle == ["waiting-while-free"]


def test_a_drained_worker_is_named_with_what_undoes_it() -> None:
    drained = process(drain_asked=True, draining=True)
    other = process("w2")
    found = find(processes=(drained, other, process("m1", "manager", services=())))
    assert (found.code, found.about) == ("worker-draining", "w1")
    assert "`fairlead workers drain w1 --undo`" in found.fix
    alone = examine(facts(processes=(drained, process("m1", "manager", services=()))))
    assert {finding.code for finding in alone} == {"worker-draining", "no-worker"}


def test_a_worker_that_cannot_reach_the_line_says_why() -> None:
    stuck = process("w2", details={"problem": "Redis is away"})
    found = find(processes=(*facts().processes, stuck))
    assert (found.code, found.about, found.evidence["reason"]) == ("worker-cannot-claim", "w2", "Redis is away")


def test_leases_of_a_worker_that_is_gone_are_a_warning_until_nobody_takes_them_back() -> None:
    found = find(lines={"main": line(snapshot(lease("w9")))})
    assert (found.code, found.severity, found.evidence["workers"]) == ("worker-gone", Severity.WARNING, ["w9"])
    late = find(lines={"main": line(snapshot(lease("w9", expires_at=NOW - 6)))})
    assert late.severity is Severity.ERROR
    assert "`fairlead manager`" in late.fix


def test_a_blocked_event_loop_is_told_by_the_process_or_by_leases_that_outlive_its_silence() -> None:
    said = process(details={"blocked": {"ago": 30.0, "where": "tasks.py:7 in render"}})
    manager = process("m1", "manager", services=(), bands=())
    found = find(processes=(said, manager))
    assert (found.code, found.evidence["where"]) == ("event-loop-blocked", "tasks.py:7 in render")
    assert codes(processes=(replace(said, details={"blocked": {"ago": 601.0, "where": ""}}), manager)) == []
    silent = process(seen_at=NOW - 20)
    held = {"main": line(snapshot(lease(granted_at=NOW - 30)))}
    assert "event-loop-blocked" in codes(processes=(silent, process("w2"), manager), lines=held)


def test_versions_side_by_side_are_a_note() -> None:
    found = find(processes=(*facts().processes, process("w2", version="1.1")))
    assert (found.code, found.evidence["versions"]) == ("versions-differ", {"1.0": ["w1", "m1"], "1.1": ["w2"]})


# ---------------------------------------------------------------- managers


def test_no_manager_at_all_and_managers_of_whom_none_leads_are_two_findings() -> None:
    none = {"main": line(leader=None, term=None)}
    assert find(processes=(process(),), lines=none).code == "no-manager"
    found = find(lines=none)
    assert (found.code, found.about, found.evidence["managers"]) == ("manager-not-leading", "main", ["m1"])


def test_a_line_in_memory_needs_no_leader() -> None:
    assert codes(lines={"main": line(leader=None, in_memory=True)}) == []


@pytest.mark.parametrize(
    ("late", "code"),
    [
        ({"next_promotion": NOW - 11}, "promotion-late"),
        ({"next_timer": NOW - 11}, "timers-late"),
        ({"store": {**POSTGRES, "outbox_rows": 4, "outbox_age": 11.0}}, "outbox-late"),
    ],
)
def test_what_time_alone_must_do_is_told_when_it_is_late(late: dict[str, Any], code: str) -> None:
    found = find(**late)
    assert (found.code, found.severity) == (code, Severity.ERROR)
    assert "`fairlead manager`" in found.fix


@pytest.mark.parametrize("soon", [{"next_promotion": NOW - 9}, {"next_timer": NOW + 60}])
def test_what_is_due_in_a_moment_is_not_late(soon: dict[str, Any]) -> None:
    assert codes(**soon) == []


def test_an_outbox_that_waits_for_redis_says_so() -> None:
    away = {"main": RedisFacts("r", "Redis is away")}
    store = {**POSTGRES, "outbox_rows": 4, "outbox_age": 11.0}
    found = examine(facts(redis=away, store=store, lines={"main": LineFacts(problem="Redis is away")}))
    assert [finding.code for finding in found] == ["redis-unreachable", "outbox-late"]
    assert found[1].evidence["redis_away"] == ["main"]


def test_a_closed_scope_is_being_rebuilt_and_one_of_another_server_is_not_ours() -> None:
    closed = {"service:gpu": ScopeState(4, False, "server")}
    assert find(lines={"main": line(states=closed)}).code == "rebuilding"
    assert find(epochs={}).code == "rebuilding"
    other = find(epochs={"service:gpu": Epoch(3, "another server")})
    assert (other.code, other.evidence["here"]) == ("another-redis", ["server"])


# ---------------------------------------------------------------- lines


def rules(**changes: Any) -> Rules:
    return Rules({"gpu": replace(facts().rules.services["gpu"], **changes)}, {"modal": 1})


def test_a_paused_service_and_an_overridden_limit_name_what_lifts_them() -> None:
    paused = find(rules=rules(paused=True), lines={"main": line(snapshot(waiting=5))})
    assert (paused.code, paused.fix, paused.evidence["waiting"]) == ("service-paused", "`fairlead unpause gpu`", 5)
    changed = find(declared_limits={"gpu": 8})
    assert (changed.code, changed.fix) == ("limit-overridden", "`fairlead limit gpu --lift`")
    assert (changed.evidence["limit"], changed.evidence["declared"]) == (2, 8)


def test_more_calls_than_a_lowered_limit() -> None:
    found = examine(facts(rules=rules(limit=1), lines={"main": line(snapshot(lease(), lease(name="1:2"), limit=1))}))
    assert [finding.code for finding in found] == ["above-limit", "limit-overridden"]
    assert "`fairlead limit gpu --lift`" in found[0].fix


def test_a_limit_that_is_found_by_itself_is_not_amiss_until_an_operator_sets_it() -> None:
    moved = rules(limit=1, auto=Auto(1, 8))
    many = {"main": line(snapshot(lease(), lease(name="1:2"), limit=1))}
    assert codes(rules=moved, declared_limits={"gpu": 2}, lines=many) == []
    found = find(rules=replace(moved, overrides={"gpu": Overridden(limit=1)}), declared_limits={"gpu": 2})
    assert (found.code, "the configuration says auto" in found.cause) == ("limit-overridden", True)


def test_holds_that_keep_a_service_full_name_the_slots_to_lend() -> None:
    holds = (Hold("a", "gpu", None, NOW + 60, "1"), Hold("b", "gpu", None, NOW + 90, "2"))
    found = find(lines={"main": line(snapshot(waiting=1, holds=holds))})
    assert (found.code, found.evidence["held"]) == ("held-full", 2)
    assert "`fairlead limit gpu 4`" in found.fix
    assert codes(lines={"main": line(snapshot(holds=holds))}) == [], "nobody waits"


def test_jobs_that_wait_while_slots_are_free() -> None:
    found = find(lines={"main": line(snapshot(waiting=3))})
    assert (found.code, found.severity, found.evidence["free"]) == ("waiting-while-free", Severity.ERROR, 2)
    assert "`fairlead rebuild gpu`" in found.fix


def test_jobs_that_wait_in_a_lane_that_no_region_serves() -> None:
    there = replace(snapshot(waiting=3), regions=(RegionSnapshot("us", 1, 0, waiting=1),), unbound=(1, 0))
    found = find(rules=rules(regions={"us": 1}), lines={"main": line(replace(there, in_use=2))})
    assert (found.code, found.severity, found.evidence["waiting"]) == ("region-undeclared", Severity.ERROR, 1)
    assert "`fairlead rebuild gpu`" in found.fix


@pytest.mark.parametrize(
    "rightly",
    [
        {"lines": {"main": line(snapshot(lease(), lease(name="1:2"), waiting=3))}},
        {"lines": {"main": line(snapshot(waiting=3), parked={"gpu": 3})}},
        {"rules": rules(pool="modal"), "lines": {"main": line(snapshot(lease(), waiting=3))}},
        {"rules": rules(regions={"us": 1}), "lines": {"main": line(snapshot(lease(region="us"), waiting=3))}},
    ],
    ids=["no slot is free", "users at their limit", "the pool is full", "a region is full"],
)
def test_who_waits_rightly_is_no_finding(rightly: dict[str, Any]) -> None:
    if "rules" in rightly and (pool := rightly["rules"].services["gpu"].pool):
        rightly = {**rightly, "epochs": {f"pool:{pool}": Epoch(3, "server")}}
        state = {f"pool:{pool}": ScopeState(3, True, "server")}
        rightly["lines"] = {"main": replace(rightly["lines"]["main"], states=state)}
    assert codes(**rightly) == []


def test_workers_that_are_full_are_another_cause() -> None:
    full = process(running=10)
    found = find(processes=(full, process("m1", "manager", services=())), lines={"main": line(snapshot(waiting=3))})
    assert (found.code, found.evidence["workers"]) == ("workers-full", {"w1": "10 of 10"})


def test_each_band_is_judged_by_the_workers_that_take_it() -> None:
    manager = process("m1", "manager", services=())
    waiting = {"main": line(snapshot(waiting=3))}
    some = process(bands=("medium",))
    assert codes(processes=(some, manager), lines=waiting).count("waiting-while-free") == 1
    full, other = replace(some, running=10), process("w2", bands=("high", "low"))
    found = find(processes=(full, other, manager), lines=waiting)
    assert (found.code, found.evidence["workers"]) == ("workers-full", {"w1": "10 of 10"})
    elsewhere = codes(processes=(other, manager), lines=waiting)
    assert elsewhere == ["no-worker-for-band"], "and nobody else could take them"


def test_workers_that_have_fallen_silent_are_named_before_the_line_is_doubted() -> None:
    silent = process(seen_at=NOW - 5)
    processes = (silent, process("m1", "manager", services=()))
    found = find(processes=processes, lines={"main": line(snapshot(waiting=3))})
    assert (found.code, found.evidence["silent"]) == ("waiting-while-free", {"w1": 5.0})
    assert "rebuild" not in found.fix
    both = (*processes, process("w2"))
    assert "rebuild" in find(processes=both, lines={"main": line(snapshot(waiting=3))}).fix


def test_a_sentence_of_others_ends_once() -> None:
    assert [sentence(text) for text in ("it is away", "it is away.", "is it?")] == [
        "it is away.",
        "it is away.",
        "is it?",
    ]


def test_what_passes_between_two_looks_is_dropped() -> None:
    waiting = facts(lines={"main": line(snapshot(waiting=3))})
    moved = facts(lines={"main": line(snapshot(lease(name="1:9"), waiting=3))})
    paused = facts(rules=rules(paused=True))
    assert only(confirmed(examine(waiting), examine(waiting))).code == "waiting-while-free"
    assert confirmed(examine(waiting), examine(moved)) == [], "a lease was granted meanwhile"
    assert confirmed([], examine(waiting)) == []
    assert only(confirmed([], examine(paused))).code == "service-paused", "that does not pass by itself"


def test_jobs_that_the_line_lost_and_jobs_of_services_that_are_gone() -> None:
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
        "lines": {"main": line(states=states)},
        "epochs": {scope: Epoch(3, "server") for scope in states},
    }
    assert find(**changes).code == "service-not-configured"
    assert codes(**changes, outside=True) == [], "a command's configuration may be another one"


# ---------------------------------------------------------------- engines


def test_a_database_that_is_away_hides_what_it_would_say() -> None:
    found = only(examine(facts(store_problem="PostgreSQL is away", store={}, processes=())))
    assert (found.code, found.cause) == ("database-unreachable", "PostgreSQL is away")


@pytest.mark.parametrize(
    ("schema", "code", "severity"),
    [
        (Schema(4, 3), "database-newer", Severity.ERROR),
        (Schema(2, 3), "database-older", Severity.ERROR),
        (Schema(None, 3), "database-older", Severity.NOTE),
    ],
)
def test_the_schema_is_compared(schema: Schema, code: str, severity: Severity) -> None:
    found = find(schema=schema)
    assert (found.code, found.severity) == (code, severity)


@pytest.mark.parametrize(
    ("said", "code", "severity"),
    [
        ({"oldest_transaction_age": 301.0, "oldest_transaction": "pid 77, user bob"}, "vacuum-pinned", "warning"),
        ({"oldest_xmin_age": 20_000_000, "oldest_xmin": "the replication slot s"}, "vacuum-pinned", "warning"),
        ({"job_dead_rows": 20_000, "job_rows": 30_000}, "database-bloated", "warning"),
        ({"outbox_dead_rows": 200_000}, "database-bloated", "warning"),
        ({"autovacuum": "off"}, "autovacuum-off", "warning"),
        ({"fsync": "off"}, "fsync-off", "error"),
        ({"full_page_writes": "off"}, "fsync-off", "error"),
        ({"synchronous_commit": "off"}, "commit-not-durable", "warning"),
        ({"synchronous_commit": "local"}, "commit-not-durable", "note"),
        ({"connections": 95}, "connections-short", "warning"),
    ],
)
def test_what_postgres_says_of_itself(said: dict[str, Any], code: str, severity: str) -> None:
    found = find(store={**POSTGRES, **said})
    assert (found.code, found.severity) == (code, severity)


def test_the_session_that_pins_vacuum_is_named_in_the_command_that_ends_it() -> None:
    said = {**POSTGRES, "oldest_transaction_age": 301.0, "oldest_transaction": "pid 77, user bob2"}
    assert "pg_terminate_backend(77)" in find(store=said).fix


def test_dead_rows_are_no_trouble_among_many_live_ones() -> None:
    assert codes(store={**POSTGRES, "job_dead_rows": 20_000, "job_rows": 1_000_000}) == []


def test_sqlite_on_a_full_disk_and_without_its_sync() -> None:
    config = facts().config
    sqlite = {"engine": "sqlite", "clock": NOW}
    settings = Settings(config, "sqlite:///f.db?synchronous=normal", "secret")
    alone = {"store": sqlite, "redis": {}, "echo": None, "lines": {"main": line(in_memory=True)}}
    assert codes(settings=settings, **alone) == ["commit-not-durable"]
    settings = Settings(config, "sqlite:///f.db", "secret")
    assert codes(settings=settings, **alone, disk_free=1 << 29, disk_total=1 << 40) == ["disk-nearly-full"]
    assert codes(settings=settings, **alone, disk_free=1 << 31, disk_total=1 << 40) == []


def redis(*, on_loopback: bool = False, has_login: bool = True, **info: str) -> dict[str, RedisFacts]:
    return {"main": RedisFacts("r", None, (RedisNode({**INFO, **info}, NOW, NOW),), on_loopback, has_login)}


@pytest.mark.parametrize(
    ("info", "severity"),
    [
        ({"redis_version": "6.2.5"}, "warning"),
        ({"redis_version": "6.2.20"}, None),
        ({"redis_version": "7.0.15"}, "warning"),
        ({"redis_version": "7.4.5"}, "warning"),
        ({"redis_version": "7.4.6"}, "note"),
        ({"redis_version": "8.2.1"}, "warning"),
        ({"redis_version": "8.4.0"}, "note"),
        ({"redis_version": "8.6.3"}, None),
        ({"redis_version": "7.2.4", "valkey_version": "8.1.5"}, "warning"),
        ({"redis_version": "7.2.4", "valkey_version": "8.1.6"}, None),
        ({"redis_version": "7.2.4", "valkey_version": "9.1.0"}, None),
        ({"redis_version": "unknown"}, None),
    ],
)
def test_servers_with_known_holes(info: dict[str, str], severity: str | None) -> None:
    found = examine(facts(redis=redis(**info)))
    assert [(each.code, each.severity.value) for each in found] == ([("redis-old", severity)] if severity else [])


def test_an_old_server_that_only_this_machine_uses_is_no_trouble() -> None:
    found = find(redis=redis(on_loopback=True, redis_version="6.2.5"))
    assert (found.code, found.severity) == ("redis-old", Severity.NOTE)


def test_memory_that_runs_out_and_a_policy_that_throws_away() -> None:
    assert codes(redis=redis(maxmemory="0", maxmemory_policy="allkeys-lru")) == [], "without a bound nothing is evicted"
    assert codes(redis=redis(maxmemory="100000", maxmemory_policy="allkeys-lru")) == ["redis-evicts"]
    assert find(redis=redis(maxmemory="1200")).severity is Severity.WARNING
    full = find(redis=redis(maxmemory="1010"))
    assert (full.code, full.severity, full.fix[:44]) == (
        "redis-memory",
        Severity.ERROR,
        "`redis-cli CONFIG SET maxmemory 2020`, and t",
    )


def test_each_primary_of_a_cluster_is_told_by_its_port() -> None:
    nodes = [RedisNode({**INFO, "redis_version": "6.2.5", "tcp_port": port}, NOW, NOW) for port in ("7000", "7001")]
    found = examine(facts(redis={"main": RedisFacts("r", None, nodes, True)}))
    assert [each.about for each in found] == ["main, port 7000", "main, port 7001"]


def test_a_redis_without_a_login_is_for_loopback() -> None:
    assert codes(redis=redis(has_login=False)) == ["redis-no-password"]
    assert codes(redis=redis(has_login=False, on_loopback=True)) == []


def test_events_that_are_not_heard() -> None:
    found = find(echo=Echo(problem="nothing was heard within 2 s"))
    assert (found.code, found.evidence["reason"]) == ("events-not-arriving", "nothing was heard within 2 s")


def test_clocks_are_compared_with_the_database() -> None:
    ahead = find(processes=(*facts().processes, process("w2", clock=NOW + 3600)))
    assert (ahead.code, round(ahead.evidence["skew"])) == ("clock-skew", 3601)
    node = RedisNode(INFO, NOW - 60, NOW)
    behind = find(redis={"main": RedisFacts("r", None, (node,), True)})
    assert (behind.about, behind.evidence["skew"]) == ("the Redis of main", -60)
    # This process's own clock is an hour off, both servers agree: Redis is not to blame.
    both = {
        "store": {**POSTGRES, "asked_at": NOW + 3600},
        "redis": {"main": RedisFacts("r", None, (replace(node, clock=NOW, asked_at=NOW + 3600),), True)},
    }
    assert codes(**both) == []


# ---------------------------------------------------------------- settings and keys


def test_settings_that_will_not_go_well() -> None:
    assert find(rules=rules(lease_ttl=2.0)).code == "lease-ttl-short"
    assert find(config_problems=["server.port: 70000 is no port"]).code == "config-invalid"
    slow = facts().config.model_copy(
        update={"promotion": Config.model_validate({"promotion": {"low_to_medium_after": 90_000}}).promotion}
    )
    assert find(config=slow).code == "promotion-slow"


def test_timeouts_are_compared_with_what_calls_take() -> None:
    def of(mean: float, timeout: float) -> list[str]:
        config = Config.model_validate({"services": {"gpu": {"limit": 2, "url": "http://gpu", "timeout": timeout}}})
        return codes(config=config, lines={"main": line(replace(snapshot(), mean_duration=mean))})

    assert of(10.0, 300.0) == []
    assert of(40.0, 300.0) == ["drain-timeout-short"]
    assert of(10.0, 3600.0) == ["timeout-far-above-calls"]


def test_a_priority_service_that_does_not_answer() -> None:
    found = find(priority_problems={"the priority service": "it answered 500"})
    assert (found.code, found.about) == ("priority-not-answered", "the priority service")


def test_dead_letters_are_told_when_many_came_lately() -> None:
    def dead(ago: float) -> Job:
        return Job(
            "j", "gpu", "ada", ("gpu",), status=JobStatus.FAILED, finished_at=NOW - ago, error={"code": "HTTP_500"}
        )

    assert codes(died_lately=[dead(700)] * 50) == []
    found = find(died_lately=[dead(5)] * 12)
    assert (found.code, found.evidence["by_error"]) == ("dead-letters-growing", {"gpu: HTTP_500": 12})


def test_who_may_ask() -> None:
    keyless = Settings(facts().config, "postgresql://db/f", None, redis_url="redis://r")
    assert codes(settings=keyless, keys=()) == ["no-keys"]
    assert codes(keys=()) == ["only-admin-keys"]
    assert codes(keys=(ADMIN, replace(SERVICE, revoked_at=NOW))) == ["only-admin-keys"]
    assert find(listens_on=["http://0.0.0.0:8000"]).severity is Severity.NOTE
    assert codes(listens_on=["http://127.0.0.1:8000", "http://[::1]:8000"]) == []
    opened = Config.model_validate(
        {**facts().config.model_dump(exclude_defaults=True), "server": {"allowed_origins": ["*"]}}
    )
    assert codes(config=opened) == ["any-origin"]


# ---------------------------------------------------------------- the report


def test_a_report_is_well_with_notes_alone_and_has_the_worst_first() -> None:
    notes = report(examine(facts(keys=())))
    assert (notes["well"], notes["notes"], notes["findings"][0]["code"]) == (True, 1, "only-admin-keys")
    mixed = report(examine(facts(keys=(), rules=rules(paused=True), next_timer=NOW - 60)))
    assert [each["severity"] for each in mixed["findings"]] == ["error", "warning", "note"]
    assert (mixed["well"], mixed["errors"], mixed["warnings"], mixed["notes"]) == (False, 1, 1, 1)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.34, "0.3 s"), (42, "42 s"), (150, "2 min"), (7200, "2 h"), (200_000, "2 days")]
)
def test_lengths_of_time_read_well(seconds: float, text: str) -> None:
    assert shown(seconds) == text


@pytest.mark.parametrize(
    ("counts", "text"),
    [((1, "job", "wait"), "1 job waits"), ((0, "job", "wait"), "0 jobs wait"), ((1, "slot", "are"), "1 slot is")],
)
def test_counts_read_well(counts: tuple[int, str, str], text: str) -> None:
    assert counted(*counts) == text
    assert counted(2, "job") == "2 jobs"


# ---------------------------------------------------------------- Celery

CELERY = Config.model_validate({"services": {"gpu": {"celery": "app.generate", "limit": 2}}})


@pytest.mark.parametrize(
    ("celery", "code"),
    [
        (CeleryFacts(problem="refused"), "celery-unreachable"),
        (CeleryFacts(), "celery-no-worker"),
        (CeleryFacts({"c1": frozenset({"app.other"})}), "celery-task-unknown"),
    ],
)
def test_a_celery_task_that_nobody_would_run(celery: CeleryFacts, code: str) -> None:
    found = find(config=CELERY, celery={"gpu": celery})
    assert (found.code, found.about) == (code, "gpu")


def test_a_celery_task_that_some_worker_knows_is_well() -> None:
    known = {"old": frozenset({"app.other"}), "new": frozenset({"app.other", "app.generate"})}
    assert codes(config=CELERY, celery={"gpu": CeleryFacts(known)}) == []
