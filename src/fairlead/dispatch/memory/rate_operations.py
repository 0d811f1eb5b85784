"""The operations of the in-memory dispatcher that concern rates, and the timer that wakes workers when a rate allows
further calls."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence, Set

from fairlead.dispatch.memory.leases import Leases
from fairlead.dispatch.memory.rated_service import advance_service, call_sent, groups_of_path, start_rates
from fairlead.dispatch.memory.service import Service
from fairlead.dispatch.memory.topology import Topology, Wakeups
from fairlead.dispatch.rates import Rest, Sent, Spent
from fairlead.domain.fair_share import SECOND, micros
from fairlead.domain.rates import UNLIMITED


class RateOperations:
    _clock: Callable[[], float]
    _leases: Leases
    _services: dict[str, Service]
    _topology: Topology
    _wakeups: Wakeups
    _rates_due = math.inf
    """The time at which a window changes next, in seconds; infinity if no service has a rate."""
    _timer: asyncio.TimerHandle | None = None

    def _announce(self, again: Set[str] = frozenset()) -> None:
        raise NotImplementedError

    def _ahead(self) -> float:
        raise NotImplementedError

    def _is_rebuilding(self, scope: str, epoch: int) -> bool:
        raise NotImplementedError

    async def sent(self, reports: Sequence[Sent]) -> None:
        now = micros(self._clock())
        for report in reports:
            lease = self._leases.by_name.get(report.lease)
            service = None if lease is None else self._services[lease.service]
            if lease is not None and service is not None and service.rates is not None:
                groups = call_sent(service, lease, report.after, now)
                if lease.user_id in service.parked:
                    service.park_or_unpark(service.users[lease.user_id])
                if service.groups is not None:
                    service.groups.reconsider(groups)
                self._wakeups.touch(service)
                self._wakeups.touch_counted(service)
        self._announce()

    async def rest(self, rests: Sequence[Rest]) -> None:
        now = micros(self._clock())
        for rest in rests:
            service = self._topology.service(rest.service)
            if service.rates is None:
                self._topology.rated.append(service)
            start_rates(service, self._topology.timer).rest(rest, now)
            self._wakeups.touch(service)
        self._announce()

    async def restore_spent(self, scope: str, epoch: int, calls: Sequence[Spent]) -> bool:
        if not self._is_rebuilding(scope, epoch):
            return False
        now, ahead = self._clock(), self._ahead()
        for call in calls:
            service = self._topology.service(call.service)
            if service.rates is not None:
                groups = groups_of_path(service, call.group)
                window = service.rates.spent(call, micros(min(now, call.ended_at + ahead)), groups)
                if call.user_id in service.users:
                    user = service.users[call.user_id]
                    user.window, user.windows = window, None
                self._wakeups.touch(service)
        self._announce()
        return True

    def _advance_rates(self, now: float) -> None:
        """Drop what is over from all windows."""
        if now < self._rates_due:
            return
        self._topology.timer.changed = True
        for service in self._topology.rated:
            # A pool's window is shared: its change concerns all services of the pool, of which one saw it first.
            if advance_service(service, micros(now)):
                for each in [service] if service.pool is None else service.pool.services:
                    self._wakeups.touch(each)

    def _arm(self) -> None:
        """Set the time of the next change, and the timer for it if steps wait for a rate."""
        due, blocked = UNLIMITED, False
        for service in self._topology.rated:
            assert service.rates is not None
            due = min(due, service.rates.next_due())
            blocked = blocked or (not service.runnable and any(service.waiting))
        self._topology.timer.due, self._topology.timer.changed = due, False
        self._rates_due = due / SECOND
        if self._timer is not None:
            self._disarm()
        if blocked and due < UNLIMITED:
            delay = max(0.0, self._rates_due - self._clock())
            self._timer = asyncio.get_running_loop().call_later(delay, self._fire)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fire(self) -> None:
        self._timer = None
        self._topology.timer.changed = True  # set the timer again if it has fired before its time, as uvloop's may
        self._advance_rates(self._clock())
        self._announce()
