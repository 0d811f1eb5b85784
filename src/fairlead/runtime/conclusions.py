"""What a call's outcome means for its job, its region and its service."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from fairlead.dispatch.port import Lease
from fairlead.domain import transitions
from fairlead.domain.adapt import Ending, ending_of, was_refused
from fairlead.domain.config import Config
from fairlead.domain.job import Job, StepResult
from fairlead.domain.limits import Rules
from fairlead.domain.retry import TIMEOUT, Failure
from fairlead.domain.transitions import Move
from fairlead.domain.wire import to_json
from fairlead.executors.port import Success
from fairlead.runtime.clock import Clock
from fairlead.runtime.running import DRAINED, Running


class Conclusions:
    def __init__(self, config: Config, services: Iterable[str], clock: Clock, rules: Callable[[], Rules]) -> None:
        self._config = config
        self._clock = clock
        self._rules = rules
        self._policies = {name: config.services[name].retry_policy for name in services}
        self._waits = config.wait_timeouts

    def timed_out(self, running: Running) -> Failure:
        service = running.job.service
        timeout = self._config.services[service].timeout
        return Failure(TIMEOUT, f"{service} did not answer within {timeout:g} s", retryable=True)

    def move_of(self, running: Running, outcome: Success | Failure | None, elapsed: float) -> Move | None:
        """The transition that this outcome leads to; None if the job is no longer ours to move."""
        job, now = running.job, self._clock.now()
        if isinstance(outcome, Success):
            result = StepResult(
                job.id,
                job.step,
                running.lease.service,
                job.round,
                outcome.data_json,
                _metrics(outcome, elapsed, running.lease.region),
                now,
                running.lease.name,
            )
            return transitions.step_done(job, result, now=now, waits=self._waits)
        if isinstance(outcome, Failure):
            policy = self._policies[job.service]
            return transitions.failed(
                job,
                outcome,
                policy,
                now=now,
                randomness=self._clock.randomness(),
                spare=self._is_our_doing(job, outcome),
            )
        if running.stop_reason == DRAINED:
            remote = self._config.services[job.service].remote
            hold = transitions.hold_of(job, now) if remote else None
            return transitions.hand_back(job, now=now, waits=self._waits, hold=hold)
        return None

    def _is_our_doing(self, job: Job, failure: Failure) -> bool:
        """It was turned away while its limit is being found, and above the lowest: it may well be too high."""
        rules = self._rules().services.get(job.service)
        return was_refused(failure) and rules is not None and rules.auto is not None and rules.limit > rules.auto.min


def _metrics(outcome: Success, elapsed: float, region: str | None) -> str:
    """As JSON: what the service measured, and what every call has."""
    took = round(elapsed * 1000, 3)
    if outcome.metrics is None and region is None:
        return f'{{"execution_time_ms":{took}}}'
    where = {} if region is None else {"region": region}
    return to_json({**(outcome.metrics or {}), "execution_time_ms": took, **where})


def was_turned_away(outcome: Success | Failure | None) -> bool:
    return isinstance(outcome, Failure) and ending_of(outcome) is Ending.OVERLOADED


def says_of_region(lease: Lease, outcome: Success | Failure | None) -> bool | None:
    """What the call says of its region: one that refused what it was asked has answered, and works."""
    if lease.region is None or outcome is None:
        return None
    return isinstance(outcome, Failure) and outcome.retryable
