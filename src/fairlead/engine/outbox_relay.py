"""Relays changes from the database to the dispatcher, so that the queue matches the jobs.

Every transition that changes the queue writes an outbox row in the same transaction. The process that committed the row
relays it at once, and deletes it with a later commit. If that process died, the outbox loop relays and deletes the row.
Relaying a row twice is harmless.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from fairlead.dispatch.port import Dispatcher, Offer, Withdrawal
from fairlead.domain.job import Job, JobStatus
from fairlead.domain.rules import BANDS, Lanes, Order, ServiceRules, lane_of
from fairlead.engine.parts import RulesRef, ShardSignals
from fairlead.errors import Unavailable
from fairlead.outage import Outage
from fairlead.store.group_commit import GroupCommit
from fairlead.store.port import LATE_AFTER, OutboxEntry, Relayed, Store

log = logging.getLogger("fairlead.relay")

ANY_TIME = 9e9
"""A time in seconds since 1970 that is later than the time of every row."""
SLACK = 0.01
BATCH = 1000
EVERY = 0.2
# A process relays its own commits at once. Older rows were left by a process that died or could not relay.
LEFT_AFTER = 2.0


class OutboxRelay:
    """Relays outbox rows to one dispatcher.

    The jobs of a FIFO service enter the queue in the order in which they were accepted. A commit may find older outbox
    rows of the service that were not relayed in time (`OutboxEntry.late`). These rows are relayed first, whichever
    process wrote them.
    """

    def __init__(
        self, dispatcher: Dispatcher, store: Store, group_commit: GroupCommit, rules: RulesRef, shard: ShardSignals
    ) -> None:
        self._dispatcher = dispatcher
        self._store = store
        self._group_commit = group_commit
        self._rules = rules
        self._shard = shard
        self._entries: list[OutboxEntry] = []
        self._strays: list[Withdrawal] = []
        self._wakeup = asyncio.Event()
        self._relaying = False
        self._after_this: list[asyncio.Future[None]] = []
        self._after_next: list[asyncio.Future[None]] = []
        self._outage = Outage(log, "relaying to the dispatcher (the outbox keeps the changes)")

    @property
    def reachable(self) -> bool:
        return self._outage.reason is None

    @property
    def behind(self) -> bool:
        """Whether something that was committed here has not reached the dispatcher yet."""
        return self._wakeup.is_set() or self._relaying

    async def settled(self) -> None:
        """Wait until everything that this process has committed so far has reached the dispatcher. Returns early if the
        dispatcher cannot be reached."""
        if self.behind:
            settled = asyncio.get_running_loop().create_future()
            (self._after_next if self._wakeup.is_set() else self._after_this).append(settled)
            await settled

    async def in_order(self) -> None:
        """Keep the order of submits: wait until the outbox rows that this process has committed so far have reached the
        dispatcher. Stop waiting once these rows are old enough to count as late, because every process relays late rows
        before newer jobs."""
        loop = asyncio.get_running_loop()
        late_at = loop.time() + LATE_AFTER + SLACK
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(late_at):
                await self.settled()
        if not self.reachable:
            await asyncio.sleep(late_at - loop.time())

    def committed(self, entries: Sequence[OutboxEntry]) -> None:
        """Queue the outbox rows of a commit for `run` to relay. Called before the callers of the commit get their
        outcomes, so that `settled` then waits for these rows."""
        if entries:
            self._entries.extend(entries)
            self._wakeup.set()

    def moved_away(self, job: Job) -> None:
        """Remove a job from this shard's queue, because it waits on another shard from now on. If the removal is lost,
        the step may be granted here, and is then refused when it starts."""
        self._strays.extend(Withdrawal(job.id, service, job.run) for service in waited_for(job))
        self._wakeup.set()

    async def run(self) -> None:
        while True:
            await self._wakeup.wait()
            self._wakeup.clear()
            entries, self._entries = self._entries, []
            strays, self._strays = self._strays, []
            self._after_this, self._after_next = self._after_next, []
            self._relaying = True
            try:
                if strays:
                    await self._dispatcher.withdraw(strays)
                await self.relay(entries)
                self._outage.ended()
            except Unavailable as error:
                self._outage.began(error)
            except Exception:
                # The rows are still in the outbox, and the outbox loop relays them.
                log.exception("relaying %d changes failed; the outbox keeps them", len(entries))
            finally:
                self._relaying = False
                for settled in self._after_this:
                    if not settled.done():
                        settled.set_result(None)
                self._after_this = []

    async def relay(self, entries: Sequence[OutboxEntry]) -> None:
        if late := {entry.job.service for entry in entries if entry.late and entry.job is not None}:
            await self._relay_earlier(late)
        await self._relay(entries)

    async def _relay_earlier(self, services: set[str]) -> None:
        """For each FIFO service in `services`, relay its outbox rows in the order in which their jobs were accepted."""
        rules, lanes = self._rules.current.services, self._rules.lanes
        fifo = [name for name in services if name in rules and rules[name].order is Order.FIFO]
        pairs = frozenset((name, band) for name in fifo for band in BANDS if lanes.has(name, band))
        while pairs:
            # Take rows of any age: clocks differ, and relaying a row twice is harmless.
            earlier = await self._store.outbox(older_than=ANY_TIME, limit=BATCH, lanes=Lanes(pairs))
            await self._relay(earlier)
            if len(earlier) < BATCH:
                return
            await self._group_commit.flush()  # otherwise the next query returns the same rows

    async def _relay(self, entries: Sequence[OutboxEntry]) -> None:
        offers: list[Offer] = []
        withdrawals: list[Withdrawal] = []
        lanes, services = self._rules.lanes, self._rules.current.services
        elsewhere: set[int] = set()
        for entry in entries:
            job = entry.job
            if job is None:
                continue
            if job.status is JobStatus.PENDING and lanes.has(job.service, job.priority.band):
                offers.append(offer_of(job, services))
            elif job.status is JobStatus.PENDING and self._shard.relay_elsewhere(entry):
                elsewhere.add(entry.outbox_id)
            else:
                withdrawals.extend(Withdrawal(job.id, service, job.run) for service in waited_for(job))
                if job.status.finished:
                    # Another process may have cancelled it while a worker in this process runs it.
                    self._shard.job_found_ended(job.id)
        if withdrawals:
            await self._dispatcher.withdraw(withdrawals)
        if offers:
            await self._dispatcher.offer(offers)
            self._shard.jobs_offered()
        # Jobs may share a row.
        if relayed := tuple(dict.fromkeys(entry.outbox_id for entry in entries if entry.outbox_id not in elsewhere)):
            self._group_commit.write_later(Relayed(relayed))


def waited_for(job: Job) -> Iterable[str]:
    """The services in whose queues the job may wait. For a re-run that was cancelled these are the services of all
    steps, because its row no longer shows which step it waited for."""
    return dict.fromkeys(job.steps) if job.round and job.status.finished else (job.service,)


def offer_of(job: Job, services: Mapping[str, ServiceRules], seq: int | None = None) -> Offer:
    """The job's waiting step, as it is offered to the dispatcher. The service of the step may be missing in `services`,
    if no configuration declares it any more. `seq` is given if the job has none yet."""
    service, region = job.service, None
    if job.region is not None or job.allowed_regions is not None:
        rules = services.get(service)
        regions = () if rules is None else rules.regions
        prefers = job.prefers_within(regions)
        region = lane_of(job.bound_within(regions) if prefers is None else job.allowed_regions, prefers)
    return Offer(
        job.id,
        job.seq if seq is None else seq,
        service,
        job.user_id,
        job.priority.band,
        job.rank,
        job.step,
        job.run,
        job.weight,
        job.step_cost,
        region,
        job.steps if job.round or len(job.steps) == 1 else job.steps[: job.step + 1],
        job.group,
        job.plan,
    )


class OutboxLoop:
    """Relays outbox rows that are still there because the process that committed them has not relayed them."""

    name = "outbox"

    def __init__(self, store: Store, group_commit: GroupCommit, relay: OutboxRelay, rules: RulesRef) -> None:
        self._store = store
        self._group_commit = group_commit
        self._relay = relay
        self._rules = rules
        self.scanned = self.queued = 0

    async def tick(self, now: float) -> float:
        entries = await self._store.outbox(older_than=now - LEFT_AFTER, limit=BATCH, lanes=self._rules.lanes)
        self.scanned += len(entries)
        if entries:
            # `late` makes the relay include younger rows of FIFO services, whose jobs may have been accepted earlier.
            await self._relay.relay([replace(entry, late=True) for entry in entries])
            self.queued += len(entries)
            # The rows are deleted by the next commit. Until then, a query would return them again.
            await self._group_commit.flush()
        return now if len(entries) >= BATCH else now + EVERY
