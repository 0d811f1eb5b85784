"""Two dispatchers under the same random operations return the same results, step by step.

Only the names of leases may differ: each engine counts for itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, replace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from fairlead.dispatch.port import Claim, Dispatcher, Lease, Offer, Promotion, Release, UserQueue, Withdrawal
from fairlead.dispatch.rates import Rest, Sent, Spent
from fairlead.domain.fair_share import QueuePosition
from fairlead.domain.groups import GroupRules
from fairlead.domain.job import Hold
from fairlead.domain.rates import Rate
from fairlead.domain.rules import Order, Rules, ServiceRules
from tests.contract.dispatchers import ENGINES, FakeClock

SERVICES = {
    "fair": ServiceRules("fair", limit=6, user_limit=3, cost_unit="tokens", charge="tokens"),
    "fifo": ServiceRules("fifo", limit=2, order=Order.FIFO, user_limit=1, cost_unit="megapixels"),
    "pool-x": ServiceRules("pool-x", limit=2, pool="gpu", cost=2.0),
    "pool-y": ServiceRules("pool-y", limit=2, pool="gpu", order=Order.FIFO),
    "pool-z": ServiceRules("pool-z", limit=3, pool="gpu", regions={"eu": 1, "us": 1}),
    "pool-part": ServiceRules("pool-part", limit=4, pool="gpu", regions={"eu": 2, "us": 2}, pooled_regions=("us",)),
    "rated": ServiceRules(
        "rated", limit=6, rate=Rate(5, 20.0, 4.0), user_rate=Rate(2, 8.0, 8.0), user_limit=3, cost=2.0
    ),
    "rated-fifo": ServiceRules("rated-fifo", limit=4, order=Order.FIFO, user_rate=Rate(2, None, 4.0)),
    "rated-regions": ServiceRules(
        "rated-regions",
        limit=4,
        regions={"eu": 2, "us": 2},
        retries_first=True,
        pool="rated",
        region_rates={"us": Rate(1, 5.0, 2.0)},
        user_rate=Rate(3, None, 4.0),
    ),
    "rated-pool": ServiceRules("rated-pool", limit=4, pool="rated", rate=Rate(3, None, 4.0)),
    "regions": ServiceRules(
        "regions",
        limit=4,
        regions={"ap": 1, "eu": 1, "us": 2},
        retries_first=True,
        breaker_failures=2,
        breaker_rest=2.0,
        region_weights={"eu": 3.0},
    ),
}
SCOPES = sorted({rules.scope for rules in SERVICES.values()})
SERVICE = st.sampled_from(sorted(SERVICES))
REGION = st.sampled_from([None, None, "eu", "us", "eu+us", "ap+us", "elsewhere", "us>", "eu>ap+eu"])
JOB = st.integers(1, 40).map(
    lambda number: f"job-{number}" if number % 3 else f"00000000-0000-8000-8000-{number:012}"  # every third is a turn
)
RUN = st.integers(1, 6)
BAND = st.integers(1, 3)
PICKS = st.lists(st.integers(0, 10**6), max_size=4)
TICKS = st.integers(0, 640)
"""Times are multiples of 1/64 s, so that they add up exactly."""
USERS = ["ann", "bob", "cleo", "dän", "Zoë"]
GROUPS = [None, "acme", "acme/red", "acme/blue", "solo"]
RULES_OF_GROUPS = {
    "acme": GroupRules(2.0, 3),
    "acme/red": GroupRules(1.0, 1),
    "acme/blue": GroupRules(0.5),
    "solo": GroupRules(3.0, 2),
}
OFFER = st.builds(
    Offer,
    job_id=JOB,
    seq=st.integers(0, 10**6),
    service=SERVICE,
    user_id=st.sampled_from(USERS),
    band=BAND,
    rank=st.integers(0, 2),
    step=st.integers(0, 2),
    run=RUN,
    weight=st.sampled_from([1.0, 1.0, 2.0, 0.5, 3.0]),
    cost=st.one_of(st.none(), st.none(), st.sampled_from([0.5, 4.0]), st.floats(1e-6, 1e6)),
    region=REGION,
    group=st.sampled_from(GROUPS),
    plan=st.sampled_from([None, None, "free", "gold", "unknown"]),
)
ENDS = st.sampled_from([None, False, True, True])
SENT = st.sampled_from([None, 0.0, 0.5, 3.0])
USED = st.one_of(st.none(), st.none(), st.sampled_from([0.0, 3.0]), st.floats(1e-6, 1e6))
RATE = st.sampled_from([None, Rate(2, None, 4.0), Rate(None, 6.0, 8.0), Rate(1, 3.0, 2.0)])
CLAIM = st.builds(
    Claim,
    worker=st.sampled_from(["v", "w"]),
    budget=st.integers(0, 6),
    services=st.one_of(st.just(frozenset(SERVICES)), st.frozensets(SERVICE, min_size=1)),
    bands=st.sampled_from([frozenset({1, 2, 3})] * 3 + [frozenset({1}), frozenset({2, 3})]),
    regions=st.sampled_from([None, None, frozenset({"us"})]),
    turns=st.sampled_from([False, False, True]),
    only=st.one_of(st.none(), st.none(), st.none(), JOB),
    waits=st.sampled_from([True, True, False]),
    unserved=st.sampled_from([frozenset(), frozenset({("regions", "us"), ("pool-z", "us"), ("pool-part", "eu")})]),
)


def rounded(position: QueuePosition) -> QueuePosition:
    """Redis computes with doubles, which hold the microseconds of some hundred years. Steps that state a cost of a
    million units wait longer for a rate."""

    def digits(seconds: float) -> float:
        return float(f"{seconds:.12g}")

    groups = tuple(replace(group, rate_wait=digits(group.rate_wait)) for group in position.groups)
    waits = {"rate_wait": digits(position.rate_wait), "user_rate_wait": digits(position.user_rate_wait)}
    return replace(position, groups=groups, **waits)


class BothEngines(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.clock = FakeClock()
        self.engines = [self.run(ENGINES[name](self.clock)) for name in ("memory", "redis")]
        self.rules = dict(SERVICES)
        self.pool_limit = 3
        self.pool_rate = Rate(4, 20.0, 4.0)
        self.groups = dict(RULES_OF_GROUPS)
        self.plan_rates: dict[str, Rate] = {}
        self.groups_have_rates = self.plans_have_rates = False
        self.users_have_groups = False
        self.version = 0
        self.epoch = 1
        self.pairs: list[tuple[Lease, Lease]] = []
        """The same lease under the name of each engine. Some have ended; ending them again must change nothing."""

    def run(self, operation: Awaitable[Any]) -> Any:
        return self.loop.run_until_complete(operation)  # type: ignore[arg-type]

    def both(self, ask: Callable[[Dispatcher, int], Awaitable[Any]]) -> tuple[Any, Any]:
        memory, redis = (self.run(ask(engine, number)) for number, engine in enumerate(self.engines))
        return memory, redis

    def agree(self, ask: Callable[[Dispatcher, int], Awaitable[Any]]) -> None:
        memory, redis = self.both(ask)
        assert memory == redis

    def name(self, engine: int, lease: str) -> str:
        """A lease by its name in the memory engine."""
        return next((pair[engine].name for pair in reversed(self.pairs) if pair[0].name == lease), lease)

    def seen(self, engine: int, leases: Sequence[Lease]) -> list[dict[str, Any]]:
        """The contents of leases, under their names in the memory engine."""
        known = {pair[engine].name: pair[0].name for pair in self.pairs}
        return [asdict(lease) | {"name": known[lease.name]} for lease in leases]

    def teardown(self) -> None:
        for engine in self.engines:
            self.run(engine.close())
        self.loop.close()

    @initialize(group_rates=st.booleans(), plan_rates=st.booleans(), groups=st.booleans())
    def open_all(self, group_rates: bool, plan_rates: bool, groups: bool) -> None:
        """With rates of plans and groups, users and groups are parked while many steps are granted at once. With
        groups, most offers move their user to another one. With rates of groups only, claims look for no window of a
        user."""
        self.groups_have_rates, self.plans_have_rates, self.users_have_groups = group_rates, plan_rates, groups
        if plan_rates:
            self.plan_rates = {"free": Rate(1, None, 4.0), "gold": Rate(3, 9.0, 8.0)}
        if group_rates:
            self.groups["acme"] = replace(self.groups["acme"], rate=Rate(3, None, 4.0))
            self.groups["acme/blue"] = replace(self.groups["acme/blue"], rate=Rate(2, 5.0, 2.0))
        self.configure()
        for scope in SCOPES:
            self.both(lambda engine, _, scope=scope: engine.close_scope(scope, 1))  # type: ignore[misc]
            self.both(lambda engine, _, scope=scope: engine.open_scope(scope, 1))  # type: ignore[misc]

    def configure(self) -> None:
        self.version += 1
        rules = Rules(
            dict(self.rules),
            {"gpu": self.pool_limit, "rated": 5},
            self.version,
            pool_rates={"rated": self.pool_rate},
            groups=dict(self.groups),
            plan_rates=dict(self.plan_rates),
        )
        self.both(lambda engine, _: engine.configure(rules))

    # -- the queue

    @rule(offers=st.lists(OFFER, min_size=1, max_size=12))
    def offer(self, offers: list[Offer]) -> None:
        if not self.users_have_groups:
            offers = [replace(offer, group=None) for offer in offers]
        self.agree(lambda engine, _: engine.offer(offers))

    @rule(job=JOB, run=RUN)
    def withdraw(self, job: str, run: int) -> None:
        if (service := self.service_of(job)) is not None:
            self.agree(lambda engine, _: engine.withdraw([Withdrawal(job, service, run)]))

    @rule(job=JOB, run=RUN, band=BAND)
    def promote(self, job: str, run: int, band: int) -> None:
        if (service := self.service_of(job)) is not None:
            self.agree(lambda engine, _: engine.promote([Promotion(job, service, run, band)]))

    def service_of(self, job: str) -> str | None:
        entry = self.engines[0]._entries.get(job)
        return None if entry is None else entry[3]

    # -- slots

    @rule(claim=CLAIM, picks=PICKS, ticks=TICKS, refund=st.booleans(), failed=ENDS, sent=SENT, used=USED)
    def exchange(
        self,
        claim: Claim,
        picks: list[int],
        ticks: int,
        refund: bool,
        failed: bool | None,
        **settled: float | None,
    ) -> None:
        self.clock.advance(ticks / 64)
        chosen = [self.pairs[pick % len(self.pairs)] for pick in picks if self.pairs]

        async def ask(engine: Dispatcher, number: int) -> list[Lease]:
            releases = [
                Release(pair[number].name, pair[number].service, refund, failed=failed, **settled) for pair in chosen
            ]
            # Copies, because the memory engine renews its leases in place.
            return [replace(lease) for lease in await engine.exchange(claim, releases)]

        memory, redis = self.both(ask)
        assert [asdict(lease) | {"name": ""} for lease in memory] == [asdict(lease) | {"name": ""} for lease in redis]
        assert [lease.name.split(":")[0] for lease in memory] == [lease.name.split(":")[0] for lease in redis]
        self.pairs += zip(memory, redis, strict=True)

    @rule(picks=PICKS, failed=ENDS, used=USED)
    def release(self, picks: list[int], failed: bool | None, used: float | None) -> None:
        chosen = [self.pairs[pick % len(self.pairs)] for pick in picks if self.pairs]
        self.both(
            lambda engine, i: engine.release(
                [Release(pair[i].name, pair[i].service, failed=failed, used=used) for pair in chosen]
            )
        )

    @rule(picks=PICKS, sent=st.integers(0, 200))
    def sent(self, picks: list[int], sent: int) -> None:
        chosen = [self.pairs[pick % len(self.pairs)] for pick in picks if self.pairs]
        self.both(lambda engine, i: engine.sent([Sent(pair[i].name, pair[i].service, sent / 64) for pair in chosen]))

    @rule(
        service=SERVICE,
        region=st.sampled_from([None, "eu", "us"]),
        ticks=TICKS,
        left=st.sampled_from([(None, None), (None, None), (1, None), (0, 3.0)]),
    )
    def rest(self, service: str, region: str | None, ticks: int, left: tuple[int | None, float | None]) -> None:
        region = region if self.rules[service].regions else None
        self.both(lambda engine, _: engine.rest([Rest(service, region, ticks / 256, *left)]))

    @rule(picks=PICKS, worker=st.sampled_from(["v", "w"]))
    def renew(self, picks: list[int], worker: str) -> None:
        chosen = [self.pairs[pick % len(self.pairs)] for pick in picks if self.pairs]
        memory, redis = (
            engine.renew(worker, [*(pair[number].name for pair in chosen), "0:0"])
            for number, engine in enumerate(self.engines)
        )
        assert memory.rebuilding == redis.rebuilding
        assert {self.name(1, lost) for lost in memory.lost} == set(redis.lost)

    @rule(ticks=TICKS)
    def expired(self, ticks: int) -> None:
        self.clock.advance(ticks / 64)
        memory, redis = self.both(lambda engine, _: engine.expired())
        by_name = [
            sorted(self.seen(number, leases), key=lambda lease: lease["name"])
            for number, leases in enumerate((memory, redis))
        ]
        assert by_name[0] == by_name[1]

    @rule(service=SERVICE, ticks=TICKS, region=st.sampled_from([None, "eu", "us"]), job=st.integers(1, 3))
    def hold(self, service: str, ticks: int, region: str | None, job: int) -> None:
        region = region if self.rules[service].regions else None
        hold = Hold(f"held-{job}", service, region, self.clock.now + ticks / 64)
        self.both(lambda engine, _: engine.hold([hold, hold]))

    @rule(ticks=TICKS)
    def end_holds(self, ticks: int) -> None:
        self.both(lambda engine, _: engine.snapshot())  # holds end by the clock
        self.agree(lambda engine, _: engine.end_holds(self.clock.now + ticks / 64))

    # -- rules and rebuilds

    @rule(
        service=SERVICE,
        changes=st.fixed_dictionaries(
            {},
            optional={
                "limit": st.integers(0, 4),
                "paused": st.booleans(),
                "user_limit": st.sampled_from([None, 1, 2]),
                "order": st.sampled_from(Order),
                "retries_first": st.booleans(),
                "breaker_failures": st.integers(0, 3),
                "rate": RATE,
                "user_rate": RATE,
                "cost_unit": st.sampled_from(["seconds", "tokens"]),
                "charge": st.sampled_from(["seconds", "tokens"]),
                "region_weights": st.dictionaries(st.sampled_from(["ap", "eu", "us"]), st.sampled_from([0.3, 1.0, 7])),
            },
        ),
        pool_limit=st.integers(0, 4),
        pooled=st.sampled_from([("us",), ("us",), ("eu", "us"), (), None]),
        group=st.tuples(
            st.sampled_from(sorted(RULES_OF_GROUPS)),
            st.builds(GroupRules, st.sampled_from([0.5, 1.0, 3.0]), st.sampled_from([None, None, 1, 2]), RATE),
        ),
        plan=st.tuples(st.sampled_from(["free", "gold"]), RATE),
    )
    def change(
        self,
        service: str,
        changes: dict[str, Any],
        pool_limit: int,
        pooled: tuple[str, ...] | None,
        group: tuple[str, GroupRules],
        plan: tuple[str, Rate | None],
    ) -> None:
        self.groups[group[0]] = group[1] if self.groups_have_rates else replace(group[1], rate=None)
        if self.plans_have_rates:
            changed = dict([*self.plan_rates.items(), plan])
            self.plan_rates = {name: rate for name, rate in changed.items() if rate is not None}
        self.rules["pool-part"] = replace(self.rules["pool-part"], pooled_regions=pooled)
        self.rules[service] = replace(self.rules[service], **changes)
        self.pool_limit = pool_limit
        self.configure()

    @rule(scope=st.sampled_from(SCOPES), picks=PICKS)
    def rebuild(self, scope: str, picks: list[int]) -> None:
        """Restore those leases that the database has."""
        self.epoch += 1
        self.agree(lambda engine, _: engine.close_scope(scope, self.epoch))
        assert all(engine.renew("w", ["0:0"]).rebuilding for engine in self.engines)
        self.restore(scope, self.epoch, picks)
        self.agree(lambda engine, _: engine.open_scope(scope, self.epoch))

    def restore(self, scope: str, epoch: int, picks: list[int]) -> None:
        paths = GROUPS if self.users_have_groups else [None]
        groups = {user: paths[len(user) % len(paths)] for user in USERS}  # the database has the group of every job
        chosen = {pair[0].name: pair for pick in picks if self.pairs for pair in [self.pairs[pick % len(self.pairs)]]}
        within = [pair for pair in chosen.values() if self.rules[pair[0].service].scope == scope]

        def grouped(lease: Lease) -> Lease:
            return replace(lease, group=groups[lease.user_id], plan="gold" if len(lease.user_id) == 3 else None)

        hold = Hold("restored", self.service_in(scope), None, self.clock.now + 5, band=3)
        self.agree(
            lambda engine, number: engine.restore(scope, epoch, [grouped(pair[number]) for pair in within], [hold])
        )
        spent = [Spent(self.service_in(scope), "us", "bob", self.clock.now - 1.0, 1.5, "free", "acme/blue")]
        self.agree(lambda engine, _: engine.restore_spent(scope, epoch, spent))

    def service_in(self, scope: str) -> str:
        return min(name for name, rules in self.rules.items() if rules.scope == scope)

    @rule(
        scope=st.sampled_from(SCOPES),
        picks=PICKS,
        parts=st.lists(
            st.tuples(st.sampled_from(["close", "restore", "open"]), st.integers(-2, 1)), min_size=1, max_size=4
        ),
    )
    def parts_of_rebuilds(self, scope: str, picks: list[int], parts: list[tuple[str, int]]) -> None:
        """Rebuild steps of leaders that overtake each other, in any order, or never finish."""
        for part, ahead in parts:
            epoch = max(1, self.epoch + ahead)
            self.epoch = max(self.epoch, epoch)
            if part == "close":
                self.agree(lambda engine, _, epoch=epoch: engine.close_scope(scope, epoch))  # type: ignore[misc]
            elif part == "restore":
                self.restore(scope, epoch, picks)
            else:
                self.agree(lambda engine, _, epoch=epoch: engine.open_scope(scope, epoch))  # type: ignore[misc]

    @invariant()
    def all_scopes_are_in_the_same_state(self) -> None:
        memory, redis = self.both(lambda engine, _: engine.states([*SCOPES, "service:unknown"]))
        assert {scope: (state.epoch, state.open) for scope, state in memory.items()} == {
            scope: (state.epoch, state.open) for scope, state in redis.items()
        }

    # -- invariants

    @invariant()
    def both_show_the_same(self) -> None:
        memory, redis = self.both(lambda engine, _: engine.snapshot(users=True))
        assert [self.shown(0, service) for service in memory] == [self.shown(1, service) for service in redis]
        # Positions after the snapshot, which drops from the rates of all services what is over. An exchange does that
        # in memory for all services, in Redis for the scopes that it names. Elsewhere it is dropped by the next
        # operation, or by a timer if steps wait for it; until then the estimated waits are too long.
        jobs = [f"job-{number}" for number in range(1, 41)]
        in_memory, in_redis = self.both(lambda engine, _: engine.positions(jobs))
        assert {job: rounded(position) for job, position in in_memory.items()} == {
            job: rounded(position) for job, position in in_redis.items()
        }

    def shown(self, engine: int, service: Any) -> dict[str, Any]:
        plain = {name: getattr(service, name) for name in type(service).__dataclass_fields__}
        plain["leases"] = sorted(self.seen(engine, service.leases), key=lambda lease: lease["name"])
        plain["holds"] = sorted(service.holds, key=lambda hold: (hold.job_id, hold.until))
        plain["users"] = [replace(user, arrival=self.arrived(user, service.users)) for user in service.users]
        plain["groups"] = [replace(group, arrival=min(1, group.arrival)) for group in service.groups]
        return plain

    def arrived(self, user: UserQueue, users: Sequence[UserQueue]) -> int:
        """The position among the newcomers of the band; the numbers themselves differ between engines."""
        return user.arrival and 1 + sum(0 < each.arrival < user.arrival for each in users if each.band == user.band)

    @invariant()
    def the_parts_of_the_queues_agree(self) -> None:
        assert self.run(self.engines[1].check()) == []


@pytest.mark.timeout(600)  # shrinking a failure takes minutes, a run without failures seconds
def test_memory_and_redis_agree_step_by_step() -> None:
    examples = settings().max_examples // 3
    run_state_machine_as_test(BothEngines, settings=settings(max_examples=examples, stateful_step_count=30))
