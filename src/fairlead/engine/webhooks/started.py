"""Writes the event `job.started`, between the start of a job's first step and its call."""

from __future__ import annotations

import logging

from fairlead.domain.job import Job
from fairlead.domain.webhooks import STARTED
from fairlead.errors import FairleadError
from fairlead.log_fields import about
from fairlead.store.group_commit import GroupCommit
from fairlead.store.webhooks import RecordEvent, about_start

log = logging.getLogger("fairlead.webhooks")


async def record_start(job: Job, group_commit: GroupCommit) -> None:
    """Write the event if a webhook wants it. The call does not wait for a database that is away: the event is then
    dropped."""
    if job.step or job.webhook is None or not job.webhook.wants(STARTED):
        return
    try:
        await group_commit.write(RecordEvent(job.id, job.run, STARTED, job.webhook, about_start(job)))
    except FairleadError as error:
        log.warning("job %s: its event job.started was not written: %s", job.id, error, extra=about(job))
