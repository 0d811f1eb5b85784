"""Code that the commits of both engines share: the reasons for refusals, and the moves of sweeps.

A sweep selects the jobs that are due in the same transaction that moves them. The engine selects and locks the jobs.
This module builds their moves, which the engine then applies like any other move.
"""

from __future__ import annotations

from collections.abc import Sequence

from fairlead.domain import transitions
from fairlead.domain.job import Job, Priority
from fairlead.domain.transitions import Move
from fairlead.store.port import Done, FireTimers, PromoteWaiting, Refused, Transition
from fairlead.store.write_units import job_id_of

DONE = Done()
MOVED_ON = Refused("the job has changed or does not exist")
NOT_STARTED = Refused("the job has changed or does not exist, or the epoch has changed")
NOT_FINISHED = Refused("the job is not finished or does not exist")
UNDECLARED = Refused("the service is not declared")
OTHER_RULES = Refused("the rules have changed")
MOVED_ELSEWHERE = Refused("the service is not declared, or its limit has changed")
SPENT = "a budget of the job is spent"
UNDONE = Refused("another job of the same request was refused")

Sweep = FireTimers | PromoteWaiting


def moves_of(sweep: Sweep, jobs: Sequence[Job]) -> list[tuple[Job, Move]]:
    """Build the moves of the jobs that a sweep selected. Jobs that need not move are left out."""
    if isinstance(sweep, PromoteWaiting):
        return [(job, transitions.promote(job, now=sweep.now, waits=sweep.waits)) for job in jobs]
    fired = (
        (job, transitions.timer_rang(job, now=sweep.now, waits=sweep.waits, resumes=sweep.resumes)) for job in jobs
    )
    return [(job, move) for job, move in fired if move is not None]


def promoted_bands(sweep: PromoteWaiting) -> tuple[tuple[int, float], ...]:
    """The bands from which a sweep promotes jobs, as (band, time), in the order of the queries. Jobs of the band that
    were queued at or before that time are promoted."""
    return (Priority.LOW.band, sweep.low_before), (Priority.MEDIUM.band, sweep.medium_before)


def taken_in(batch: Sequence[Transition]) -> set[str]:
    """The ids of the jobs that have a transition in this batch. Sweeps must skip these jobs."""
    return {job_id for job_id in map(job_id_of, batch) if job_id is not None}
