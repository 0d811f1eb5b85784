"""Sweeps: transitions that find their jobs by themselves, within the commit that moves them.

An engine selects the jobs that are due and locks them; here is what becomes of each, by the domain's own words. The
moves then go through the statements of every other move, so that nothing about them is special.
"""

from __future__ import annotations

from collections.abc import Sequence

from fairlead.domain import transitions
from fairlead.domain.job import Job, Priority
from fairlead.domain.transitions import Move
from fairlead.store.port import PromoteWaiting, RingTimers, Transition
from fairlead.store.units import job_id_of

Sweep = RingTimers | PromoteWaiting
KINDS: tuple[type, ...] = (RingTimers, PromoteWaiting)


def moves_of(sweep: Sweep, jobs: Sequence[Job]) -> list[tuple[Job, Move]]:
    """Of the jobs that were found, those that there is something to do for."""
    if isinstance(sweep, PromoteWaiting):
        return [(job, transitions.promote(job, now=sweep.now, waits=sweep.waits)) for job in jobs]
    rung = ((job, transitions.timer_rang(job, now=sweep.now, waits=sweep.waits)) for job in jobs)
    return [(job, move) for job, move in rung if move is not None]


def promoted_bands(sweep: PromoteWaiting) -> tuple[tuple[int, float], ...]:
    """(band, queued at or before), in the order in which they are looked at."""
    return (Priority.LOW.band, sweep.low_before), (Priority.MEDIUM.band, sweep.medium_before)


def taken_in(batch: Sequence[Transition]) -> set[str]:
    """Jobs that have a transition in this batch: no sweep may take them too."""
    return {job_id for job_id in map(job_id_of, batch) if job_id is not None}
