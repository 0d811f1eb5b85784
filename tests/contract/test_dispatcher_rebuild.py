"""What every dispatcher does while it is rebuilt from the truth."""

from __future__ import annotations

from fairlead.dispatch.port import Lease, Renewal
from fairlead.domain.job import Hold
from fairlead.domain.limits import ServiceRules
from tests.contract.dispatchers import FakeClock, Line, open_pool

FAIR = ServiceRules("s", limit=1)


def running(name: str, clock: FakeClock, user: str = "ann", region: str | None = None) -> Lease:
    """A lease as the truth knows it: granted five seconds ago, and not renewed since."""
    return Lease(name, f"job of {name}", 0, 1, "s", user, "w", clock.now - 5, clock.now - 1, region, charged=99)


async def test_a_scope_that_was_never_opened_grants_nothing(line: Line) -> None:
    await line.configure(FAIR)
    await line.offer("a")
    assert await line.claimed() == []
    assert line.woken() == []


async def test_a_closed_scope_forgets_everything_and_grants_nothing_until_opened(line: Line) -> None:
    await line.open(FAIR, ServiceRules("t", limit=1))
    await line.offer_all("ab")
    await line.offer("t0", service="t")
    await line.take("s")
    await line.hold("gone", 60)
    await line.dispatcher.close_scope("service:s", epoch=2)
    seen = await line.see()
    assert (seen.in_use, seen.held, sum(seen.waiting.values()), seen.users) == (0, 0, 0, ())
    line.woken()
    assert await line.offer("a"), "lines fill meanwhile"
    assert await line.claimed(1, "s") == []
    assert await line.claimed(1, "t") == ["t0"], "of other scopes it goes on"
    assert line.woken() == []
    await line.dispatcher.open_scope("service:s", epoch=2)
    assert line.woken() == [{"s"}]
    lease = await line.take("s")
    assert lease.name.startswith("2:")


async def test_a_closed_scope_forgets_what_it_measured(line: Line) -> None:
    await line.open(FAIR)
    await line.offer("a")
    await line.end(await line.take(), after=7)
    await line.dispatcher.close_scope("service:s", epoch=2)
    seen = await line.see()
    assert (seen.mean_duration, seen.virtual_time[2]) == (None, 0)


async def test_a_pool_is_closed_as_one(line: Line) -> None:
    await open_pool(line, 2, "x", "y")
    await line.offer("x0", service="x")
    await line.dispatcher.close_scope("pool:gpu", epoch=2)
    await line.offer("x0", service="x")
    await line.offer("y0", service="y")
    assert await line.claimed(9) == []
    await line.dispatcher.open_scope("pool:gpu", epoch=2)
    assert sorted(await line.claimed(9)) == ["x0", "y0"]


async def test_closing_with_an_older_epoch_does_nothing(line: Line) -> None:
    await line.open(FAIR)
    await line.dispatcher.close_scope("service:s", epoch=5)
    await line.dispatcher.open_scope("service:s", epoch=5)
    await line.offer("a")
    assert not await line.dispatcher.close_scope("service:s", epoch=4)
    assert (await line.take()).name.startswith("5:")


async def test_a_release_from_before_the_rebuild_changes_nothing(line: Line) -> None:
    await line.open(FAIR)
    await line.offer_all("ab")
    old = await line.take()
    await line.dispatcher.close_scope("service:s", epoch=2)
    await line.offer_all("cd")
    await line.dispatcher.open_scope("service:s", epoch=2)
    await line.take()
    await line.end(old)
    assert await line.claimed() == []


async def test_a_renewal_hears_rebuilding_and_never_lost(line: Line) -> None:
    await line.configure(FAIR)
    assert line.dispatcher.renew("w", ["1:1"]) == Renewal(rebuilding=True), "nothing was restored yet"
    await line.open(FAIR)
    await line.offer("a")
    lease = await line.take(worker="w")
    await line.dispatcher.close_scope("service:s", epoch=2)
    assert line.dispatcher.renew("w", [lease.name]) == Renewal(rebuilding=True)
    await line.dispatcher.open_scope("service:s", epoch=2)
    assert line.dispatcher.renew("w", [lease.name]) == Renewal(frozenset({lease.name}))


async def test_restored_leases_keep_their_names_and_slots_with_a_full_ttl(line: Line) -> None:
    await line.open(ServiceRules("s", limit=2, lease_ttl=10))
    await line.dispatcher.close_scope("service:s", epoch=2)
    hold = Hold("gone", "s", None, line.clock.now + 60)
    for _ in range(2):  # said twice, it is the same
        await line.dispatcher.restore("service:s", 2, [running("1:7", line.clock)], [hold])
    await line.offer("a")
    await line.dispatcher.open_scope("service:s", epoch=2)
    assert (await line.see()).in_use == 2
    assert await line.claimed() == []
    line.clock.advance(9)
    assert line.dispatcher.renew("w", ["1:7"]) == Renewal()
    line.clock.advance(10)
    (past,) = await line.dispatcher.expired()
    assert past.name == "1:7"
    await line.end(past)
    assert await line.claimed() == ["a"]


async def test_a_restored_lease_stands_against_stale_offers(line: Line) -> None:
    await line.open(FAIR)
    await line.dispatcher.close_scope("service:s", epoch=2)
    await line.dispatcher.restore("service:s", 2, [running("1:7", line.clock)], [])
    assert not await line.offer("job of 1:7", run=1)
    assert await line.offer("job of 1:7", run=2)


async def test_a_restored_lease_counts_against_its_users_and_regions_limit(line: Line) -> None:
    await line.open(ServiceRules("s", limit=9, user_limit=1, regions={"us": 2}))
    await line.dispatcher.close_scope("service:s", epoch=2)
    await line.dispatcher.restore("service:s", 2, [running("1:7", line.clock, "ann", "us")], [])
    await line.offer("a", "ann")
    await line.offer_all(["b0", "b1"], "bob")
    await line.offer("c", "cleo")
    await line.dispatcher.open_scope("service:s", epoch=2)
    assert await line.claimed(9) == ["b0"]


async def test_a_restored_lease_is_charged_in_full_when_it_ends(line: Line) -> None:
    await line.open(ServiceRules("s", limit=9))
    await line.dispatcher.close_scope("service:s", epoch=2)
    restored = running("1:7", line.clock)
    await line.dispatcher.restore("service:s", 2, [restored], [])
    await line.offer("a", "ann")
    await line.dispatcher.open_scope("service:s", epoch=2)
    await line.end(restored, after=3)
    assert await line.tag("ann") == 8.0


async def test_new_names_never_repeat_a_restored_one(line: Line) -> None:
    await line.open(ServiceRules("s", limit=9))
    await line.dispatcher.close_scope("service:s", epoch=1)
    await line.dispatcher.restore("service:s", 1, [running("1:2", line.clock)], [])
    await line.offer_all("abc")
    await line.dispatcher.open_scope("service:s", epoch=1)
    assert "1:2" not in [lease.name for lease in await line.claim(9)]


async def test_nothing_is_restored_into_an_open_scope(line: Line) -> None:
    await line.open(FAIR)
    assert not await line.dispatcher.restore("service:s", 1, [running("1:7", line.clock)], [])
    assert (await line.see()).in_use == 0


# -- two rebuilds at once: only the one that began last counts -------------------------------------------------------


async def test_a_rebuild_that_another_one_has_overtaken_changes_nothing(line: Line) -> None:
    await line.open(FAIR)
    stopped, later = 2, 3
    assert await line.dispatcher.close_scope("service:s", stopped)
    assert await line.dispatcher.close_scope("service:s", later)
    assert await line.dispatcher.restore("service:s", later, [running("1:7", line.clock)], [])
    await line.offer("a")
    # The first one's leader wakes, and goes on where it was.
    ended = running("1:9", line.clock)
    assert not await line.dispatcher.restore("service:s", stopped, [ended], [Hold("h", "s", None, line.clock.now + 9)])
    assert not await line.dispatcher.open_scope("service:s", stopped)
    assert await line.claimed() == [], "it is still closed"
    assert await line.dispatcher.open_scope("service:s", later)
    assert not await line.dispatcher.close_scope("service:s", stopped)
    assert not await line.dispatcher.open_scope("service:s", stopped)
    seen = await line.see()
    assert ([lease.name for lease in seen.leases], seen.holds, seen.waiting[2]) == (["1:7"], (), 1)
    await line.end(running("1:7", line.clock))
    assert (await line.take()).name.startswith("3:")


async def test_an_epoch_that_was_never_closed_opens_and_restores_nothing(line: Line) -> None:
    await line.configure(FAIR)
    assert not await line.dispatcher.open_scope("service:s", 1), "nothing was closed yet"
    await line.dispatcher.close_scope("service:s", 1)
    assert not await line.dispatcher.restore("service:s", 2, [running("1:7", line.clock)], [])
    assert not await line.dispatcher.open_scope("service:s", 2)
    await line.offer("a")
    assert await line.claimed() == []
    assert (await line.see()).in_use == 0


async def test_every_part_of_a_rebuild_may_be_said_twice(line: Line) -> None:
    await line.configure(FAIR)
    for _ in range(2):
        assert await line.dispatcher.close_scope("service:s", 4)
    for _ in range(2):
        assert await line.dispatcher.restore("service:s", 4, [running("1:7", line.clock)], [])
    for _ in range(2):
        assert await line.dispatcher.open_scope("service:s", 4)
    assert [lease.name for lease in (await line.see()).leases] == ["1:7"]


# -- what is said of a scope -----------------------------------------------------------------------------------------


async def test_the_state_of_a_scope_is_its_epoch_and_whether_it_is_open(line: Line) -> None:
    async def state(scope: str) -> tuple[int | None, bool]:
        said = (await line.dispatcher.states([scope]))[scope]
        return said.epoch, said.open

    assert await state("service:s") == (None, False)
    await line.configure(FAIR)
    await line.offer("a")
    assert await state("service:s") == (None, False), "the rules and a line do not open it"
    await line.dispatcher.close_scope("service:s", 7)
    assert await state("service:s") == (7, False)
    await line.dispatcher.open_scope("service:s", 7)
    assert await state("service:s") == (7, True)


async def test_many_scopes_are_asked_about_at_once_and_all_name_who_says_it(line: Line) -> None:
    await line.open(FAIR, ServiceRules("t", limit=1))
    await line.dispatcher.close_scope("service:t", 2)
    asked = ["service:s", "service:t", "pool:unknown", "service:s"]
    states = await line.dispatcher.states(asked)
    assert {scope: (state.epoch, state.open) for scope, state in states.items()} == {
        "service:s": (1, True),
        "service:t": (2, False),
        "pool:unknown": (None, False),
    }
    assert all(state.server for state in states.values())
    assert await line.dispatcher.states(asked) == states, "the same server has the same name"
    assert await line.dispatcher.states([]) == {}


# -- which scope a lease is of ---------------------------------------------------------------------------------------


async def test_every_lease_names_its_scope(line: Line) -> None:
    await line.open(
        FAIR, ServiceRules("x", limit=9, pool="gpu"), ServiceRules("y", limit=9, pool="gpu"), pools={"gpu": 9}
    )
    for service in "sxy":
        await line.offer(service, service=service)
    scopes = {"s": "service:s", "x": "pool:gpu", "y": "pool:gpu"}
    assert {lease.service: lease.scope for lease in await line.claim(9)} == scopes
    await line.offer("s1", service="s", run=2)
    seen = await line.dispatcher.snapshot()
    assert {lease.service: lease.scope for service in seen for lease in service.leases} == scopes
    line.clock.advance(60)
    assert {lease.service: lease.scope for lease in await line.dispatcher.expired()} == scopes


async def test_a_restored_lease_names_its_scope_too(line: Line) -> None:
    await line.open(FAIR)
    await line.dispatcher.close_scope("service:s", 2)
    await line.dispatcher.restore("service:s", 2, [running("1:7", line.clock)], [])
    (lease,) = (await line.see()).leases
    assert lease.scope == "service:s"


async def test_a_hold_is_shown_as_it_was_told(line: Line) -> None:
    await line.open(ServiceRules("s", limit=9))
    holds = [
        Hold("a", "s", None, line.clock.now + 60, "a:3", band=1),
        Hold("b", "s", "eu", line.clock.now + 30, band=3),
    ]
    await line.dispatcher.hold(holds)
    assert sorted((await line.see()).holds, key=lambda hold: hold.job_id) == holds
