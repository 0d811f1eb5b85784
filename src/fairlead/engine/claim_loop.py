"""Claims steps and starts them: the claim loop, which workers and the slot broker (the claimant for turns) share; the
budget and the leases of a worker; and the write that starts the claimed steps in the database.

A worker that reaches the dispatcher but not the database must not claim: the claimed steps would wait in this worker,
although other workers could run them. While the database accepts no starts, the `StartGate` keeps the worker from
claiming.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from fairlead.dispatch.port import Dispatcher, Lease, Release
from fairlead.domain.job import Job
from fairlead.domain.rules import Rules
from fairlead.domain.transitions import Start
from fairlead.engine.parts import EngineParts
from fairlead.engine.step_run import OutcomeMapper, TimeoutGroup
from fairlead.errors import StoreError, Unavailable
from fairlead.executors.factory import reaches
from fairlead.log_fields import about
from fairlead.outage import Outage
from fairlead.store.group_commit import GroupCommit
from fairlead.store.port import Outcome, Started, TurnedBack

log = logging.getLogger("fairlead.claim_loop")

RETRY_EVERY = 0.5
RELEASE_WITHIN = 1.0
EMPTY_CLAIM_DELAY = 0.01
CLAIM_BATCH = 250
"""At most this many slots are claimed at once. While the starts of one batch are written, the next batch is claimed and
the results of the previous one are written. A single large batch would make these stages wait for each other."""
start_log = logging.getLogger("fairlead.worker")

START_WITHIN = 5.0
"""Seconds from the claim of a step to its start in the database. After that the worker gives the step up."""
PROBE_EVERY = 0.5
PROBE_AT_LEAST_EVERY = 10.0
UNLIMITED = 1_000_000


class ConcurrencyBudget:
    """How many more steps a worker may run. With several shards, a worker pool has a worker on each of them, and these
    workers share one budget. A worker takes budget before it claims. It gives back the part that the claim did not use,
    and one unit for every step that ends."""

    def __init__(self, capacity: int) -> None:
        self._free = capacity
        self._members = 0
        self._short: set[Callable[[], None]] = set()

    def join(self) -> None:
        self._members += 1

    def take(self, on_free: Callable[[], None], *, at_most: int) -> int:
        """Take this worker's part of the free budget and return its size: the free units divided by the number of
        workers, rounded up, but at most `at_most`. If the part is 0, `on_free` is called once units are given back."""
        part = min(at_most, -(-self._free // max(1, self._members)))
        if part == 0:
            self._short.add(on_free)
        self._free -= part
        return part

    def give_back(self, count: int) -> None:
        if not count:
            return
        self._free += count
        if self._short:
            short, self._short = self._short, set()
            for on_free in short:
                on_free()


class Claimant(Protocol):
    @property
    def sweep_every(self) -> float: ...

    async def exchange(self, releases: list[Release]) -> tuple[int, bool]:
        """Release the slots in `releases` and claim new ones. Returns how many slots were claimed, and whether to claim
        again at once. If this raises, `releases` keeps only the releases that did not reach the dispatcher."""
        ...

    def wake_all(self) -> None:
        """Claim for all services next, because a wakeup may have been missed."""
        ...


class ClaimLoop:
    def __init__(self, claimant: Claimant, what: str) -> None:
        self._claimant = claimant
        self._what = what
        self._released: list[Release] = []
        self._wakeup = asyncio.Event()
        self._back = asyncio.Event()
        self._empty_claims = 0
        self.outage = Outage(log, what)

    def wake(self) -> None:
        self._wakeup.set()

    def release(self, release: Release) -> None:
        """Release this slot in the next call of `exchange`, which is made at once."""
        self._released.append(release)
        self._wakeup.set()

    async def release_rest(self, dispatcher: Dispatcher) -> None:
        """Release the slots that no claim has released yet. Call it when the loop has ended."""
        releases, self._released = self._released, []
        if not releases:
            return
        try:
            async with asyncio.timeout(RELEASE_WITHIN):
                await dispatcher.release(releases)
        except (Unavailable, TimeoutError) as error:
            log.info("slots could not be released (%s); they are free when their leases expire", error)

    async def run(self) -> None:
        while True:
            releases, self._released = self._released, []
            try:
                claimed, again = await self._claimant.exchange(releases)
                self.outage.ended()
            except BaseException as error:
                # Releasing twice is harmless. If the reply that granted a lease was lost, the lease expires, because
                # nothing renews it.
                self._released[:0] = releases
                if not isinstance(error, Exception):
                    raise
                if not isinstance(error, Unavailable):
                    log.exception("%s failed", self._what)
                self.outage.began(error)
                await self._wait_until_back()
                continue
            if again:
                continue
            await self._yield_to_others(claimed)
            await self._wakeup.wait()
            self._wakeup.clear()

    async def sweep(self) -> None:
        """Claim for all services periodically, in case a wakeup was missed."""
        while True:
            await asyncio.sleep(self._claimant.sweep_every)
            self._claimant.wake_all()

    def retry(self) -> None:
        """Claim again at once, because the dispatcher may be reachable again."""
        self._back.set()

    async def _wait_until_back(self) -> None:
        self._back.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(RETRY_EVERY):
                await self._back.wait()

    async def _yield_to_others(self, claimed: int) -> None:
        """Let the other workers in this process run after a claim that granted nothing. A slot that only another worker
        may take wakes this worker too, and a claim from the in-memory dispatcher never suspends. Without this pause,
        this worker would claim in vain forever, and the other worker would never run."""
        self._empty_claims = self._empty_claims + 1 if self._wakeup.is_set() and not claimed else 0
        if self._empty_claims:
            await asyncio.sleep(0 if self._empty_claims < 3 else EMPTY_CLAIM_DELAY)


class ClaimTargets:
    """The services that a worker claims for next: usually only those for which it received a wakeup. A claim costs one
    query per service or pool. If a worker has twenty services and one of them becomes runnable, querying all twenty
    would take longer than everything else between the submit of a job and its start.

    A worker with budget left receives a wakeup for every lane that becomes runnable, so claiming only for these
    services misses nothing. If a wakeup may have been lost, the worker claims for all services.
    """

    def __init__(self) -> None:
        self._services: set[str] = set()
        self._everywhere = True

    def by(self, services: Iterable[str]) -> None:
        """Claim for these services next: one of their lanes has become runnable, or one of their slots is being
        released."""
        self._services.update(services)

    def for_all(self) -> None:
        """Claim for all services next, because a wakeup may have been missed."""
        self._everywhere = True

    def to_claim(self, served: frozenset[str], rules: Rules) -> frozenset[str]:
        """Return the services to claim for now: those with a wakeup, or all services if there was no wakeup or one may
        have been missed. The wakeups so far are forgotten. Services in pools are always included, because for pools the
        dispatcher relies on the budget that this worker reported with its last claim."""
        woken, self._services = served & self._services, set()
        everywhere, self._everywhere = self._everywhere or not woken, False
        return served if everywhere else woken | (served & rules.pooled)


class HeldLeases:
    """The leases that a worker holds. Each takes one unit of the budget until it is released or dropped."""

    def __init__(self, budget: ConcurrencyBudget, release: Callable[[Release], None], targets: ClaimTargets) -> None:
        self._budget = budget
        self._release = release
        self._targets = targets
        self._leases: dict[str, Lease] = {}

    def __contains__(self, lease: Lease) -> bool:
        return lease.name in self._leases

    def names(self) -> list[str]:
        """The names of the held leases. Called by the heartbeat thread."""
        return list(self._leases)

    def add(self, leases: Iterable[Lease]) -> None:
        for lease in leases:
            self._leases[lease.name] = lease

    def drop(self, name: str) -> bool:
        """Stop renewing this lease and give back its unit of the budget. Returns False if the lease was not held."""
        held = self._leases.pop(name, None) is not None
        self._budget.give_back(held)
        return held

    def release(
        self,
        lease: Lease,
        *,
        refund: bool = False,
        failed: bool | None = None,
        used: float | None = None,
        sent: float | None = None,
    ) -> None:
        """Release the slot of this lease, for the next step to use. With `refund`, nothing ran, and the user's charge
        is returned. `failed` tells whether the region of the lease failed, `used` how many units the call used,
        `sent` how many seconds after the claim it was sent; None means that this is unknown."""
        if self.drop(lease.name):
            self._targets.by((lease.service,))
            self._release(Release(lease.name, lease.service, refund, lease.scope, failed, used, sent))


class StartGate:
    """Limits how many steps a worker may claim: none while the database accepts no starts, then a single step that
    tests whether the database accepts starts again, and any number after that test has succeeded. `wake` is called when
    the limit rises."""

    def __init__(self, group_commit: GroupCommit, wake: Callable[[], None]) -> None:
        self._group_commit = group_commit
        self._wake = wake
        self._pause = PROBE_EVERY
        self._probe_task: asyncio.Task[None] | None = None
        self.outage = Outage(start_log, "starting steps")
        self.limit = UNLIMITED

    def claimed(self) -> None:
        """Record that steps were claimed. If this was the single test step, no more steps are claimed until its start
        has succeeded."""
        if self.limit == 1:
            self.limit = 0

    def succeeded(self) -> None:
        """Record that the database has answered a start."""
        if self.limit == UNLIMITED:
            return
        self.close()
        self.outage.ended()
        self.limit, self._pause = UNLIMITED, PROBE_EVERY
        self._wake()

    def failed(self, error: Exception) -> None:
        """Record that a start could not be written, or was not answered in time."""
        self.outage.began(error)
        self.limit = 0
        if self._probe_task is None:
            self._probe_task = asyncio.get_running_loop().create_task(self._probe(), name="fairlead-probe")

    async def _probe(self) -> None:
        """Ping the database until it answers, then allow a single test step. The pause between two pings doubles each
        time the start of the test step fails although the ping was answered."""
        answered = False
        while not answered:
            await asyncio.sleep(self._pause)
            try:
                await self._group_commit.ping()
                answered = True
            except Unavailable:
                pass
            except Exception:
                start_log.exception("pinging the database failed; trying again")
        self._pause = min(PROBE_AT_LEAST_EVERY, 2 * self._pause)
        self._probe_task = None
        self.limit = 1
        self._wake()

    def close(self) -> None:
        if self._probe_task is not None:
            self._probe_task.cancel()
            self._probe_task = None


def start_of(lease: Lease, worker: str, timeout: float) -> Start:
    """The start of the step that has this lease."""
    return Start(
        lease.job_id,
        lease.step,
        lease.run,
        lease.name,
        lease.scope,
        worker,
        timeout,
        lease.region,
        lease.service,
        lease.user_id,
    )


class Starter:
    """Writes to the database that a worker's claimed steps have started. `spawn` runs a coroutine as a task of the
    worker."""

    def __init__(
        self,
        parts: EngineParts,
        worker: str,
        dispatcher: Dispatcher,
        *,
        leases: HeldLeases,
        gate: StartGate,
        outcomes: OutcomeMapper,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        self._group_commit = parts.group_commit
        self._recorder = parts.recorder
        self._clock = parts.clock
        self._timeouts: Mapping[str, float] = {name: parts.config.services[name].timeout for name in parts.executors}
        self._services = parts.config.services
        self._worker = worker
        self._dispatcher = dispatcher
        self._leases = leases
        self._gate = gate
        self._outcomes = outcomes
        self._spawn = spawn
        self._overdue: TimeoutGroup[partial[None]] = TimeoutGroup(
            asyncio.get_running_loop(), START_WITHIN, partial.__call__
        )

    async def start(self, leases: Sequence[Lease]) -> list[tuple[Lease, Started]]:
        """Write in one commit that the steps of these leases have started. Returns the steps that have started."""
        # These leases were granted under rules that this process does not have yet.
        unreachable = [lease for lease in leases if not reaches(self._services[lease.service], lease.region)]
        if unreachable:
            self._give_up(unreachable, LookupError("their region is not configured here"))
            leases = [lease for lease in leases if lease not in unreachable]
        answered = self.give_up_later(leases)
        outcomes: Sequence[Outcome | Exception]
        try:
            outcomes = await self._group_commit.write_each([self.start_of(lease) for lease in leases])
        except Exception as error:  # the group commit is full or closed
            outcomes = [error] * len(leases)
        finally:
            answered()
        return self.started(leases, outcomes)

    def close(self) -> None:
        self._gate.close()
        self._overdue.close()

    def start_of(self, lease: Lease) -> Start:
        return start_of(lease, self._worker, self._timeouts[lease.service])

    def give_up_later(self, leases: Sequence[Lease]) -> Callable[[], None]:
        """Give these steps up if their outcomes have not arrived after `START_WITHIN` seconds. The caller calls what is
        returned when the outcomes arrive, and passes them to `started` in any case."""
        give_up = partial(self._give_up_overdue, leases)
        self._overdue.on(give_up)
        return partial(self._overdue.off, give_up)

    def started(self, leases: Sequence[Lease], outcomes: Sequence[Outcome | Exception]) -> list[tuple[Lease, Started]]:
        """Returns the steps that have started. The slots of refused steps are released; steps that could not be written
        are left to recovery."""
        started: list[tuple[Lease, Started]] = []
        unwritten: list[Lease] = []
        for lease, outcome in zip(leases, outcomes, strict=True):
            if isinstance(outcome, Exception):
                unwritten.append(lease)
            elif not isinstance(outcome, Started):
                self._leases.release(lease, refund=True)
                if isinstance(outcome, TurnedBack):
                    self._recorder.publish_all(outcome.moves, self._clock.now())
            elif lease not in self._leases:
                self._spawn(self._undo(outcome.job))
            else:
                started.append((lease, outcome))
        if len(unwritten) < len(leases):
            self._gate.succeeded()
        if unwritten:
            self._give_up(unwritten, next(each for each in outcomes if isinstance(each, Exception)))
        return started

    def _give_up_overdue(self, leases: Sequence[Lease]) -> None:
        waiting = [lease for lease in leases if lease in self._leases]
        if waiting:
            self._give_up(waiting, Unavailable(f"the database has not answered for {START_WITHIN:g} s"))

    def _give_up(self, leases: Sequence[Lease], error: Exception) -> None:
        """Expire the leases of these steps, so that recovery takes the steps back now. It may be unknown whether the
        steps were started, and finding out may take long. If such a start reaches the database later, it is refused
        because the run has changed, or `_undo` reverts it."""
        start_log.warning("%d steps could not be started (%s); recovery takes them back", len(leases), error)
        for lease in leases:
            self._leases.drop(lease.name)
        if isinstance(error, Unavailable | StoreError):
            self._gate.failed(error)
        self._spawn(self._expire(leases))

    async def _expire(self, leases: Sequence[Lease]) -> None:
        try:
            await self._dispatcher.expire(leases)
        except Unavailable as error:
            start_log.info("%d leases could not be expired now (%s); they expire by themselves", len(leases), error)

    async def _undo(self, job: Job) -> None:
        """Revert a start that was written after the step was given up or its lease was lost. The step did not run, so
        no attempt is counted. Recovery releases the lease."""
        try:
            await self._recorder.record(job, self._outcomes.not_run(job), self._clock.now())
        except Unavailable as error:
            start_log.warning(
                "job %s was started too late and could not be handed back (%s)", job.id, error, extra=about(job)
            )
