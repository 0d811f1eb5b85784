"""A worker's claim over many scopes: each is atomic, and the room is shared out among them in turn.

A claim on one scope is one call. On several, all are asked at once, each for its share of the room; what one cannot
fill goes to the others in a second round. The outcome is that of granting one step to each scope in turn, beginning
after the one that last had a turn, until the room is used.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fairlead.dispatch.port import Claim, Lease, Release
from fairlead.dispatch.redis import replies
from fairlead.dispatch.redis.keys import scope_mark
from fairlead.dispatch.redis.replies import Arg, joined, names
from fairlead.dispatch.redis.scopes import Scopes
from fairlead.errors import Unavailable

WORKER_MEMORY_S = 30.0
"""For how long after its last claim a worker is remembered, as in `scripts/include/pool.lua`."""

REGISTERED_S = 10.0
"""For how long this process relies on being among the waiters; the scripts forget it after three times as long."""


@dataclass(slots=True)
class Share:
    """What one scope has given to a claim so far."""

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

    def take(self, answer: Sequence[Any]) -> None:
        _, turned, runnable, left, self.state, more, _, _, others = answer[:9]
        self.leases += replies.grants(answer, self.worker, self.scope)
        self.runnable = set(names(runnable))
        self.turned = (self.turned | set(names(turned))) & self.runnable
        self.left = set(names(left))
        self.exhausted = not more
        self.others_wait = bool(others)


@dataclass(slots=True)
class WorkerTurns:
    seen_at: float = 0.0
    last_giver: str = ""
    pools: frozenset[str] = frozenset()


class Claims:
    def __init__(self, scopes: Scopes) -> None:
        self._scopes = scopes
        self._workers: dict[str, WorkerTurns] = {}
        self._waits_since: dict[str, float] = {}
        """The scopes among whose waiters this process is, and since when."""
        self._waits_for: dict[str, set[str]] = {}

    # -- one claim -----------------------------------------------------------------------------------------------

    async def exchange(self, claim: Claim, releases: Sequence[Release]) -> tuple[list[Lease], set[str]]:
        """The leases, and the services that this process is to wake for."""
        claimed: dict[str, set[str]] = {}
        for service in claim.services:
            claimed.setdefault(self._scopes.of(service), set()).add(service)
        given_back: dict[str, list[Release]] = {}
        for release in releases:
            given_back.setdefault(self._scopes.of_release(release), []).append(release)
        for scope, services in claimed.items():
            self._scopes.learn(scope, services)
        worker = self._worker(claim.worker)
        try:
            return await self._exchange(claim, claimed, given_back, worker)
        except Unavailable:
            self._waits_since.clear()  # what the server will know of us when it is back, nobody can say
            raise

    async def _exchange(
        self,
        claim: Claim,
        claimed: Mapping[str, set[str]],
        given_back: Mapping[str, list[Release]],
        worker: WorkerTurns,
    ) -> tuple[list[Lease], set[str]]:
        await self._leave_pools(claim.worker, worker, claimed)
        if len(claimed) == 1 and claimed.keys() >= given_back.keys():
            (scope,) = claimed
            leases, woken = await self._whole(claim, scope, claimed[scope], given_back.get(scope, []))
            if leases:
                worker.last_giver = scope
            return leases, woken
        return await self._shared(claim, claimed, given_back, worker)

    async def _whole(
        self, claim: Claim, scope: str, services: set[str], releases: list[Release]
    ) -> tuple[list[Lease], set[str]]:
        waits = "-" if not claim.waits else "1" if self._waits(scope, services) else ""
        args = self._args(claim, scope, claim.room, services, whole=True, waits=waits) + replies.release_args(releases)
        answer = (await self._scopes.run("exchange", {scope: args}))[scope]
        if claim.waits:
            self._note_waiting(scope, services, bool(answer[7]), was=bool(waits))
        return replies.grants(answer, claim.worker, scope), set(names(answer[6]))

    async def _shared(
        self,
        claim: Claim,
        claimed: Mapping[str, set[str]],
        given_back: Mapping[str, list[Release]],
        worker: WorkerTurns,
    ) -> tuple[list[Lease], set[str]]:
        order = sorted(claimed)
        later = [scope for scope in order if scope > worker.last_giver]
        order = later + order[: len(order) - len(later)]
        shares = {scope: Share(claim.worker, scope, services) for scope, services in claimed.items()}
        others = {scope: Share(claim.worker, scope, set()) for scope in given_back if scope not in claimed}
        failed: dict[str, Unavailable] = {}
        releases = {scope: replies.release_args(some) for scope, some in given_back.items()}
        asked = {**shares, **others}
        while True:
            wanted = shared_out(claim.room, order, shares)
            args = {}
            for scope in asked:
                share = asked[scope]
                waits = "-" if claim.room == 0 or not claim.waits else "1" if self._waits(scope, share.services) else ""
                if not share.services:
                    waits = "-"
                args[scope] = self._args(
                    claim,
                    scope,
                    wanted.get(scope, 0) - len(share.leases),
                    share.services,
                    whole=False,
                    waits=waits,
                    state=share.state,
                ) + releases.pop(scope, [])
            try:
                answers = await self._scopes.run("exchange", args, failed=failed)
            except Unavailable as error:
                answers, failed = {}, failed | dict.fromkeys(args, error)
            for scope in failed.keys() & shares.keys():
                shares[scope].exhausted = True
            for scope, answer in answers.items():
                asked[scope].take(answer)
                if args[scope][6] == "":
                    self._note_waiting(scope, asked[scope].services, True, was=False)
            wanted = shared_out(claim.room, order, shares)
            asked = {scope: share for scope, share in shares.items() if wanted[scope] > len(share.leases)}
            if not asked:
                break
        leases = _in_turn(order, shares)
        if failed and not leases:
            raise next(iter(failed.values()))
        if leases:
            worker.last_giver = leases[-1].scope
        spare = max(0, claim.room - len(leases)) if claim.waits else 0
        woken: set[str] = set()
        with contextlib.suppress(Unavailable):  # what was granted is granted
            await self._end_shared(claim, shares, spare)
            woken = await self._wakes(claim, {**others, **shares}, leases, spare)
        return leases, woken

    def _args(
        self, claim: Claim, scope: str, room: int, services: set[str], *, whole: bool, waits: str, state: bytes = b""
    ) -> list[Arg]:
        return [
            claim.worker,
            room,
            joined(services),
            "".join(map(str, sorted(claim.bands))),
            "" if claim.regions is None else "1" + joined(claim.regions),
            "1" if whole else "0",
            waits,
            state,
            scope_mark(scope),
            claim.only or ("turns" if claim.turns else ""),
        ]

    async def _wakes(self, claim: Claim, shares: Mapping[str, Share], leases: list[Lease], spare: int) -> set[str]:
        """What turned runnable, and what this claim leaves runnable: if it is full, all that it could have had."""
        again = {lease.service for lease in leases}
        if leases and not spare:
            again |= claim.services
        own: set[str] = set()
        told: dict[str, list[Arg]] = {}
        for scope, share in shares.items():
            woken = share.turned | ((again | share.left) & share.runnable)
            if woken and share.others_wait:
                told[scope] = [joined(woken)]
            else:
                own |= woken
        for answer in (await self._scopes.run("wake", told)).values() if told else ():
            own |= set(names(answer[1]))
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

    # -- what others know of this process and its workers ----------------------------------------------------------

    def _waits(self, scope: str, services: set[str]) -> bool:
        since = self._waits_since.get(scope)
        recent = since is not None and time.monotonic() - since < REGISTERED_S
        return recent and self._waits_for.get(scope, set()) == services

    def _note_waiting(self, scope: str, services: set[str], waits: bool, *, was: bool) -> None:
        if waits and not was:
            self._waits_since[scope] = time.monotonic()
            self._waits_for[scope] = services
        elif not waits:
            self._waits_since.pop(scope, None)

    def waits_for(self, service: str) -> bool:
        return self._scopes.of(service) in self._waits_since

    async def keep_waiting(self) -> None:
        """Say again that this process waits, where it does."""
        args: dict[str, list[Arg]] = {scope: [joined(self._waits_for[scope])] for scope in self._waits_since}
        if args:
            await self._scopes.run("wait", args, failed={})
            self._waits_since = dict.fromkeys(args, time.monotonic())

    async def stop_waiting(self, scopes: Sequence[str] | None = None) -> None:
        """This process has no room: nobody is to count on it."""
        for scope in list(self._waits_since) if scopes is None else scopes:
            if self._waits_since.pop(scope, None) is not None:
                await self._scopes.connection.command("HDEL", self._scopes.key(scope, "waiters"), self._scopes.process)

    async def _end_shared(self, claim: Claim, shares: Mapping[str, Share], spare: int) -> None:
        if not spare and claim.waits:
            await self.stop_waiting(list(shares))
        for scope in self._pools(shares):
            await self._scopes.connection.command(
                "HSET", self._scopes.key(scope, "workers"), f"s:{claim.worker}", spare
            )

    async def _leave_pools(self, name: str, worker: WorkerTurns, claimed: Mapping[str, set[str]]) -> None:
        """A worker that no longer asks for anything of a pool is nobody's rival there."""
        pools = self._pools(claimed)
        for scope in worker.pools - pools:
            key = self._scopes.key(scope, "workers")
            await self._scopes.connection.command("HDEL", key, f"w:{name}", f"s:{name}")
        worker.pools = pools

    def _pools(self, scopes: Mapping[str, object]) -> frozenset[str]:
        return frozenset(scope for scope in scopes if scope.startswith("pool:"))


def shared_out(room: int, order: Sequence[str], shares: Mapping[str, Share]) -> dict[str, int]:
    """How much each scope is to give in all: one each in turn; those that have no more give what they gave."""
    wanted = dict.fromkeys(order, 0)
    going = list(order)
    while going and room > 0:
        for scope in list(going):
            if shares[scope].exhausted and wanted[scope] >= len(shares[scope].leases):
                going.remove(scope)
            elif room > 0:
                wanted[scope] += 1
                room -= 1
    return wanted


def _in_turn(order: Sequence[str], shares: Mapping[str, Share]) -> list[Lease]:
    leases = []
    for turn in range(max((len(share.leases) for share in shares.values()), default=0)):
        leases += [shares[scope].leases[turn] for scope in order if turn < len(shares[scope].leases)]
    return leases
