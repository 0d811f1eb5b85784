"""The facts of a healthy deployment, which the tests of the doctor's rules change."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fairlead.config import Settings
from fairlead.dispatch.port import Lease, ScopeState, ServiceSnapshot
from fairlead.domain.access import Key, Role
from fairlead.domain.config import Config
from fairlead.domain.job import Hold
from fairlead.domain.processes import ProcessRecord
from fairlead.domain.rules import Rules, ServiceRules
from fairlead.observe.doctor import examine
from fairlead.observe.doctor.facts import Echo, Facts, RedisFacts, RedisNode, Schema
from fairlead.observe.doctor.finding import Finding
from fairlead.observe.snapshot import ShardSnapshot
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


def shard(*found: ServiceSnapshot, **changes: Any) -> ShardSnapshot:
    states = {"service:gpu": ScopeState(3, True, "server")}
    facts = ShardSnapshot(
        None, False, "m1", 4, {each.service: each for each in found or (snapshot(),)}, states, taken_at=NOW
    )
    return replace(facts, **changes)


def facts(**changes: Any) -> Facts:
    """The facts of a healthy deployment, with the changes of the test."""
    config = Config.model_validate({"services": {"gpu": {"limit": 2, "url": "http://gpu"}}})
    healthy = Facts(
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
        shards={"main": shard()},
        redis={"main": RedisFacts("r", None, (RedisNode(INFO, NOW, NOW),), False, True)},
        echo=Echo(0.001),
    )
    return replace(healthy, **changes)


def only(found: list[Finding]) -> Finding:
    assert len(found) == 1, found
    return found[0]


def find(**changes: Any) -> Finding:
    """The single finding for a healthy deployment with this change."""
    return only(examine(facts(**changes)))


def codes(**changes: Any) -> list[str]:
    return [finding.code for finding in examine(facts(**changes))]


def rules(**changes: Any) -> Rules:
    return Rules({"gpu": replace(facts().rules.services["gpu"], **changes)}, {"modal": 1})
