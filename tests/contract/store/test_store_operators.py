"""What operators need of a store: keys, tickets, the audit trail, processes, requests for a rebuild, facts."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from fairlead.domain.audit import AuditRecord
from fairlead.domain.keys import Key, Role
from fairlead.domain.processes import DEAD_AFTER, ProcessRecord
from fairlead.errors import InvalidInput
from fairlead.store.port import (
    Accepted,
    Announce,
    AskDrain,
    Audit,
    AuditOutcome,
    CreateKey,
    Done,
    Epoch,
    Farewell,
    IssueTicket,
    Override,
    PruneRecords,
    RaiseEpoch,
    Refused,
    RequestRebuild,
    RevokeKey,
    UseTicket,
)
from tests.contract.stores import START_OF_TIME, Line

ODD = 'Zoë "O\'Neill" \\ \n 雪 ]}'


def key(id_: str = "k1", **given: Any) -> Key:
    fields = {
        "role": Role.USER,
        "user_id": "ann",
        "name": "ann's",
        "hash": "ab12",
        "created_at": START_OF_TIME,
        **given,
    }
    return Key(id_, **fields)


def record(id_: str, **given: Any) -> AuditRecord:
    fields = {"at": START_OF_TIME, "who": "root", "action": "pause", "target": "draw", "details": {}, **given}
    return AuditRecord(id_, **fields)


def process(name: str = "host:1:ab", **given: Any) -> ProcessRecord:
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
        **given,
    }
    return ProcessRecord(name, **fields)


# ---------------------------------------------------------------- keys


async def test_a_key_is_kept_with_everything_given(line: Line) -> None:
    given = key(name=ODD, user_id=ODD, created_at=1_712_345_678.123457)
    assert await line.one(CreateKey(given)) == Done()
    assert await line.store.keys() == [given]


async def test_a_key_of_no_user_has_none(line: Line) -> None:
    for role in (Role.ADMIN, Role.SERVICE):
        await line.one(CreateKey(key(role.value, role=role, user_id=None)))
    assert [(found.role, found.user_id) for found in await line.store.keys()] == [
        (Role.ADMIN, None),
        (Role.SERVICE, None),
    ]


async def test_an_id_that_is_taken_is_refused_and_the_first_key_stays(line: Line) -> None:
    first = key()
    await line.one(CreateKey(first))
    assert isinstance(await line.one(CreateKey(key(hash="other"))), Refused)
    assert await line.store.keys() == [first]


async def test_every_change_of_the_keys_shows_in_their_numbers(line: Line) -> None:
    assert await line.store.count_keys() == (0, 0)
    await line.one(CreateKey(key("k1")))
    await line.one(CreateKey(key("k2")))
    assert await line.store.count_keys() == (2, 0)
    await line.one(RevokeKey("k1", START_OF_TIME))
    assert await line.store.count_keys() == (2, 1)


async def test_keys_are_listed_oldest_first(line: Line) -> None:
    later, sooner = key("a", created_at=START_OF_TIME + 1), key("b")
    await line.commit(CreateKey(later), CreateKey(sooner))
    assert await line.store.keys() == [sooner, later]


async def test_a_revoked_key_stays_in_the_list_and_is_revoked_once(line: Line) -> None:
    await line.commit(CreateKey(key("k1")), CreateKey(key("k2")))
    assert await line.one(RevokeKey("k1", line.clock.now + 5)) == Done()
    assert isinstance(await line.one(RevokeKey("k1", line.clock.now + 9)), Refused)
    assert isinstance(await line.one(RevokeKey("k3", line.clock.now)), Refused)
    assert [(found.id, found.revoked_at) for found in await line.store.keys()] == [
        ("k1", START_OF_TIME + 5),
        ("k2", None),
    ]


async def test_a_name_with_nul_is_refused_as_invalid(line: Line) -> None:
    for transition in (CreateKey(key(name="a\0b")), Audit(record("a", target="x\0")), Announce(process("n\0"))):
        with pytest.raises(InvalidInput):
            await line.commit(transition)


# ---------------------------------------------------------------- tickets


def issue(line: Line, hash_: str = "t1", **given: Any) -> IssueTicket:
    return IssueTicket(hash_, **{"key_id": "k1", "expires_at": line.clock.now + 30, **given})


async def test_a_ticket_is_good_once(line: Line) -> None:
    assert await line.one(issue(line)) == Done()
    assert await line.one(UseTicket("t1", line.clock.now)) == Done("k1")
    assert isinstance(await line.one(UseTicket("t1", line.clock.now)), Refused)


async def test_a_ticket_that_nobody_issued_is_refused(line: Line) -> None:
    assert isinstance(await line.one(UseTicket("t1", line.clock.now)), Refused)


async def test_a_ticket_is_good_until_it_expires(line: Line) -> None:
    await line.commit(issue(line, "in time"), issue(line, "late"))
    assert await line.one(UseTicket("in time", line.clock.now + 29.9)) == Done("k1")
    assert isinstance(await line.one(UseTicket("late", line.clock.now + 30)), Refused)
    assert isinstance(await line.one(UseTicket("late", line.clock.now)), Refused)


async def test_one_batch_with_two_uses_of_a_ticket_grants_one(line: Line) -> None:
    await line.one(issue(line))
    outcomes = await line.commit(*(UseTicket("t1", line.clock.now) for _ in range(5)))
    assert [type(outcome) for outcome in outcomes].count(Done) == 1


async def test_of_many_who_use_a_ticket_at_once_in_several_processes_one_is_let_in(line: Line) -> None:
    async with line.another() as other:
        for n in range(10):
            await line.one(issue(line, f"race {n}"))
            uses = [store.commit([UseTicket(f"race {n}", line.clock.now)]) for store in (line.store, other) * 3]
            outcomes = [committed.outcomes[0] for committed in await asyncio.gather(*uses)]
            assert [outcome for outcome in outcomes if isinstance(outcome, Done)] == [Done("k1")]


async def test_issuing_a_ticket_clears_those_that_have_expired(line: Line) -> None:
    await line.one(issue(line, "old"))
    line.clock.forward(30)
    await line.one(issue(line, "new"))
    assert isinstance(await line.one(UseTicket("old", START_OF_TIME)), Refused)
    assert await line.one(UseTicket("new", line.clock.now)) == Done("k1")


async def test_the_tickets_of_a_revoked_key_open_nothing(line: Line) -> None:
    await line.commit(CreateKey(key("k1")), issue(line, "mine"), issue(line, "theirs", key_id="k2"))
    await line.one(RevokeKey("k1", line.clock.now))
    assert isinstance(await line.one(UseTicket("mine", line.clock.now)), Refused)
    assert await line.one(UseTicket("theirs", line.clock.now)) == Done("k2")


# ---------------------------------------------------------------- audit


async def test_an_audit_record_is_kept_with_everything_given(line: Line) -> None:
    given = record("a1", who=ODD, target=ODD, details={"text": ODD, "n": [1.5, None]}, at=1_712_345_678.123457)
    assert await line.one(Audit(given)) == Done()
    assert await line.store.audit(limit=9) == [given]


async def test_an_outcome_is_added_when_it_is_known(line: Line) -> None:
    given = record("a1")
    await line.one(Audit(given))
    assert await line.one(AuditOutcome("a1", {"requeued": 3})) == Done()
    assert isinstance(await line.one(AuditOutcome("a2", {})), Refused)
    assert await line.store.audit(limit=9) == [replace(given, outcome={"requeued": 3})]


async def test_an_audit_record_that_comes_twice_is_kept_once(line: Line) -> None:
    given = record("a1", outcome={"ok": True})
    assert await line.commit(Audit(given), Audit(given)) == [Done(), Done()]
    assert await line.store.audit(limit=9) == [given]


async def test_audit_is_read_newest_first_in_pages_and_by_action(line: Line) -> None:
    await line.commit(*(Audit(record(f"a{n}", action="pause" if n % 2 else "drain")) for n in range(6)))

    async def ids(**given: Any) -> list[str]:
        return [found.id for found in await line.store.audit(**given)]

    assert await ids(limit=3) == ["a5", "a4", "a3"]
    assert await ids(limit=9, before="a3") == ["a2", "a1", "a0"]
    assert await ids(limit=9, action="pause") == ["a5", "a3", "a1"]
    assert await ids(limit=1, action="pause", before="a5") == ["a3"]
    assert await ids(limit=9, action="none") == []


async def test_an_action_and_its_record_are_one_commit(line: Line) -> None:
    await line.submitted("taken")
    with pytest.raises(Exception, match=r"(?i)unique"):
        await line.commit(Audit(record("a1")), line.submit("taken"))
    assert await line.store.audit(limit=9) == []
    outcomes = await line.commit(Audit(record("a1")), line.submit("free"))
    assert [type(outcome) for outcome in outcomes] == [Done, Accepted]
    assert [found.id for found in await line.store.audit(limit=9)] == ["a1"]


async def test_a_refused_override_is_told_beside_its_record(line: Line) -> None:
    audited, refused = await line.commit(Audit(record("a1")), Override("nothing", limit=1))
    assert audited == Done()
    assert isinstance(refused, Refused)


# ---------------------------------------------------------------- processes


async def test_a_process_is_seen_by_the_clock_of_the_database(line: Line) -> None:
    given = process()
    assert await line.one(Announce(replace(given, seen_at=1.0, drain_asked=True))) == Done(False)
    (found,) = await line.store.processes()
    assert found == replace(given, seen_at=START_OF_TIME)
    assert found.skew == 0.25


async def test_an_announcement_replaces_the_one_before(line: Line) -> None:
    await line.one(Announce(process()))
    line.clock.forward(2)
    await line.one(Announce(process(running=0, draining=True)))
    (found,) = await line.store.processes()
    assert (found.running, found.draining, found.seen_at) == (0, True, START_OF_TIME + 2)
    assert found.alive(line.clock.now + DEAD_AFTER)
    assert not found.alive(line.clock.now + DEAD_AFTER + 1)


async def test_a_process_that_is_asked_to_drain_hears_it_until_it_is_asked_otherwise(line: Line) -> None:
    await line.one(Announce(process()))
    assert await line.one(AskDrain("host:1:ab", True)) == Done()
    for _ in range(2):
        assert await line.one(Announce(process())) == Done(True)
    assert (await line.store.processes())[0].drain_asked
    assert await line.one(AskDrain("host:1:ab", False)) == Done()
    assert await line.one(Announce(process())) == Done(False)


async def test_a_process_that_is_not_there_cannot_be_asked(line: Line) -> None:
    assert isinstance(await line.one(AskDrain("nobody", True)), Refused)
    await line.one(Announce(process()))
    assert await line.one(Farewell("host:1:ab")) == Done()
    assert isinstance(await line.one(AskDrain("host:1:ab", True)), Refused)
    assert await line.store.processes() == []


async def test_what_was_asked_of_a_process_ends_with_it(line: Line) -> None:
    await line.commit(Announce(process()), AskDrain("host:1:ab", True))
    await line.one(Farewell("host:1:ab"))
    assert await line.one(Announce(process())) == Done(False)


async def test_processes_are_listed_by_name(line: Line) -> None:
    await line.commit(*(Announce(process(name)) for name in ("b", "a", "c")))
    assert [found.name for found in await line.store.processes()] == ["a", "b", "c"]


# ---------------------------------------------------------------- retention


async def test_old_audit_records_and_dead_processes_go(line: Line) -> None:
    old = [Audit(record(f"a{n}", at=START_OF_TIME + n)) for n in range(5)]
    await line.commit(*old, Announce(process("dead")))
    line.clock.forward(100)
    await line.one(Announce(process("alive")))
    until = START_OF_TIME + 4
    assert await line.one(PruneRecords(until, START_OF_TIME + 50, limit=3)) == Done(3)
    assert await line.one(PruneRecords(until, START_OF_TIME + 50, limit=3)) == Done(1)
    assert [found.id for found in await line.store.audit(limit=9)] == ["a4"]
    assert [found.name for found in await line.store.processes()] == ["alive"]


# ---------------------------------------------------------------- rebuilds


async def test_a_rebuild_can_be_asked_for_and_the_next_one_answers(line: Line) -> None:
    await line.commit(RaiseEpoch("service:draw", "s1"), RaiseEpoch("service:other", "s1"))
    assert await line.one(RequestRebuild("service:draw")) == Done()
    assert await line.one(RequestRebuild("service:draw")) == Done()
    assert await line.store.epochs() == {
        "service:draw": Epoch(1, "s1", rebuild_asked=True),
        "service:other": Epoch(1, "s1"),
    }
    await line.one(RaiseEpoch("service:other", "s2"))
    assert (await line.store.epochs())["service:draw"].rebuild_asked
    await line.one(RaiseEpoch("service:draw", "s2"))
    assert (await line.store.epochs())["service:draw"] == Epoch(2, "s2")


async def test_a_scope_that_was_never_built_cannot_be_rebuilt(line: Line) -> None:
    await line.started(await line.submitted(), scope="service:started")
    for scope in ("service:nothing", "service:started"):
        assert isinstance(await line.one(RequestRebuild(scope)), Refused)
    assert await line.store.epochs() == {}


# ---------------------------------------------------------------- facts, and where a priority came from


async def test_facts_tell_of_the_outbox_and_the_clock(line: Line) -> None:
    before = await line.store.facts()
    assert (before["outbox_rows"], before["outbox_age"], before["clock"]) == (0, 0.0, START_OF_TIME)
    await line.submitted()
    line.clock.forward(12.5)
    await line.submitted()
    after = await line.store.facts()
    assert (after["outbox_rows"], after["outbox_age"], after["clock"]) == (2, 12.5, START_OF_TIME + 12.5)
    assert after["engine"] in ("sqlite", "postgresql")
    assert int(after["database_bytes"]) > 0
    assert str(after["server_version"])[0].isdigit()
    assert all(isinstance(value, int | float | str) for value in after.values())


async def test_a_job_keeps_where_its_priority_came_from(line: Line) -> None:
    job = await line.submitted("told", priority_source="fallback: the priority API timed out")
    assert job.priority_source == "fallback: the priority API timed out"
    assert (await line.started(job)).priority_source == job.priority_source
    assert (await line.submitted("plain")).priority_source is None
    assert [change.job.priority_source for change in line.changes if change.job] == [None]


async def test_what_operators_do_goes_in_one_batch_with_jobs(line: Line) -> None:
    await line.one(RaiseEpoch("service:draw"))
    outcomes = await line.commit(
        PruneRecords(0, 0, 9),
        AskDrain("host:1:ab", True),
        Farewell("other"),
        Announce(process()),
        AuditOutcome("a1", {}),
        Audit(record("a1")),
        UseTicket("t1", line.clock.now),
        issue(line),
        line.submit(),
        RevokeKey("k1", line.clock.now),
        CreateKey(key("k1")),
        RequestRebuild("service:draw"),
    )
    assert [type(outcome) for outcome in outcomes] == [Done] * 8 + [Accepted] + [Done] * 3
