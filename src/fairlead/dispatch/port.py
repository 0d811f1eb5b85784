"""The dispatcher interface: which step runs next, and whether a slot is free.

A dispatcher holds only state that can be rebuilt from the store. Every operation takes many items, is atomic, and can
safely be repeated. An `Offer` carries (job, step, run). The dispatcher ignores an offer if it already has the same or a
newer run of the job, queued or leased.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from fairlead.dispatch.rates import Rest, Sent, Spent
from fairlead.dispatch.snapshots import RegionSnapshot as RegionSnapshot
from fairlead.dispatch.snapshots import ServiceSnapshot as ServiceSnapshot
from fairlead.dispatch.snapshots import UserQueue as UserQueue
from fairlead.domain.fair_share import QueuePosition
from fairlead.domain.fast_dataclass import fast_dataclass
from fairlead.domain.job import Hold
from fairlead.domain.rules import Rules
from fairlead.domain.turns import is_turn


@fast_dataclass
class Offer:
    """A waiting step, to be added to the queue.

    `rank` orders the steps of one user: retries, then later steps of running jobs, then new jobs. `region` names the
    regions that the step is bound to or prefers, in the format of `rules.lane_of`; None means any region. `steps` lists
    the services that the job has queued for so far, including this one; empty means unknown. `group` is the path of the
    user's group; like `weight`, that of the last offer applies to all steps of the user. `plan` is the name of the
    user's plan: from the next grant on, its rate holds for the user.
    """

    job_id: str
    seq: int
    service: str
    user_id: str
    band: int
    rank: int
    step: int
    run: int
    weight: float = 1.0
    cost: float | None = None  # the estimate in the service's own unit, if one is stated (ADR 27)
    region: str | None = None
    steps: tuple[str, ...] = ()
    group: str | None = None
    plan: str | None = None


@dataclass(slots=True)
class Lease:
    """A slot in use. `name` is `epoch:counter`. Times are in seconds by the dispatcher's clock. `group` and `plan`
    are set only if the lease is to be restored."""

    name: str
    job_id: str
    step: int
    run: int
    service: str
    user_id: str
    worker: str
    granted_at: float
    expires_at: float
    region: str | None = None
    charged: int = 0
    weight: float = 1.0
    band: int = 2
    scope: str = ""
    cost: float | None = None  # of a lease to restore: the estimate of its step, in the service's unit
    group: str | None = None
    plan: str | None = None


Unserved: TypeAlias = frozenset[tuple[str, str]]
"""The regions that no live worker claims for, each with its service."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A worker's request for up to `budget` steps.

    `services` and `regions` are what the worker can execute (`regions` None: any region), `bands` the priorities it
    accepts. With `turns`, steps are granted only as long as the next step in the queue is a turn; with `only`, only if
    the next step belongs to this job. With `waits`, a claim that leaves part of its budget unused registers the worker
    for wakeups. `unserved` are the regions that no live worker serves: steps that merely prefer such a region may be
    granted to workers of other regions.
    """

    worker: str
    budget: int
    services: frozenset[str]
    bands: frozenset[int] = frozenset({1, 2, 3})
    regions: frozenset[str] | None = None
    turns: bool = False
    only: str | None = None
    waits: bool = True
    unserved: Unserved = frozenset()

    def admits(self, job_id: str) -> bool:
        """Whether the claim accepts this job, the next one of a queue. If not, the claim gets nothing from that
        queue."""
        if self.only is not None:
            return job_id == self.only
        return not self.turns or is_turn(job_id)


@fast_dataclass
class Release:
    """The return of a slot.

    `refund` means that nothing ran (the start was refused), so the user's charge is returned too. `scope` is the scope
    that granted the lease; the service may have moved to another pool since. `failed` tells the region's circuit
    breaker how the call ended; None means that the call had no region or that its outcome is unknown. For rates, `sent`
    is the number of seconds, at most, after which the call was sent, and `used` are the units that it really took; None
    means unknown.
    """

    lease: str
    service: str
    refund: bool = False
    scope: str = ""
    failed: bool | None = None
    used: float | None = None  # the units that the endpoint reported, if any
    sent: float | None = None


@fast_dataclass
class Withdrawal:
    """Removes a job from the queue, unless the queued run is newer than `run`."""

    job_id: str
    service: str
    run: int


@dataclass(frozen=True, slots=True)
class Promotion:
    """Moves a waiting step to another band and sets its run to `run`. Ignored if the step is not queued, or is queued
    with a newer run."""

    job_id: str
    service: str
    run: int
    band: int


@dataclass(frozen=True, slots=True)
class Renewal:
    """The result of a heartbeat. The `lost` leases no longer belong to the worker. During a rebuild no lease is
    reported as lost."""

    lost: frozenset[str] = frozenset()
    rebuilding: bool = False


@dataclass(frozen=True, slots=True)
class ScopeState:
    """The state of a scope on the server named `server`.

    `epoch` is None if the server does not know the scope. `lost` means that part of the scope's data is missing; the
    scope then grants nothing until it is rebuilt.
    """

    epoch: int | None
    open: bool
    server: str
    lost: bool = False


Wake = Callable[[frozenset[str]], None]
"""The callback for wakeups. Called with the services whose lanes have become runnable."""


class Dispatcher(Protocol):
    """The queues of waiting steps, and the slots of their services.

    docs/order.md describes the order; `tests/contract/test_dispatcher.py` tests it. Operations raise `Unavailable`
    while the server cannot be reached, or if it is not the server recorded in the database.
    """

    async def start(self) -> None:
        """Start background work. Returns immediately, even if the server cannot be reached."""
        ...

    async def close(self) -> None: ...

    async def reconnect(self) -> None:
        """Close all connections, because the database now names another server. The old server may be a former master
        that was cut off from the other servers."""
        ...

    def on_wake(self, wake: Wake) -> None:
        """Set the callback for wakeups. It is called with the services that became runnable: after an offer, a release,
        the end of a hold, a raised limit, the end of a pause, or the end of a rebuild. A claim that leaves a lane
        runnable calls it too, for another worker."""
        ...

    async def configure(self, rules: Rules) -> None:
        """Apply the rules: limits, pauses, pools and regions. Rules with an older `version` are ignored. A lowered
        limit stops new grants, but running calls keep their slots. Steps of a service that the rules no longer contain
        stay queued."""
        ...

    async def offer(self, offers: Sequence[Offer]) -> int:
        """Add steps to the queue, or move steps that are already queued. Returns the number of offers that were not
        ignored.

        Raises `Unavailable`, and changes nothing in the scope, if newer rules than those of this process have moved the
        service to another scope. The caller repeats the offer once it has the newer rules.
        """
        ...

    async def missing(self, offers: Sequence[Offer]) -> list[Offer]:
        """The offers whose job is neither queued nor leased with this run or a newer one. Changes nothing. Jobs on a
        Cluster node that cannot be reached are not reported as missing."""
        ...

    async def check(self) -> list[str]:
        """Compare the parts of every queue with each other. Returns the scopes whose parts contradict each other: data
        was lost, and the scopes grant nothing until they are rebuilt."""
        ...

    async def withdraw(self, withdrawals: Sequence[Withdrawal]) -> int: ...

    async def promote(self, promotions: Sequence[Promotion]) -> int: ...

    async def exchange(self, claim: Claim, releases: Sequence[Release] = ()) -> list[Lease]:
        """Release slots and claim the next steps in one operation. Returns at most `claim.budget` leases, in the order
        in which they were granted.

        A release corrects the user's charge to the slot time actually used. Releasing a lease twice, or a lease of
        another epoch, has no effect. Closed scopes and paused services grant nothing.
        """
        ...

    async def release(self, releases: Sequence[Release]) -> None: ...

    async def sent(self, reports: Sequence[Sent]) -> None:
        """Record when running calls were sent, so that the rates stop counting them in time. Leases that have ended are
        ignored."""
        ...

    async def rest(self, rests: Sequence[Rest]) -> None:
        """Obey what the upstreams said about their limits: grant nothing for a while, or count more than was granted.
        A rebuild forgets this."""
        ...

    def renew(self, worker: str, leases: Sequence[str]) -> Renewal:
        """Send a heartbeat, which extends the leases of a worker. Synchronous and thread-safe, so that a worker keeps
        its leases while a handler blocks the event loop."""
        ...

    async def expire(self, leases: Sequence[Lease]) -> None:
        """Let these leases expire now, so that the next recovery requeues their steps. A worker calls this if it cannot
        start a step that it claimed: it cannot put the step back itself, because that takes a transition in the
        database."""
        ...

    async def expired(self) -> list[Lease]:
        """The leases whose expiry has passed. Each keeps its slot until recovery has moved the job in the database and
        releases the lease."""
        ...

    async def hold(self, holds: Sequence[Hold]) -> None:
        """Keep slots taken until `hold.until`, a time by the database's clock. The dispatcher measures the remaining
        time by its own clock. A hold whose id exists is ignored. Raises `Unavailable` in the same cases as `offer`."""
        ...

    async def end_holds(self, now: float | None = None) -> int:
        """End the holds whose time is over and return their number; and wake workers for services whose rate allows
        further calls. `now` is a time by the database's clock; by default it is computed from the dispatcher's
        clock."""
        ...

    async def positions(self, job_ids: Sequence[str], unserved: Unserved = frozenset()) -> dict[str, QueuePosition]:
        """The queue positions of these jobs. Jobs that are not queued are absent. Empty during a rebuild, when the
        queue is incomplete. Costs one pass over the active users of each service. `unserved` are the regions that no
        live worker serves: their slots do not count, and steps that merely prefer such a region count as waiting for
        the other regions."""
        ...

    async def snapshot(self, services: Sequence[str] | None = None, *, users: bool = False) -> list[ServiceSnapshot]:
        """The state of these services, or of all. The declared groups are included; all users and all other groups only
        with `users`, which costs a pass over them."""
        ...

    async def states(self, scopes: Iterable[str]) -> dict[str, ScopeState]: ...

    async def known_scopes(self) -> frozenset[str]:
        """All scopes that may hold data, including scopes that have no service in the current rules."""
        ...

    async def close_scope(self, scope: str, epoch: int) -> bool:
        """Begin a rebuild: delete the scope's queues, leases and holds, and grant nothing until `open_scope`.

        Returns False, and changes nothing, if a later rebuild has begun. The same holds for `restore` and `open_scope`.
        """
        ...

    async def restore(self, scope: str, epoch: int, leases: Sequence[Lease], holds: Sequence[Hold]) -> bool:
        """Add leases and holds to a scope that is being rebuilt. The leases keep their names and get a full TTL.
        `Lease.granted_at` and `Hold.until` are times by the database's clock."""
        ...

    async def restore_spent(self, scope: str, epoch: int, calls: Sequence[Spent]) -> bool:
        """Let the rates of a scope that is being rebuilt count calls that ended before."""
        ...

    async def open_scope(self, scope: str, epoch: int) -> bool: ...


class Leadership(Protocol):
    """The lease of the leader, kept on the dispatcher's server. Operations raise `Unavailable` if the server cannot be
    reached."""

    ttl: float

    async def acquire(self, term: int) -> bool:
        """Take the lease if it is free or belongs to this process, and publish `term` with it. Returns whether this
        process is the leader."""
        ...

    async def renew(self) -> bool:
        """Extend the lease. Returns False if the lease no longer belongs to this process."""
        ...

    async def resign(self) -> None:
        """Give up the lease, so that another process can take it without waiting until it expires."""
        ...

    async def leader(self) -> tuple[str, int] | None:
        """The name and term of the current leader."""
        ...

    async def wait_to_retry(self, seconds: float) -> None:
        """Wait after a failure, at most `seconds`. Returns early when the server can be reached again."""
        ...

    async def close(self) -> None: ...


Granted = Callable[[Lease | None], None]
ClaimNew = Callable[[Offer, str, Granted], None]
"""Claims a step before it is in the queue, for the worker of this name, and calls `Granted` with the lease, at once if
the dispatcher is in this process. Calls it with None, and leaves nothing behind, if the step is not the next one of its
service now: because of a limit, a rate, a pause, or another step."""
ReleaseAtOnce = Callable[[Release], None]


class ReleaseWithNew(Protocol):
    def release(self, release: Release, worker: str, at_once: ReleaseAtOnce) -> None:
        """Release a slot of the worker of this name together with the next new steps. Calls `at_once` instead if
        another step may wait for the slot, if no new steps arrive within milliseconds, or if their claim fails."""
        ...

    async def flush(self) -> None:
        """Wait for the claims under way, and pass all slots that are not released yet to their `at_once`."""
        ...


@dataclass(frozen=True, slots=True)
class Shard:
    """The connections of one process to one dispatcher.

    `builder` connects to the same dispatcher without checking the server's identity, for rebuilds. `new_dispatcher`
    opens a connection for each further worker of the process, because Redis identifies waiting workers by their
    connection. `leadership` is None if the dispatcher is in the memory of this process.
    """

    name: str
    dispatcher: Dispatcher
    builder: Dispatcher
    new_dispatcher: Callable[[], Dispatcher]
    leadership: Leadership | None = None
    claim_new: ClaimNew | None = None
    release_with_new: ReleaseWithNew | None = None
