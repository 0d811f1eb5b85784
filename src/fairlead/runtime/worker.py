"""The worker: claims steps it has room for, starts them in the truth, runs them, records how they ended.

The hot path, top to bottom: `run` exchanges freed slots for new leases, `_begin` writes the starts, `_carry_out`
takes one step from its start to its end. A step never waits in here: a lease is only granted with a slot.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fairlead.dispatch.port import Claim, Dispatcher, Lease, Release
from fairlead.domain.adapt import ending_of
from fairlead.domain.config import Config
from fairlead.domain.job import JobStatus
from fairlead.domain.limits import Rules
from fairlead.domain.retry import EXCEPTION, Failure
from fairlead.domain.transitions import Move, Start
from fairlead.domain.turns import is_turn
from fairlead.errors import Unavailable
from fairlead.executors.port import CANCELLED, TIMED_OUT, Call, Executor, Success
from fairlead.runtime import failpoints
from fairlead.runtime.alarm import Alarm
from fairlead.runtime.clock import Clock
from fairlead.runtime.conclusions import Conclusions, says_of_region, was_turned_away
from fairlead.runtime.events import Hub
from fairlead.runtime.outage import Outage
from fairlead.runtime.pools import WorkerPool
from fairlead.runtime.record import Recorder
from fairlead.runtime.room import Room
from fairlead.runtime.running import DRAINED, LOST, Reports, Running
from fairlead.runtime.woken import Woken
from fairlead.store.journal import Journal
from fairlead.store.port import Started, Store

log = logging.getLogger(__name__)

SWEEP_EVERY = 1.0
SWEEP_PARTIAL_EVERY = 0.25
"""Of a worker bound to bands or regions: a lane that has turned runnable for others' work stays so, and nobody is woken
when work for this one comes to it from another process."""
IN_VAIN = 0.01
RETRY_EVERY = 0.5
MANY = 1_000_000
WAVE = 250
"""At most so many are claimed at once. While one wave's starts are written, the next is claimed and the last one's
results are written: a single great wave would have each part of the system wait for the others in turn."""
COOL_DOWN = 0.5
"""While a limit is being found, a slot whose call was turned away is kept for so many seconds: one slot too many would
else go through the whole line while the limit is still too high."""
STUBBORN_AFTER = 3.0


class Worker:
    def __init__(
        self,
        process: str,
        pool: WorkerPool,
        config: Config,
        *,
        dispatcher: Dispatcher,
        journal: Journal,
        recorder: Recorder,
        executors: Mapping[str, Executor],
        hub: Hub,
        clock: Clock,
        room: Room,
        services: Callable[[], frozenset[str]],
        rules: Callable[[], Rules],
        hand_over: Callable[[Lease], None],
    ) -> None:
        self.name = pool.worker(process)
        self.pool = pool
        self._config = config
        self._dispatcher = dispatcher
        self._journal = journal
        self._recorder = recorder
        self._observations = recorder.observations
        self._executors = executors
        self._clock = clock
        self._room = room
        room.join()
        self._services = services
        self._rules = rules
        self._hand_over = hand_over
        self._timeouts = {name: config.services[name].timeout for name in executors}
        self._conclusions = Conclusions(config, executors, clock, rules)
        # Asked for once: the running loop is looked up with a system call, and every step would do so three times.
        self._loop = asyncio.get_running_loop()
        self._reports = Reports(hub, journal, clock, self._loop)
        self._bell = asyncio.Event()
        self._woken = Woken()
        self._back = asyncio.Event()
        self._leases: dict[str, Lease] = {}
        self._running: dict[str, Running] = {}
        self._released: list[Release] = []
        self._ended: list[tuple[Running, Move, bool | None]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._closing = False
        self._in_vain = 0
        self._trust = MANY
        self.draining = False
        self.outage = Outage(log, "claiming")
        self._writing = Outage(log, "writing how calls ended (their results are kept)")
        self.late_results = 0

    @property
    def running(self) -> int:
        """Calls under way."""
        return len(self._running)

    # ------------------------------------------------------------ the loop

    def wake(self, services: frozenset[str]) -> None:
        """A lane has turned runnable."""
        self._woken.by(services)
        self._bell.set()

    def ring(self) -> None:
        """There may be something to claim, anywhere."""
        self._woken.for_all()
        self._bell.set()

    async def run(self) -> None:
        while True:
            releases, self._released = self._released, []
            room = (
                0 if self.draining or self._journal.full else self._room.take(self.ring, at_most=min(self._trust, WAVE))
            )
            leases: list[Lease] = []
            try:
                leases = await self._dispatcher.exchange(self._claim(room), releases)
                self.outage.ended()
            except Exception as error:
                self._say(error)
                # Releasing twice is harmless; a lease that was granted unheard expires, as nobody renews it.
                self._released[:0] = releases
                self._woken.for_all()
            finally:
                self._room.give_back(room - len(leases))
            if self.outage.reason is not None:
                await self._until_it_is_back()
                continue
            if self._trust == 1:
                await asyncio.sleep(RETRY_EVERY)
            if leases:
                failpoints.passed(failpoints.AFTER_CLAIM)
                self._take(leases)
            if len(leases) == room:
                self._woken.for_all()  # nobody counts on a worker without room: it was not told
                if room:
                    continue
            await self._let_others_go_first(got_some=bool(leases))
            await self._bell.wait()
            self._bell.clear()

    def _take(self, leases: Sequence[Lease]) -> None:
        """A turn is executed by nobody: its slot goes to its caller."""
        if turns := [lease for lease in leases if is_turn(lease.job_id)]:
            self._room.give_back(len(turns))
            for lease in turns:
                self._hand_over(lease)
            leases = [lease for lease in leases if not is_turn(lease.job_id)]
        if leases:
            self._leases.update((lease.name, lease) for lease in leases)
            self._spawn(self._begin(leases))

    async def _let_others_go_first(self, *, got_some: bool) -> None:
        """A slot that is left to another worker of this process wakes this one too. In memory nothing suspends: without
        this, it would ask again and again, and the other never have its turn."""
        self._in_vain = self._in_vain + 1 if self._bell.is_set() and not got_some else 0
        if self._in_vain:
            await asyncio.sleep(0 if self._in_vain < 3 else IN_VAIN)

    def retry(self) -> None:
        """The dispatcher may be back."""
        self._back.set()

    async def _until_it_is_back(self) -> None:
        self._back.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(RETRY_EVERY):
                await self._back.wait()

    def _say(self, error: Exception) -> None:
        if not isinstance(error, Unavailable):
            log.exception("the dispatcher could not be asked")
        self.outage.began(error)

    async def sweep(self) -> None:
        """The safety net under the wake-ups: ask once a second whatever we were told."""
        while True:
            await asyncio.sleep(SWEEP_PARTIAL_EVERY if self.pool.partial else SWEEP_EVERY)
            self.ring()

    def _claim(self, room: int) -> Claim:
        if not room or self.pool.partial:
            self._woken.for_all()
        services = self._woken.to_ask(self.pool.serves(self._services()), self._rules())
        return Claim(self.name, room, services, self.pool.bands, self.pool.regions)

    async def _begin(self, leases: Sequence[Lease]) -> None:
        """Write the starts, all in one commit, then run what was not refused."""
        starts = [
            Start(
                lease.job_id,
                lease.step,
                lease.run,
                lease.name,
                lease.scope,
                self.name,
                self._timeouts[lease.service],
                lease.region,
            )
            for lease in leases
        ]
        outcomes = await self._journal.write_each(starts)
        self._idle.clear()
        alarms: dict[float, Alarm[Running]] = {}
        for lease, start, outcome in zip(leases, starts, outcomes, strict=True):
            if isinstance(outcome, Exception):
                # As long as starts cannot be written, one step at a time is enough to find out that they can again.
                self._trust = 1
                self._abandon(lease, outcome)
                continue
            self._trust = MANY
            if isinstance(outcome, Started):
                self._observations.started(outcome.job)
                alarm = alarms.get(start.timeout)
                if alarm is None:
                    alarm = alarms[start.timeout] = Alarm(self._loop, start.timeout, self._ring)
                running = Running(lease, outcome.job, alarm)
                alarm.on(running)
                self._running[lease.job_id] = running
                running.task = self._loop.create_task(self._carry_out(running, outcome))
                self._tasks.add(running.task)
            else:
                self._give_back(lease, refund=True)

    async def _carry_out(self, running: Running, started: Started) -> None:
        """One step, from its start to its end."""
        try:
            job, call = running.job, self._call_of(running, started)
            self._reports.begun(job)
            begun = self._clock.monotonic()
            outcome = await self._perform(running, call)
            elapsed = self._clock.monotonic() - begun
            self._observations.ran(job, elapsed)
            if outcome is not None:
                failure = outcome if isinstance(outcome, Failure) else None
                self._observations.answered(call.service, ending_of(failure), elapsed)
            if running.progress_due is not None:
                running.progress_due.cancel()
            cools_down = was_turned_away(outcome) and self._config.services[job.service].auto is not None
            if not running.abandoned:
                move = self._conclusions.move_of(running, outcome, elapsed)
                if move is not None and move.hold is None and not cools_down and call.lingering is None:
                    self._hand_in(running, move, says_of_region(running.lease, outcome))
                    return
                await self._finish(running, move)
            if cools_down:
                await asyncio.sleep(COOL_DOWN)
            if call.lingering is not None:
                await self._outwait(call)
            self._give_back(running.lease, failed=says_of_region(running.lease, outcome))
        except Exception:
            log.exception("job %s: its step could not be carried out; its lease is left to expire", running.job.id)
            running.over = True
            self._running.pop(running.job.id, None)
            self._forget(running.lease.name)
        finally:
            self._leave(running.task)  # a callback of the task would cost as much as the task

    def _hand_in(self, running: Running, move: Move, failed: bool | None) -> None:
        """What ends in the same moment is written together: a task and a future for each would cost more than the
        rest of its way through here."""
        self._ended.append((running, move, failed))
        if len(self._ended) == 1:
            self._spawn(self._write_ended())

    async def _write_ended(self) -> None:
        ended, self._ended = self._ended, []
        moves = [(running.job, move) for running, move, _ in ended]
        applied: list[bool | Exception]
        try:
            applied = await self._recorder.record_each(moves, self._clock.now())
        except Unavailable as error:
            applied = [error] * len(ended)
        failpoints.passed(failpoints.AFTER_FINISH)
        for (running, move, failed), outcome in zip(ended, applied, strict=True):
            if isinstance(outcome, Exception):
                self._spawn(self._finish_alone(running, move, failed))
                continue
            self._note(running, written=outcome)
            self._give_back(running.lease, failed=failed)

    async def _finish_alone(self, running: Running, move: Move, failed: bool | None) -> None:
        """It could not be written with the others: until the store is back, or it turns out to be this one's fault."""
        await self._record(running, move)
        self._give_back(running.lease, failed=failed)

    # ------------------------------------------------------------ the parts of one step

    async def _perform(self, running: Running, call: Call) -> Success | Failure | None:
        """Run the handler; None if it was stopped for a reason that is not its own."""
        if running.stopped:
            running.alarm.off(running)
            return None
        running.performing = True
        try:
            outcome: Success | Failure | None = await self._executors[call.service].execute(call)
        except asyncio.CancelledError:
            if self._closing:
                raise
            outcome = self._cancelled(running)
        except Exception as error:
            log.exception("the executor of %s failed", call.service)
            outcome = Failure(EXCEPTION, f"{type(error).__name__}: {error}", retryable=True)
        finally:
            running.alarm.off(running)
            running.performing = False
        return self._conclusions.timed_out(running) if running.stop_reason == TIMED_OUT else outcome

    def _cancelled(self, running: Running) -> Failure | None:
        """We stopped it; or its handler did so by itself, awaiting something that was cancelled: that is a failure."""
        if running.task is not None:
            running.task.uncancel()
        if running.stopped:
            return None
        return Failure(EXCEPTION, "CancelledError: the handler was cancelled from within", retryable=True)

    async def _finish(self, running: Running, move: Move | None) -> None:
        if move is None:
            return
        await self._record(running, move)
        failpoints.passed(failpoints.AFTER_FINISH)
        if move.hold is not None:
            try:
                await self._dispatcher.hold([move.hold])
            except Unavailable as error:
                log.warning("job %s: its slot cannot be held yet (%s); its lease is left to expire", move.job_id, error)
                self._forget(running.lease.name)

    async def _record(self, running: Running, move: Move) -> None:
        """Write how it ended; a result is held and written when the store is back."""
        job, delay = running.job, 0.1
        while True:
            try:
                self._note(running, written=await self._recorder.record(job, move, self._clock.now()))
                return
            except Unavailable as error:
                self._writing.began(error)
                await asyncio.sleep(delay)
                delay = min(5.0, delay * 2)
            except Exception:
                # This row alone is refused by the store. Recovery takes the job up when its lease has expired.
                log.exception("job %s: its outcome could not be written", job.id)
                self._forget(running.lease.name)
                return

    def _note(self, running: Running, *, written: bool) -> None:
        self._writing.ended()
        if not written:
            self.late_results += 1
            log.info("a late result of job %s, step %d was refused", running.job.id, running.job.step)

    async def _outwait(self, call: Call) -> None:
        log.warning("job %s: %s cannot be stopped; its slot is kept until it ends", call.job_id, call.service)
        assert call.lingering is not None
        await asyncio.wait([call.lingering])

    def _call_of(self, running: Running, started: Started) -> Call:
        job, service = started.job, running.lease.service
        return Call(
            job_id=job.id,
            step_index=job.step,
            total_steps=len(job.steps),
            service=service,
            feature_name=job.feature_name,
            user_id=job.user_id,
            attempt=job.attempt,
            idempotency_key=job.idempotency_key,
            params_json=started.input_json,
            context_json=started.context_json,
            timeout=self._timeouts[service],
            region=running.lease.region,
            report=self._reports.reporter(running),
        )

    # ------------------------------------------------------------ leases

    def leases(self) -> list[str]:
        """What the heartbeat renews. Called from its thread."""
        return list(self._leases)

    def lost(self, names: frozenset[str]) -> None:
        """These leases are no longer ours: stop their handlers; their results would be refused."""
        for running in list(self._running.values()):
            if running.lease.name in names:
                log.warning("job %s: the lease %s is lost; stopping", running.job.id, running.lease.name)
                self._stop(running, LOST)
        for name in names:
            self._forget(name)

    async def stop_strays(self, store: Store) -> None:
        """Stop what has been cancelled or taken back meanwhile: the message that said so may have been lost."""
        mine = {job_id: running.job.run for job_id, running in self._running.items() if not running.stopped}
        jobs = await store.get_jobs(list(mine)) if mine else {}
        for job_id, run in mine.items():
            job = jobs.get(job_id)
            if job is None or job.status is not JobStatus.RUNNING or job.run != run:
                self.stop_job(job_id, run)

    def stop_job(self, job_id: str, run: int | None = None) -> None:
        """The job was cancelled, expired or recovered: its handler need not go on. Unless it has begun anew since."""
        running = self._running.get(job_id)
        if running is not None and (run is None or running.job.run == run):
            self._stop(running, CANCELLED)

    def _ring(self, running: Running) -> None:
        self._stop(running, TIMED_OUT)

    def _stop(self, running: Running, reason: str) -> None:
        if running.stop(reason):
            self._loop.call_later(STUBBORN_AFTER, self._abandon_handler, running)

    def _abandon_handler(self, running: Running) -> None:
        """It ignores its cancellation: the job moves on without it, and its slot is given back when it ends."""
        if running.performing:
            log.warning("job %s: %s ignores being stopped; its slot is kept until it ends", running.job.id,
                        running.job.service)  # fmt: skip
            running.abandoned = True
            outcome = self._conclusions.timed_out(running) if running.stop_reason == TIMED_OUT else None
            self._spawn(self._finish(running, self._conclusions.move_of(running, outcome, 0.0)))

    def _give_back(self, lease: Lease, *, refund: bool = False, failed: bool | None = None) -> None:
        running = self._running.get(lease.job_id)
        if running is not None and running.lease is lease:
            running.over = True
            del self._running[lease.job_id]
        if self._forget(lease.name):
            self._released.append(Release(lease.name, lease.service, refund, lease.scope, failed))
            self._woken.by((lease.service,))
            self._bell.set()

    def _forget(self, name: str) -> bool:
        """From now on nobody renews it."""
        known = self._leases.pop(name, None) is not None
        self._room.give_back(known)
        return known

    def _abandon(self, lease: Lease, error: Exception) -> None:
        """Whether the start was written is not known. Unrenewed, the lease expires, and recovery settles it."""
        log.warning("job %s could not be started (%s); its lease is left to expire", lease.job_id, error)
        self._forget(lease.name)

    # ------------------------------------------------------------ stopping

    async def drain(self, timeout: float) -> None:
        """Claim no more; let calls finish until the timeout; hand the rest back unharmed."""
        self.draining = True
        if await self._emptied(timeout):
            return
        log.warning("%d calls did not finish within %g s and are handed back", len(self._running), timeout)
        for running in list(self._running.values()):
            self._stop(running, DRAINED)
        await self._emptied(STUBBORN_AFTER + 2.0)

    def claim_again(self) -> None:
        self.draining = False
        self.ring()

    async def _emptied(self, timeout: float) -> bool:
        try:
            async with asyncio.timeout(timeout):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    async def close(self) -> None:
        """At once: whatever still runs is left to recovery, and a handler that ignores its end is left behind."""
        self._closing = True
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=2.0)

    def _spawn(self, coroutine: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = self._loop.create_task(coroutine)
        self._tasks.add(task)
        self._idle.clear()
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._leave(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a task of the worker failed", exc_info=task.exception())

    def _leave(self, task: asyncio.Task[None] | None) -> None:
        self._tasks.discard(task)
        if not self._tasks:
            self._idle.set()
