"""The worker: claims steps, starts them in the database, calls their handlers and records their outcomes.

The hot path, top to bottom: `exchange` releases slots and claims new ones, `_start` writes the starts, and `_run_step`
takes one step through call, conclude, finish and release. Workers have no queue: every claimed step has its slot.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine, Sequence
from functools import partial
from typing import Any

from fairlead import failpoints
from fairlead.dispatch.port import Claim, Dispatcher, Lease, Release
from fairlead.domain.costs import used_units
from fairlead.domain.transitions import Move
from fairlead.domain.turns import is_turn
from fairlead.engine.claim_loop import (
    CLAIM_BATCH,
    ClaimLoop,
    ClaimTargets,
    ConcurrencyBudget,
    HeldLeases,
    Starter,
    StartGate,
)
from fairlead.engine.parts import EngineParts, RulesRef, ShardSignals
from fairlead.engine.roles import WorkerPool
from fairlead.engine.sent_reports import SentReports
from fairlead.engine.step_files import StepFiles, is_stored
from fairlead.engine.step_run import (
    DRAINED,
    LOST,
    OutcomeMapper,
    Reports,
    StepReporter,
    StepRun,
    TimeoutGroup,
    call_of,
    cancelled_outcome,
    region_failed,
    strays,
    was_overloaded,
)
from fairlead.errors import Unavailable
from fairlead.executors.call_outcome import failure_of
from fairlead.executors.port import CANCELLED, TIMED_OUT, Call
from fairlead.executors.trace_scope import execute
from fairlead.log_fields import about
from fairlead.outage import Outage
from fairlead.store.port import Started, Store

log = logging.getLogger("fairlead.worker")

SWEEP_EVERY = 1.0
SWEEP_REGIONS_EVERY = 0.25
"""Seconds between two sweeps of a worker that is bound to regions. It may get no wakeup for a new step, because a
service sends none while it is runnable for steps of other regions."""
COOL_DOWN = 0.5
"""Seconds for which the slot of an overloaded call is kept while a limit is being discovered. Otherwise a single slot
too many would fail every waiting job in turn before the limit is lowered."""
STUBBORN_AFTER = 3.0
CLOSE_WITHIN = 2.0


class Worker:
    """Claims steps from one shard, as its worker pool describes."""

    def __init__(
        self,
        parts: EngineParts,
        pool: WorkerPool,
        budget: ConcurrencyBudget,
        *,
        dispatcher: Dispatcher,
        rules: RulesRef,
        shard: ShardSignals,
    ) -> None:
        self.name = pool.worker(parts.process)
        self.pool = pool
        self._group_commit = parts.group_commit
        self._recorder = parts.recorder
        self._counters = parts.recorder.counters
        self._clock = parts.clock
        self._services = parts.config.services
        self._units = parts.config.units
        self._executors = parts.executors
        self._budget = budget
        budget.join()
        self._dispatcher = dispatcher
        self._rules = rules
        self._shard = shard
        self._outcomes = OutcomeMapper(parts.config, parts.executors, parts.clock, rules)
        # Looked up once: `get_running_loop` is a system call, and every step would need it three times.
        self._loop = asyncio.get_running_loop()
        self._reports = Reports(parts, self._loop)
        self._files = None if parts.files is None else StepFiles(parts.files)
        self._sent = SentReports(self._loop, dispatcher, rules)
        self._claim_targets = ClaimTargets()
        self.claims = ClaimLoop(self, "claiming")
        self._leases = HeldLeases(budget, self._release_slot, self._claim_targets)
        self._gate = StartGate(parts.group_commit, self.wake_all)
        self._starter = Starter(
            parts, self.name, dispatcher, leases=self._leases, gate=self._gate, outcomes=self._outcomes,
            spawn=self._spawn,
        )  # fmt: skip
        self._runs: dict[str, StepRun] = {}
        self._timeouts: dict[float, TimeoutGroup[StepRun]] = {}
        self._tasks: set[asyncio.Future[Any]] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._closing = False
        self.draining = False
        self.unserved: frozenset[tuple[str, str]] = frozenset()
        """For a worker bound to regions: the pairs of service and region that no live worker claims for."""
        self._write_outage = Outage(log, "writing the outcomes of calls (they are kept)")
        self.late_results = 0

    @property
    def running(self) -> int:
        return len(self._runs)

    @property
    def outage(self) -> Outage:
        """Tells whether, and why, the dispatcher cannot be reached."""
        return self.claims.outage

    # ------------------------------------------------------------ claim

    @property
    def sweep_every(self) -> float:
        return SWEEP_EVERY if self.pool.regions is None else SWEEP_REGIONS_EVERY

    def wake(self, services: frozenset[str]) -> None:
        """Claim for these services next: one of their lanes has become runnable."""
        self._claim_targets.by(services)
        self.claims.wake()

    def wake_all(self) -> None:
        """Claim for all services next: any of them may have a runnable lane."""
        self._claim_targets.for_all()
        self.claims.wake()

    async def exchange(self, releases: list[Release]) -> tuple[int, bool]:
        """Release slots and claim as many steps as the budget allows."""
        limit = 0 if self.draining or self._group_commit.full else min(self._gate.limit, CLAIM_BATCH)
        budget = self._budget.take(self.wake_all, at_most=limit) if limit else 0
        leases: list[Lease] = []
        began = time.monotonic()
        try:
            if releases:
                self._shard.releasing(releases)
            leases = await self._dispatcher.exchange(self._claim(budget), releases)
        except Exception:
            self._claim_targets.for_all()
            raise
        finally:
            self._budget.give_back(budget - len(leases))
        if leases:
            failpoints.passed(failpoints.AFTER_CLAIM)
            self._accept(leases, began)
        if len(leases) == budget:
            self._claim_targets.for_all()  # the dispatcher sends no wakeups to a worker without budget
        return len(leases), budget > 0 and len(leases) == budget

    def _claim(self, budget: int) -> Claim:
        if not budget or self.pool.partial:
            self._claim_targets.for_all()
        services = self._claim_targets.to_claim(self.pool.serves(self._rules.executed), self._rules.current)
        return Claim(self.name, budget, services, self.pool.bands, self.pool.regions, unserved=self.unserved)

    def _accept(self, leases: Sequence[Lease], claimed_at: float) -> None:
        """Start the granted steps. The slots of turns are passed to the slot broker."""
        if turns := [lease for lease in leases if is_turn(lease.job_id)]:
            self._budget.give_back(len(turns))
            for lease in turns:
                self._shard.turn_granted(lease)
            leases = [lease for lease in leases if not is_turn(lease.job_id)]
        if leases:
            self._gate.claimed()
            self._leases.add(leases)
            self._spawn(self._start(leases, claimed_at))

    # ------------------------------------------------------------ start, call, conclude, finish, release

    async def _start(self, leases: Sequence[Lease], claimed_at: float) -> None:
        """Write in one commit that the steps have started, then run them."""
        self._run_steps(await self._starter.start(leases), claimed_at)

    def _run_steps(self, steps: Sequence[tuple[Lease, Started]], claimed_at: float) -> None:
        """Run each of these steps in its own task."""
        for lease, started in steps:
            self._counters.started(started.job)
            timeout = self._services[lease.service].timeout
            timeouts = self._timeouts.get(timeout)
            if timeouts is None:
                stop = partial(self._stop, reason=TIMED_OUT)
                timeouts = self._timeouts[timeout] = TimeoutGroup(self._loop, timeout, stop)
            run = StepRun(lease, started.job, started, timeouts, claimed_at=claimed_at)
            timeouts.on(run)
            self._sent.watch(run)
            self._runs[lease.job_id] = run
            run.task = self._loop.create_task(self._run_step(run))
            self._tasks.add(run.task)

    async def _run_step(self, run: StepRun) -> None:
        finishing = False
        try:
            elapsed = await self._call(run)
            if run.call is not None and run.call.rests:
                await self._sent.rest(run.call.rests)
            self._conclude(run, elapsed)
            if run.move is not None and not run.keeps_slot:
                self._recorder.record_soon(run.job, run.move, self._clock.now(), partial(self._finished, run))
                finishing = True
                return
            await self._finish(run, run.move)
            await self._keep_slot(run)
            self._release(run)
        except Exception:
            log.exception("job %s: running its step failed; its lease will expire", run.job.id, extra=about(run.job))
            run.released = True
            self._runs.pop(run.job.id, None)
            self._leases.drop(run.lease.name)
        finally:
            if not finishing:
                self._task_done(run.task)  # a done callback would cost as much as the task

    async def _call(self, run: StepRun) -> float:
        """Call the handler and set `run.outcome`. Returns how many seconds the call took."""
        call = call_of(run, self._services[run.lease.service].timeout, StepReporter(self._reports, run))
        if run.job.webhook is not None:
            await self._reports.record_start(run.job, run.job.webhook)
        self._reports.started(run.job)
        began = self._clock.monotonic()
        if run.stopped:
            run.timeouts.off(run)
        else:
            await self._call_handler(run, call)
        run.called(call)
        elapsed = self._clock.monotonic() - began
        if self._files is not None and self._files.concern(run, call):
            await self._files.keep(run, call)
        return elapsed

    async def _call_handler(self, run: StepRun, call: Call) -> None:
        run.calling = True
        try:
            missing = await self._files.load(call) if self._files is not None and is_stored(call) else None
            run.outcome = missing or await execute(self._executors[call.service], call)
        except asyncio.CancelledError:
            if self._closing:
                raise
            run.outcome = cancelled_outcome(run)
        except Exception as error:
            log.exception("the executor of %s failed", call.service, extra=about(run.job))
            run.outcome = failure_of(error)
        finally:
            run.timeouts.off(run)
            run.calling = False
        if run.stop_reason == TIMED_OUT:
            run.outcome = self._outcomes.timed_out(run, call)

    def _conclude(self, run: StepRun, elapsed: float) -> None:
        """Count the call, and decide which transition to write and whether to keep the slot."""
        job, outcome = run.job, run.outcome
        self._outcomes.count(run, elapsed, self._counters)
        if run.progress_timer is not None:
            run.progress_timer.cancel()
        run.cools_down = was_overloaded(outcome) and self._services[job.service].auto is not None
        run.region_failed = region_failed(run.lease, outcome)
        run.move = None if run.abandoned else self._outcomes.move_of(run, outcome, elapsed)

    def _finished(self, run: StepRun, applied: bool | Exception) -> None:
        """Release the slot, once the outcome is written. The worker is not idle until then."""
        if self._closing:
            return
        failpoints.passed(failpoints.AFTER_FINISH)
        if isinstance(applied, Exception):
            self._spawn(self._finish_alone(run))
        else:
            self._written(run, applied=applied)
            self._release(run)
        self._task_done(run.task)

    async def _finish_alone(self, run: StepRun) -> None:
        """Write the outcome of this step alone, after writing it with others has failed (see `_record`)."""
        assert run.move is not None
        await self._record(run, run.move)
        self._release(run)

    async def _finish(self, run: StepRun, move: Move | None) -> None:
        if move is None:
            return
        applied = await self._record(run, move)
        failpoints.passed(failpoints.AFTER_FINISH)
        if applied and move.hold is not None:
            try:
                await self._dispatcher.hold([move.hold])
            except Unavailable as error:
                log.warning("job %s: its slot cannot be held yet (%s); its lease will expire", move.job_id, error)
                self._leases.drop(run.lease.name)

    async def _record(self, run: StepRun, move: Move) -> bool:
        """Write the outcome; retry while the store is unavailable. Returns True if it was applied."""
        job, delay = run.job, 0.1
        while True:
            try:
                applied = await self._recorder.record(job, move, self._clock.now())
                self._written(run, applied=applied)
                return applied
            except Unavailable as error:
                self._write_outage.began(error)
                await asyncio.sleep(delay)
                delay = min(5.0, delay * 2)
            except Exception:
                # The store refuses this row alone. Recovery takes the job back when its lease has expired.
                log.exception("job %s: its outcome could not be written", job.id, extra=about(job))
                self._leases.drop(run.lease.name)
                return False

    def _written(self, run: StepRun, *, applied: bool) -> None:
        self._write_outage.ended()
        if not applied:
            self.late_results += 1
            log.info("a late result of job %s, step %d was refused", run.job.id, run.job.step, extra=about(run.job))

    async def _keep_slot(self, run: StepRun) -> None:
        if run.cools_down:
            await asyncio.sleep(COOL_DOWN)
        if run.lingering is not None:
            log.warning("job %s: %s cannot be stopped; its slot is kept until it ends", run.job.id, run.job.service)
            await asyncio.wait([run.lingering])

    def _release(self, run: StepRun) -> None:
        lease = run.lease
        if self._runs.get(lease.job_id) is run:
            run.released = True
            del self._runs[lease.job_id]
        used = None if run.usage is None else used_units(run.usage, self._units[lease.service])
        self._leases.release(lease, failed=run.region_failed, used=used, sent=run.sent)
        run.call = None  # its reporter refers to the run: a cycle, left to the garbage collector, for every call

    def _release_slot(self, release: Release) -> None:
        self.claims.release(release)

    # ------------------------------------------------------------ leases

    def leases(self) -> list[str]:
        """The names of the leases that the heartbeat renews. Called from the heartbeat's thread."""
        return self._leases.names()

    def lost(self, names: frozenset[str]) -> None:
        """Stop the handlers whose leases are lost: their results would be refused."""
        for run in list(self._runs.values()):
            if run.lease.name in names:
                log.warning("job %s: the lease %s is lost; stopping", run.job.id, run.lease.name, extra=about(run.job))
                self._stop(run, LOST)
        for name in names:
            self._leases.drop(name)

    async def stop_strays(self, store: Store) -> None:
        """Stop the handlers whose jobs were cancelled or taken back, if the message that should stop them was lost."""
        for run in await strays(store, [run for run in self._runs.values() if not run.stopped]):
            self.stop_job(run.job.id, run.job.run)

    def run_of(self, job_id: str, number: int | None = None) -> StepRun | None:
        """The step of this job that runs here; with `number`, only if it is this run of the job."""
        run = self._runs.get(job_id)
        return run if run is not None and number in (None, run.job.run) else None

    def stop_job(self, job_id: str, number: int | None = None) -> None:
        """Stop the handler of this job, because the job was cancelled, has expired or was recovered."""
        if run := self.run_of(job_id, number):
            self._stop(run, CANCELLED)

    def _stop(self, run: StepRun, reason: str) -> None:
        if run.stop(reason):
            self._loop.call_later(STUBBORN_AFTER, self._abandon, run)

    def _abandon(self, run: StepRun) -> None:
        """Give up a handler that ignores its cancellation: its job moves on, and its slot is kept until it ends."""
        if run.calling:
            service = run.job.service
            log.warning("job %s: %s ignores its cancellation; its slot is kept until it ends", run.job.id, service)
            run.abandoned = True
            outcome = self._outcomes.timed_out(run) if run.stop_reason == TIMED_OUT else None
            self._spawn(self._finish(run, self._outcomes.move_of(run, outcome, 0.0)))

    # ------------------------------------------------------------ stopping

    async def drain(self, timeout: float) -> None:
        """Stop claiming, and let calls finish within `timeout` seconds. Then return unfinished steps to the queue,
        without counting an attempt."""
        self.draining = True
        if await self._wait_idle(timeout):
            return
        log.warning("%d calls did not finish within %g s and are handed back", len(self._runs), timeout)
        for run in list(self._runs.values()):
            self._stop(run, DRAINED)
        await self._wait_idle(STUBBORN_AFTER + 2.0)

    def claim_again(self) -> None:
        self.draining = False
        self.wake_all()

    async def _wait_idle(self, timeout: float) -> bool:
        try:
            async with asyncio.timeout(timeout):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    async def close(self) -> None:
        """Stop at once. Steps that are still running are left to recovery. A handler that ignores its cancellation is
        left running."""
        self._closing = True
        self._starter.close()
        self._sent.close()
        for timeouts in self._timeouts.values():
            timeouts.close()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=CLOSE_WITHIN)

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        self._idle.clear()
        task.add_done_callback(self._spawned_done)

    def _spawned_done(self, task: asyncio.Task[None]) -> None:
        self._task_done(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a task of the worker failed", exc_info=task.exception())

    def _task_done(self, task: asyncio.Future[Any] | None) -> None:
        self._tasks.discard(task)
        if not self._tasks:
            self._idle.set()
