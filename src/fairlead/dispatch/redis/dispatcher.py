"""The operations of the Redis dispatcher. An operation makes one script call per scope, all of them in one round
trip."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Any, TypeVar

from fairlead.dispatch.database_clock import by_database
from fairlead.dispatch.port import (
    Claim,
    Lease,
    Offer,
    Promotion,
    Release,
    Renewal,
    ScopeState,
    ServiceSnapshot,
    Unserved,
    Wake,
    Withdrawal,
)
from fairlead.dispatch.redis import codec
from fairlead.dispatch.redis.claims import Claims, RemoteWakeups
from fairlead.dispatch.redis.client import ScriptCall
from fairlead.dispatch.redis.codec import Arg, joined, names, texts
from fairlead.dispatch.redis.connection import CLOSE_S
from fairlead.dispatch.redis.keys import scope_mark
from fairlead.dispatch.redis.rate_operations import RateOperations
from fairlead.dispatch.redis.script_runner import ScriptRunner
from fairlead.dispatch.redis.servers import Admit
from fairlead.domain.fair_share import SECOND, QueuePosition, micros
from fairlead.domain.groups import GroupRules
from fairlead.domain.job import Hold
from fairlead.domain.rules import Rules
from fairlead.errors import Unavailable

OUTDATED = -2
"""The reply of a script if the scope has newer rules than the caller, and the service has moved out of the scope."""

_OfService = TypeVar("_OfService", Offer, Withdrawal, Promotion, Hold)


class RedisDispatcher(RateOperations):
    """Implements `Dispatcher` on Redis. Its clock is the server's; tests may pass `clock`, in seconds. `database` is
    the clock of the database, by which the times of holds and restored leases are given; by default it is `clock` or
    the clock of this machine.

    `admit` tells whether the database names a server with this identity (`ScopeState.server`). It is called for every
    new connection. On a refused server every operation except `states` raises `Unavailable`.
    """

    def __init__(
        self,
        url: str,
        *,
        prefix: str = "fairlead",
        clock: Callable[[], float] | None = None,
        database: Callable[[], float] | None = None,
        admit: Admit | None = None,
    ) -> None:
        self._database: Callable[[], float] = database or clock or time.time
        self._scopes = ScriptRunner(url, prefix, clock, admit)
        self._claims = Claims(self._scopes)
        self._wakeups = RemoteWakeups(self._scopes, self._claims, wake=self._wake_for)
        self._wake: Wake | None = None
        self._set_timers()

    async def start(self) -> None:
        """Subscribe to wakeups from other processes, in the background."""
        self._wakeups.start()

    async def close(self) -> None:
        await self._wakeups.close()
        await self._close_timers()
        with contextlib.suppress(Unavailable, TimeoutError):  # the registration then expires by itself
            async with asyncio.timeout(CLOSE_S):
                await self._claims.stop_waiting()
        await self._scopes.close()

    async def reconnect(self) -> None:
        self._scopes.reconnect()

    def on_wake(self, wake: Wake) -> None:
        self._wake = wake

    # -- queue ---------------------------------------------------------------------------------------------------

    async def offer(self, offers: Sequence[Offer]) -> int:
        return sum([await self._offer(batch) for batch in self._each_job_in_one_scope(offers)])

    async def _offer(self, offers: Sequence[Offer]) -> int:
        """Offer each job to one scope. First ask the other scopes whether they have the job, then offer it, and then
        withdraw the older entries from the other scopes. Until then two queues may hold the job; if the older run is
        granted, its start is refused."""
        by_scope = self._by_scope(offers)
        await self._scopes.register_new({scope: {o.service for o in some} for scope, some in by_scope.items()})
        refused, moved_from = await self._in_other_scopes(by_scope)
        if not refused and not moved_from:
            return await self._enqueue(offers, {})
        newer = 0
        segment: list[Offer] = []
        for offer in offers:
            if (offer.job_id, offer.run) in refused:
                continue
            segment.append(offer)
            if scopes := moved_from.get(offer.job_id):
                newer += await self._enqueue(segment, {scope: [offer.job_id, offer.run - 1] for scope in scopes})
                segment = []
        return newer + await self._enqueue(segment, {})

    async def _enqueue(self, offers: Sequence[Offer], moved: Mapping[str, list[Arg]]) -> int:
        """Offer the steps, then withdraw older entries from other scopes: `moved` has the arguments of the script
        `withdraw` by scope. Returns the number of offers that were not ignored."""
        version = self._version_for(offers)
        args = {
            scope: [version, *codec.offer_args(some, self._groups)] for scope, some in self._by_scope(offers).items()
        }
        replies = _accepted(await self._scopes.run("offer", args)) if args else {}
        gone = await self._scopes.run("withdraw", moved, failed={}) if moved else {}
        self._announce([*replies.values(), *gone.values()])
        return sum(reply[0] for reply in replies.values())

    async def _in_other_scopes(
        self, by_scope: Mapping[str, list[Offer]]
    ) -> tuple[set[tuple[str, int]], dict[str, list[str]]]:
        """Find jobs of these offers in other scopes. Returns the offers to ignore, as (job, run), because another scope
        has the same or a newer run; and for each other job that is queued in other scopes with an older run, these
        scopes. Scopes without a service in the current rules are not queried: they are about to be closed, and their
        jobs belong to other scopes."""
        requested = _scopes_to_query(
            by_scope, {scope: self._scopes.services.get(scope, set()) for scope in self._scopes.current}
        )
        calls = [self._runs(scope, offers) for scope, offers in requested.items()]
        replies = await self._scopes.client.run_each(calls) if calls else []
        refused: set[tuple[str, int]] = set()
        moved_from: dict[str, list[str]] = {}
        for (scope, offers), reply in zip(requested.items(), replies, strict=True):
            if isinstance(reply, Unavailable):
                continue  # a node of a Cluster is down; the start of an older run held there is refused
            for offer, waiting, leased in zip(offers, reply[::2], reply[1::2], strict=True):
                if max(waiting, leased) >= offer.run:
                    refused.add((offer.job_id, offer.run))
                elif waiting >= 0:
                    moved_from.setdefault(offer.job_id, []).append(scope)
        return refused, moved_from

    async def missing(self, offers: Sequence[Offer]) -> list[Offer]:
        by_scope = self._by_scope(offers) if offers else {}
        calls = [self._runs(scope, some) for scope, some in by_scope.items()]
        missing: list[Offer] = []
        for some, reply in zip(by_scope.values(), await self._scopes.client.run_each(calls), strict=True):
            if not isinstance(reply, Unavailable):
                runs = map(max, reply[::2], reply[1::2])
                missing += [offer for offer, run in zip(some, runs, strict=True) if run < offer.run]
        return missing

    async def check(self) -> list[str]:
        await self.known_scopes()  # the services of a scope share its entries
        replies = await self._scopes.run("check", {scope: [] for scope in self._scopes.current}, failed={})
        return sorted(scope for scope, (lost,) in replies.items() if lost)

    def _runs(self, scope: str, offers: Sequence[Offer]) -> ScriptCall:
        """The script call that reads the queued run and the leased run of each job in this scope."""
        keys = self._scopes.key(scope, "entries"), self._scopes.key(scope, "onlease")
        return ScriptCall("runs", keys, [offer.job_id for offer in offers])

    @property
    def _groups(self) -> Mapping[str, GroupRules]:
        return {} if self._scopes.rules is None else self._scopes.rules.groups

    def _version_for(self, items: Iterable[_OfService]) -> Arg:
        """The version of the rules by which this process assigned these items to scopes. A scope refuses an item if
        newer rules have moved its service to another scope. Raises `Unavailable` if a service is on other shards
        only."""
        rules = self._scopes.rules
        if rules is None:
            return ""
        if rules.elsewhere and not rules.elsewhere.isdisjoint(item.service for item in items):
            raise Unavailable("the service has moved to another shard")
        return rules.version

    async def withdraw(self, withdrawals: Sequence[Withdrawal]) -> int:
        return await self._count("withdraw", withdrawals, lambda each: (each.job_id, each.run))

    async def promote(self, promotions: Sequence[Promotion]) -> int:
        return await self._count("promote", promotions, lambda each: (each.job_id, each.run, each.band))

    async def _count(self, script: str, requested: Sequence[Any], arg: Callable[[Any], tuple[Arg, ...]]) -> int:
        args = {
            scope: [value for each in some for value in arg(each)] for scope, some in self._by_scope(requested).items()
        }
        replies = await self._scopes.run(script, args)
        self._announce(replies.values())
        return sum(reply[0] for reply in replies.values())

    # -- slots ---------------------------------------------------------------------------------------------------

    async def exchange(self, claim: Claim, releases: Sequence[Release] = ()) -> list[Lease]:
        leases, claim_targets = await self._claims.exchange(claim, releases)
        self._wake_for(claim_targets)
        return leases

    async def release(self, releases: Sequence[Release]) -> None:
        args = {scope: codec.release_args(some) for scope, some in self._by_own_scope(releases).items()}
        self._announce((await self._scopes.run("release", args)).values())

    def renew(self, worker: str, leases: Sequence[str]) -> Renewal:
        scopes = self._scopes.configured
        marks = {scope_mark(scope): scope for scope in scopes}
        args: dict[str, list[Arg]] = {scope: [worker] for scope in scopes}
        for name in leases:
            home = marks.get(name[-len(scope_mark("")) :])
            if home is not None:
                args[home].append(name)
        renewal = self._renewed(args, leases)
        if not renewal.lost or renewal.rebuilding:
            return renewal
        # A lease keeps its name when its service moves, so look for the lost ones in all scopes.
        return self._renewed({scope: [worker, *renewal.lost] for scope in self._scopes.current}, sorted(renewal.lost))

    def _renewed(self, args: Mapping[str, list[Arg]], leases: Sequence[str]) -> Renewal:
        replies = self._scopes.run_sync("renew", args).values()
        if not replies or not all(reply[1] for reply in replies):
            return Renewal(rebuilding=True)
        return Renewal(frozenset(leases).difference(*(texts(reply[2:]) for reply in replies)))

    async def expire(self, leases: Sequence[Lease]) -> None:
        args: dict[str, list[Arg]] = {}
        for lease in leases:
            for scope in self._scopes.of_release(lease):
                args.setdefault(scope, []).append(lease.name)
        await self._scopes.run("expire", args)

    async def expired(self) -> list[Lease]:
        replies = await self._scopes.run("expired", {scope: [] for scope in self._scopes.current}, failed={})
        past = [lease for scope, reply in replies.items() for lease in codec.leases(reply[1:], scope)]
        return sorted(past, key=lambda lease: (lease.expires_at, lease.name))

    async def hold(self, holds: Sequence[Hold]) -> None:
        by_scope, version = self._by_scope(holds), self._version_for(holds)
        await self._scopes.register_new({scope: {hold.service for hold in some} for scope, some in by_scope.items()})
        now = micros(self._database())
        args = {scope: [version, now, *codec.hold_args(some)] for scope, some in by_scope.items()}
        self._announce(_accepted(await self._scopes.run("hold", args)).values())

    async def end_holds(self, now: float | None = None) -> int:
        time_args = [] if now is None else [micros(now), micros(self._database())]
        args = dict.fromkeys(self._scopes.services, time_args)
        replies = await self._scopes.run("end_holds", args, failed={})
        self._announce(replies.values())
        return sum(reply[0] for reply in replies.values())

    # -- queries -------------------------------------------------------------------------------------------------

    async def positions(self, job_ids: Sequence[str], unserved: Unserved = frozenset()) -> dict[str, QueuePosition]:
        args = [joined(map(":".join, unserved)), *dict.fromkeys(job_ids)]
        replies = await self._scopes.run("positions", dict.fromkeys(self._scopes.current, args), failed={})
        return {
            job_id: position for reply in replies.values() for job_id, position in codec.positions(reply[1:]).items()
        }

    async def snapshot(self, services: Sequence[str] | None = None, *, users: bool = False) -> list[ServiceSnapshot]:
        try:
            await self._scopes.refresh()
        except Unavailable:
            if services is None:  # otherwise the requested services may be on a healthy node of a Cluster
                raise
        scopes = self._scopes.services if services is None else {self._scopes.of(name) for name in services}
        rules = self._scopes.rules
        flags: list[codec.Arg] = ["1" if users else "0", codec.joined(rules.groups) if rules is not None else ""]
        args = {scope: flags for scope in scopes if scope in self._scopes.services}
        replies = await self._scopes.run("snapshot", args)
        self._wake_for({name for reply in replies.values() for name in names(reply[1])})
        seen = {
            each.service: each
            for scope, reply in replies.items()
            for each in by_database(
                [codec.snapshot(row, scope) for row in reply[2]], reply[3] / SECOND - self._database()
            )
            if scope == self._scopes.of(each.service)
        }
        return [seen[name] for name in sorted(seen) if services is None or name in services]

    # -- rules and rebuilds --------------------------------------------------------------------------------------

    async def configure(self, rules: Rules) -> None:
        if self._scopes.rules is None or rules.version >= self._scopes.rules.version:
            self._scopes.rules = rules
        await self._scopes.refresh()
        by_scope: dict[str, list[str]] = {scope: [] for scope in self._scopes.services}
        for name, service in rules.services.items():
            by_scope.setdefault(service.scope, []).append(name)
        await self._scopes.register(by_scope)
        replies = await self._scopes.run(
            "configure", {scope: _rules_args(rules, names) for scope, names in by_scope.items()}
        )
        self._announce(replies.values())

    async def states(self, scopes: Iterable[str]) -> dict[str, ScopeState]:
        """The states of the scopes. Works on any server, even one whose identity is refused, so that a change of the
        server can be detected."""
        requested = list(dict.fromkeys(scopes))
        client = self._scopes.ungated
        # In a Cluster each scope may be on a different server.
        groups = [[scope] for scope in requested] if client.cluster else [requested]
        calls = [
            ScriptCall("states", tuple(self._scopes.key(scope, "meta") for scope in group), ())
            for group in groups
            if group
        ]
        states: dict[str, ScopeState] = {}
        for group, reply in zip(groups, await client.run(calls), strict=False):
            if reply[0] != b"master":
                error = Unavailable("this Redis server is a replica")
                client.demoted(error)
                raise error
            states |= codec.states(reply, group)
        client.is_master()
        return states

    async def known_scopes(self) -> frozenset[str]:
        with contextlib.suppress(
            Unavailable
        ):  # in a Cluster, the node with the list of scopes may be down while others are healthy
            await self._scopes.refresh()
        return frozenset(self._scopes.services)

    async def close_scope(self, scope: str, epoch: int) -> bool:
        """Begin a rebuild. The rules are sent first, because the server may have lost them too."""
        await self._scopes.refresh()
        rules = self._scopes.rules
        names = [name for name, each in rules.services.items() if each.scope == scope] if rules is not None else []
        await self._scopes.register({scope: names or self._scopes.services.get(scope) or [scope.partition(":")[2]]})
        if rules is not None:
            await self._scopes.run("configure", {scope: _rules_args(rules, names)})
        return bool((await self._scopes.run("close", {scope: [epoch]}))[scope][0])

    async def restore(self, scope: str, epoch: int, leases: Sequence[Lease], holds: Sequence[Hold]) -> bool:
        services = {lease.service for lease in leases} | {hold.service for hold in holds}
        await self._scopes.register_new({scope: services})
        args: list[Arg] = [epoch, scope_mark(scope), micros(self._database()), len(leases)]
        args += [*codec.lease_args(leases, self._groups), *codec.hold_args(holds)]
        return await self._rebuild("restore", scope, args)

    async def open_scope(self, scope: str, epoch: int) -> bool:
        return await self._rebuild("open", scope, [epoch])

    async def _rebuild(self, script: str, scope: str, args: list[Arg]) -> bool:
        replies = await self._scopes.run(script, {scope: args})
        self._announce(replies.values())
        return bool(replies[scope][0])

    # -- waking --------------------------------------------------------------------------------------------------

    def _announce(self, replies: Iterable[Sequence[Any]]) -> None:
        """Wake this process's worker, once, for all services that the replies of the scripts name."""
        self._wake_for({name for reply in replies for name in names(reply[1])})

    def _wake_for(self, services: Set[str]) -> None:
        if services and self._wake is not None:
            self._wake(frozenset(services))

    # -- scopes --------------------------------------------------------------------------------------------------

    def _by_own_scope(self, releases: Sequence[Release]) -> dict[str, list[Release]]:
        by_scope: dict[str, list[Release]] = {}
        for release in releases:
            for scope in self._scopes.of_release(release):
                by_scope.setdefault(scope, []).append(release)
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
        """Split the offers into consecutive batches, such that within a batch each job is offered to one scope only."""
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
        """Map the services of these items to their scopes. Looking up each service once is cheaper, because many items
        share few services."""
        return {service: self._scopes.of(service) for service in {item.service for item in items}}


def _rules_args(rules: Rules, names: Sequence[str]) -> list[Arg]:
    args: list[Arg] = [rules.version, "", joined(names)]
    for name in names:
        service = rules.services[name]
        if service.pool is not None:
            args[1] = rules.pools.get(service.pool, 0)
        args += (name, codec.rules_json(service, rules.pool_rates.get(service.pool or "")))
    return [*args, codec.groups_json(rules.groups), codec.plans_json(rules.plan_rates)]


def _accepted(replies: dict[str, Any]) -> dict[str, Any]:
    """Check the replies to offers. Raises `Unavailable` if a scope refused an offer because of newer rules."""
    if any(reply[0] == OUTDATED for reply in replies.values()):
        raise Unavailable("the rules have changed: the service belongs to another scope now")
    return replies


def _scopes_to_query(
    by_scope: Mapping[str, Sequence[Offer]], services: Mapping[str, Set[str]]
) -> dict[str, list[Offer]]:
    """Map each scope to the offers for other scopes whose jobs it may still hold: it has, or had, a service that the
    job was queued for earlier, or it is unknown for which services the job was queued. Most jobs are in no such scope,
    so nothing is queried for them."""
    requested: dict[str, list[Offer]] = {}
    for target, offers in by_scope.items():
        for steps in {offer.steps for offer in offers}:
            for scope, served in services.items():
                if scope != target and not (steps and served.isdisjoint(steps)):
                    requested.setdefault(scope, []).extend(offer for offer in offers if offer.steps == steps)
    return requested
