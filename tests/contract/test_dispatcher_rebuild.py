"""The contract of every dispatcher: rebuilds from the database."""

from __future__ import annotations

from fairlead.dispatch.port import Lease, Renewal
from fairlead.domain.job import Hold
from fairlead.domain.rules import ServiceRules
from tests.contract.dispatchers import FakeClock, QueueHarness, open_pool

FAIR = ServiceRules("s", limit=1)


def running(name: str, clock: FakeClock, user: str = "ann", region: str | None = None) -> Lease:
    """A lease as recorded in the database: granted five seconds ago and not renewed since."""
    return Lease(name, f"job of {name}", 0, 1, "s", user, "w", clock.now - 5, clock.now - 1, region, charged=99)


async def test_a_scope_that_was_never_opened_grants_nothing(queue: QueueHarness) -> None:
    await queue.configure(FAIR)
    await queue.offer("a")
    assert await queue.claimed() == []
    assert queue.wakeups() == []


async def test_a_closed_scope_forgets_everything_and_grants_nothing_until_opened(queue: QueueHarness) -> None:
    await queue.open(FAIR, ServiceRules("t", limit=1))
    await queue.offer_all("ab")
    await queue.offer("t0", service="t")
    await queue.take("s")
    await queue.hold("gone", 60)
    await queue.dispatcher.close_scope("service:s", epoch=2)
    seen = await queue.see()
    assert (seen.in_use, seen.held, sum(seen.waiting.values()), seen.users) == (0, 0, 0, ())
    queue.wakeups()
    assert await queue.offer("a"), "queues fill meanwhile"
    assert await queue.claimed(1, "s") == []
    assert await queue.claimed(1, "t") == ["t0"], "other scopes are not affected"
    assert queue.wakeups() == []
    await queue.dispatcher.open_scope("service:s", epoch=2)
    assert queue.wakeups() == [{"s"}]
    lease = await queue.take("s")
    assert lease.name.startswith("2:")


async def test_a_closed_scope_forgets_what_it_measured(queue: QueueHarness) -> None:
    await queue.open(FAIR)
    await queue.offer("a")
    await queue.end(await queue.take(), after=7)
    await queue.dispatcher.close_scope("service:s", epoch=2)
    seen = await queue.see()
    assert (seen.mean_duration, seen.virtual_time[2]) == (None, 0)


async def test_a_pool_is_closed_as_one(queue: QueueHarness) -> None:
    await open_pool(queue, 2, "x", "y")
    await queue.offer("x0", service="x")
    await queue.dispatcher.close_scope("pool:gpu", epoch=2)
    await queue.offer("x0", service="x")
    await queue.offer("y0", service="y")
    assert await queue.claimed(9) == []
    await queue.dispatcher.open_scope("pool:gpu", epoch=2)
    assert sorted(await queue.claimed(9)) == ["x0", "y0"]


async def test_closing_with_an_older_epoch_does_nothing(queue: QueueHarness) -> None:
    await queue.open(FAIR)
    await queue.dispatcher.close_scope("service:s", epoch=5)
    await queue.dispatcher.open_scope("service:s", epoch=5)
    await queue.offer("a")
    assert not await queue.dispatcher.close_scope("service:s", epoch=4)
    assert (await queue.take()).name.startswith("5:")


async def test_a_release_from_before_the_rebuild_changes_nothing(queue: QueueHarness) -> None:
    await queue.open(FAIR)
    await queue.offer_all("ab")
    old = await queue.take()
    await queue.dispatcher.close_scope("service:s", epoch=2)
    await queue.offer_all("cd")
    await queue.dispatcher.open_scope("service:s", epoch=2)
    await queue.take()
    await queue.end(old)
    assert await queue.claimed() == []


async def test_a_renewal_during_a_rebuild_returns_rebuilding_and_never_lost(queue: QueueHarness) -> None:
    await queue.configure(FAIR)
    assert queue.dispatcher.renew("w", ["1:1"]) == Renewal(rebuilding=True), "nothing was restored yet"
    await queue.open(FAIR)
    await queue.offer("a")
    lease = await queue.take(worker="w")
    await queue.dispatcher.close_scope("service:s", epoch=2)
    assert queue.dispatcher.renew("w", [lease.name]) == Renewal(rebuilding=True)
    await queue.dispatcher.open_scope("service:s", epoch=2)
    assert queue.dispatcher.renew("w", [lease.name]) == Renewal(frozenset({lease.name}))


async def test_restored_leases_keep_their_names_and_slots_with_a_full_ttl(queue: QueueHarness) -> None:
    await queue.open(ServiceRules("s", limit=2, lease_ttl=10))
    await queue.dispatcher.close_scope("service:s", epoch=2)
    hold = Hold("gone", "s", None, queue.clock.now + 60)
    for _ in range(2):  # restoring twice has no further effect
        await queue.dispatcher.restore("service:s", 2, [running("1:7", queue.clock)], [hold])
    await queue.offer("a")
    await queue.dispatcher.open_scope("service:s", epoch=2)
    assert (await queue.see()).in_use == 2
    assert await queue.claimed() == []
    queue.clock.advance(9)
    assert queue.dispatcher.renew("w", ["1:7"]) == Renewal()
    queue.clock.advance(10)
    (past,) = await queue.dispatcher.expired()
    assert past.name == "1:7"
    await queue.end(past)
    assert await queue.claimed() == ["a"]


async def test_a_restored_lease_blocks_stale_offers(queue: QueueHarness) -> None:
    await queue.open(FAIR)
    await queue.dispatcher.close_scope("service:s", epoch=2)
    await queue.dispatcher.restore("service:s", 2, [running("1:7", queue.clock)], [])
    assert not await queue.offer("job of 1:7", run=1)
    assert await queue.offer("job of 1:7", run=2)


async def test_a_restored_lease_counts_against_its_users_and_regions_limit(queue: QueueHarness) -> None:
    await queue.open(ServiceRules("s", limit=9, user_limit=1, regions={"us": 2}))
    await queue.dispatcher.close_scope("service:s", epoch=2)
    await queue.dispatcher.restore("service:s", 2, [running("1:7", queue.clock, "ann", "us")], [])
    await queue.offer("a", "ann")
    await queue.offer_all(["b0", "b1"], "bob")
    await queue.offer("c", "cleo")
    await queue.dispatcher.open_scope("service:s", epoch=2)
    assert await queue.claimed(9) == ["b0"]


async def test_a_restored_lease_is_charged_in_full_when_it_ends(queue: QueueHarness) -> None:
    await queue.open(ServiceRules("s", limit=9))
    await queue.dispatcher.close_scope("service:s", epoch=2)
    restored = running("1:7", queue.clock)
    await queue.dispatcher.restore("service:s", 2, [restored], [])
    await queue.offer("a", "ann")
    await queue.dispatcher.open_scope("service:s", epoch=2)
    await queue.end(restored, after=3)
    assert await queue.tag("ann") == 8.0


async def test_new_names_never_repeat_a_restored_one(queue: QueueHarness) -> None:
    await queue.open(ServiceRules("s", limit=9))
    await queue.dispatcher.close_scope("service:s", epoch=1)
    await queue.dispatcher.restore("service:s", 1, [running("1:2", queue.clock)], [])
    await queue.offer_all("abc")
    await queue.dispatcher.open_scope("service:s", epoch=1)
    assert "1:2" not in [lease.name for lease in await queue.claim(9)]


async def test_nothing_is_restored_into_an_open_scope(queue: QueueHarness) -> None:
    await queue.open(FAIR)
    assert not await queue.dispatcher.restore("service:s", 1, [running("1:7", queue.clock)], [])
    assert (await queue.see()).in_use == 0


# -- two rebuilds at once: only the one that began last counts -------------------------------------------------------


async def test_a_rebuild_that_another_one_has_overtaken_changes_nothing(queue: QueueHarness) -> None:
    await queue.open(FAIR)
    stopped, later = 2, 3
    assert await queue.dispatcher.close_scope("service:s", stopped)
    assert await queue.dispatcher.close_scope("service:s", later)
    assert await queue.dispatcher.restore("service:s", later, [running("1:7", queue.clock)], [])
    await queue.offer("a")
    # The leader of the first rebuild wakes and continues.
    ended = running("1:9", queue.clock)
    assert not await queue.dispatcher.restore(
        "service:s", stopped, [ended], [Hold("h", "s", None, queue.clock.now + 9)]
    )
    assert not await queue.dispatcher.open_scope("service:s", stopped)
    assert await queue.claimed() == [], "it is still closed"
    assert await queue.dispatcher.open_scope("service:s", later)
    assert not await queue.dispatcher.close_scope("service:s", stopped)
    assert not await queue.dispatcher.open_scope("service:s", stopped)
    seen = await queue.see()
    assert ([lease.name for lease in seen.leases], seen.holds, seen.waiting[2]) == (["1:7"], (), 1)
    await queue.end(running("1:7", queue.clock))
    assert (await queue.take()).name.startswith("3:")


async def test_an_epoch_that_was_never_closed_opens_and_restores_nothing(queue: QueueHarness) -> None:
    await queue.configure(FAIR)
    assert not await queue.dispatcher.open_scope("service:s", 1), "nothing was closed yet"
    await queue.dispatcher.close_scope("service:s", 1)
    assert not await queue.dispatcher.restore("service:s", 2, [running("1:7", queue.clock)], [])
    assert not await queue.dispatcher.open_scope("service:s", 2)
    await queue.offer("a")
    assert await queue.claimed() == []
    assert (await queue.see()).in_use == 0


async def test_every_part_of_a_rebuild_can_be_repeated(queue: QueueHarness) -> None:
    await queue.configure(FAIR)
    for _ in range(2):
        assert await queue.dispatcher.close_scope("service:s", 4)
    for _ in range(2):
        assert await queue.dispatcher.restore("service:s", 4, [running("1:7", queue.clock)], [])
    for _ in range(2):
        assert await queue.dispatcher.open_scope("service:s", 4)
    assert [lease.name for lease in (await queue.see()).leases] == ["1:7"]


# -- the state of a scope --------------------------------------------------------------------------------------------


async def test_the_state_of_a_scope_is_its_epoch_and_whether_it_is_open(queue: QueueHarness) -> None:
    async def state(scope: str) -> tuple[int | None, bool]:
        state_of_scope = (await queue.dispatcher.states([scope]))[scope]
        return state_of_scope.epoch, state_of_scope.open

    assert await state("service:s") == (None, False)
    await queue.configure(FAIR)
    await queue.offer("a")
    assert await state("service:s") == (None, False), "the rules and a queue do not open it"
    await queue.dispatcher.close_scope("service:s", 7)
    assert await state("service:s") == (7, False)
    await queue.dispatcher.open_scope("service:s", 7)
    assert await state("service:s") == (7, True)


async def test_many_scopes_are_queried_at_once_and_name_their_server(queue: QueueHarness) -> None:
    await queue.open(FAIR, ServiceRules("t", limit=1))
    await queue.dispatcher.close_scope("service:t", 2)
    scopes = ["service:s", "service:t", "pool:unknown", "service:s"]
    states = await queue.dispatcher.states(scopes)
    assert {scope: (state.epoch, state.open) for scope, state in states.items()} == {
        "service:s": (1, True),
        "service:t": (2, False),
        "pool:unknown": (None, False),
    }
    assert all(state.server for state in states.values())
    assert await queue.dispatcher.states(scopes) == states, "the same server has the same name"
    assert await queue.dispatcher.states([]) == {}


# -- the scope of a lease
# -----------------------------------------------------------------------------------------------


async def test_every_lease_names_its_scope(queue: QueueHarness) -> None:
    await queue.open(
        FAIR, ServiceRules("x", limit=9, pool="gpu"), ServiceRules("y", limit=9, pool="gpu"), pools={"gpu": 9}
    )
    for service in "sxy":
        await queue.offer(service, service=service)
    scopes = {"s": "service:s", "x": "pool:gpu", "y": "pool:gpu"}
    assert {lease.service: lease.scope for lease in await queue.claim(9)} == scopes
    await queue.offer("s1", service="s", run=2)
    seen = await queue.dispatcher.snapshot()
    assert {lease.service: lease.scope for service in seen for lease in service.leases} == scopes
    queue.clock.advance(60)
    assert {lease.service: lease.scope for lease in await queue.dispatcher.expired()} == scopes


async def test_a_restored_lease_names_its_scope_too(queue: QueueHarness) -> None:
    await queue.open(FAIR)
    await queue.dispatcher.close_scope("service:s", 2)
    await queue.dispatcher.restore("service:s", 2, [running("1:7", queue.clock)], [])
    (lease,) = (await queue.see()).leases
    assert lease.scope == "service:s"


async def test_a_snapshot_shows_a_hold_unchanged(queue: QueueHarness) -> None:
    await queue.open(ServiceRules("s", limit=9))
    holds = [
        Hold("a", "s", None, queue.clock.now + 60, "a:3", band=1),
        Hold("b", "s", "eu", queue.clock.now + 30, band=3),
    ]
    await queue.dispatcher.hold(holds)
    assert sorted((await queue.see()).holds, key=lambda hold: hold.job_id) == holds
