"""Under random operations, a dispatcher grants no step above a rate, and leaves none waiting that every rate allows.

`RateLog` counts by itself: all calls, as the provider sees them, also across rebuilds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any, TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from fairlead.dispatch.port import Claim, Lease, Offer, Release
from fairlead.dispatch.rates import Rest, Sent, Spent
from fairlead.domain.fair_share import SECOND, micros
from fairlead.domain.groups import GroupRules, levels_of
from fairlead.domain.rates import Rate
from fairlead.domain.rules import Order, Rules, ServiceRules
from tests.contract.dispatchers import ENGINES, FakeClock
from tests.model.reference import Key, RateLog

T = TypeVar("T")

SERVICES = {
    "fair": ServiceRules("fair", limit=6, rate=Rate(5, 12.0, 4.0), user_rate=Rate(2, 8.0, 8.0), cost_unit="tokens"),
    "fifo": ServiceRules("fifo", limit=6, order=Order.FIFO, rate=Rate(3, None, 4.0), user_rate=Rate(2, None, 4.0)),
    "groups": ServiceRules("groups", limit=6, rate=Rate(5, None, 4.0), user_rate=Rate(9, None, 8.0)),
    "pooled": ServiceRules("pooled", limit=6, pool="p", rate=Rate(4, None, 4.0)),
    "regions": ServiceRules(
        "regions", limit=6, pool="p", regions={"eu": 3, "us": 3}, region_rates={"us": Rate(3, 5.0, 2.0)}
    ),
}
POOL_RATES = {"p": Rate(5, 20.0, 4.0)}
PLAN_RATES = {"free": Rate(1, None, 4.0), "gold": Rate(3, 9.0, 8.0)}
PLANS = {"ann": "free", "bob": "gold", "cleo": None, "dan": None}
GROUP_OF = {"ann": "acme/red", "bob": "acme/blue", "cleo": "acme/red", "dan": None}
GROUPS = {"acme": GroupRules(rate=Rate(3, 10.0, 4.0)), "acme/red": GroupRules(2.0, rate=Rate(2, None, 8.0))}
SERVICE = st.sampled_from(sorted(SERVICES))
OFFER = st.fixed_dictionaries(
    {
        "service": SERVICE,
        "user_id": st.sampled_from(sorted(PLANS)),
        "band": st.integers(1, 3),
        "cost": st.sampled_from([None, 0.5, 2.0, 4.0, 30.0]),
        "region": st.sampled_from([None, None, "eu", "us"]),
    }
)
PICK = st.integers(0, 10**6)
TICKS = st.integers(0, 320)
"""Times are multiples of 1/64 s, so that they add up exactly."""


class RatedModel(RuleBasedStateMachine):
    engine = "memory"

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.clock = FakeClock()
        self.dispatcher = self.run(ENGINES[self.engine](self.clock))
        self.rules = dict(SERVICES)
        self.log = RateLog()
        self.version = self.seq = 0
        self.epoch = 1
        self.waiting: dict[str, Offer] = {}
        self.leases: dict[str, tuple[Lease, Offer, int]] = {}
        """The leases with their offers and the units that they reserve."""
        self.ended: list[Spent] = []
        self.rests: dict[tuple[str, str | None], float] = {}

    def run(self, operation: Coroutine[Any, Any, T] | Any) -> T:
        return self.loop.run_until_complete(operation)  # type: ignore[no-any-return]

    def teardown(self) -> None:
        self.run(self.dispatcher.close())
        self.loop.close()

    @initialize()
    def open_all(self) -> None:
        self.configure()
        for scope in sorted({rules.scope for rules in SERVICES.values()}):
            self.run(self.dispatcher.close_scope(scope, 1))
            self.run(self.dispatcher.open_scope(scope, 1))

    def configure(self) -> None:
        self.version += 1
        rules = Rules(
            dict(self.rules), {"p": 9}, self.version, groups=GROUPS, pool_rates=POOL_RATES, plan_rates=PLAN_RATES
        )
        self.run(self.dispatcher.configure(rules))

    @property
    def now(self) -> int:
        return micros(self.clock.now)

    def rates_of(self, offer: Offer, region: str | None) -> dict[Key, Rate]:
        """The rates that count a call."""
        rules, user = self.rules[offer.service], offer.user_id
        group = None if rules.order is Order.FIFO else GROUP_OF[user]
        found: dict[Key, Rate | None] = {
            ("service", rules.service): rules.rate,
            ("region", rules.service, region or ""): rules.region_rates.get(region or ""),
            ("pool", rules.pool or ""): POOL_RATES.get(rules.pool or ""),
            ("user", rules.service, user): PLAN_RATES.get(offer.plan or "", rules.user_rate),
        }
        for path in [] if group is None else levels_of(group):
            found["group", rules.service, path] = GROUPS[path].rate if path in GROUPS else None
        return {key: rate for key, rate in found.items() if rate is not None}

    # -- operations

    @rule(offers=st.lists(OFFER, min_size=1, max_size=8))
    def offer(self, offers: list[dict[str, Any]]) -> None:
        for values in offers:
            self.seq += 1
            user = values["user_id"]
            offer = Offer(
                f"job-{self.seq}", self.seq, rank=2, step=0, run=1, plan=PLANS[user], group=GROUP_OF[user], **values
            )
            self.waiting[offer.job_id] = offer
            assert self.run(self.dispatcher.offer([offer])) == 1

    @rule(budget=st.integers(1, 30), ticks=TICKS)
    def claim(self, budget: int, ticks: int) -> None:
        self.clock.advance(ticks / 64)
        self.exchange(budget, [])
        if budget > 12:
            self.nothing_is_left()

    @precondition(lambda self: self.leases)
    @rule(
        picks=st.lists(PICK, min_size=1, max_size=4),
        ticks=TICKS,
        refund=st.sampled_from([False, False, True]),
        sent=st.sampled_from([None, 0.0, 0.5]),
        used=st.sampled_from([None, 0.0, 1.0, 3.0, 9.0]),
        budget=st.integers(0, 3),
    )
    def give_back_and_take(
        self, picks: list[int], ticks: int, refund: bool, sent: float | None, used: float | None, budget: int
    ) -> None:
        self.clock.advance(ticks / 64)
        names = sorted(self.leases)
        releases = []
        for name in dict.fromkeys(names[pick % len(names)] for pick in picks):
            lease, offer, _ = self.leases.pop(name)
            release = Release(name, lease.service, refund, used=used, sent=sent)
            releases.append(release)
            if (call := self.log.ended(release, self.now)) is not None:
                used_up, user = (call.units + call.more) / SECOND, lease.user_id
                self.ended.append(
                    Spent(lease.service, lease.region, user, self.clock.now, used_up, offer.plan, offer.group)
                )
        self.exchange(budget, releases)

    @precondition(lambda self: self.leases)
    @rule(pick=PICK, after=st.sampled_from([0.0, 0.5, 9.0]))
    def sent(self, pick: int, after: float) -> None:
        name = sorted(self.leases)[pick % len(self.leases)]
        self.log.sent(name, after, self.now)
        self.run(self.dispatcher.sent([Sent(name, self.leases[name][0].service, after)]))

    @rule(service=SERVICE, region=st.sampled_from([None, "us"]), ticks=st.integers(1, 128))
    def rest(self, service: str, region: str | None, ticks: int) -> None:
        region = region if SERVICES[service].regions else None
        until = self.clock.now + ticks / 64
        self.rests[service, region] = max(until, self.rests.get((service, region), 0.0))
        self.run(self.dispatcher.rest([Rest(service, region, ticks / 64)]))

    @rule(service=st.sampled_from(["fair", "pooled"]), requests=st.integers(2, 6))
    def change(self, service: str, requests: int) -> None:
        rate = self.rules[service].rate
        assert rate is not None
        self.rules[service] = replace(self.rules[service], rate=replace(rate, requests=requests))
        self.configure()

    @rule(scope=st.sampled_from(sorted({rules.scope for rules in SERVICES.values()})))
    def rebuild(self, scope: str) -> None:
        """Everything in memory or Redis is lost. The database has the running and the ended calls."""
        self.epoch += 1
        within = {name for name, rules in SERVICES.items() if rules.scope == scope}
        self.run(self.dispatcher.close_scope(scope, self.epoch))
        restored = [
            replace(lease, cost=units / SECOND, group=offer.group, plan=offer.plan)
            for lease, offer, units in self.leases.values()
            if lease.service in within
        ]
        assert self.run(self.dispatcher.restore(scope, self.epoch, restored, []))
        spent = [call for call in self.ended if call.service in within and call.ended_at > self.clock.now - 10.0]
        assert self.run(self.dispatcher.restore_spent(scope, self.epoch, spent))
        self.log.rebuilt(within)
        self.rests = {key: until for key, until in self.rests.items() if key[0] not in within}
        offers = [offer for offer in self.waiting.values() if offer.service in within]
        assert self.run(self.dispatcher.offer(offers)) == len(offers)
        assert self.run(self.dispatcher.open_scope(scope, self.epoch))

    # -- checks

    def exchange(self, budget: int, releases: list[Release]) -> None:
        for lease in self.run(self.dispatcher.exchange(Claim("w", budget, frozenset(SERVICES)), releases)):
            offer = self.waiting.pop(lease.job_id)
            units, rates = self.log.units_of(lease.service, offer.cost), self.rates_of(offer, lease.region)
            for key, rate in rates.items():
                assert self.log.fits(key, rate, units, self.now), f"{lease.job_id} exceeds {rate} of {key}"
            for region in (None, lease.region):
                assert self.rests.get((lease.service, region), 0.0) <= self.clock.now, f"{lease.job_id} in a rest"
            self.log.granted(lease, rates, units, self.now)
            self.leases[lease.name] = (lease, offer, units)

    def nothing_is_left(self) -> None:
        """A claim with budget to spare leaves no service waiting whose steps all rates allow."""
        self.exchange(30, [])  # members that the first claim parked have another chance
        for name, rules in SERVICES.items():
            offers = [offer for offer in self.waiting.values() if offer.service == name]
            running = sum(lease.service == name for lease, _, _ in self.leases.values())
            if not offers or running >= rules.limit or rules.regions or (name, None) in self.rests:
                continue
            blocked = [
                offer
                for offer in offers
                for key, rate in self.rates_of(offer, None).items()
                if not self.log.fits(key, rate, self.log.units_of(name, offer.cost), self.now, late=True)
            ]
            assert blocked, f"every rate allows {[offer.job_id for offer in offers]}"


@pytest.mark.parametrize("engine", sorted(ENGINES))
def test_no_grant_exceeds_a_rate_and_no_step_waits_that_all_rates_allow(engine: str) -> None:
    class Model(RatedModel):
        pass

    Model.engine = engine
    examples = settings().max_examples if engine == "memory" else settings().max_examples // 8
    run_state_machine_as_test(
        Model,
        settings=settings(max_examples=examples, stateful_step_count=40, report_multiple_bugs=False),
    )
