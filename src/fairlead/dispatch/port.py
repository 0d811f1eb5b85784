"""The dispatcher: who goes next, and is there a free slot?

It holds nothing that the store could not rebuild. Every operation takes many, is atomic, and is harmless when repeated.
An `Offer` carries (job, step, run): one that is not newer than what is in line or on lease does nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from fairlead.domain.job import Hold
from fairlead.domain.limits import Rules
from fairlead.domain.order import Place
from fairlead.domain.records import record
from fairlead.domain.turns import is_turn


@record
class Offer:
    """A step that waits. `rank`: retries before jobs under way before arrivals, within one user. `region` is the one
    that it is bound to, or several of which each will do, as `limits.lane_of` writes them; None: any will. `steps` are
    the services that the job has waited for so far, this one among them; empty: nobody knows."""

    job_id: str
    seq: int
    service: str
    user_id: str
    band: int
    rank: int
    step: int
    run: int
    weight: float = 1.0
    cost: float | None = None
    region: str | None = None
    steps: tuple[str, ...] = ()


@dataclass(slots=True)
class Lease:
    """A slot in use. `name` is `epoch:counter`. Times are the dispatcher's own clock, in seconds."""

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


@dataclass(frozen=True, slots=True)
class Claim:
    """A worker with room asks for work: `services` are those it can execute, `bands` those it is bound to. `turns`: as
    long as the next in line is a turn, and no further; `only`: if it is this one. `waits`: it may be told when a lane
    turns runnable, if it is left with room."""

    worker: str
    room: int
    services: frozenset[str]
    bands: frozenset[int] = frozenset({1, 2, 3})
    regions: frozenset[str] | None = None
    turns: bool = False
    only: str | None = None
    waits: bool = True

    def admits(self, job_id: str) -> bool:
        """Whether it may be granted this one, which is the next in line. If not, it is granted nothing of that line."""
        if self.only is not None:
            return job_id == self.only
        return not self.turns or is_turn(job_id)


@record
class Release:
    """A slot given back. `refund`: nothing ran (the start was refused), so the charge goes back as well. `scope` is the
    lease's own: its service may have moved to another pool since. `failed` is how the region of the call did; None: it
    has none, or nobody can tell."""

    lease: str
    service: str
    refund: bool = False
    scope: str = ""
    failed: bool | None = None


@record
class Withdrawal:
    """Take a job out of line, unless what is there is newer than `run`."""

    job_id: str
    service: str
    run: int


@dataclass(frozen=True, slots=True)
class Promotion:
    """Move a waiting step to another band, unless it is not there or newer than `run`, which it then carries."""

    job_id: str
    service: str
    run: int
    band: int


@dataclass(frozen=True, slots=True)
class Renewal:
    """What became of a worker's leases: `lost` ones are no longer theirs. While rebuilding none is ever called lost."""

    lost: frozenset[str] = frozenset()
    rebuilding: bool = False


@dataclass(frozen=True, slots=True)
class UserLine:
    """One user's standing in one band of one service. `tag` is the virtual time, in microseconds; `arrival` its number
    among those that are new in the band and go before all that are not, 0 for the others."""

    user_id: str
    band: int
    waiting: int
    running: int
    tag: int
    weight: float
    parked: bool
    arrival: int = 0


@dataclass(frozen=True, slots=True)
class RegionSnapshot:
    """One region of a service. `waiting` and `retrying` are those that may run here and not everywhere; `failures` are
    in a row; `resting_until` is there while it rests, and `probing` from then on until a call there succeeds."""

    region: str
    limit: int
    in_use: int
    waiting: int = 0
    retrying: int = 0
    failures: int = 0
    resting_until: float | None = None
    probing: bool = False
    latency: float | None = None


@dataclass(frozen=True, slots=True)
class ServiceSnapshot:
    """`unbound`: of a service with regions, how many wait that may run in any, and how many such retries."""

    service: str
    limit: int
    in_use: int
    held: int
    paused: bool
    waiting: Mapping[int, int]
    leases: Sequence[Lease]
    holds: Sequence[Hold]
    virtual_time: Mapping[int, int]
    mean_duration: float | None
    users: Sequence[UserLine] = field(default_factory=tuple)
    regions: Sequence[RegionSnapshot] = field(default_factory=tuple)
    unbound: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True)
class ScopeState:
    """What the dispatcher says of a scope: None as epoch if it knows nothing of it; `server` is who says so."""

    epoch: int | None
    open: bool
    server: str


Wake = Callable[[frozenset[str]], None]
"""Called with the services whose lane has just turned runnable."""


class Dispatcher(Protocol):
    """See DESIGN section 4 for the order, and `tests/contract/test_dispatcher.py` for every rule as a test. Raises
    `Unavailable` while its server cannot be reached, or is not the one that the truth names."""

    async def start(self) -> None:
        """Returns at once, also when the server is away."""
        ...

    async def close(self) -> None: ...

    async def reconnect(self) -> None:
        """The truth names another server: whoever answered so far may be one that lives on cut off from the others."""
        ...

    def on_wake(self, wake: Wake) -> None:
        """Tell this process's worker when a lane turns from not-runnable to runnable (offer, release, end of a hold,
        raised limit, resumed lane, reopened scope). A claim that leaves a lane runnable wakes too."""
        ...

    async def configure(self, rules: Rules) -> None:
        """Take new limits, pauses and pools at once; an older `version` than the present one does nothing. A lowered
        limit stops new grants and takes nothing back. What waits for a service that is no longer there stays in
        line."""
        ...

    async def offer(self, offers: Sequence[Offer]) -> int:
        """Put into line, or move; returns how many were newer than what was there."""
        ...

    async def withdraw(self, withdrawals: Sequence[Withdrawal]) -> int: ...

    async def promote(self, promotions: Sequence[Promotion]) -> int: ...

    async def exchange(self, claim: Claim, releases: Sequence[Release] = ()) -> list[Lease]:
        """Give back slots and take the next steps, as one operation: at most `claim.room` leases, in order of service.

        A released lease settles its user's charge to the slot time really used. Releasing twice, or a lease of another
        epoch, changes nothing. Nothing is granted from a scope that is closed, nor from a paused lane.
        """
        ...

    async def release(self, releases: Sequence[Release]) -> None: ...

    def renew(self, worker: str, leases: Sequence[str]) -> Renewal:
        """The heartbeat. Synchronous and safe to call from another thread, so that a handler that blocks the event
        loop does not cost the worker its leases."""
        ...

    async def expired(self) -> list[Lease]:
        """Leases past their expiry. They keep their slots until released, which the recovery does after its write."""
        ...

    async def hold(self, holds: Sequence[Hold]) -> None:
        """Keep slots taken until `hold.until`; a hold already known (by id) is not counted twice."""
        ...

    async def end_holds(self, now: float) -> int: ...

    async def places(self, job_ids: Sequence[str]) -> dict[str, Place]:
        """Where these steps stand; those not in line are absent, and all while it is being built, as not everybody is
        in it yet. One pass over the active users per service."""
        ...

    async def snapshot(
        self, services: Sequence[str] | None = None, *, users: bool = False
    ) -> list[ServiceSnapshot]: ...

    async def states(self, scopes: Iterable[str]) -> dict[str, ScopeState]: ...

    async def close_scope(self, scope: str, epoch: int) -> bool:
        """Begin a rebuild: forget all of the scope's lines, leases and holds, and grant nothing until it is opened.
        False, and nothing is done, if a later rebuild has begun; so with the two that follow."""
        ...

    async def restore(self, scope: str, epoch: int, leases: Sequence[Lease], holds: Sequence[Hold]) -> bool:
        """While closed: put back leases under their names, with a full TTL from now, and holds."""
        ...

    async def open_scope(self, scope: str, epoch: int) -> bool: ...


class Leadership(Protocol):
    """A lease on being the leader, kept where the dispatcher is. Raises `Unavailable` as the dispatcher does."""

    ttl: float

    async def acquire(self, term: int) -> bool:
        """Become the leader if nobody is, or stay it; `term` is what others are shown. True if we are."""
        ...

    async def renew(self) -> bool:
        """False: it is ours no more."""
        ...

    async def resign(self) -> None:
        """At once, so that another need not wait for the end of the lease."""
        ...

    async def leader(self) -> tuple[str, int] | None:
        """Who it is, and its term."""
        ...

    async def close(self) -> None: ...


Heard = Callable[[str, bytes], None]
"""Called with the channel and the message."""


class Bus(Protocol):
    """Short messages between processes. They may be lost: whatever must not be missed is in the truth."""

    async def start(self, channels: Sequence[str], heard: Heard, began: Callable[[], None] | None = None) -> None:
        """Listen to these from now on. Returns at once, also when the server is away. `began` is called whenever a
        connection stands: what was said before was missed."""
        ...

    def listen(self, channel: str) -> None: ...

    def unlisten(self, channel: str) -> None: ...

    def send(self, channel: str, message: bytes) -> None:
        """Soon, many together; dropped when the server is away or too much has gathered."""
        ...

    async def listened(self, pattern: str) -> frozenset[str]:
        """The channels that somebody listens to, anywhere."""
        ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Shard:
    """One dispatcher as a process has it. `builder` reaches the same one, whichever server answers: it is for whoever
    rebuilds it. `another` is for each further worker of the process: in Redis, who waits for work is known by its
    connection. Without a `leadership`, all of it is in this process."""

    name: str
    dispatcher: Dispatcher
    builder: Dispatcher
    another: Callable[[], Dispatcher]
    leadership: Leadership | None = None
