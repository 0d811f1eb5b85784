"""Helpers that wait for jobs."""

import asyncio

from fairlead import (
    Fairlead,
    JobStatus,
    JobView,
)

PATIENCE = 30.0


async def ended(app: Fairlead, job_id: str) -> JobView:
    job = await app.wait(job_id, PATIENCE)
    assert job.status.finished, job
    return job


async def reaches(app: Fairlead, job_id: str, status: JobStatus) -> None:
    """Wait for the job's events; the timeout of `next` only covers what happened before the subscription."""
    with app.hub.subscribe(job_id) as subscription:
        async with asyncio.timeout(PATIENCE):
            while (await app.get(job_id)).status is not status:
                await subscription.next(0.2)
