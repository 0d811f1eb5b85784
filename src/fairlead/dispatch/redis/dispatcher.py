"""The operations of the dispatcher in Redis: one call of one script per scope, all scopes in one round trip."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Any, TypeVar

from fairlead.dispatch.port import (
    Claim,
    Lease,
    Offer,
    Promotion,
    Release,
    Renewal,
    ScopeState,
    ServiceSnapshot,
    Wake,
    Withdrawal,
)
from fairlead.dispatch.redis import replies
from fairlead.dispatch.redis.claims import Claims
from fairlead.dispatch.redis.connection import Call
from fairlead.dispatch.redis.identity import Admit
from fairlead.dispatch.redis.keys import scope_mark
from fairlead.dispatch.redis.links import CLOSE_S
from fairlead.dispatch.redis.replies import Arg, joined, names, texts
from fairlead.dispatch.redis.scopes import Scopes
from fairlead.dispatch.redis.wakes import Wakes
from fairlead.domain.job import Hold
from fairlead.domain.limits import Rules
from fairlead.domain.order import Place, micros
from fairlead.errors import Unavailable

_OfService = TypeVar("_OfService", Offer, Withdrawal, Promotion, Hold)


class RedisDispatcher:
    """Implements `Dispatcher`. Its clock is the server's; tests may give another one, in seconds.

    `admit` says whether the truth names a server of this identity (`ScopeState.server`). Every new connection is asked
    first, and everything but `states` is `Unavailable` on a server that is refused."""

    def __init__(
        self,
        url: str,
        *,
        prefix: str = "fairlead",
        clock: Callable[[], float] | None = None,
        admit: Admit | None = None,
    ) -> None:
        self._scopes = Scopes(url, prefix, clock, admit)
        self._claims = Claims(self._scopes)
        self._wakes = Wakes(self._scopes, self._claims, wake=self._wake_for)
        self._wake: Wake | None = None

    async def start(self) -> None:
        """Listen for wakes from other processes, from soon on."""
        self._wakes.start()

    async def close(self) -> None:
        await self._wakes.close()
        with contextlib.suppress(Unavailable, TimeoutError):  # without it, others find out that nobody listens
            async with asyncio.timeout(CLOSE_S):
                await self._claims.stop_waiting()
        await self._scopes.close()

    async def reconnect(self) -> None:
        await self._scopes.reconnect()

    def on_wake(self, wake: Wake) -> None:
        self._wake = wake

    # -- the line ------------------------------------------------------------------------------------------------

    async def offer(self, offers: Sequence[Offer]) -> int:
        return sum([await self._offer(batch) for batch in self._each_job_in_one_scope(offers)])

    async def _offer(self, offers: Sequence[Offer]) -> int:
        """A job waits in one scope only. What the others have of it is asked first and taken out last: in between, two
        lines may have it, and whichever grants the older run will find the start refused."""
        by_scope = self._by_scope(offers)
        await self._scopes.register_new({scope: {o.service for o in some} for scope, some in by_scope.items()})
        refused, moved_from = await self._elsewhere(by_scope)
        if not refused and not moved_from:
            return await self._put_in_line(offers, {})
        newer = 0
        segment: list[Offer] = []
        for offer in offers:
            if (offer.job_id, offer.run) in refused:
                continue
            segment.append(offer)
            if scopes := moved_from.get(offer.job_id):
                newer += await self._put_in_line(segment, {scope: [offer.job_id, offer.run - 1] for scope in scopes})
                segment = []
        return newer + await self._put_in_line(segment, {})

    async def _put_in_line(self, offers: Sequence[Offer], moved: Mapping[str, list[Arg]]) -> int:
        """Then take out of other lines what has moved here, as the order of offers has it."""
        args = {scope: replies.offer_args(some) for scope, some in self._by_scope(offers).items()}
        answers = await self._scopes.run("offer", args) if args else {}
        gone = await self._scopes.run("withdraw", moved, failed={}) if moved else {}
        self._announce([*answers.values(), *gone.values()])
        return sum(answer[0] for answer in answers.values())

    async def _elsewhere(
        self, by_scope: Mapping[str, list[Offer]]
    ) -> tuple[set[tuple[str, int]], dict[str, list[str]]]:
        """Offers (job and run) that are not newer than what another scope has, and the scopes with older steps."""
        asked = _may_know(by_scope, self._scopes.services)
        calls = [
            Call("runs", (self._scopes.key(scope, "entries"), self._scopes.key(scope, "onlease")),
                 [offer.job_id for offer in offers])
            for scope, offers in asked.items()
        ]  # fmt: skip
        answers = await self._scopes.connection.run_each(calls) if calls else []
        refused: set[tuple[str, int]] = set()
        moved_from: dict[str, list[str]] = {}
        for (scope, offers), answer in zip(asked.items(), answers, strict=True):
            if isinstance(answer, Unavailable):
                continue  # on a Cluster: an older run there will be refused at its start
            for offer, waiting, leased in zip(offers, answer[::2], answer[1::2], strict=True):
                if max(waiting, leased) >= offer.run:
                    refused.add((offer.job_id, offer.run))
                elif waiting >= 0:
                    moved_from.setdefault(offer.job_id, []).append(scope)
        return refused, moved_from

    async def withdraw(self, withdrawals: Sequence[Withdrawal]) -> int:
        return await self._count("withdraw", withdrawals, lambda each: (each.job_id, each.run))

    async def promote(self, promotions: Sequence[Promotion]) -> int:
        return await self._count("promote", promotions, lambda each: (each.job_id, each.run, each.band))

    async def _count(self, script: str, asked: Sequence[Any], arg: Callable[[Any], tuple[Arg, ...]]) -> int:
        args = {scope: [value for each in some for value in arg(each)] for scope, some in self._by_scope(asked).items()}
        answers = await self._scopes.run(script, args)
        self._announce(answers.values())
        return sum(answer[0] for answer in answers.values())

    # -- slots ---------------------------------------------------------------------------------------------------

    async def exchange(self, claim: Claim, releases: Sequence[Release] = ()) -> list[Lease]:
        leases, woken = await self._claims.exchange(claim, releases)
        self._wake_for(woken)
        return leases

    async def release(self, releases: Sequence[Release]) -> None:
        args = {scope: replies.release_args(some) for scope, some in self._by_own_scope(releases).items()}
        self._announce((await self._scopes.run("release", args)).values())

    def renew(self, worker: str, leases: Sequence[str]) -> Renewal:
        scopes = self._scopes.configured
        marks = {scope_mark(scope): scope for scope in scopes}
        args: dict[str, list[Arg]] = {scope: [worker] for scope in scopes}
        for name in leases:
            home = marks.get(name[-len(scope_mark("")) :])
            for scope in scopes if home is None else (home,):
                args[scope].append(name)
        answers = self._scopes.run_sync("renew", args).values()
        if not answers or not all(answer[1] for answer in answers):
            return Renewal(rebuilding=True)
        return Renewal(frozenset(leases).difference(*(texts(answer[2:]) for answer in answers)))

    async def expired(self) -> list[Lease]:
        answers = await self._scopes.run("expired", {scope: [] for scope in self._scopes.services}, failed={})
        past = [lease for scope, answer in answers.items() for lease in replies.leases(answer[1:], scope)]
        return sorted(past, key=lambda lease: (lease.expires_at, lease.name))

    async def hold(self, holds: Sequence[Hold]) -> None:
        by_scope = self._by_scope(holds)
        await self._scopes.register_new({scope: {hold.service for hold in some} for scope, some in by_scope.items()})
        answers = await self._scopes.run("hold", {scope: replies.hold_args(some) for scope, some in by_scope.items()})
        self._announce(answers.values())

    async def end_holds(self, now: float) -> int:
        args = {scope: [micros(now)] for scope in self._scopes.services}
        answers = await self._scopes.run("end_holds", args, failed={})
        self._announce(answers.values())
        return sum(answer[0] for answer in answers.values())

    # -- questions -----------------------------------------------------------------------------------------------

    async def places(self, job_ids: Sequence[str]) -> dict[str, Place]:
        asked = list(dict.fromkeys(job_ids))
        answers = await self._scopes.run("places", dict.fromkeys(self._scopes.services, asked), failed={})
        return {job_id: place for answer in answers.values() for job_id, place in replies.places(answer[1:]).items()}

    async def snapshot(self, services: Sequence[str] | None = None, *, users: bool = False) -> list[ServiceSnapshot]:
        try:
            await self._scopes.refresh()
        except Unavailable:
            if services is None:  # else those may be on a node of a Cluster that is well
                raise
        scopes = self._scopes.services if services is None else {self._scopes.of(name) for name in services}
        args = {scope: ["1" if users else "0"] for scope in scopes if scope in self._scopes.services}
        answers = await self._scopes.run("snapshot", args)
        self._wake_for({name for answer in answers.values() for name in names(answer[1])})
        seen = {
            each.service: each
            for scope, answer in answers.items()
            for each in (replies.snapshot(row, scope) for row in answer[2])
            if scope == self._scopes.of(each.service)
        }
        return [seen[name] for name in sorted(seen) if services is None or name in services]

    # -- rules and rebuilds --------------------------------------------------------------------------------------

    async def configure(self, rules: Rules) -> None:
        if self._scopes.rules is None or rules.version >= self._scopes.rules.version:
            self._scopes.rules = rules
        await self._scopes.refresh()
        by_scope: dict[str, list[str]] = {scope: [] for scope in self._scopes.services}
        for name, wanted in rules.services.items():
            by_scope.setdefault(wanted.scope, []).append(name)
        await self._scopes.register(by_scope)
        answers = await self._scopes.run(
            "configure", {scope: _rules_args(rules, scope, names) for scope, names in by_scope.items()}
        )
        self._announce(answers.values())

    async def states(self, scopes: Iterable[str]) -> dict[str, ScopeState]:
        """Asked of whatever server is there: it is how one finds out that it is another one."""
        asked = list(dict.fromkeys(scopes))
        connection = self._scopes.ungated
        # On a Cluster each is on a server of its own.
        groups = [[scope] for scope in asked] if connection.cluster else [asked]
        calls = [
            Call("states", tuple(self._scopes.key(scope, "meta") for scope in group), ()) for group in groups if group
        ]
        found: dict[str, ScopeState] = {}
        for group, answer in zip(groups, await connection.run(calls), strict=False):
            if answer[0] != b"master":
                await connection.drop()
                raise Unavailable("this Redis is a replica")
            found |= replies.states(answer, group)
        return found

    async def close_scope(self, scope: str, epoch: int) -> bool:
        """The rules are said again: the server may have lost them with everything else."""
        await self._scopes.refresh()
        rules = self._scopes.rules
        names = [name for name, each in rules.services.items() if each.scope == scope] if rules is not None else []
        await self._scopes.register({scope: names or self._scopes.services.get(scope) or [scope.partition(":")[2]]})
        if rules is not None and names:
            await self._scopes.run("configure", {scope: _rules_args(rules, scope, names)})
        return bool((await self._scopes.run("close", {scope: [epoch]}))[scope][0])

    async def restore(self, scope: str, epoch: int, leases: Sequence[Lease], holds: Sequence[Hold]) -> bool:
        services = {lease.service for lease in leases} | {hold.service for hold in holds}
        await self._scopes.register_new({scope: services})
        args = [epoch, scope_mark(scope), len(leases), *replies.lease_args(leases), *replies.hold_args(holds)]
        return await self._rebuild("restore", scope, args)

    async def open_scope(self, scope: str, epoch: int) -> bool:
        return await self._rebuild("open", scope, [epoch])

    async def _rebuild(self, script: str, scope: str, args: list[Arg]) -> bool:
        answers = await self._scopes.run(script, {scope: args})
        self._announce(answers.values())
        return bool(answers[scope][0])

    # -- waking --------------------------------------------------------------------------------------------------

    def _announce(self, answers: Iterable[Sequence[Any]]) -> None:
        """The end of an operation: wake this process's worker, once, for what the scripts left to it."""
        self._wake_for({name for answer in answers for name in names(answer[1])})

    def _wake_for(self, services: Set[str]) -> None:
        if services and self._wake is not None:
            self._wake(frozenset(services))

    # -- scopes --------------------------------------------------------------------------------------------------

    def _by_own_scope(self, releases: Sequence[Release]) -> dict[str, list[Release]]:
        by_scope: dict[str, list[Release]] = {}
        for release in releases:
            by_scope.setdefault(self._scopes.of_release(release), []).append(release)
        return by_scope

    def _by_scope(self, items: Sequence[_OfService]) -> dict[str, list[_OfService]]:
        scopes = self._scopes_of(items)
        if len(set(scopes.values())) == 1:
            return {scopes[items[0].service]: list(items)}
        by_scope: dict[str, list[_OfService]] = {}
        for item in items:
            by_scope.setdefault(scopes[item.service], []).append(item)
        return by_scope

    def _each_job_in_one_scope(self, offers: Sequence[Offer]) -> Iterable[Sequence[Offer]]:
        """The offers in order, in batches none of which has a job in two scopes."""
        scopes = self._scopes_of(offers)
        if len(set(scopes.values())) == 1:
            yield offers
            return
        batch: list[Offer] = []
        scope_of: dict[str, str] = {}
        for offer in offers:
            scope = scopes[offer.service]
            if scope_of.setdefault(offer.job_id, scope) != scope:
                yield batch
                batch, scope_of = [], {offer.job_id: scope}
            batch.append(offer)
        if batch:
            yield batch

    def _scopes_of(self, items: Iterable[_OfService]) -> dict[str, str]:
        """By service: many items have few."""
        return {service: self._scopes.of(service) for service in {item.service for item in items}}


def _rules_args(rules: Rules, scope: str, names: Sequence[str]) -> list[Arg]:
    args: list[Arg] = [rules.version, "", joined(names)]
    for name in names:
        wanted = rules.services[name]
        if wanted.pool is not None:
            args[1] = rules.pools.get(wanted.pool, 0)
        args += (name, replies.rules_json(wanted))
    return args


def _may_know(by_scope: Mapping[str, Sequence[Offer]], services: Mapping[str, Set[str]]) -> dict[str, list[Offer]]:
    """By scope, the offers to others of whose jobs it may know something: it has, or once had, a service that they have
    waited for. Of most jobs there is no such scope, and nobody is asked."""
    asked: dict[str, list[Offer]] = {}
    for target, offers in by_scope.items():
        for steps in {offer.steps for offer in offers}:
            for scope, served in services.items():
                if scope != target and not (steps and served.isdisjoint(steps)):
                    asked.setdefault(scope, []).extend(offer for offer in offers if offer.steps == steps)
    return asked
