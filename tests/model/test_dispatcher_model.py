"""A dispatcher under random operations agrees with `reference` and keeps every limit."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any, TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from fairlead.dispatch.memory.claim_sources import WORKER_MEMORY_S
from fairlead.dispatch.port import Claim, Lease, Offer, Promotion, Release, Withdrawal
from fairlead.domain.fair_share import charge
from fairlead.domain.groups import GroupRules
from fairlead.domain.job import Hold
from fairlead.domain.rules import Order, Rules, ServiceRules
from tests.contract.dispatchers import ENGINES, FakeClock
from tests.model.reference import BANDS, Head, ReferenceService, Turns

T = TypeVar("T")

SERVICES = {
    "fair": ServiceRules("fair", limit=3, user_limit=2, cost_unit="tokens", charge="tokens"),
    "fifo": ServiceRules("fifo", limit=2, order=Order.FIFO, user_limit=1),
    "pool-x": ServiceRules("pool-x", limit=2, pool="gpu", cost=2.0),
    "pool-y": ServiceRules("pool-y", limit=2, pool="gpu", order=Order.FIFO),
    "pool-z": ServiceRules("pool-z", limit=3, pool="gpu", regions={"eu": 2, "us": 2}, pooled_regions=("us",)),
    "regions": ServiceRules("regions", limit=3, regions={"eu": 1, "us": 2}, retries_first=True),
}
POOLED = ("pool-x", "pool-y", "pool-z")
ALL = frozenset({1, 2, 3})
SUBMITS = {
    "service": st.sampled_from(sorted(SERVICES)),
    "user": st.sampled_from(["ann", "bob", "cleo", "dan"]),
    "band": st.integers(1, 3),
    "rank": st.integers(0, 2),
    "weight": st.sampled_from([1.0, 1.0, 1.0, 2.0, 0.5, 3.0]),
    "cost": st.sampled_from([None, None, 0.5, 4.0]),
    "region": st.sampled_from([None, None, "eu", "us", "eu+us"]),
    "group": st.sampled_from([None, None, "acme", "acme/red", "acme/blue", "solo"]),
}
GROUPS = {"acme": GroupRules(2.0, 3), "acme/red": GroupRules(0.5, 1), "solo": GroupRules(3.0)}
PICK = st.integers(0, 10**6)
"""An index into a list that is known only later."""
SIXTYFOURTHS = st.integers(0, 640)
"""Times are multiples of 1/64 s, so that they add up exactly."""


class DispatcherModel(RuleBasedStateMachine):
    engine = "memory"

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.clock = FakeClock()
        self.dispatcher = self.run(ENGINES[self.engine](self.clock))
        self.services = {name: ReferenceService(rules, group_rules=dict(GROUPS)) for name, rules in SERVICES.items()}
        self.groups = dict(GROUPS)
        self.pool_limit = 3
        self.pool_turns = [Turns() for _ in BANDS]
        self.beside: set[str] = set()
        self.spare: dict[str, tuple[int, float]] = {}
        """By worker, the unused budget of its last claim, and its time."""
        self.wakes: list[frozenset[str]] = []
        self.dispatcher.on_wake(self.wakes.append)
        self.runnable: set[str] = set()
        self.version = 0
        self.seq = 0
        self.runs: dict[str, int] = {}
        """The newest run of every job ever queued."""
        self.done: list[str] = []
        """Jobs that are neither queued nor leased."""

    def run(self, operation: Coroutine[Any, Any, T] | Any) -> T:
        return self.loop.run_until_complete(operation)  # type: ignore[no-any-return]

    def teardown(self) -> None:
        try:
            self.serve_everything()
        finally:
            self.run(self.dispatcher.close())
            self.loop.close()

    @initialize()
    def open_all(self) -> None:
        self.configure()
        for scope in sorted({rules.scope for rules in SERVICES.values()}):
            assert self.run(self.dispatcher.close_scope(scope, epoch=1))
            assert self.run(self.dispatcher.open_scope(scope, epoch=1))

    def configure(self) -> None:
        self.version += 1
        rules = {name: service.rules for name, service in self.services.items()}
        self.run(
            self.dispatcher.configure(Rules(rules, {"gpu": self.pool_limit}, self.version, groups=dict(self.groups)))
        )

    # -- the reference's view

    @property
    def waiting(self) -> list[Offer]:
        return [offer for service in self.services.values() for offer in service.waiting]

    @property
    def leases(self) -> list[Lease]:
        return [lease for service in self.services.values() for lease, _ in service.leases]

    def pool_free(self) -> int:
        return self.pool_limit - sum(self.services[name].in_pool() for name in POOLED)

    def head(self, name: str, claim: Claim, *, dry: bool = False) -> Head | None:
        dry = name in POOLED and (dry or self.pool_free() <= 0)
        return self.services[name].head(claim.bands, claim.regions, dry=dry)

    def turn(self, name: str, head: Head) -> tuple[int, bool, int, str]:
        """The sort key among services of a pool."""
        turns = self.pool_turns[head.band]
        again = name in self.beside and not SERVICES[name].in_pool(head.region)
        return (head.band, again, max(turns.tag(name), turns.virtual_time), name)

    def end_holds(self, now: float) -> int:
        before = sum(len(service.holds) for service in self.services.values())
        for service in self.services.values():
            service.holds = [hold for hold in service.holds if hold.until > now]
        return before - sum(len(service.holds) for service in self.services.values())

    # -- the queue

    @rule(submits=st.lists(st.fixed_dictionaries(SUBMITS), min_size=1, max_size=8))
    def submit(self, submits: list[dict[str, Any]]) -> None:
        offers = []
        for submit in submits:
            self.seq += 1
            values = {key: value for key, value in submit.items() if key != "user"}
            offers.append(Offer(f"job-{self.seq}", self.seq, user_id=submit["user"], step=0, run=1, **values))
        assert self.run(self.dispatcher.offer(offers)) == len(offers)
        for offer in offers:
            self.runs[offer.job_id] = 1
            self.services[offer.service].put(offer)

    @precondition(lambda self: self.waiting or self.done)
    @rule(pick=PICK, **SUBMITS)
    def offer_a_newer_run(self, pick: int, **changes: Any) -> None:
        """Offer a newer run: a next step, a retry, or a job that changed while it waited."""
        present = {offer.job_id: offer for offer in self.waiting}
        jobs = sorted([*present, *self.done])
        job = jobs[pick % len(jobs)]
        self.runs[job] += 1
        seq = int(job.removeprefix("job-"))
        user = present[job].user_id if job in present else changes["user"]
        more = {key: value for key, value in changes.items() if key != "user"}
        offer = Offer(job_id=job, seq=seq, user_id=user, step=1, run=self.runs[job], **more)
        assert self.run(self.dispatcher.offer([offer])) == 1
        self.services[offer.service].put(offer)
        for name, service in self.services.items():
            if name != offer.service:
                service.drop(job)
                service.forget()
        self.done = [other for other in self.done if other != job]

    @precondition(lambda self: self.waiting or self.leases)
    @rule(pick=PICK, older=st.integers(0, 3), service=SUBMITS["service"], band=SUBMITS["band"])
    def offer_an_older_run(self, pick: int, older: int, service: str, band: int) -> None:
        jobs = [(offer.job_id, offer.run) for offer in self.waiting] + [(at.job_id, at.run) for at in self.leases]
        job, run = sorted(jobs)[pick % len(jobs)]
        offer = Offer(job, int(job.removeprefix("job-")), service, "ann", band, 2, 0, run - older)
        assert self.run(self.dispatcher.offer([offer])) == 0

    @precondition(lambda self: self.waiting)
    @rule(pick=PICK, newer=st.integers(-1, 2))
    def withdraw(self, pick: int, newer: int) -> None:
        offer = self.waiting[pick % len(self.waiting)]
        withdrawal = Withdrawal(offer.job_id, offer.service, offer.run + newer)
        assert self.run(self.dispatcher.withdraw([withdrawal])) == (newer >= 0)
        if newer >= 0:
            self.services[offer.service].drop(offer.job_id)
            self.services[offer.service].forget()
            self.runs[offer.job_id] += 2
            self.done.append(offer.job_id)

    @precondition(lambda self: self.waiting)
    @rule(pick=PICK, band=st.integers(1, 2), newer=st.integers(-1, 1))
    def promote(self, pick: int, band: int, newer: int) -> None:
        offer = self.waiting[pick % len(self.waiting)]
        raised = replace(offer, band=band, run=offer.run + newer)
        moves = newer >= 0 and raised != offer
        weight = self.services[offer.service].weights[offer.user_id]
        promotion = Promotion(offer.job_id, offer.service, raised.run, band)
        assert self.run(self.dispatcher.promote([promotion])) == moves
        if moves:
            group = self.services[offer.service].group_of.get(offer.user_id)
            self.services[offer.service].put(replace(raised, weight=weight, group=group))
            self.runs[offer.job_id] = max(self.runs[offer.job_id], raised.run)

    # -- slots

    @rule(budget=st.integers(1, 6))
    def claim_everything(self, budget: int) -> None:
        self.exchange(Claim("all", budget, frozenset(SERVICES)), [])

    @rule(
        budget=st.integers(1, 3),
        services=st.frozensets(SUBMITS["service"], min_size=1),
        bands=st.frozensets(st.integers(1, 3), min_size=1),
        regions=st.sampled_from([None, None, frozenset({"us"})]),
    )
    def claim_some(
        self, budget: int, services: frozenset[str], bands: frozenset[int], regions: frozenset[str] | None
    ) -> None:
        self.exchange(Claim("some", budget, services, bands, regions), [])

    @precondition(lambda self: self.leases)
    @rule(
        picks=st.lists(PICK, min_size=1, max_size=3),
        ticks=SIXTYFOURTHS,
        budget=st.integers(0, 2),
        refund=st.booleans(),
        used=st.sampled_from([None, None, 0.0, 1.5, 8.0]),
    )
    def give_back_and_take(self, picks: list[int], ticks: int, budget: int, refund: bool, used: float | None) -> None:
        self.clock.advance(ticks / 64)
        chosen = {(lease := self.leases[pick % len(self.leases)]).name: lease for pick in picks}
        releases = [Release(lease.name, lease.service, refund, used=used) for lease in chosen.values()]
        for release in releases:
            self.release(release)
        self.exchange(Claim("all", budget, frozenset(SERVICES)), [*releases, *releases])

    def release(self, release: Release) -> None:
        service = self.services[release.service]
        lease, estimate, real = service.release(release.lease, self.clock.now, refund=release.refund, used=release.used)
        if service.rules.in_pool(lease.region):
            used = 0 if real is None else charge(real, 1.0)
            self.pool_turns[lease.band].settle(release.service, used - charge(estimate, 1.0))
        self.runs[lease.job_id] = max(self.runs[lease.job_id], lease.run + 2)
        if all(lease.job_id != other.job_id for other in [*self.waiting, *self.leases]):
            self.done.append(lease.job_id)

    def exchange(self, claim: Claim, releases: list[Release]) -> None:
        """The reference has applied the releases already; every grant must be its own choice."""
        self.end_holds(self.clock.now)
        granted = self.run(self.dispatcher.exchange(claim, releases))
        assert len(granted) <= claim.budget
        for lease in granted:
            self.check_grant(claim, lease)
        self.spare[claim.worker] = claim.budget - len(granted), self.clock.now
        if len(granted) < claim.budget:
            self.check_nothing_is_left(claim)

    def check_grant(self, claim: Claim, lease: Lease) -> None:
        head = self.head(lease.service, claim)
        dry = lease.service in POOLED and not self.is_first(lease, claim, dry=False)
        if dry:
            assert self.others_wait(claim.worker), f"{lease} was granted out of turn"
            # A slot of the pool was reserved for another worker, but steps outside the pool are still granted.
            head = self.head(lease.service, claim, dry=True)
        assert head is not None, f"{lease} should not have been granted"
        offer, service = head.offer, self.services[lease.service]
        assert (lease.job_id, lease.step, lease.run) == (offer.job_id, offer.step, offer.run)
        assert (lease.user_id, lease.region, lease.worker) == (offer.user_id, head.region, claim.worker)
        assert lease.service in claim.services
        assert lease.name.startswith(f"{service.epoch}:")
        assert lease.scope == service.rules.scope
        if lease.service in POOLED:
            assert self.is_first(lease, claim, dry=dry)
            self.note_turn(lease.service, head)
        assert lease.band == head.band
        # A copy, because `renew` changes the dispatcher's lease.
        assert lease.charged == service.grant(head, replace(lease))

    def is_first(self, lease: Lease, claim: Claim, *, dry: bool) -> bool:
        """The best step that the pool's services could grant to this claim."""
        head = self.head(lease.service, claim, dry=dry)
        if head is None or (head.offer.job_id, head.region) != (lease.job_id, lease.region):
            return False  # also if the step runs outside the pool, because a slot of the pool was reserved
        rivals = {other: self.head(other, claim, dry=dry) for other in claim.services & frozenset(POOLED)}
        turn = self.turn(lease.service, head)
        return all(rival is None or turn <= self.turn(other, rival) for other, rival in rivals.items())

    def others_wait(self, worker: str) -> bool:
        """Whether another worker recently had unused budget."""
        return any(
            spare > 0 and self.clock.now - at <= WORKER_MEMORY_S
            for other, (spare, at) in self.spare.items()
            if other != worker
        )

    def note_turn(self, name: str, head: Head) -> None:
        service, turns = self.services[name], self.pool_turns[head.band]
        if not service.rules.in_pool(head.region):
            self.beside = {name} if name in self.beside else {*self.beside, name}
            return
        self.beside = set()
        turns.enter(name)
        turns.grant(name, charge(service.estimate(head.offer, head.region), 1.0))

    def check_nothing_is_left(self, claim: Claim) -> None:
        """A worker with unused budget got every step it may have, except for slots of a pool reserved for others. The
        reserved slots may be the last of a service."""
        reserved = self.pool_free() if self.others_wait(claim.worker) else 0
        for name in claim.services:
            service = self.services[name]
            if name in POOLED and service.rules.limit - service.in_use() > reserved:
                assert self.head(name, claim, dry=True) is None, name
            if name not in POOLED or (claim.services, claim.bands) == (frozenset(SERVICES), ALL):
                assert self.head(name, claim) is None, name

    @rule(ticks=SIXTYFOURTHS)
    def time_passes(self, ticks: int) -> None:
        self.clock.advance(ticks / 64)

    @precondition(lambda self: self.leases)
    @rule(pick=PICK, worker=st.sampled_from(["all", "some"]))
    def renew(self, pick: int, worker: str) -> None:
        lease = self.leases[pick % len(self.leases)]
        renewal = self.dispatcher.renew(worker, [lease.name, "0:0"])
        assert renewal.lost == ({"0:0"} if lease.worker == worker else {"0:0", lease.name})
        if lease.worker == worker:
            lease.expires_at = self.clock.now + self.services[lease.service].rules.lease_ttl

    @rule(recover=st.booleans())
    def leases_expire(self, recover: bool) -> None:
        past = {lease.name for lease in self.leases if lease.expires_at <= self.clock.now}
        expired = self.run(self.dispatcher.expired())
        assert {lease.name for lease in expired} == past
        if recover:
            releases = [Release(lease.name, lease.service) for lease in expired]
            self.run(self.dispatcher.release(releases))
            for release in releases:
                self.release(release)

    @rule(
        service=SUBMITS["service"],
        ticks=SIXTYFOURTHS,
        region=st.sampled_from([None, "eu", "us"]),
        job=st.integers(1, 3),
    )
    def hold(self, service: str, ticks: int, region: str | None, job: int) -> None:
        region = region if SERVICES[service].regions else None
        hold = Hold(f"held-{job}", service, region, self.clock.now + ticks / 64)
        self.run(self.dispatcher.hold([hold, hold]))
        known = {(other.job_id, other.until) for other in self.services[service].holds}
        if hold.until > self.clock.now and (hold.job_id, hold.until) not in known:
            self.services[service].holds.append(hold)

    @rule(ticks=SIXTYFOURTHS)
    def holds_end(self, ticks: int) -> None:
        self.end_holds(self.clock.now)  # holds end by the clock
        self.run(self.dispatcher.snapshot())
        now = self.clock.now + ticks / 64
        assert self.run(self.dispatcher.end_holds(now)) == self.end_holds(now)

    # -- rules and rebuilds

    @rule(service=SUBMITS["service"], limit=st.integers(0, 4), paused=st.sampled_from([False, False, True]))
    def change_a_service(self, service: str, limit: int, paused: bool) -> None:
        changed = self.services[service]
        changed.configure(replace(changed.rules, limit=limit, paused=paused))
        self.configure()

    @rule(service=st.sampled_from(["fair", "fifo"]), user_limit=st.sampled_from([None, 1, 2, 3]))
    def change_a_user_limit(self, service: str, user_limit: int | None) -> None:
        changed = self.services[service]
        changed.configure(replace(changed.rules, user_limit=user_limit))
        self.configure()

    @rule(
        group=st.sampled_from(sorted(GROUPS)), weight=st.sampled_from([0.5, 2.0]), limit=st.sampled_from([None, 1, 2])
    )
    def change_a_group(self, group: str, weight: float, limit: int | None) -> None:
        self.groups[group] = GroupRules(weight, limit)
        for service in self.services.values():
            service.configure(service.rules, {group: self.groups[group]})
        self.configure()

    @rule(us=st.sampled_from([None, 0.5, 3.0]))
    def change_the_weights(self, us: float | None) -> None:
        changed = self.services["regions"]
        changed.configure(replace(changed.rules, region_weights={} if us is None else {"us": us}))
        self.configure()

    @rule(limit=st.integers(0, 4))
    def change_the_pool(self, limit: int) -> None:
        self.pool_limit = limit
        self.configure()

    @rule(scope=st.sampled_from(sorted({rules.scope for rules in SERVICES.values()})), worker=st.booleans())
    def rebuild(self, scope: str, worker: bool) -> None:
        rebuilt = [service for service in self.services.values() if service.rules.scope == scope]
        self.end_holds(self.clock.now)
        epoch = rebuilt[0].epoch + 1
        assert self.run(self.dispatcher.close_scope(scope, epoch))
        if scope == "pool:gpu":
            self.pool_turns, self.beside = [Turns() for _ in BANDS], set()
        for service in rebuilt:
            leases, holds, offers = service.rebuild(self.clock.now)
            assert self.run(self.dispatcher.restore(scope, epoch, leases, holds))
            for offer in offers:
                assert self.run(self.dispatcher.offer([offer])) == 1
                service.put(offer)
        if worker:
            assert self.dispatcher.renew("all", ["0:0"]).rebuilding
            self.exchange(Claim("all", 3, frozenset(SERVICES)), [])
        self.overtaken(scope, epoch - 1)
        assert self.run(self.dispatcher.open_scope(scope, epoch))
        for service in rebuilt:
            service.open = True

    def overtaken(self, scope: str, epoch: int) -> None:
        """A leader that was interrupted during an earlier rebuild continues it."""
        assert not self.run(self.dispatcher.close_scope(scope, epoch))
        assert not self.run(self.dispatcher.restore(scope, epoch, [], [Hold("late", "fair", None, 10**9)]))
        assert not self.run(self.dispatcher.open_scope(scope, epoch))

    # -- invariants

    @invariant()
    def snapshots_match_the_reference(self) -> None:
        self.end_holds(self.clock.now)
        for seen in self.run(self.dispatcher.snapshot()):
            service = self.services[seen.service]
            assert {lease.name for lease in seen.leases} == {lease.name for lease, _ in service.leases}
            assert (seen.in_use, seen.held) == (service.in_use(), len(service.holds))
            assert sum(seen.waiting.values()) == len(service.waiting)
            if not service.fifo:
                assert all(time == service.bands[band].virtual_time for band, time in seen.virtual_time.items())

    @invariant()
    def no_worker_misses_a_runnable_lane(self) -> None:
        self.end_holds(self.clock.now)
        self.run(self.dispatcher.snapshot())  # a snapshot ends expired holds
        claim = Claim("any", 1, frozenset(SERVICES))
        runnable = {name for name in SERVICES if self.head(name, claim) is not None}
        assert runnable - self.runnable <= frozenset().union(*self.wakes)
        self.runnable = runnable
        self.wakes.clear()

    @invariant()
    def positions_are_an_order(self) -> None:
        """The positions of a service without regions are 1, 2, 3..., and the step at 1 is granted next."""
        for service in self.services.values():
            if service.rules.regions or not service.waiting:
                continue
            positions = self.run(self.dispatcher.positions([offer.job_id for offer in service.waiting]))
            assert sorted(position.position for position in positions.values()) == list(
                range(1, len(service.waiting) + 1)
            )
            head = service.head(ALL)
            if head is not None and not any(service.set_aside(user) for user in service.users()):
                assert positions[head.offer.job_id].position == 1

    def serve_everything(self) -> None:
        """At the end every queued job is granted exactly once."""
        for service in self.services.values():
            groups = {group: replace(rules, limit=None) for group, rules in self.groups.items()}
            service.configure(replace(service.rules, limit=10**6, user_limit=None, paused=False), groups)
            if service.rules.regions:
                service.configure(replace(service.rules, regions=dict.fromkeys(service.rules.regions, 10**6)))
        self.pool_limit = 10**6
        self.groups = groups
        self.configure()
        self.exchange(Claim("all", 10**6, frozenset(SERVICES)), [])
        assert not self.waiting


@pytest.mark.parametrize("engine", sorted(ENGINES))
def test_a_dispatcher_agrees_with_the_reference(engine: str) -> None:
    class Model(DispatcherModel):
        pass

    Model.engine = engine
    # Against a server each step is a round trip or more.
    examples = 2 * settings().max_examples if engine == "memory" else settings().max_examples // 5
    run_state_machine_as_test(
        Model,
        settings=settings(max_examples=examples, stateful_step_count=50, report_multiple_bugs=False),
    )
