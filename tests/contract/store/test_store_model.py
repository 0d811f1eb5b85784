"""Random lives of a few jobs: for any transitions in any order, the store agrees with a plain model."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.domain import transitions
from fairlead.domain.job import Attempt, Hold, Job, JobStatus, Priority, StepResult
from fairlead.domain.retry import Failure, RetryPolicy
from fairlead.domain.transitions import Delete, Move, Prioritise, Progress, Start, Submit
from fairlead.errors import WrongState
from fairlead.store.port import (
    Accepted,
    Committed,
    Done,
    FireTimers,
    PromoteWaiting,
    Refused,
    Started,
    Store,
    SweepResult,
    Transition,
)
from tests.contract.stores import ENGINES, Clock

WAITS = {"draw": 40.0}
POLICY = RetryPolicy(max_attempts=2)
JOBS = ("a", "b", "c")


@dataclass
class Model:
    """The effects of `Submit`, `Start`, `Move`, `Progress` and `Delete`, implemented without SQL."""

    jobs: dict[str, Job] = field(default_factory=dict)
    results: dict[str, list[StepResult]] = field(default_factory=dict)
    attempts: dict[str, list[Attempt]] = field(default_factory=dict)
    holds: list[Hold] = field(default_factory=list)
    relayed: list[str] = field(default_factory=list)

    def apply(self, transition: Transition, now: float) -> type:
        match transition:
            case Submit(job):
                self.jobs[job.id], self.results[job.id], self.attempts[job.id] = job, [], []
                self.relayed += [job.id] if job.status is JobStatus.PENDING else []
                return Accepted
            case Start():
                return self.start(transition, now)
            case Move():
                return self.move(transition)
            case Progress(job_id, run, progress):
                there = self.jobs.get(job_id)
                if there is None or there.run != run:
                    return Refused
                self.jobs[job_id] = replace(there, progress=progress, last_progress_at=now)
                return Done
            case Prioritise(job_id, run, priority, queued_at, promoted_at):
                there = self.jobs.get(job_id)
                if there is None or there.run != run:
                    return Refused
                self.jobs[job_id] = replace(
                    there,
                    priority=priority,
                    queued_at=there.queued_at if queued_at is None else queued_at,
                    promoted_at=there.promoted_at if promoted_at is None else promoted_at,
                )
                return Done
            case Delete(job_id):
                there = self.jobs.get(job_id)
                if there is None or not there.status.finished:
                    return Refused
                del self.jobs[job_id]
                return Done
        raise AssertionError(transition)

    def sweep(self, sweep: FireTimers | PromoteWaiting, taken: set[str]) -> SweepResult:
        """The moves that a builder would write for each due job, except for those that the batch moves already."""
        due: list[Job] = []
        for job in self.jobs.values():
            if isinstance(sweep, FireTimers):
                found = job.timer_at is not None and job.timer_at <= sweep.now
            else:
                before = {Priority.LOW: sweep.low_before, Priority.MEDIUM: sweep.medium_before}.get(job.priority, 0.0)
                found = job.status is JobStatus.PENDING and (job.queued_at or 0.0) <= before
            due += [job] if found and job.id not in taken else []
        verb = transitions.timer_rang if isinstance(sweep, FireTimers) else transitions.promote
        moves = [(job, move) for job in due if (move := verb(job, now=sweep.now, waits=sweep.waits)) is not None]
        for _, move in moves:
            assert self.move(move) is Done
        taken.update(job.id for job in due)
        return SweepResult(len(due), moves)

    def start(self, start: Start, now: float) -> type:
        job = self.jobs.get(start.job_id)
        if job is None or (job.status, job.run, job.step) != (JobStatus.PENDING, start.run, start.step):
            return Refused
        self.jobs[job.id] = replace(
            job,
            status=JobStatus.RUNNING,
            run=job.run + 1,
            attempt=job.attempt + 1,
            lease=start.lease,
            worker=start.worker,
            call_started_at=now,
            call_deadline=now + start.timeout,
            started_at=job.started_at or now,
            timer_at=job.deadline_at,
        )
        return Started

    def move(self, move: Move) -> type:
        job = self.jobs.get(move.job_id)
        if job is None or job.run != move.run:
            return Refused
        as_given = (
            "status",
            "step",
            "attempt",
            "round",
            "timer_at",
            "waiting_since",
            "finished_at",
            "retryable",
            "error",
        )
        if_given = ("queued_at", "priority", "promoted_at", "last_progress_at")
        cleared = ("lease", "worker", "call_started_at", "call_deadline", "progress")
        changes: dict[str, Any] = {name: getattr(move, name) for name in as_given}
        changes |= {name: getattr(move, name) for name in if_given if getattr(move, name) is not None}
        changes |= dict.fromkeys(cleared)
        self.jobs[job.id] = replace(job, run=job.run + 1, **changes)
        self.results[job.id] += [move.result] if move.result else []
        self.attempts[job.id] += [move.failed] if move.failed else []
        self.holds += [move.hold] if move.hold else []
        self.relayed += [job.id] if move.tells_line else []
        return Done


def done(job: Job, now: float) -> Move:
    result = StepResult(job.id, job.step, job.service, job.round, f'"{job.run}"', '{"ms":1}', now, job.lease)
    return transitions.step_done(job, result, now=now, waits=WAITS)


def failed(job: Job, now: float) -> Move:
    failure = Failure("HTTP_503", "busy", retryable=True)
    return transitions.failed(job, failure, POLICY, now=now, randomness=0.5)


def recovered(job: Job, now: float) -> Move:
    hold = Hold(job.id, job.service, None, now + 9, f"{job.id}:{job.run}", job.priority.band)
    return transitions.recover(job, now=now, waits=WAITS, max_attempts=2, hold=hold)


def running(verb: Callable[[Job, float], Transition]) -> Callable[[Job, float], Transition]:
    def checked(job: Job, now: float) -> Transition:
        if job.status is not JobStatus.RUNNING:
            raise WrongState("not running")
        return verb(job, now)

    return checked


VERBS: dict[str, Callable[[Job, float], Transition | None]] = {
    "start": lambda job, now: Start(job.id, job.step, job.run, "0:1", "service:x", "w1", 30.0),
    "done": running(done),
    "fail": running(failed),
    "hand back": running(lambda job, now: transitions.hand_back(job, now=now, waits=WAITS)),
    "recover": recovered,
    "due": lambda job, now: transitions.due(job, now=now, waits=WAITS),
    "promote": lambda job, now: transitions.promote(job, now=now, waits=WAITS),
    "cancel": lambda job, now: transitions.cancel(job, now=now),
    "resume": lambda job, now: transitions.resume(job, now=now, waits=WAITS),
    "requeue": lambda job, now: transitions.requeue(job, now=now, waits=WAITS, from_start=True),
    "timer": lambda job, now: transitions.timer_rang(job, now=now, waits=WAITS),
    "prioritise": lambda job, now: transitions.prioritise(job, Priority.of_band(job.run % 3 + 1), now=now, waits=WAITS),
    "progress": lambda job, now: Progress(job.id, job.run, {"at": now}),
    "delete": lambda job, now: Delete(job.id),
}

ACT = st.tuples(st.sampled_from(JOBS), st.sampled_from(sorted(VERBS)), st.booleans())
BATCH = st.tuples(
    st.lists(ACT, max_size=3, unique_by=lambda act: act[0]),
    st.sampled_from([0.0, 1.0, 50.0]),
    st.sampled_from(["", "", "ring", "promote", "ring promote"]),
)
LIVES = st.tuples(
    st.lists(st.tuples(st.booleans(), st.booleans()), min_size=3, max_size=3), st.lists(BATCH, max_size=25)
)


@pytest.mark.parametrize("engine", sorted(ENGINES))
@settings(database=None)
@given(lives=LIVES)
def test_the_store_agrees_with_the_model(engine: str, lives: Any) -> None:
    asyncio.run(live(engine, *lives))


async def live(engine: str, kinds: Sequence[tuple[bool, bool]], batches: Sequence[Any]) -> None:
    clock, model = Clock(), Model()
    with tempfile.TemporaryDirectory() as folder:
        async with ENGINES[engine](Path(folder), clock) as store:
            births = [born(job_id, *kind, clock.now) for job_id, kind in zip(JOBS, kinds, strict=True)]
            await step(store, model, births, clock.now)
            stale = dict(model.jobs)
            for acts, seconds, sweeps in batches:
                now = clock.forward(seconds)
                seen = dict(model.jobs)
                batch = [built for act in acts if (built := build(act, seen, stale, now)) is not None]
                batch += [FireTimers(now, 99, WAITS)] if "ring" in sweeps else []
                batch += [PromoteWaiting(now, now - 40, now - 60, 99, WAITS)] if "promote" in sweeps else []
                await step(store, model, batch, now)
                stale = seen


def born(job_id: str, scheduled: bool, long: bool, now: float) -> Submit:
    steps = ("draw", "scale", "draw") if long else ("draw",)
    job = Job(job_id, "f", "ann", steps, Priority.LOW, Priority.LOW, deadline_at=now + 500 if long else None)
    return transitions.submit(job, "{}", now=now, due_at=now + 5 if scheduled else None, waits=WAITS)


def build(act: tuple[str, str, bool], seen: dict[str, Job], stale: dict[str, Job], now: float) -> Transition | None:
    """The transitions of a caller that sees the job as it is, or as it was a batch ago."""
    job_id, verb, late = act
    job = (stale if late else seen).get(job_id)
    try:
        return None if job is None else VERBS[verb](job, now)
    except WrongState:
        return None


async def step(store: Store, model: Model, batch: Sequence[Transition], now: float) -> None:
    """Apply a batch to both; the results must be equal."""
    model.relayed.clear()
    plain = [transition for transition in batch if not isinstance(transition, FireTimers | PromoteWaiting)]
    expected = [model.apply(transition, now) for transition in plain]
    taken = {getattr(transition, "job_id", "") for transition in plain}
    swept = [model.sweep(one, taken) for one in batch if isinstance(one, FireTimers | PromoteWaiting)]
    committed: Committed = await store.commit(batch)
    assert [type(outcome) for outcome in committed.outcomes] == [*expected, *([Done] * len(swept))]
    for outcome, rung in zip(committed.outcomes[len(expected) :], swept, strict=True):
        assert isinstance(outcome, Done)
        assert outcome.value.found == rung.found
        assert sorted(outcome.value.moves, key=_job_id) == sorted(rung.moves, key=_job_id)
    for outcome in committed.outcomes:
        if isinstance(outcome, Accepted):
            model.jobs[outcome.job_id] = replace(model.jobs[outcome.job_id], seq=outcome.seq)
        elif isinstance(outcome, Started):
            assert outcome.job == model.jobs[outcome.job.id]
    assert sorted(change.job_id for change in committed.changes) == sorted(model.relayed)
    for change in committed.changes:
        assert change.job == model.jobs[change.job_id]
    for job_id in JOBS:
        record = await store.get(job_id)
        if job_id not in model.jobs:
            assert record is None
            continue
        assert record is not None
        assert record.job == model.jobs[job_id]
        assert sorted(record.results, key=_order) == sorted(model.results[job_id], key=_order)
        assert list(record.attempts) == model.attempts[job_id]
    assert sorted(await store.holds(), key=lambda hold: hold.id) == sorted(model.holds, key=lambda hold: hold.id)


def _job_id(swept: tuple[Job, Move]) -> str:
    return swept[0].id


def _order(result: StepResult) -> tuple[int, int]:
    return result.step, result.round
