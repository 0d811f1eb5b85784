"""What these tests wait for."""

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
    """Waits on the job's events; the timeout of `next` only covers what happened before we listened."""
    with app.hub.subscribe(job_id) as heard:
        async with asyncio.timeout(PATIENCE):
            while (await app.get(job_id)).status is not status:
                await heard.next(0.2)
