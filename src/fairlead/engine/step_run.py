"""One step while it runs in a worker: its timeout, the events that are published meanwhile, and the transition that its
outcome leads to."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any, Generic, TypeVar

from fairlead.dispatch.port import Lease
from fairlead.domain import events, transitions
from fairlead.domain.auto_limit import Ending, ending_of, was_refused
from fairlead.domain.config import Config
from fairlead.domain.events import Event
from fairlead.domain.job import Job, JobStatus, StepResult, hold_of
from fairlead.domain.json_codec import to_json
from fairlead.domain.model_stats import FIRST_TOKEN, Generation
from fairlead.domain.output import CHUNKS, RUN
from fairlead.domain.retry import EXCEPTION, STORE_UNAVAILABLE, TIMEOUT, Failure
from fairlead.domain.transitions import Move, Progress
from fairlead.domain.usage import Usage, merged
from fairlead.domain.webhooks import STARTED, JobWebhook
from fairlead.engine.clock import Clock
from fairlead.engine.counters import Counters
from fairlead.engine.output_writer import RunOutput
from fairlead.engine.parts import EngineParts, RulesRef
from fairlead.engine.step_files import LoopFiles, unavailable
from fairlead.errors import FairleadError
from fairlead.executors.port import Call, CallOutput, Success
from fairlead.log_fields import about
from fairlead.store.port import Started, Store
from fairlead.store.webhooks import RecordEvent, about_start

T = TypeVar("T")

log = logging.getLogger("fairlead.webhooks")

LATE = 0.5
"""A timer that fires this many seconds late shows that the event loop was blocked."""
GRACE = 1.0
RESOLUTION = 0.002
"""Seconds by which a timer may fire early: uvloop's clock has a resolution of one millisecond."""
PROGRESS_EVERY = 0.5
MAX_OUTPUT = 16 * 1024 * 1024
"""The size of the output that a call may emit, in characters of JSON: readers on other processes get it through
Redis."""
LOST, DRAINED = "lost", "drained"


class TimeoutGroup(Generic[T]):
    """One timer for all calls with the same timeout. Almost no timer ever fires, and a timer for each call would cost
    more than most of the other work that the worker does for the call. Nor is the timer cancelled when calls end: when
    it fires, it is set for the first call that still runs.

    `expired` is called for each call that was added with `on` and not removed with `off` in time. A timer that fires
    late shows that the event loop was blocked: answers that have arrived could not be processed yet. In this case
    `expired` is called only after a grace period.
    """

    __slots__ = ("_due", "_expired", "_loop", "_seconds", "_timer")

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float, expired: Callable[[T], None]) -> None:
        self._due: dict[T, float] = {}
        """When each call times out. The first one does so first, since all have the same timeout."""
        self._expired = expired
        self._loop = loop
        self._seconds = seconds
        self._timer: asyncio.TimerHandle | None = None

    def on(self, call: T) -> None:
        self._due[call] = self._loop.time() + self._seconds
        if self._timer is None:
            self._timer = self._loop.call_later(self._seconds, self._fire)

    def off(self, call: T) -> None:
        self._due.pop(call, None)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fire(self) -> None:
        first = next(iter(self._due.values()), None)
        if first is not None and self._loop.time() - first > LATE:
            self._timer = self._loop.call_later(GRACE, self._expire)
        else:
            self._expire()

    def _expire(self) -> None:
        """Expire the calls that are due, and set the timer for the next one."""
        now = self._loop.time() + RESOLUTION
        due = list(itertools.takewhile(lambda call: self._due[call] <= now, self._due))
        for call in due:
            del self._due[call]
        following = next(iter(self._due.values()), None)
        self._timer = None if following is None else self._loop.call_at(following, self._fire)
        for call in due:
            self._expired(call)


@dataclass(slots=True, eq=False)
class StepRun:
    """One step in a worker, from its start to the release of its slot."""

    lease: Lease
    job: Job
    """The row of the job as the start wrote it."""
    started: Started
    timeouts: TimeoutGroup[StepRun]
    task: asyncio.Task[None] | None = None
    calling: bool = False
    """The handler is running. Only then may the task be cancelled."""
    stop_reason: str | None = None
    abandoned: bool = False
    """The handler ignored its cancellation, and the job has moved on without it."""
    outcome: Success | Failure | None = None
    """None if the worker stopped the handler, for example because the job was cancelled."""
    move: Move | None = None
    """The transition that ends the step; None if this worker must not move the job any more."""
    region_failed: bool | None = None
    cools_down: bool = False
    """The service refused the call as overloaded while its limit is being discovered."""
    lingering: asyncio.Future[Any] | None = None
    """A future that is done when a call that cannot be stopped has ended."""
    progress: dict[str, Any] | None = None
    progress_timer: asyncio.TimerHandle | None = None
    output: CallOutput | None = None
    """What the call has emitted; None if it has emitted nothing, or has not ended."""
    usage: Usage | None = None
    """What the call has used, as reported so far by the handler or by the endpoint's answer."""
    files: tuple[str, ...] = ()
    """The ids of the files that the step has saved or that its result names."""
    released: bool = False
    claimed_at: float = 0.0
    """The time just before the claim, by the monotonic clock."""
    call: Call | None = None
    ended: bool = False
    counted: bool = False
    """A rate counts the call."""

    @property
    def sent(self) -> float | None:
        """Seconds, at most, from the claim until the call was sent; None if that is not known."""
        at = None if self.call is None else self.call.sent_at
        return None if at is None else max(0.0, at - self.claimed_at)

    @property
    def stopped(self) -> bool:
        return self.stop_reason is not None

    @property
    def keeps_slot(self) -> bool:
        """Whether the slot stays taken after the end of the step is written."""
        return self.move is None or self.move.hold is not None or self.cools_down or self.lingering is not None

    def stop(self, reason: str) -> bool:
        """Stop the step: cancel its handler if it is running, or keep the handler from being called. The worker's own
        work before and after the call is never interrupted. Returns True if the handler was cancelled."""
        if self.stopped or self.task is None:
            return False
        self.stop_reason = reason
        return self.calling and self.task.cancel(reason)

    def called(self, call: Call) -> None:
        """Take over what is left of a call that has ended."""
        self.ended = True
        self.lingering = call.lingering
        self.usage = call.usage
        if isinstance(self.outcome, Success) and self.outcome.usage is not None:
            self.usage = merged(self.usage, self.outcome.usage)
        if call.output is not None:
            self.output = call.output
            self.output.close()


class StepReporter:
    """Takes the progress and the output of one step, from any thread."""

    __slots__ = ("_output", "_reports", "_run")

    def __init__(self, reports: Reports, run: StepRun) -> None:
        self._reports = reports
        self._run = run
        self._output: RunOutput | None = None

    @property
    def max_output(self) -> int:
        return self._reports.max_output

    def check_long(self, chunk_json: str) -> None:
        if self._reports.writer is not None:
            self._reports.writer.check_long(chunk_json)

    @property
    def files(self) -> LoopFiles | None:
        return self._reports.files

    def trace_of(self, job: Job) -> str | None:
        tracing = self._reports.tracing
        return job.trace if tracing is None else tracing.trace_of_call(job)

    def __call__(self, progress: dict[str, Any]) -> None:
        self._reports.call_soon(self._reports.progressed, self._run, progress)

    def emitted(self, output: CallOutput) -> None:
        writer = self._reports.writer
        if writer is not None:
            if self._output is None:  # only the first chunk can find it unset: one thread at a time reports
                job = self._run.job
                self._output = RunOutput(job, output)
            writer.emitted(self._output)

    def ended(self) -> None:
        if self._reports.writer is not None:
            self._reports.writer.flush()


class Reports:
    """Publishes the start, the progress and the output of steps."""

    def __init__(self, parts: EngineParts, loop: asyncio.AbstractEventLoop) -> None:
        self._hub = parts.hub
        self._group_commit = parts.group_commit
        self._clock = parts.clock
        self._loop = loop
        self.tracing = parts.tracing
        self.writer = parts.outputs
        self.max_output = min(parts.config.worker.max_result, MAX_OUTPUT)
        self.files = None if parts.files is None else LoopFiles(parts.files, loop)
        self.call_soon = loop.call_soon_threadsafe

    def started(self, job: Job) -> None:
        if self._hub.watched(job.id, job.user_id):
            step, total = job.step + 1, len(job.steps)
            text = f"running {job.service} ({step}/{total})"
            details = {**events.step_fields(job.service, job.step, total), "attempt": job.attempt}
            self._hub.publish(Event(events.STEP_START, job.id, self._clock.now(), text, details), job.user_id)

    async def record_start(self, job: Job, webhook: JobWebhook) -> None:
        """Write the event `job.started` if the webhook wants it; drop it if the database is unreachable."""
        if job.step or not webhook.wants(STARTED):
            return
        try:
            await self._group_commit.write(RecordEvent(job.id, job.run, STARTED, webhook, about_start(job)))
        except FairleadError as error:
            log.warning("job %s: its event job.started was not written: %s", job.id, error, extra=about(job))

    def progressed(self, run: StepRun, progress: dict[str, Any]) -> None:
        """Publish a progress report at once, and store the newest report at most twice a second."""
        if run.released:
            return
        job = run.job
        run.progress = {**progress, **events.step_fields(job.service, job.step, len(job.steps))}
        if self._hub.watched(job.id, job.user_id):
            text = str(progress.get("message", f"{job.service} is at {progress.get('fraction', 0):.0%}"))
            self._hub.publish(Event(events.PROGRESS, job.id, self._clock.now(), text, run.progress), job.user_id)
        if run.progress_timer is None:
            run.progress_timer = self._loop.call_later(PROGRESS_EVERY, self._store_progress, run)

    def _store_progress(self, run: StepRun) -> None:
        run.progress_timer = None
        self._group_commit.write_later(Progress(run.job.id, run.job.run, run.progress or {}))


def call_of(run: StepRun, timeout: float, report: StepReporter) -> Call:
    job, lease = run.job, run.lease
    run.call = Call(
        job_id=job.id,
        step_index=job.step,
        total_steps=len(job.steps),
        service=lease.service,
        feature_name=job.feature_name,
        user_id=job.user_id,
        attempt=job.attempt,
        idempotency_key=job.idempotency_key,
        params_json=run.started.input_json,
        context_json=run.started.context_json,
        timeout=timeout,
        region=lease.region,
        report=report,
    )
    run.call.run = job.run
    run.call.counts_sent = run.counted
    run.call.files = report.files
    if job.trace is not None:
        run.call.trace = report.trace_of(job)
    return run.call


def cancelled_outcome(run: StepRun) -> Failure | None:
    """The outcome of a cancelled call: None if the worker stopped the handler. Otherwise something that the handler
    awaited was cancelled, which counts as a failure."""
    if run.task is not None:
        run.task.uncancel()
    if run.stopped:
        return None
    return Failure(EXCEPTION, "CancelledError: the handler was cancelled from within", retryable=True)


class OutcomeMapper:
    """Determines which transition the outcome of a call leads to."""

    def __init__(self, config: Config, services: Iterable[str], clock: Clock, rules: RulesRef) -> None:
        self._config = config
        self._clock = clock
        self._rules = rules
        self._policies = {name: config.services[name].retry_policy for name in services}
        self._waits = config.wait_timeouts
        self._models = frozenset(name for name, service in config.services.items() if service.behind_front)

    def count(self, run: StepRun, elapsed: float, counters: Counters) -> None:
        """Count a call that has ended."""
        counters.ran(run.job, elapsed)
        outcome, name = run.outcome, run.lease.service
        if outcome is not None:
            failure = outcome if isinstance(outcome, Failure) else None
            counters.answered(name, ending_of(failure), elapsed)
        if name in self._models and isinstance(outcome, Success):
            counters.generated(name, self._generation(run, outcome, elapsed))

    def _generation(self, run: StepRun, outcome: Success, elapsed: float) -> Generation:
        """The answer of a model that this call was."""
        service, usage, first = self._config.services[run.lease.service], outcome.usage, None
        if (measured := (outcome.metrics or {}).get(FIRST_TOKEN)) is not None:
            first = measured / 1000
        elif not service.speaks_openai and run.output is not None and run.output.first_at is not None:
            first = max(0.0, run.output.first_at - (monotonic() - elapsed))
        name = service.models[-1] if service.models else run.lease.service
        model = name if usage is None or usage.model is None else usage.model
        tokens_in, tokens_out = (0, 0) if usage is None else (usage.tokens_in or 0, usage.tokens_out or 0)
        return Generation(model, tokens_in, tokens_out, first, max(0.0, elapsed - (first or 0.0)))

    def timed_out(self, run: StepRun, call: Call | None = None) -> Failure:
        service = run.job.service
        if call is not None and call.stalled:
            return unavailable(f"{service} waited for the object store until its timeout")
        if isinstance(run.outcome, Failure) and run.outcome.code == TIMEOUT:
            return run.outcome  # the executor knows whether the call can be retried
        timeout = self._config.services[service].timeout
        return Failure(TIMEOUT, f"{service} did not answer within {timeout:g} s", retryable=True)

    def move_of(self, run: StepRun, outcome: Success | Failure | None, elapsed: float) -> Move | None:
        """The transition that this outcome leads to; None if the job was cancelled or taken back, so that this worker
        must not move it."""
        move = self._move_of(run, outcome, elapsed)
        details = None if run.call is None else run.call.span_attributes
        if details is None or move is None or move.call is None:
            return move
        return replace(move, call=replace(move.call, details=details))

    def _move_of(self, run: StepRun, outcome: Success | Failure | None, elapsed: float) -> Move | None:
        job, now = run.job, self._clock.now()
        if isinstance(outcome, Success):
            result = StepResult(
                job.id,
                job.step,
                run.lease.service,
                job.round,
                outcome.data_json,
                _metrics(run, outcome, elapsed),
                now,
                run.lease.name,
                run.files,
            )
            return transitions.step_done(job, result, now=now, waits=self._waits, usage=run.usage)
        if isinstance(outcome, Failure) and outcome.waits:
            return transitions.hand_back(job, now=now, waits=self._waits, usage=run.usage)
        if isinstance(outcome, Failure):
            policy = self._policies[job.service]
            return transitions.failed(
                job,
                outcome,
                policy,
                now=now,
                randomness=self._clock.randomness(),
                spare=self._is_over_limit(job, outcome),
                usage=run.usage,
            )
        if run.stop_reason == DRAINED:
            service = self._config.services[job.service]
            hold = hold_of(job, now, service.hold) if service.remote else None
            return transitions.hand_back(job, now=now, waits=self._waits, hold=hold, usage=run.usage)
        return None

    def not_run(self, job: Job) -> Move:
        """The transition that returns a step to the queue, if its start was written but its handler was not called."""
        return transitions.hand_back(job, now=self._clock.now(), waits=self._waits, called=False)

    def _is_over_limit(self, job: Job, failure: Failure) -> bool:
        """Whether the service refused the call as overloaded while Fairlead is still discovering its limit. The limit
        may be too high, so the failure does not use up an attempt of the job. Nor does a refusal by a server with
        OpenAI's protocol: its clients wait in the queue instead of getting 429. Nor does an object store that cannot be
        reached."""
        if failure.code == STORE_UNAVAILABLE:
            return True
        if not was_refused(failure):
            return False
        if self._config.services[job.service].speaks_openai:
            return True
        rules = self._rules.current.services.get(job.service)
        return rules is not None and rules.auto is not None and rules.limit > rules.auto.min


def _metrics(run: StepRun, outcome: Success, elapsed: float) -> str:
    """The metrics of a call as JSON: the metrics that the service reported, the execution time, the region, the
    usage, and the size of the output with the run that it belongs to."""
    took, region = round(elapsed * 1000, 3), run.lease.region
    if outcome.metrics is None and region is None and run.output is None and run.usage is None:
        return f'{{"execution_time_ms":{took}}}'
    where = {} if region is None else {"region": region}
    output = {} if run.output is None else {CHUNKS: len(run.output.chunks), RUN: run.job.run}
    metrics = outcome.metrics or {}
    usage = {} if run.usage is None or "usage" in metrics else {"usage": run.usage.as_dict()}
    return to_json({**usage, **metrics, "execution_time_ms": took, **where, **output})


async def strays(store: Store, runs: Sequence[StepRun]) -> list[StepRun]:
    """Those of the steps whose jobs have moved on in the database."""
    jobs = await store.get_jobs([run.job.id for run in runs]) if runs else {}

    def runs_still(run: StepRun) -> bool:
        job = jobs.get(run.job.id)
        return job is not None and job.status is JobStatus.RUNNING and job.run == run.job.run

    return [run for run in runs if not runs_still(run)]


def was_overloaded(outcome: Success | Failure | None) -> bool:
    return isinstance(outcome, Failure) and ending_of(outcome) is Ending.OVERLOADED


def region_failed(lease: Lease, outcome: Success | Failure | None) -> bool | None:
    """Whether the call shows that its region does not work. A permanent failure shows that the region works, because
    the region has answered. None if the call has no region or no outcome."""
    if lease.region is None or outcome is None or (isinstance(outcome, Failure) and outcome.waits):
        return None
    return isinstance(outcome, Failure) and outcome.retryable
