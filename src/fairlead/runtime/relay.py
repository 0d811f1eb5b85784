"""From the truth to the line: makes the dispatcher match the jobs' present state.

Every change of the line is an outbox row of the same transaction. The process that committed relays at once and deletes
the row with a later commit; if it died, the manager's outbox loop does it. Doing it twice is harmless.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence

from fairlead.dispatch.port import Dispatcher, Offer, Withdrawal
from fairlead.domain.job import Job, JobStatus
from fairlead.domain.limits import Lanes, Rules, ServiceRules, lane_of
from fairlead.errors import Unavailable
from fairlead.runtime.outage import Outage
from fairlead.store.journal import Journal
from fairlead.store.port import LineChange, Relayed

log = logging.getLogger(__name__)


class Relay:
    """To one dispatcher: what waits in its `lanes`."""

    def __init__(self, dispatcher: Dispatcher, lanes: Callable[[], Lanes], rules: Callable[[], Rules]) -> None:
        self.on_ended: Callable[[str], None] = lambda job_id: None
        self.on_offered: Callable[[], None] = lambda: None
        self._dispatcher = dispatcher
        self._lanes = lanes
        self._rules = rules
        self._changes: list[LineChange] = []
        self._strays: list[Withdrawal] = []
        self._bell = asyncio.Event()
        self._telling = False
        self._after_this: list[asyncio.Future[None]] = []
        self._after_next: list[asyncio.Future[None]] = []
        self._outage = Outage(log, "telling the line of changes (the outbox keeps them)")

    @property
    def reachable(self) -> bool:
        return self._outage.reason is None

    @property
    def behind(self) -> bool:
        """The line has not heard of everything yet."""
        return self._bell.is_set() or self._telling

    async def settled(self) -> None:
        """Returns when the line has heard of what was committed before, or when it cannot be told now."""
        if self.behind:
            settled = asyncio.get_running_loop().create_future()
            (self._after_next if self._bell.is_set() else self._after_this).append(settled)
            await settled

    def committed(self, changes: Sequence[LineChange]) -> None:
        """The journal's hook: called after each commit, before its callers hear of it."""
        if changes:
            self._changes.extend(changes)
            self._bell.set()

    def moved_away(self, job: Job) -> None:
        """It waits on another shard from now on. If this is not heard here, its step is granted, and refused at its
        start."""
        self._strays.extend(Withdrawal(job.id, service, job.run) for service in waited_for(job))
        self._bell.set()

    async def run(self, journal: Journal) -> None:
        while True:
            await self._bell.wait()
            self._bell.clear()
            changes, self._changes = self._changes, []
            strays, self._strays = self._strays, []
            self._after_this, self._after_next = self._after_next, []
            self._telling = True
            try:
                if strays:
                    await self._dispatcher.withdraw(strays)
                await self.relay(changes, journal)
                self._outage.ended()
            except Unavailable as error:
                self._outage.began(error)
            except Exception:
                # The rows are still in the outbox; the manager's loop will bring them.
                log.exception("relaying %d changes of the line failed; the outbox keeps them", len(changes))
            finally:
                self._telling = False
                for settled in self._after_this:
                    if not settled.done():
                        settled.set_result(None)
                self._after_this = []

    async def relay(self, changes: Sequence[LineChange], journal: Journal) -> None:
        offers: list[Offer] = []
        withdrawals: list[Withdrawal] = []
        lanes, services = self._lanes(), self._rules().services
        for change in changes:
            job = change.job
            if job is None:
                continue
            if job.status is JobStatus.PENDING and lanes.has(job.service, job.priority.band):
                offers.append(offer_of(job, services))
            else:
                withdrawals.extend(Withdrawal(job.id, service, job.run) for service in waited_for(job))
                if job.status.finished:
                    # Another process may have cancelled it while a worker of this one runs it.
                    self.on_ended(job.id)
        if withdrawals:
            await self._dispatcher.withdraw(withdrawals)
        if offers:
            await self._dispatcher.offer(offers)
            self.on_offered()
        if changes:
            # Jobs may share a row.
            journal.write_later(Relayed(tuple(dict.fromkeys(change.outbox_id for change in changes))))


def waited_for(job: Job) -> Iterable[str]:
    """The services that it may wait for. A re-run that was cancelled has left the step that it waited for."""
    return dict.fromkeys(job.steps) if job.round and job.status.finished else (job.service,)


def offer_of(job: Job, services: Mapping[str, ServiceRules]) -> Offer:
    """The step that waits, for one of these services or for one that is not declared."""
    service, region = job.service, None
    if job.region is not None or job.allowed_regions is not None:
        rules = services.get(service)
        region = lane_of(job.bound_to if rules is None else job.bound_within(rules.regions))
    return Offer(
        job.id,
        job.seq,
        service,
        job.user_id,
        job.priority.band,
        job.rank,
        job.step,
        job.run,
        job.weight,
        job.cost,
        region,
        job.steps if job.round or len(job.steps) == 1 else job.steps[: job.step + 1],
    )
