"""What operators need of a store: keys, tickets, the audit trail, processes, rebuild requests, facts, rates."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from fairlead.domain.access import AuditRecord, Key, Role
from fairlead.domain.groups import GroupRules
from fairlead.domain.processes import DEAD_AFTER, ProcessRecord
from fairlead.domain.rates import Rate, RateOf
from fairlead.domain.rules import ServiceRules
from fairlead.errors import InvalidInput
from fairlead.store.port import (
    Accepted,
    Audit,
    AuditOutcome,
    CreateKey,
    DeclareServices,
    DeregisterProcess,
    Done,
    Epoch,
    IssueTicket,
    Override,
    OverrideRates,
    PruneRecords,
    RaiseEpoch,
    Refused,
    RegisterProcess,
    RequestDrain,
    RequestRebuild,
    RevokeKey,
    UseTicket,
)
from tests.contract.stores import START_OF_TIME, StoreHarness

ODD = 'Zoë "O\'Neill" \\ \n 雪 ]}'


def key(id_: str = "k1", **fields: Any) -> Key:
    fields = {
        "role": Role.USER,
        "user_id": "ann",
        "name": "ann's",
        "hash": "ab12",
        "created_at": START_OF_TIME,
        **fields,
    }
    return Key(id_, **fields)


def record(id_: str, **fields: Any) -> AuditRecord:
    fields = {"at": START_OF_TIME, "who": "root", "action": "pause", "target": "draw", "details": {}, **fields}
    return AuditRecord(id_, **fields)


def process(name: str = "host:1:ab", **fields: Any) -> ProcessRecord:
    fields = {
        "roles": ("api", "worker"),
        "services": ("draw",),
        "bands": ("high", "low"),
        "concurrency": 7,
        "host": "host",
        "pid": 1,
        "version": "1.2",
        "started_at": START_OF_TIME - 60.5,
        "clock": START_OF_TIME + 0.25,
        "running": 3,
        "details": {"event_loop_blocked": 2, "names": [ODD]},
        **fields,
    }
    return ProcessRecord(name, **fields)


# ---------------------------------------------------------------- keys


async def test_a_key_is_stored_with_all_fields(harness: StoreHarness) -> None:
    given = key(name=ODD, user_id=ODD, created_at=1_712_345_678.123457)
    assert await harness.one(CreateKey(given)) == Done()
    assert await harness.store.keys() == [given]


async def test_a_key_without_a_user_is_stored(harness: StoreHarness) -> None:
    for role in (Role.ADMIN, Role.SERVICE):
        await harness.one(CreateKey(key(role.value, role=role, user_id=None)))
    assert [(found.role, found.user_id) for found in await harness.store.keys()] == [
        (Role.ADMIN, None),
        (Role.SERVICE, None),
    ]


async def test_a_taken_id_is_refused_and_the_first_key_stays(harness: StoreHarness) -> None:
    first = key()
    await harness.one(CreateKey(first))
    assert isinstance(await harness.one(CreateKey(key(hash="other"))), Refused)
    assert await harness.store.keys() == [first]


async def test_every_change_of_a_key_changes_the_version_of_the_keys(harness: StoreHarness) -> None:
    assert await harness.store.count_keys() == (0, 0)
    await harness.one(CreateKey(key("k1")))
    await harness.one(CreateKey(key("k2")))
    assert await harness.store.count_keys() == (2, 0)
    await harness.one(RevokeKey("k1", START_OF_TIME))
    assert await harness.store.count_keys() == (2, 1)


async def test_keys_are_listed_oldest_first(harness: StoreHarness) -> None:
    later, sooner = key("a", created_at=START_OF_TIME + 1), key("b")
    await harness.commit(CreateKey(later), CreateKey(sooner))
    assert await harness.store.keys() == [sooner, later]


async def test_a_revoked_key_stays_in_the_list_and_is_revoked_once(harness: StoreHarness) -> None:
    await harness.commit(CreateKey(key("k1")), CreateKey(key("k2")))
    assert await harness.one(RevokeKey("k1", harness.clock.now + 5)) == Done()
    assert isinstance(await harness.one(RevokeKey("k1", harness.clock.now + 9)), Refused)
    assert isinstance(await harness.one(RevokeKey("k3", harness.clock.now)), Refused)
    assert [(found.id, found.revoked_at) for found in await harness.store.keys()] == [
        ("k1", START_OF_TIME + 5),
        ("k2", None),
    ]


async def test_a_name_with_nul_is_refused_as_invalid(harness: StoreHarness) -> None:
    for transition in (CreateKey(key(name="a\0b")), Audit(record("a", target="x\0")), RegisterProcess(process("n\0"))):
        with pytest.raises(InvalidInput):
            await harness.commit(transition)


# ---------------------------------------------------------------- tickets


def issue(harness: StoreHarness, hash_: str = "t1", **fields: Any) -> IssueTicket:
    return IssueTicket(hash_, **{"key_id": "k1", "expires_at": harness.clock.now + 30, **fields})


async def test_a_ticket_can_be_used_once(harness: StoreHarness) -> None:
    assert await harness.one(issue(harness)) == Done()
    assert await harness.one(UseTicket("t1", harness.clock.now)) == Done("k1")
    assert isinstance(await harness.one(UseTicket("t1", harness.clock.now)), Refused)


async def test_an_unknown_ticket_is_refused(harness: StoreHarness) -> None:
    assert isinstance(await harness.one(UseTicket("t1", harness.clock.now)), Refused)


async def test_a_ticket_can_be_used_until_it_expires(harness: StoreHarness) -> None:
    await harness.commit(issue(harness, "in time"), issue(harness, "late"))
    assert await harness.one(UseTicket("in time", harness.clock.now + 29.9)) == Done("k1")
    assert isinstance(await harness.one(UseTicket("late", harness.clock.now + 30)), Refused)
    assert isinstance(await harness.one(UseTicket("late", harness.clock.now)), Refused)


async def test_one_batch_with_two_uses_of_a_ticket_grants_one(harness: StoreHarness) -> None:
    await harness.one(issue(harness))
    outcomes = await harness.commit(*(UseTicket("t1", harness.clock.now) for _ in range(5)))
    assert [type(outcome) for outcome in outcomes].count(Done) == 1


async def test_of_many_concurrent_uses_of_a_ticket_in_several_processes_one_succeeds(harness: StoreHarness) -> None:
    async with harness.another() as other:
        for n in range(10):
            await harness.one(issue(harness, f"race {n}"))
            uses = [store.commit([UseTicket(f"race {n}", harness.clock.now)]) for store in (harness.store, other) * 3]
            outcomes = [committed.outcomes[0] for committed in await asyncio.gather(*uses)]
            assert [outcome for outcome in outcomes if isinstance(outcome, Done)] == [Done("k1")]


async def test_issuing_a_ticket_deletes_expired_ones(harness: StoreHarness) -> None:
    await harness.one(issue(harness, "old"))
    harness.clock.forward(30)
    await harness.one(issue(harness, "new"))
    assert isinstance(await harness.one(UseTicket("old", START_OF_TIME)), Refused)
    assert await harness.one(UseTicket("new", harness.clock.now)) == Done("k1")


async def test_the_tickets_of_a_revoked_key_are_refused(harness: StoreHarness) -> None:
    await harness.commit(CreateKey(key("k1")), issue(harness, "mine"), issue(harness, "theirs", key_id="k2"))
    await harness.one(RevokeKey("k1", harness.clock.now))
    assert isinstance(await harness.one(UseTicket("mine", harness.clock.now)), Refused)
    assert await harness.one(UseTicket("theirs", harness.clock.now)) == Done("k2")


# ---------------------------------------------------------------- audit


async def test_an_audit_record_is_stored_with_all_fields(harness: StoreHarness) -> None:
    given = record("a1", who=ODD, target=ODD, details={"text": ODD, "n": [1.5, None]}, at=1_712_345_678.123457)
    assert await harness.one(Audit(given)) == Done()
    assert await harness.store.audit(limit=9) == [given]


async def test_an_outcome_is_added_later(harness: StoreHarness) -> None:
    given = record("a1")
    await harness.one(Audit(given))
    assert await harness.one(AuditOutcome("a1", {"requeued": 3})) == Done()
    assert isinstance(await harness.one(AuditOutcome("a2", {})), Refused)
    assert await harness.store.audit(limit=9) == [replace(given, outcome={"requeued": 3})]


async def test_a_repeated_audit_record_is_stored_once(harness: StoreHarness) -> None:
    given = record("a1", outcome={"ok": True})
    assert await harness.commit(Audit(given), Audit(given)) == [Done(), Done()]
    assert await harness.store.audit(limit=9) == [given]


async def test_audit_is_read_newest_first_in_pages_and_by_action(harness: StoreHarness) -> None:
    await harness.commit(*(Audit(record(f"a{n}", action="pause" if n % 2 else "drain")) for n in range(6)))

    async def ids(**fields: Any) -> list[str]:
        return [found.id for found in await harness.store.audit(**fields)]

    assert await ids(limit=3) == ["a5", "a4", "a3"]
    assert await ids(limit=9, before="a3") == ["a2", "a1", "a0"]
    assert await ids(limit=9, action="pause") == ["a5", "a3", "a1"]
    assert await ids(limit=1, action="pause", before="a5") == ["a3"]
    assert await ids(limit=9, action="none") == []


async def test_an_action_and_its_record_are_one_commit(harness: StoreHarness) -> None:
    await harness.submitted("taken")
    with pytest.raises(Exception, match=r"(?i)unique"):
        await harness.commit(Audit(record("a1")), harness.submit("taken"))
    assert await harness.store.audit(limit=9) == []
    outcomes = await harness.commit(Audit(record("a1")), harness.submit("free"))
    assert [type(outcome) for outcome in outcomes] == [Done, Accepted]
    assert [found.id for found in await harness.store.audit(limit=9)] == ["a1"]


async def test_a_refused_override_is_reported_and_its_audit_record_is_stored(harness: StoreHarness) -> None:
    audited, refused = await harness.commit(Audit(record("a1")), Override("nothing", limit=1))
    assert audited == Done()
    assert isinstance(refused, Refused)


# ---------------------------------------------------------------- processes


async def test_the_last_heartbeat_of_a_process_is_by_the_database_clock(harness: StoreHarness) -> None:
    given = process()
    assert await harness.one(RegisterProcess(replace(given, seen_at=1.0, drain_asked=True))) == Done(False)
    (found,) = await harness.store.processes()
    assert found == replace(given, seen_at=START_OF_TIME)
    assert found.skew == 0.25


async def test_a_registration_replaces_the_one_before(harness: StoreHarness) -> None:
    await harness.one(RegisterProcess(process()))
    harness.clock.forward(2)
    await harness.one(RegisterProcess(process(running=0, draining=True)))
    (found,) = await harness.store.processes()
    assert (found.running, found.draining, found.seen_at) == (0, True, START_OF_TIME + 2)
    assert found.alive(harness.clock.now + DEAD_AFTER)
    assert not found.alive(harness.clock.now + DEAD_AFTER + 1)


async def test_a_drain_request_is_returned_with_every_registration_until_it_is_lifted(harness: StoreHarness) -> None:
    await harness.one(RegisterProcess(process()))
    assert await harness.one(RequestDrain("host:1:ab", True)) == Done()
    for _ in range(2):
        assert await harness.one(RegisterProcess(process())) == Done(True)
    assert (await harness.store.processes())[0].drain_asked
    assert await harness.one(RequestDrain("host:1:ab", False)) == Done()
    assert await harness.one(RegisterProcess(process())) == Done(False)


async def test_a_drain_request_for_an_unknown_process_is_refused(harness: StoreHarness) -> None:
    assert isinstance(await harness.one(RequestDrain("unknown", True)), Refused)
    await harness.one(RegisterProcess(process()))
    assert await harness.one(DeregisterProcess("host:1:ab")) == Done()
    assert isinstance(await harness.one(RequestDrain("host:1:ab", True)), Refused)
    assert await harness.store.processes() == []


async def test_a_drain_request_ends_with_its_process(harness: StoreHarness) -> None:
    await harness.commit(RegisterProcess(process()), RequestDrain("host:1:ab", True))
    await harness.one(DeregisterProcess("host:1:ab"))
    assert await harness.one(RegisterProcess(process())) == Done(False)


async def test_processes_are_listed_by_name(harness: StoreHarness) -> None:
    await harness.commit(*(RegisterProcess(process(name)) for name in ("b", "a", "c")))
    assert [found.name for found in await harness.store.processes()] == ["a", "b", "c"]


# ---------------------------------------------------------------- retention


async def test_old_audit_records_and_dead_processes_are_deleted(harness: StoreHarness) -> None:
    old = [Audit(record(f"a{n}", at=START_OF_TIME + n)) for n in range(5)]
    await harness.commit(*old, RegisterProcess(process("dead")))
    harness.clock.forward(100)
    await harness.one(RegisterProcess(process("alive")))
    until = START_OF_TIME + 4
    assert await harness.one(PruneRecords(until, START_OF_TIME + 50, limit=3)) == Done(3)
    assert await harness.one(PruneRecords(until, START_OF_TIME + 50, limit=3)) == Done(1)
    assert [found.id for found in await harness.store.audit(limit=9)] == ["a4"]
    assert [found.name for found in await harness.store.processes()] == ["alive"]


# ---------------------------------------------------------------- rebuilds


async def test_a_rebuild_request_lasts_until_the_next_rebuild(harness: StoreHarness) -> None:
    await harness.commit(RaiseEpoch("service:draw", "s1"), RaiseEpoch("service:other", "s1"))
    assert await harness.one(RequestRebuild("service:draw")) == Done()
    assert await harness.one(RequestRebuild("service:draw")) == Done()
    assert await harness.store.epochs() == {
        "service:draw": Epoch(1, "s1", rebuild_asked=True),
        "service:other": Epoch(1, "s1"),
    }
    await harness.one(RaiseEpoch("service:other", "s2"))
    assert (await harness.store.epochs())["service:draw"].rebuild_asked
    await harness.one(RaiseEpoch("service:draw", "s2"))
    assert (await harness.store.epochs())["service:draw"] == Epoch(2, "s2")


async def test_a_scope_that_was_never_built_cannot_be_rebuilt(harness: StoreHarness) -> None:
    await harness.started(await harness.submitted(), scope="service:started")
    for scope in ("service:nothing", "service:started"):
        assert isinstance(await harness.one(RequestRebuild(scope)), Refused)
    assert await harness.store.epochs() == {}


# ---------------------------------------------------------------- facts, and the source of a priority


async def test_facts_include_the_outbox_and_the_clock(harness: StoreHarness) -> None:
    before = await harness.store.facts()
    assert (before["outbox_rows"], before["outbox_age"], before["clock"]) == (0, 0.0, START_OF_TIME)
    await harness.submitted()
    harness.clock.forward(12.5)
    await harness.submitted()
    after = await harness.store.facts()
    assert (after["outbox_rows"], after["outbox_age"], after["clock"]) == (2, 12.5, START_OF_TIME + 12.5)
    assert (after["webhooks_waiting"], after["webhooks_disabled"]) == (0, 0)
    assert after["engine"] in ("sqlite", "postgresql")
    assert int(after["database_bytes"]) > 0
    assert str(after["server_version"])[0].isdigit()
    assert all(isinstance(value, int | float | str) for value in after.values())


async def test_a_job_keeps_the_source_of_its_priority(harness: StoreHarness) -> None:
    job = await harness.submitted("relayed", priority_source="fallback: the priority API timed out")
    assert job.priority_source == "fallback: the priority API timed out"
    assert (await harness.started(job)).priority_source == job.priority_source
    assert (await harness.submitted("plain")).priority_source is None
    assert [change.job.priority_source for change in harness.changes if change.job] == [None]


async def test_writes_of_operators_and_jobs_share_a_batch(harness: StoreHarness) -> None:
    await harness.one(RaiseEpoch("service:draw"))
    outcomes = await harness.commit(
        PruneRecords(0, 0, 9),
        RequestDrain("host:1:ab", True),
        DeregisterProcess("other"),
        RegisterProcess(process()),
        AuditOutcome("a1", {}),
        Audit(record("a1")),
        UseTicket("t1", harness.clock.now),
        issue(harness),
        harness.submit(),
        RevokeKey("k1", harness.clock.now),
        CreateKey(key("k1")),
        RequestRebuild("service:draw"),
    )
    assert [type(outcome) for outcome in outcomes] == [Done] * 8 + [Accepted] + [Done] * 3


# ---------------------------------------------------------------- rates

DRAW, CHAT = ServiceRules("draw", limit=3), ServiceRules("chat", limit=2)
RATED = DeclareServices(
    (replace(DRAW, pool="gpu", regions={"eu": 1}, rate=Rate(9)),),
    {"gpu": 3},
    pool_rates={"gpu": Rate(8)},
    groups={"acme": GroupRules(weight=2.0)},
    plan_rates={"free": Rate(7)},
)
OVERRIDES = {
    RateOf("service", "draw"): Rate(60, 5.5, 30.0),
    RateOf("user", "draw"): Rate(2),
    RateOf("region", "draw", "eu"): Rate(3),
    RateOf("pool", "gpu"): Rate(4),
    RateOf("plan", "free"): Rate(5),
    RateOf("plan", "gold"): Rate(units=100.0),
    RateOf("group", "acme"): Rate(6),
}


async def test_overridden_rates_win_until_they_are_lifted_and_survive_a_declaration(harness: StoreHarness) -> None:
    declared = (await harness.one(RATED)).value
    rules = (await harness.one(OverrideRates(OVERRIDES, declared.version))).value
    assert rules == await harness.store.rules()
    assert (rules.version, rules.rate_overrides) == (2, OVERRIDES)
    assert {of: rules.rate_of(of) for of in OVERRIDES} == OVERRIDES
    assert rules.groups["acme"].weight == 2.0
    rules = (await harness.one(replace(RATED, services=(replace(RATED.services[0], limit=9),)))).value
    assert {of: rules.rate_of(of) for of in OVERRIDES} == OVERRIDES
    other = (await harness.one(Override("draw", limit=1))).value
    assert other.rate_overrides == OVERRIDES
    lifted = (await harness.one(OverrideRates(dict.fromkeys(OVERRIDES), other.version))).value
    assert lifted.rate_overrides == {}
    for of in OVERRIDES:
        assert lifted.rate_of(of) == declared.rate_of(of)


async def test_overridden_rates_raise_epochs_and_are_refused_for_other_rules(harness: StoreHarness) -> None:
    await harness.one(RATED)
    await harness.one(RaiseEpoch("service:draw", "s1"))
    job = await harness.submitted()
    of = RateOf("pool", "gpu")
    late = OverrideRates({of: Rate(1)}, 0, frozenset({"service:draw"}))
    assert isinstance(await harness.one(late), Refused)
    assert (await harness.store.rules()).rate_overrides == {}
    start, again, changed, refused = await harness.commit(
        harness.start(job, lease="1:1"), late, replace(late, based_on=1), replace(late, based_on=1)
    )
    assert isinstance(start, Refused)
    assert [type(outcome) for outcome in (again, changed, refused)] == [Refused, Done, Refused]
    assert changed.value.pool_rates == {"gpu": Rate(1)}
    assert await harness.store.epochs() == {"service:draw": Epoch(2, "s1")}


async def test_overridden_rates_of_what_is_no_longer_declared_have_no_effect(harness: StoreHarness) -> None:
    await harness.one(RATED)
    await harness.one(OverrideRates(OVERRIDES, 1))
    rules = (await harness.one(DeclareServices((CHAT,), {}))).value
    assert (rules.services, rules.pool_rates, rules.groups) == ({"chat": CHAT}, {}, {})
    assert rules.plan_rates == {"free": Rate(5), "gold": Rate(units=100.0)}
    rules = (await harness.one(RATED)).value
    assert {of: rules.rate_of(of) for of in OVERRIDES} == OVERRIDES
