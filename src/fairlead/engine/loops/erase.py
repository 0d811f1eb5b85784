"""Erases requests and answers of the OpenAI front after the end of their jobs, if `openai.keep` is `nothing`."""

from __future__ import annotations

import logging

from fairlead.dispatch.output_log import OutputLog
from fairlead.domain.job import FINISHED, JobStatus
from fairlead.errors import Unavailable
from fairlead.store.group_commit import GroupCommit
from fairlead.store.port import Done, Ended, Erase, Store

log = logging.getLogger("fairlead.openai")

EVERY = 2.0
PAGE = 1000
MARGIN_S = 15.0
"""Requests join a job until `openai.grace` seconds after its end. They have this much time to read its answer."""
SLACK_S = 60.0
"""How long before the last job that was examined the next look begins. A worker writes the end of a job with the time
at which it ended, and may write it late."""
LOOK_AT_ALL_EVERY_S = 3600.0
_BEGINNING: Ended = (0.0, 0)


class EraseLoop:
    """Examines the ended jobs in the order in which they ended, a page at a time. It begins with all of them, and does
    so again every hour, because an end may be written later than `SLACK_S`."""

    name = "erase"

    def __init__(self, store: Store, group_commit: GroupCommit, outputs: OutputLog, *, grace: float) -> None:
        self._store = store
        self._group_commit = group_commit
        self._outputs = outputs
        self._delay = grace + MARGIN_S
        self._examined: dict[JobStatus, Ended] = {}
        self._all_at = 0.0
        """When all jobs were last examined, on the database's clock."""
        self.scanned = self.queued = 0

    async def tick(self, now: float) -> float:
        if not 0 <= now - self._all_at < LOOK_AT_ALL_EVERY_S:
            self._all_at = now
            self._examined = dict.fromkeys(FINISHED, _BEGINNING)
        before, more = now - self._delay, False
        for status, after in self._examined.items():
            found = await self._store.ended_fronts(status, after=after, before=before, limit=PAGE)
            await self._erase(found.job_ids)
            self._examined[status] = found.last or (before - SLACK_S, 0)
            more = more or found.last is not None
        return now if more else now + EVERY

    async def _erase(self, job_ids: list[str]) -> None:
        if not job_ids:
            return
        self.scanned += len(job_ids)
        try:
            await self._outputs.delete(job_ids)
        except Unavailable as error:
            log.warning("the output of erased requests stays until it expires: %s", error)
        outcome = await self._group_commit.write(Erase(tuple(job_ids)))
        self.queued += int(outcome.value or 0) if isinstance(outcome, Done) else 0
