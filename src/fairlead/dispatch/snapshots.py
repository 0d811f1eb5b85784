"""What operators see of a service: its slots, queues, users, groups and regions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fairlead.dispatch.rates import RateUse
from fairlead.domain.groups import GroupQueue
from fairlead.domain.job import Hold

if TYPE_CHECKING:
    from fairlead.dispatch.port import Lease


@dataclass(frozen=True, slots=True)
class UserQueue:
    """The queue of one user in one band of one service.

    `tag` is the user's virtual time in microseconds. Newcomers go before all other users, in the order of `arrival`.
    For users that are not new, `arrival` is 0.
    """

    user_id: str
    band: int
    waiting: int
    running: int
    tag: int
    weight: float
    parked: bool
    arrival: int = 0
    group: str | None = None


@dataclass(frozen=True, slots=True)
class RegionSnapshot:
    """The state of one region of a service.

    `waiting` and `retrying` count steps that are bound to certain regions, this region among them: `retrying` the
    retries that go first, `waiting` all others. Steps that may run in any region are in `ServiceSnapshot.unbound`.
    `failures` counts consecutive failures. `resting_until` is the end of the current rest, or None. `probing` is true
    from the end of a rest until the probe succeeds, or fails and starts the next rest.
    """

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
    """The state of one service. Times are converted to the database's clock if the dispatcher's clock differs from it
    by a second or more. For services with regions, `unbound` counts the steps that may run in any region, as (waiting,
    retrying) like in `RegionSnapshot`. `seconds_per_unit` and `used_per_unit` were learned from calls that stated their
    cost: the duration and the reported use per stated unit."""

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
    users: Sequence[UserQueue] = field(default_factory=tuple)
    groups: Sequence[GroupQueue] = field(default_factory=tuple)
    regions: Sequence[RegionSnapshot] = field(default_factory=tuple)
    unbound: tuple[int, int] = (0, 0)
    rates: Sequence[RateUse] = field(default_factory=tuple)
    seconds_per_unit: float | None = None
    used_per_unit: float | None = None
