"""A worker's claim over many scopes. The claim is atomic within each scope, and its budget is divided among the scopes.

A claim on one scope is one script call. A claim on several scopes is one call per scope, all in one round trip, each
with a part of the budget. The budget that a scope cannot use goes to the others in a second round. The outcome is as if
the scopes granted one step each in turn, starting after the scope that granted the last step, until the budget is used.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from fairlead.dispatch.port import Claim, Lease, Release
from fairlead.dispatch.redis import codec
from fairlead.dispatch.redis.codec import Arg, joined, names
from fairlead.dispatch.redis.keys import scope_mark, wake_channel
from fairlead.dispatch.redis.pubsub import Subscriber
from fairlead.dispatch.redis.script_runner import ScriptRunner
from fairlead.errors import Unavailable

WORKER_MEMORY_S = 30.0
"""How long a worker is remembered after its last claim, as in `scripts/include/pool.lua`."""

REGISTERED_S = 10.0
"""How long this process relies on its registration as waiting for wakeups. The scripts drop the registration after
three times as long."""


@dataclass(slots=True)
class ScopeShare:
    """The part of a claim that concerns one scope: the leases granted so far, and the scope's last reply.

    Of the scope's services, `turned` became runnable during the claim, `runnable` are runnable now, and slots were
    reserved for workers of those in `left`. `exhausted` means that the claim can take no more steps here, `others_wait`
    that other processes wait for wakeups. `state` is sent with the claim's next call to the scope.
    """

    worker: str
    scope: str
    services: set[str]
    leases: list[Lease] = field(default_factory=list)
    turned: set[str] = field(default_factory=set)
    runnable: set[str] = field(default_factory=set)
    left: set[str] = field(default_factory=set)
    state: bytes = b""
    exhausted: bool = False
    others_wait: bool = False

    def take(self, reply: Sequence[Any]) -> None:
        _, turned, runnable, left, self.state, more, _, _, others = reply[:9]
        self.leases += codec.grants(reply, self.worker, self.scope)
        self.runnable = set(names(runnable))
        self.turned = (self.turned | set(names(turned))) & self.runnable
        self.left = set(names(left))
        self.exhausted = not more
        self.others_wait = bool(others)


@dataclass(slots=True)
class WorkerTurns:
    seen_at: float = 0.0
    last_source: str = ""
    pools: frozenset[str] = frozenset()


class Claims:
    def __init__(self, scopes: ScriptRunner) -> None:
        self._scopes = scopes
        self._workers: dict[str, WorkerTurns] = {}
        self._waits_since: dict[str, float] = {}
        """The scopes in which this process is registered as waiting, and since when."""
        self._waits_for: dict[str, set[str]] = {}
        self._subscriptions = 0

    # -- one claim -----------------------------------------------------------------------------------------------

    async def exchange(self, claim: Claim, releases: Sequence[Release]) -> tuple[list[Lease], set[str]]:
        """Release slots and claim steps. Returns the leases, and the services for which to wake the worker of this
        process."""
        claimed: dict[str, set[str]] = {}
        for service in claim.services:
            claimed.setdefault(self._scopes.of(service), set()).add(service)
        released: dict[str, list[Release]] = {}
        for release in releases:
            for scope in self._scopes.of_release(release):
                released.setdefault(scope, []).append(release)
        for scope, services in claimed.items():
            self._scopes.learn(scope, services)
        worker, subscriptions = self._worker(claim.worker), self._subscriptions
        try:
            leases = await self._exchange(claim, claimed, released, worker)
        except Unavailable:
            self._waits_since.clear()  # the server may have forgotten the registrations
            raise
        if self._subscriptions != subscriptions:
            self._waits_since.clear()
        return leases

    async def _exchange(
        self,
        claim: Claim,
        claimed: Mapping[str, set[str]],
        released: Mapping[str, list[Release]],
        worker: WorkerTurns,
    ) -> tuple[list[Lease], set[str]]:
        await self._leave_pools(claim.worker, worker, claimed)
        if len(claimed) == 1 and claimed.keys() >= released.keys():
            (scope,) = claimed
            leases, runnable = await self._whole(claim, scope, claimed[scope], released.get(scope, []))
            if leases:
                worker.last_source = scope
            return leases, runnable
        return await self._shared(claim, claimed, released, worker)

    async def _whole(
        self, claim: Claim, scope: str, services: set[str], releases: list[Release]
    ) -> tuple[list[Lease], set[str]]:
        waits = "-" if not claim.waits else "1" if self._is_registered(scope, services) else ""
        args = self._args(claim, scope, claim.budget, services, whole=True, waits=waits) + codec.release_args(releases)
        reply = (await self._scopes.run("exchange", {scope: args}))[scope]
        if claim.waits:
            self._note_waiting(scope, services, bool(reply[7]), was=bool(waits))
        return codec.grants(reply, claim.worker, scope), set(names(reply[6]))

    async def _shared(
        self,
        claim: Claim,
        claimed: Mapping[str, set[str]],
        released: Mapping[str, list[Release]],
        worker: WorkerTurns,
    ) -> tuple[list[Lease], set[str]]:
        order = sorted(claimed)
        later = [scope for scope in order if scope > worker.last_source]
        order = later + order[: len(order) - len(later)]
        shares = {scope: ScopeShare(claim.worker, scope, services) for scope, services in claimed.items()}
        others = {scope: ScopeShare(claim.worker, scope, set()) for scope in released if scope not in claimed}
        failed: dict[str, Unavailable] = {}
        releases = {scope: codec.release_args(some) for scope, some in released.items()}
        pending = {**shares, **others}
        while pending:
            await self._take_round(claim, pending, share_out(claim.budget, order, shares), releases, failed)
            for scope in failed.keys() & shares.keys():
                shares[scope].exhausted = True
            quotas = share_out(claim.budget, order, shares)
            pending = {scope: share for scope, share in shares.items() if quotas[scope] > len(share.leases)}
        leases = _in_turn(order, shares)
        if failed and not leases:
            raise next(iter(failed.values()))
        if leases:
            worker.last_source = leases[-1].scope
        spare = max(0, claim.budget - len(leases)) if claim.waits else 0
        own_wakeups: set[str] = set()
        with contextlib.suppress(Unavailable):  # the grants remain valid
            await self._end_shared(claim, shares, spare)
            own_wakeups = await self._wake(claim, {**others, **shares}, leases, spare)
        return leases, own_wakeups

    async def _take_round(
        self,
        claim: Claim,
        shares: Mapping[str, ScopeShare],
        quotas: Mapping[str, int],
        releases: dict[str, list[Arg]],
        failed: dict[str, Unavailable],
    ) -> None:
        """Run the script `exchange` once on each scope of `shares`, for as many steps as its quota still allows. Adds
        the leases to the shares, and the errors of scopes that could not be reached to `failed`. The scopes' `releases`
        are sent along and removed from the dict, so they are sent only once."""
        args = {}
        for scope, share in shares.items():
            waits = "1" if self._is_registered(scope, share.services) else ""
            if not share.services or claim.budget == 0 or not claim.waits:
                waits = "-"
            room = quotas.get(scope, 0) - len(share.leases)
            args[scope] = self._args(
                claim, scope, room, share.services, whole=False, waits=waits, state=share.state
            ) + releases.pop(scope, [])
        try:
            replies = await self._scopes.run("exchange", args, failed=failed)
        except Unavailable as error:
            failed |= dict.fromkeys(args, error)
            return
        for scope, reply in replies.items():
            shares[scope].take(reply)
            if args[scope][6] == "":
                self._note_waiting(scope, shares[scope].services, True, was=False)

    def _args(
        self, claim: Claim, scope: str, room: int, services: set[str], *, whole: bool, waits: str, state: bytes = b""
    ) -> list[Arg]:
        return [
            claim.worker,
            room,
            joined(services),
            "".join(map(str, sorted(claim.bands))),
            _regions_of(claim),
            "1" if whole else "0",
            waits,
            state,
            scope_mark(scope),
            claim.only or ("turns" if claim.turns else ""),
        ]

    async def _wake(self, claim: Claim, shares: Mapping[str, ScopeShare], leases: list[Lease], spare: int) -> set[str]:
        """Wake workers for the services that became runnable, and for those still runnable services that granted a
        step or for whose workers slots were reserved. If steps were granted and the worker does not wait for more,
        also for all other runnable services that it claimed. Returns the services for which to wake the worker of
        this process."""
        again = {lease.service for lease in leases}
        if leases and not spare:
            again |= claim.services
        own: set[str] = set()
        forwarded: dict[str, list[Arg]] = {}
        for scope, share in shares.items():
            runnable = share.turned | ((again | share.left) & share.runnable)
            if runnable and share.others_wait:
                forwarded[scope] = [joined(runnable)]
            else:
                own |= runnable
        for reply in (await self._scopes.run("wake", forwarded)).values() if forwarded else ():
            own |= set(names(reply[1]))
        return own

    def _worker(self, name: str) -> WorkerTurns:
        now = self._scopes.now()
        worker = self._workers.get(name)
        if worker is None or now - worker.seen_at > WORKER_MEMORY_S:
            self._workers = {
                known: other for known, other in self._workers.items() if now - other.seen_at <= WORKER_MEMORY_S
            }
            worker = self._workers[name] = WorkerTurns()
        worker.seen_at = now
        return worker

    # -- registrations of this process and its workers -------------------------------------------------------------

    def _is_registered(self, scope: str, services: set[str]) -> bool:
        since = self._waits_since.get(scope)
        recent = since is not None and time.monotonic() - since < REGISTERED_S
        return recent and self._waits_for.get(scope, set()) == services

    def _note_waiting(self, scope: str, services: set[str], waits: bool, *, was: bool) -> None:
        if waits and not was:
            self._waits_since[scope] = time.monotonic()
            self._waits_for[scope] = services
        elif not waits:
            self._waits_since.pop(scope, None)

    def subscribed(self) -> None:
        """This process can receive wakeups from now on, so the next claim registers it again: a wakeup that found no
        subscriber has removed the registration."""
        self._subscriptions += 1
        self._waits_since.clear()

    def waits_for(self, service: str) -> bool:
        return self._scopes.of(service) in self._waits_since

    async def renew_registration(self) -> None:
        """Renew the entries in Redis that list this process as waiting for wakeups."""
        args: dict[str, list[Arg]] = {scope: [joined(self._waits_for[scope])] for scope in self._waits_since}
        if args:
            await self._scopes.run("wait", args, failed={})
            self._waits_since = dict.fromkeys(args, time.monotonic())

    async def stop_waiting(self, scopes: Sequence[str] | None = None) -> None:
        """Remove the entries in Redis that list this process as waiting for wakeups, because it has no budget left."""
        for scope in list(self._waits_since) if scopes is None else scopes:
            if self._waits_since.pop(scope, None) is not None:
                await self._scopes.client.command("HDEL", self._scopes.key(scope, "waiters"), self._scopes.process)

    async def _end_shared(self, claim: Claim, shares: Mapping[str, ScopeShare], spare: int) -> None:
        if not spare and claim.waits:
            await self.stop_waiting(list(shares))
        for scope in self._pools(shares):
            await self._scopes.client.command("HSET", self._scopes.key(scope, "workers"), f"s:{claim.worker}", spare)

    async def _leave_pools(self, name: str, worker: WorkerTurns, claimed: Mapping[str, set[str]]) -> None:
        """Remove a worker from the pools that it no longer claims from, so that no slots are reserved for it there."""
        pools = self._pools(claimed)
        for scope in worker.pools - pools:
            key = self._scopes.key(scope, "workers")
            await self._scopes.client.command("HDEL", key, f"w:{name}", f"s:{name}")
        worker.pools = pools

    def _pools(self, scopes: Mapping[str, object]) -> frozenset[str]:
        return frozenset(scope for scope in scopes if scope.startswith("pool:"))


def share_out(budget: int, order: Sequence[str], shares: Mapping[str, ScopeShare]) -> dict[str, int]:
    """Divide the budget among the scopes. Returns how many leases each scope should have granted in total, including
    those of earlier rounds. The budget is dealt out one lease per scope in turn; a scope that has no more steps gets no
    more than it has already granted."""
    quotas = dict.fromkeys(order, 0)
    remaining = list(order)
    while remaining and budget > 0:
        for scope in list(remaining):
            if shares[scope].exhausted and quotas[scope] >= len(shares[scope].leases):
                remaining.remove(scope)
            elif budget > 0:
                quotas[scope] += 1
                budget -= 1
    return quotas


def _in_turn(order: Sequence[str], shares: Mapping[str, ScopeShare]) -> list[Lease]:
    leases = []
    for turn in range(max((len(share.leases) for share in shares.values()), default=0)):
        leases += [shares[scope].leases[turn] for scope in order if turn < len(shares[scope].leases)]
    return leases


def _regions_of(claim: Claim) -> str:
    """Encode the regions of a claim as the argument of `exchange.lua`."""
    if claim.regions is None:
        return ""
    unserved = joined(f"{service}:{region}" for service, region in claim.unserved)
    return "1" + joined(claim.regions) + (f"\1{unserved}" if unserved else "")


_log = logging.getLogger("fairlead.dispatch")


class RemoteWakeups:
    """Receives wakeups from other processes, and calls `wake` with their services. After every reconnection it calls
    `wake` with all services, because wakeups sent while there was no connection are lost."""

    def __init__(self, scopes: ScriptRunner, claims: Claims, *, wake: Callable[[Set[str]], None]) -> None:
        self._scopes = scopes
        self._claims = claims
        self._wake = wake
        self._subscriber = Subscriber(scopes.ungated, self._receive, self._wake_for_all)
        self._tasks: set[asyncio.Task[None]] = set()
        self.subscribed = self._subscriber.subscribed

    def start(self) -> None:
        self._subscriber.subscribe(wake_channel(self._scopes.prefix, self._scopes.process))
        self._subscriber.start()
        self._in_background(self._keep_registered())

    async def close(self) -> None:
        await self._subscriber.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _wake_for_all(self) -> None:
        self._claims.subscribed()
        self._wake(frozenset().union(*self._scopes.services.values()))

    def _receive(self, channel: str, message: bytes) -> None:
        """Wake this process's worker. If the worker has no budget left by now, also forward the wakeup to another
        process."""
        service = message.decode()
        if not self._claims.waits_for(service):
            self._in_background(self._forward(service))
        self._wake({service})

    async def _forward(self, service: str) -> None:
        with contextlib.suppress(Unavailable):
            await self._scopes.run("wake", {self._scopes.of(service): [joined([service])]})

    async def _keep_registered(self) -> None:
        while True:
            await asyncio.sleep(REGISTERED_S)
            try:
                await self._claims.renew_registration()
            except Unavailable as error:
                _log.debug("cannot renew this process's registration as waiting: %s", error)
