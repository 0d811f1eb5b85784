"""The doctor's rules on databases, Redis, settings, keys and Celery, and its report."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.unit.doctor_facts import (
    ADMIN,
    INFO,
    NOW,
    POSTGRES,
    SERVICE,
    codes,
    facts,
    find,
    only,
    process,
    rules,
    shard,
    snapshot,
)

from fairlead.config import Settings
from fairlead.domain.config import Config
from fairlead.domain.job import Job, JobStatus
from fairlead.observe.doctor import examine, report
from fairlead.observe.doctor.facts import CeleryFacts, Echo, RedisFacts, RedisNode, Schema
from fairlead.observe.doctor.finding import Severity, counted, shown

# ---------------------------------------------------------------- engines


def test_an_unreachable_database_hides_its_other_findings() -> None:
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
def test_the_schema_version_is_compared(schema: Schema, code: str, severity: Severity) -> None:
    found = find(schema=schema)
    assert (found.code, found.severity) == (code, severity)


@pytest.mark.parametrize(
    ("state", "code", "severity"),
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
def test_the_figures_of_postgres_are_judged(state: dict[str, Any], code: str, severity: str) -> None:
    found = find(store={**POSTGRES, **state})
    assert (found.code, found.severity) == (code, severity)


def test_the_session_that_blocks_vacuum_is_named_in_the_command_that_ends_it() -> None:
    state = {**POSTGRES, "oldest_transaction_age": 301.0, "oldest_transaction": "pid 77, user bob2"}
    assert "pg_terminate_backend(77)" in find(store=state).fix


def test_dead_rows_are_judged_relative_to_live_ones() -> None:
    assert codes(store={**POSTGRES, "job_dead_rows": 20_000, "job_rows": 1_000_000}) == []


def test_sqlite_on_a_full_disk_or_without_sync() -> None:
    config = facts().config
    sqlite = {"engine": "sqlite", "clock": NOW}
    settings = Settings(config, "sqlite:///f.db?synchronous=normal", "secret")
    alone = {"store": sqlite, "redis": {}, "echo": None, "shards": {"main": shard(in_memory=True)}}
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
def test_redis_versions_with_known_vulnerabilities(info: dict[str, str], severity: str | None) -> None:
    found = examine(facts(redis=redis(**info)))
    assert [(each.code, each.severity.value) for each in found] == ([("redis-old", severity)] if severity else [])


def test_an_old_redis_on_loopback_is_accepted() -> None:
    found = find(redis=redis(on_loopback=True, redis_version="6.2.5"))
    assert (found.code, found.severity) == ("redis-old", Severity.NOTE)


def test_redis_memory_that_runs_out_and_a_policy_that_evicts() -> None:
    assert codes(redis=redis(maxmemory="0", maxmemory_policy="allkeys-lru")) == [], (
        "without a memory limit nothing is evicted"
    )
    assert codes(redis=redis(maxmemory="100000", maxmemory_policy="allkeys-lru")) == ["redis-evicts"]
    assert find(redis=redis(maxmemory="1200")).severity is Severity.WARNING
    full = find(redis=redis(maxmemory="1010"))
    assert (full.code, full.severity, full.fix[:44]) == (
        "redis-memory",
        Severity.ERROR,
        "`redis-cli CONFIG SET maxmemory 2020`, and t",
    )


def test_each_primary_of_a_cluster_is_named_by_its_port() -> None:
    nodes = [RedisNode({**INFO, "redis_version": "6.2.5", "tcp_port": port}, NOW, NOW) for port in ("7000", "7001")]
    found = examine(facts(redis={"main": RedisFacts("r", None, nodes, True)}))
    assert [each.about for each in found] == ["main, port 7000", "main, port 7001"]


def test_a_redis_without_a_login_is_accepted_on_loopback_only() -> None:
    assert codes(redis=redis(has_login=False)) == ["redis-no-password"]
    assert codes(redis=redis(has_login=False, on_loopback=True)) == []


def test_events_that_do_not_arrive() -> None:
    found = find(echo=Echo(problem="no message arrived within 2 s"))
    assert (found.code, found.evidence["reason"]) == ("events-not-arriving", "no message arrived within 2 s")


def test_clocks_are_compared_with_the_database() -> None:
    ahead = find(processes=(*facts().processes, process("w2", clock=NOW + 3600)))
    assert (ahead.code, round(ahead.evidence["skew"])) == ("clock-skew", 3601)
    node = RedisNode(INFO, NOW - 60, NOW)
    behind = find(redis={"main": RedisFacts("r", None, (node,), True)})
    assert (behind.about, behind.evidence["skew"]) == ("the Redis of main", -60)
    # The clock of this process is an hour off and both servers agree: Redis is not to blame.
    both = {
        "store": {**POSTGRES, "asked_at": NOW + 3600},
        "redis": {"main": RedisFacts("r", None, (replace(node, clock=NOW, asked_at=NOW + 3600),), True)},
    }
    assert codes(**both) == []


# ---------------------------------------------------------------- settings and keys


def test_risky_settings_are_reported() -> None:
    assert find(rules=rules(lease_ttl=2.0)).code == "lease-ttl-short"
    assert find(config_problems=["server.port: 70000 is no port"]).code == "config-invalid"
    slow = facts().config.model_copy(
        update={"promotion": Config.model_validate({"promotion": {"low_to_medium_after": 90_000}}).promotion}
    )
    assert find(config=slow).code == "promotion-slow"


def test_timeouts_are_compared_with_the_duration_of_calls() -> None:
    def of(mean: float, timeout: float) -> list[str]:
        config = Config.model_validate({"services": {"gpu": {"limit": 2, "url": "http://gpu", "timeout": timeout}}})
        return codes(config=config, shards={"main": shard(replace(snapshot(), mean_duration=mean))})

    assert of(10.0, 300.0) == []
    assert of(40.0, 300.0) == ["drain-timeout-short"]
    assert of(10.0, 3600.0) == ["timeout-far-above-calls"]


def test_a_priority_service_that_does_not_answer() -> None:
    found = find(priority_problems={"the priority service": "it answered 500"})
    assert (found.code, found.about) == ("priority-not-answered", "the priority service")


def test_calls_that_end_by_their_timeout_are_reported_if_they_are_many() -> None:
    assert codes(timeouts={"gpu": (2, 2)}) == []
    assert codes(timeouts={"gpu": (3, 100)}) == []
    assert codes(timeouts={"gone": (30, 30)}) == []
    found = find(timeouts={"gpu": (3, 30)})
    assert (found.code, found.about, found.evidence["timeouts"]) == ("calls-time-out", "gpu", 3)
    assert "services.gpu.timeout" in found.fix


def test_many_recent_dead_letters_are_reported() -> None:
    def dead(ago: float) -> Job:
        return Job(
            "j", "gpu", "ada", ("gpu",), status=JobStatus.FAILED, finished_at=NOW - ago, error={"code": "HTTP_500"}
        )

    assert codes(failed_recently=[dead(700)] * 50) == []
    found = find(failed_recently=[dead(5)] * 12)
    assert (found.code, found.evidence["by_error"]) == ("dead-letters-growing", {"gpu: HTTP_500": 12})


def test_missing_and_unsafe_keys_are_reported() -> None:
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


def test_a_report_with_notes_alone_is_healthy_and_the_worst_finding_is_first() -> None:
    notes = report(examine(facts(keys=())))
    assert (notes["well"], notes["notes"], notes["findings"][0]["code"]) == (True, 1, "only-admin-keys")
    mixed = report(examine(facts(keys=(), rules=rules(paused=True), next_timer=NOW - 60)))
    assert [each["severity"] for each in mixed["findings"]] == ["error", "warning", "note"]
    assert (mixed["well"], mixed["errors"], mixed["warnings"], mixed["notes"]) == (False, 1, 1, 1)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.34, "0.3 s"), (42, "42 s"), (150, "2 min"), (7200, "2 h"), (200_000, "2 days")]
)
def test_durations_are_readable(seconds: float, text: str) -> None:
    assert shown(seconds) == text


@pytest.mark.parametrize(
    ("counts", "text"),
    [((1, "job", "wait"), "1 job waits"), ((0, "job", "wait"), "0 jobs wait"), ((1, "slot", "are"), "1 slot is")],
)
def test_counts_are_readable(counts: tuple[int, str, str], text: str) -> None:
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
def test_a_celery_task_without_a_worker(celery: CeleryFacts, code: str) -> None:
    found = find(config=CELERY, celery={"gpu": celery})
    assert (found.code, found.about) == (code, "gpu")


def test_a_celery_task_with_a_worker_is_healthy() -> None:
    known = {"old": frozenset({"app.other"}), "new": frozenset({"app.other", "app.generate"})}
    assert codes(config=CELERY, celery={"gpu": CeleryFacts(known)}) == []
