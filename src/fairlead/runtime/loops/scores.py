"""Looks which of the jobs that an estimate was given for have started, and tells the scores how long they waited."""

from __future__ import annotations

from fairlead.domain.job import Job
from fairlead.runtime.scores import Scores
from fairlead.store.port import Store

EVERY = 1.0
AT_ONCE = 64
"""Jobs that one look asks for: next to nothing for the store."""
PATIENCE = 0.1
"""A job is looked at again after this share of the time that it has waited: when it started is in the truth."""
SKEW = 5.0
"""What the clocks of two machines may differ by."""


class ScoresLoop:
    name = "scores"

    def __init__(self, store: Store, scores: Scores) -> None:
        self._store = store
        self._scores = scores
        self._looked: dict[str, float] = {}
        """When jobs that had not started were looked at last."""

    async def tick(self, now: float) -> float:
        due = [job_id for job_id in self._scores.given if self._due(job_id, now)][:AT_ONCE]
        jobs = await self._store.get_jobs(due) if due else {}
        for job_id in due:
            self._settle(job_id, jobs.get(job_id), now)
        self._looked = {job_id: at for job_id, at in self._looked.items() if job_id in self._scores.given}
        return now + EVERY

    def _due(self, job_id: str, now: float) -> bool:
        at = self._scores.given[job_id].at
        return now >= max(at + EVERY, self._looked.get(job_id, at) + PATIENCE * (now - at))

    def _settle(self, job_id: str, job: Job | None, now: float) -> None:
        given = self._scores.given.get(job_id)
        if given is None:
            return
        if job is None or (job.started_at is None and job.status.finished):
            self._scores.forget(job_id)
        elif job.started_at is None:
            self._looked[job_id] = now
        elif job.started_at < given.at - SKEW:
            self._scores.forget(job_id)  # it was at a later step already: that wait is not written down
        else:
            self._scores.came_true(job_id, max(0.0, job.started_at - given.at))
